// Division rounded up, at compile time and of integers of several types.
#include <cstdint>

#include "catch.h"
#include "tensor/sizes.h"

namespace tern {

static_assert(std::is_same_v<decltype(ceil_div(std::int64_t(1), 2)), std::int64_t>);

TEST_CASE("ceil_div counts the steps that cover a number") {
  for (std::int64_t n = 0; n < 40; ++n)
    for (int step = 1; step < 12; ++step) {
      CAPTURE(n, step);
      CHECK(ceil_div(n, step) * step >= n);
      CHECK((ceil_div(n, step) - 1) * step < n);
      CHECK(round_up(n, step) == ceil_div(n, step) * step);
    }
  CHECK(ceil_div(std::size_t(1) << 40, std::size_t(3)) == 366503875926);
}

}  // namespace tern
