#include <omp.h>

#include "backend/device.h"

namespace tern {

int num_threads() { return omp_get_max_threads(); }

void set_num_threads(int count) {
  if (count < 1) fail("set_num_threads", "expected at least one thread but got " + std::to_string(count));
  omp_set_num_threads(count);
}

}  // namespace tern
