#pragma once
#include <cstdint>

#include "backend/device.h"

namespace tern::parallel {

/// Counters in host memory that work on a stream increments, also in a replayed graph. By them the host sees, without waiting for the
/// device, if work that has begun has ended.
class Progress {
 public:
  explicit Progress(Device device);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Queue an increment on the stream.
  void count_begin(Stream stream) { count(stream, 0); }
  void count_end(Stream stream) { count(stream, 1); }

  std::uint32_t begun() const { return shown_[0]; }
  std::uint32_t ended() const { return shown_[1]; }

 private:
  void count(Stream stream, int which);

  std::uint32_t* counts_ = nullptr;          ///< (2), on the device; written by one stream at a time
  volatile std::uint32_t* shown_ = nullptr;  ///< (2), a copy in pinned host memory
};

}  // namespace tern::parallel
