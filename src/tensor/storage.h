#pragma once
#include <atomic>
#include <utility>

#include "backend/device.h"
#include "tensor/ref.h"

namespace tern {

/// Block of device memory, shared by all tensors that are views of it.
///
/// Note [Memory on demand]
/// The memory of some blocks is freed and allocated again while tensors view them (FlatStorage): that of gradients after a rank has passed
/// them on, and that of parameters of which the rank keeps only a shard. data() fetches the memory if it is absent, so that code that reads
/// a tensor, an op, the backward of one that saved it, or the writer of a file, need not know of this. But code that only wants to know
/// whether two tensors share a block compares Storage and offset, not addresses. A fetch of parameters is a collective that all ranks take
/// part in.
class Storage : public RefCounted {
 public:
  /// Allocates `bytes` uninitialized bytes on the stream's device.
  Storage(std::size_t bytes, Stream stream);
  ~Storage() override;

  /// Address of the memory, which is fetched if it is absent. Throws Error if that fails.
  void* data() const {
    if (!data_ && bytes_ > 0) [[unlikely]]
      const_cast<Storage*>(this)->fetch();
    return data_;
  }
  /// True if data() would not fetch.
  bool is_here() const noexcept { return data_ || bytes_ == 0; }
  std::size_t bytes() const noexcept { return bytes_; }  ///< size as requested
  /// True for adopted read-only memory (tensor/from_blob.h): in-place ops refuse it.
  bool is_read_only() const noexcept { return is_read_only_; }
  /// Stream that the memory was allocated on, and with it the device; freed memory returns to that stream's cache.
  Stream stream() const noexcept { return stream_; }

  /// Number of in-place edits of the memory. A tensor saved for backward remembers it, and so detects an edit. Threads may edit different
  /// parts, such as gradients in one flat buffer.
  std::uint32_t version() const noexcept { return version_.load(std::memory_order_relaxed); }
  /// Counts an edit. In-place ops do so (begin_in_place); code that writes through data() must do so itself, or backward may use the new
  /// elements.
  void bump_version() noexcept { version_.fetch_add(1, std::memory_order_relaxed); }

 protected:
  /// Memory that was allocated elsewhere: for a subclass that takes it back with release_memory() in its destructor, and returns it.
  Storage(void* data, std::size_t bytes, Stream stream, bool is_read_only) noexcept
      : data_(data), bytes_(bytes), stream_(stream), is_read_only_(is_read_only) {}
  /// Returns the memory, and leaves this block without it.
  void* release_memory() noexcept { return std::exchange(data_, nullptr); }
  /// Fetches memory that is absent, with take_memory().
  virtual void fetch() {}
  /// Frees the memory; work already queued on the stream may still use it.
  void free_memory();
  /// Takes the memory of another block of the same size, which is left without memory.
  void take_memory(Storage& other);

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Stream stream_;
  std::atomic<std::uint32_t> version_ = 0;
  bool is_read_only_ = false;
};

}  // namespace tern
