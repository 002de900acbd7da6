#pragma once
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

  /// How often the memory was edited in place. A tensor saved for backward remembers it, and so detects an edit.
  std::uint32_t version() const noexcept { return version_; }
  void bump_version() noexcept { ++version_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Stream stream_;
  std::uint32_t version_ = 0;
};

}  // namespace tern
