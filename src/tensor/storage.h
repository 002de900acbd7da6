#pragma once
#include <atomic>

#include "backend/device.h"
#include "tensor/ref.h"

namespace tern {

/// A block of device memory, shared by every tensor that is a view of it.
class Storage : public RefCounted {
 public:
  /// Allocates `bytes` uninitialised bytes on the stream's device.
  Storage(std::size_t bytes, Stream stream);
  ~Storage() override;

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  Stream stream() const noexcept { return stream_; }

  /// How often the memory was edited in place. A tensor saved for backward remembers it, and so detects an edit. Threads may edit different
  /// parts, as gradients in one flat buffer are.
  std::uint32_t version() const noexcept { return version_.load(std::memory_order_relaxed); }
  void bump_version() noexcept { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Stream stream_;
  std::atomic<std::uint32_t> version_ = 0;
};

}  // namespace tern
