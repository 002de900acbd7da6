#pragma once
#include <cstdint>

#include "backend/device.h"

namespace tern::dist {

/// Numbers in memory of the host that work on a stream counts up, whether it was queued as it is or as a part of a graph: how the host
/// sees, without waiting for the device, whether work that began has ended.
class Progress {
 public:
  explicit Progress(Device device);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Queued on the stream.
  void count_begin(Stream stream) { count(stream, 0); }
  void count_end(Stream stream) { count(stream, 1); }

  std::uint32_t begun() const { return shown_[0]; }
  std::uint32_t ended() const { return shown_[1]; }

 private:
  void count(Stream stream, int which);

  std::uint32_t* counts_ = nullptr;          ///< (2), on the device; a stream at a time writes
  volatile std::uint32_t* shown_ = nullptr;  ///< (2), pinned
};

}  // namespace tern::dist
