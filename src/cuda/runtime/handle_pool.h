#pragma once
#include <mutex>
#include <vector>

#include "cuda/runtime/launch.h"

namespace tern::gpu {

/// Pool of a library's handles; one pool per type of handle. A handle serves one thread at a time, and its workspace one stream: so each
/// thread has one handle per stream. When a thread ends, its handles are left to the next thread; none is ever destroyed, since at process
/// exit that would call a runtime that may be gone.
template <class Handle>
class HandlePool {
 public:
  /// This thread's handle for the stream, whose device is made current. `create` takes the stream and creates a handle if there is none.
  template <class Create>
  static Handle handle_for(Stream stream, Create create) {
    thread_local ThreadHandles handles;
    use(stream);
    for (const Entry& entry : handles.entries)
      if (entry.serves(stream)) return entry.handle;
    Entry entry{stream, {}};
    if (!take(entry)) entry.handle = create(stream);
    handles.entries.push_back(entry);
    return entry.handle;
  }

 private:
  struct Entry {
    Stream stream;
    Handle handle;
    bool serves(Stream other) const { return stream.handle == other.handle && stream.device == other.device; }
  };
  /// Handles of threads that have ended.
  struct Retired {
    std::mutex mutex;
    std::vector<Entry> entries;
  };
  static Retired& retired() {
    static auto& instance = *new Retired;
    return instance;
  }
  struct ThreadHandles {
    std::vector<Entry> entries;
    ~ThreadHandles() {
      const std::lock_guard lock(retired().mutex);
      retired().entries.insert(retired().entries.end(), entries.begin(), entries.end());
    }
  };
  static bool take(Entry& wanted) {
    const std::lock_guard lock(retired().mutex);
    auto& entries = retired().entries;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!entries[i].serves(wanted.stream)) continue;
      wanted = entries[i];
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(i));
      return true;
    }
    return false;
  }
};

}  // namespace tern::gpu
