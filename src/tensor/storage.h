#pragma once
#include <atomic>
#include <utility>

#include "backend/device.h"
#include "tensor/ref.h"

namespace tern {

/// Block of device memory, shared by all tensors that are views of it. That of a FlatStorage comes and goes while tensors view it.
class Storage : public RefCounted {
 public:
  /// Allocates `bytes` uninitialized bytes on the stream's device.
  Storage(std::size_t bytes, Stream stream);
  ~Storage() override;

  /// Address of the memory. Throws Error if it has been freed.
  void* data() const {
    if (!is_here()) [[unlikely]]
      fail_freed();
    return data_;
  }
  /// False if the memory has been freed.
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
  /// Frees the memory; work already queued on the stream may still use it.
  void free_memory();
  /// Takes the memory of another block of the same size, which is left without memory.
  void take_memory(Storage& other);

 private:
  [[noreturn]] static void fail_freed();

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Stream stream_;
  std::atomic<std::uint32_t> version_ = 0;
  bool is_read_only_ = false;
};

}  // namespace tern
