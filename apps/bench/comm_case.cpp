#include "bench/comm_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "backend/error.h"
#include "backend/system_memory.h"
#include "bench/cost_model.h"
#include "bench/ranks.h"
#include "common/program.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"

namespace tern::bench {

namespace {

/// The input of rank r is (i + r) mod 3 at index i: small whole numbers, whose sums over a hundred ranks are exact in 16 bits.
class Pattern {
 public:
  Pattern(DType dtype, Device device) : dtype_(dtype), device_(device) {}

  void fill(const Tensor& x, std::int64_t first, int rank) const {
    over(x, first, [&](const Tensor& part, std::int64_t phase) { copy_(part, period(phase, rank, 1, part.numel())); });
  }
  /// The largest difference between x, which starts at index `first`, and the sum over `ranks` ranks from `rank` on.
  double deviation(const Tensor& x, std::int64_t first, int rank, int ranks) const {
    double most = 0;
    over(x, first, [&](const Tensor& part, std::int64_t phase) {
      const Tensor distance = abs(cast(part, DType::f32) - cast(period(phase, rank, ranks, part.numel()), DType::f32));
      const auto here = static_cast<double>(max(distance).item<float>());
      most = std::isnan(here) ? INFINITY : std::max(most, here);
    });
    return most;
  }

 private:
  static constexpr std::int64_t length_ = 3 << 18;  ///< elements of a piece, a multiple of the period

  template <class F>
  void over(const Tensor& x, std::int64_t first, F&& f) const {
    for (std::int64_t i = 0; i < x.numel(); i += length_) f(slice(x, 0, i, std::min(i + length_, x.numel())), first % 3);
  }
  Tensor period(std::int64_t phase, int rank, int ranks, std::int64_t count) const {
    if (key_ != std::tuple(phase, rank, ranks) || period_.numel() < count) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i)
        for (int r = rank; r < rank + ranks; ++r) values[static_cast<std::size_t>(i)] += static_cast<float>((phase + i + r) % 3);
      period_ = cast(Tensor::from(values, {count}, device_), dtype_);
      key_ = {phase, rank, ranks};
    }
    return slice(period_, 0, 0, count);
  }

  DType dtype_;
  Device device_;
  mutable Tensor period_ = {};
  mutable std::tuple<std::int64_t, int, int> key_{-1, 0, 0};
};

/// The tensors of a case: the whole, and this rank's part if the collective has parts.
struct Buffers {
  Tensor whole, part;
};

void call(parallel::ProcessGroup& group, const CommCase& c, const Buffers& x) {
  if (c.op == "all_reduce") group.all_reduce(x.whole).wait();
  else if (c.op == "all_gather") group.all_gather(x.whole, x.part).wait();
  else if (c.op == "reduce_scatter") group.reduce_scatter(x.part, x.whole).wait();
  else group.broadcast(x.whole).wait();
}

/// The result of one call with known numbers.
double deviation(parallel::ProcessGroup& group, const CommCase& c, const Buffers& x) {
  const Pattern pattern(c.dtype, group.device());
  const std::int64_t share = x.whole.numel() / group.size();
  if (c.op == "all_gather") pattern.fill(x.part, 0, group.rank());
  else pattern.fill(x.whole, 0, group.rank());
  call(group, c, x);
  if (c.op == "all_reduce") return pattern.deviation(x.whole, 0, 0, group.size());
  if (c.op == "broadcast") return pattern.deviation(x.whole, 0, 0, 1);
  if (c.op == "reduce_scatter") return pattern.deviation(x.part, share * group.rank(), 0, group.size());
  double most = 0;
  for (int rank = 0; rank < group.size(); ++rank)
    most = std::max(most, pattern.deviation(slice(x.whole, 0, share * rank, share * (rank + 1)), 0, rank, 1));
  return most;
}

}  // namespace

CommFigures measure_comm(parallel::ProcessGroup& group, const CommCase& c, double seconds) {
  const NoGrad unrecorded;
  const Device device = group.device();
  const auto elements = static_cast<std::int64_t>(c.bytes / static_cast<double>(size_of(c.dtype)));
  const std::int64_t share = std::max<std::int64_t>(elements / group.size(), 1);
  // The system overcommits the CPU's memory. The engine's copies take at most as much again.
  const double needed = 2.0 * static_cast<double>(share * group.size()) * static_cast<double>(size_of(c.dtype)) * local_ranks();
  if (const auto there = static_cast<double>(backend::usable_memory()); device == cpu && there > 0 && needed > there)
    throw OutOfMemory(fmt::format("[comm] expected {:.3g} GB of memory for {} processes but this machine has {:.3g} GB", needed / 1e9,
                                  local_ranks(), there / 1e9));
  Buffers x{.whole = zeros({share * group.size()}, c.dtype, device)};
  if (c.op == "all_gather" || c.op == "reduce_scatter") x.part = zeros({share}, c.dtype, device);

  // All ranks continue, or none.
  const double wrong = largest(group, {deviation(group, c, x)})[0];
  if (wrong > 0)
    throw std::runtime_error(fmt::format("{} of {} bytes among {} ranks gave a wrong result, off by {}", c.op,
                                         x.whole.numel() * size_of(c.dtype), group.size(), wrong));
  zero_(x.whole);  // so that repeated sums stay finite
  if (x.part.defined()) zero_(x.part);

  // On a GPU enough calls to hide the wait at the end and different start times of the ranks.
  const bool on_gpu = device.type == DeviceType::cuda;
  int calls = on_gpu ? 10 : 1;
  const auto sample = [&] {
    synchronize(device);
    group.barrier();
    return burst(device, calls, [&] { call(group, c, x); });
  };
  const double once = largest(group, {sample()})[0];
  if (on_gpu) calls = static_cast<int>(std::clamp(5 / std::max(once, 1e-3), 5.0, 100.0));
  const int samples = static_cast<int>(std::clamp(seconds * 1e3 / std::max(once * calls, 1e-3), 3.0, 200.0));
  std::vector<double> ms;
  for (int i = 0; i < samples; ++i) ms.push_back(sample());

  CommFigures result{.call = statistics(largest(group, std::move(ms))), .calls = samples * calls};
  result.bytes = static_cast<double>(x.whole.numel()) * static_cast<double>(size_of(c.dtype));
  result.alg_gbs = result.bytes / result.call.median / 1e6;
  result.bus_gbs = result.alg_gbs * bus_factor(c.op, group.size());
  return result;
}

}  // namespace tern::bench
