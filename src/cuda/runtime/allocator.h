#pragma once
#include "backend/device.h"
#include "backend/memory.h"

namespace tern::gpu {

/// Workspace of a call, such as partial results or sorted keys. It is freed to the stream's cache on return, while the kernels that use it
/// may still be queued: later users are queued after them (Note [Stream order]).
class Workspace {
 public:
  Workspace(std::size_t bytes, Stream stream)
      : bytes_(bytes > 0 ? bytes : 1), stream_(stream), data_(backend::allocate(Cuda{}, bytes_, stream)) {}
  ~Workspace() { backend::deallocate(Cuda{}, data_, bytes_, stream_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  template <class T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  std::size_t bytes_;
  Stream stream_;
  void* data_;
};

/// At least `count` completion counters (Note [Last block]) for kernels queued on the stream, all zero. May be called during graph capture.
unsigned* completion_counters(Stream stream, std::size_t count);

/// Memory of the current device outside of the cache, never freed, for `what`. If memory is short, cached memory is freed for it. Throws
/// OutOfMemory.
void* allocate_for_good(std::size_t bytes, const char* what);

/// Waits for the devices and frees all of their cached memory, but for that of graphs.
void release_cached_memory();

/// While one lives, the stream's memory is that of its graphs: Note [Memory of graphs].
class CaptureMemory {
 public:
  explicit CaptureMemory(Stream stream);
  ~CaptureMemory();
  CaptureMemory(const CaptureMemory&) = delete;
  CaptureMemory& operator=(const CaptureMemory&) = delete;

 private:
  Stream stream_;
};
/// To be called when the stream has no graphs any more: their memory is the stream's.
void end_graphs(Stream stream);

}  // namespace tern::gpu
