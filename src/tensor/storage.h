#pragma once
#include <atomic>
#include <utility>

#include "backend/device.h"
#include "tensor/ref.h"

namespace tern {

/// A block of device memory, shared by every tensor that is a view of it.
///
/// Note [Memory on demand]
/// The memory of some blocks comes and goes while tensors view them (FlatStorage): that of gradients which a rank has handed on, and of
/// parameters of which it keeps a part alone. Who asks where the memory is gets it: data() fetches it first. So whatever reads a tensor,
/// an op, the backward of one that has saved it, or a file that is written, needs not know; but who wants to know which block it is, and
/// not what is in it, compares Storage and offset, and not addresses. A fetch of parameters is a collective, which all ranks take part in.
class Storage : public RefCounted {
 public:
  /// Allocates `bytes` uninitialised bytes on the stream's device.
  Storage(std::size_t bytes, Stream stream);
  ~Storage() override;

  /// The memory, which is fetched where it is away. Throws Error where that fails.
  void* data() const {
    if (!data_ && bytes_ > 0) [[unlikely]]
      const_cast<Storage*>(this)->fetch();
    return data_;
  }
  /// True where data() would not fetch.
  bool is_here() const noexcept { return data_ || bytes_ == 0; }
  std::size_t bytes() const noexcept { return bytes_; }  ///< as they were asked for
  /// True for adopted read-only memory (tensor/from_blob.h): ops in place refuse it.
  bool is_read_only() const noexcept { return is_read_only_; }
  /// The stream that it was allocated on, and with it the device; freed memory goes back to that stream's cache.
  Stream stream() const noexcept { return stream_; }

  /// How often the memory was edited in place. A tensor saved for backward remembers it, and so detects an edit. Threads may edit different
  /// parts, as gradients in one flat buffer are.
  std::uint32_t version() const noexcept { return version_.load(std::memory_order_relaxed); }
  /// Counts an edit. Ops in place do (begin_in_place); who writes through data() by hand has to, or backward may use the new elements.
  void bump_version() noexcept { version_.fetch_add(1, std::memory_order_relaxed); }

 protected:
  /// Memory that was allocated elsewhere: a subclass that takes it back by release_memory() in its destructor, and returns it.
  Storage(void* data, std::size_t bytes, Stream stream, bool is_read_only) noexcept
      : data_(data), bytes_(bytes), stream_(stream), is_read_only_(is_read_only) {}
  /// The memory, which this block has no longer.
  void* release_memory() noexcept { return std::exchange(data_, nullptr); }
  /// Brings memory that is away, by take_memory().
  virtual void fetch() {}
  /// Gives the memory back, where work queued on the stream so far may still use it.
  void free_memory();
  /// Takes the memory of another block of that size, which has none from then on.
  void take_memory(Storage& other);

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Stream stream_;
  std::atomic<std::uint32_t> version_ = 0;
  bool is_read_only_ = false;
};

}  // namespace tern
