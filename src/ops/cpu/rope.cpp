#include <algorithm>

#include "ops/cpu/loops.h"
#include "ops/kernels/attention.h"

namespace tern::kernels {

void rope(Cpu, const View& x, const View& table, const View& y, std::int64_t rotated_heads, bool halves, bool inverse) {
  const std::int64_t heads = x.shape[1], length = x.shape[2], width = x.shape[3];
  dispatch_floats(x.dtype, "rope", [&]<class S>() {
    using C = compute_t<S>;
    const C direction = inverse ? C(-1) : C(1);
    loops::parallel_units(x.shape[0] * heads * length, width, loops::stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t h = row % heads, t = row / heads % length, b = row / heads / length;
        const S* const from = x.as<const S>() + b * x.strides[0] + h * x.strides[1] + t * x.strides[2];
        const C* const turns = table.as<const C>() + t * width;
        S* const to = y.as<S>() + b * y.strides[0] + h * y.strides[1] + t * y.strides[2];
        if (h >= rotated_heads) {
          std::copy_n(from, width, to);
          continue;
        }
        const auto rotate = [&](std::int64_t pair, std::int64_t i, std::int64_t j) {
          const C first = C(from[i]), second = C(from[j]), cosine = turns[2 * pair], sine = direction * turns[2 * pair + 1];
          to[i] = S(first * cosine - second * sine);
          to[j] = S(first * sine + second * cosine);
        };
        const std::int64_t pairs = width / 2;
        if (halves) {
          for (std::int64_t i = 0; i < pairs; ++i) rotate(i, i, pairs + i);
        } else {
          for (std::int64_t i = 0; i < pairs; ++i) rotate(i, 2 * i, 2 * i + 1);
        }
      }
    });
  });
}

}  // namespace tern::kernels
