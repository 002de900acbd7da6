#pragma once
#include <string>

#include "backend/file.h"

namespace tern::bench {

/// A process of its own for what may not end, or not well, such as a kernel of the user's.
class Watched {
 public:
  /// Returns in the new process. The old one waits for that, and leaves with its exit code; it throws std::runtime_error, with the place,
  /// if that was killed, or stayed at a place for too long and is killed now. Nothing may have used a GPU before, which a forked process
  /// could not use then.
  Watched();
  /// The process is at a place from now on, for at most so many seconds; 0: without a limit.
  void at(const std::string& place, double seconds = 0) const;

 private:
  backend::Pipe pipe_;
};

}  // namespace tern::bench
