#pragma once
#include "backend/device.h"

namespace tern::test {

/// A number of threads for the calling thread's kernels, until the end of the scope; without a number the one there is, to be restored.
class Threads {
 public:
  explicit Threads(int count = num_threads()) { set_num_threads(count); }
  ~Threads() { set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_ = num_threads();
};

}  // namespace tern::test
