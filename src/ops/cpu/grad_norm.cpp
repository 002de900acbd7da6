#include <algorithm>
#include <cmath>

#include "ops/cpu/loops.h"
#include "ops/kernels/optimizer.h"

namespace tern::kernels {

using namespace loops;

/// More parts than there are threads, each with enough elements that its fixed cost is negligible.
std::int64_t square_sum_parts(Cpu, std::int64_t count) { return std::clamp<std::int64_t>(count / 4096, 1, 1024); }

void square_sums(Cpu, const View& x, const View& sums) {
  const std::int64_t count = x.numel(), parts = sums.numel();
  double* const result = sums.as<double>();
  dispatch_floats(x.dtype, "square_sums", [&]<class T>() {
    using C = compute_t<T>;
    const T* const from = x.as<const T>();
    parallel_units(parts, count / std::max<std::int64_t>(parts, 1), stream_grain, [=](std::int64_t begin, std::int64_t end) {
      alignas(64) C buffer[chunk];
      for (std::int64_t part = begin; part < end; ++part) {
        const std::int64_t last = count * (part + 1) / parts;
        double total = 0;
        for (std::int64_t first = count * part / parts; first < last; first += chunk) {
          const std::int64_t n = std::min(chunk, last - first);
          const C* const values = load(from + first, 1, n, buffer);
          C sum = 0;
#pragma omp simd reduction(+ : sum)
          for (std::int64_t i = 0; i < n; ++i) sum += values[i] * values[i];
          if (std::isfinite(sum)) total += double(sum);
          else
            for (std::int64_t i = 0; i < n; ++i) total += double(values[i]) * double(values[i]);  // squares beyond float's range
        }
        result[part] = total;
      }
    });
  });
}

void clip_factor(Cpu, const ClipArguments& a) {
  const double* const sums = a.sums.as<const double>();
  double total = 0;
  for (std::int64_t i = 0; i < a.sums.numel(); ++i) total += sums[i];
  ClipFactor{a}(total);
}

}  // namespace tern::kernels
