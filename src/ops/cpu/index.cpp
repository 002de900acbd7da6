#include "ops/kernels/index.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "ops/cpu/loops.h"

namespace tern::kernels {

using namespace loops;

namespace {

/// Throws unless all indices lie in [0, size). Kernels call it before they write anything.
void check_indices(const char* where, const View& index, std::int64_t size) {
  const auto loop = make_loop<1>(index.shape, {&index.strides});
  const auto* const data = index.as<const std::int64_t>();
  // Without an early exit the loop vectorises; the culprit is looked for only when there is one.
  bool all_inside = true;
  walk(loop, 0, loop.count, loop.count, [&](const std::int64_t* at, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) all_inside &= std::uint64_t(data[at[0] + i * loop.inner_stride(0)]) < std::uint64_t(size);
  });
  if (all_inside) return;
  walk(loop, 0, loop.count, 1, [&](const std::int64_t* at, std::int64_t) {
    const std::int64_t value = data[at[0]];
    if (value < 0 || value >= size)
      fail(where, "expected indices from 0 to " + std::to_string(size - 1) + " but got " + std::to_string(value));
  });
}

/// A view without one dimension.
Shape without(Shape shape, int dim) {
  shape.erase(dim);
  return shape;
}

/// a + b, in float for the 16-bit floats; integers wrap.
template <class S>
[[gnu::always_inline]] inline S sum_of(S a, S b) {
  if constexpr (std::is_integral_v<S>) return S(std::uint64_t(a) + std::uint64_t(b));
  else return S(compute_t<S>(a) + compute_t<S>(b));
}

/// Calls f(i, j, offsets) for all positions i along a dimension of the given length and all elements j of runs of the
/// other dimensions, in ascending order of i for each element; runs are shared among threads. `step` is the step along
/// the dimension in the first operand: whichever of i and j moves less in memory is the inner loop.
template <int N, class F>
void for_each_line(const Loop<N>& others, std::int64_t length, std::int64_t step, F&& f) {
  const bool lines = std::abs(step) < std::abs(others.inner_stride(0)) || others.inner() == 1;
  parallel_units(others.count, length, function_grain, [&](std::int64_t begin, std::int64_t end) {
    walk(others, begin, end, lines ? 1 : chunk, [&](const std::int64_t* at, std::int64_t n) {
      for (std::int64_t i = 0; i < length; ++i)
        for (std::int64_t j = 0; j < n; ++j) f(i, j, at);
    });
  });
}

}  // namespace

void gather(Cpu, const View& x, const View& index, const View& y, int dim) {
  check_indices("gather", index, x.shape[dim]);
  const Strides x_others = without(x.strides, dim), index_others = without(index.strides, dim), y_others = without(y.strides, dim);
  const auto others = make_loop<3>(without(y.shape, dim), {&y_others, &index_others, &x_others});
  const std::int64_t y_step = y.strides[dim], index_step = index.strides[dim], x_step = x.strides[dim];
  dispatch_size(y.dtype, [&]<class U>() {
    for_each_line(others, y.shape[dim], y_step, [&](std::int64_t i, std::int64_t j, const std::int64_t* at) {
      const std::int64_t from = index.as<const std::int64_t>()[at[1] + j * others.inner_stride(1) + i * index_step];
      y.as<U>()[at[0] + j * others.inner_stride(0) + i * y_step] = x.as<const U>()[at[2] + j * others.inner_stride(2) + from * x_step];
    });
  });
}

void scatter_add(Cpu, const View& y, const View& index, const View& source, int dim) {
  check_indices("scatter_add", index, y.shape[dim]);
  const Strides y_others = without(y.strides, dim), index_others = without(index.strides, dim);
  const Strides source_others = without(source.strides, dim);
  // Elements that share all other coordinates may meet in one target, so a thread takes whole lines along `dim`.
  const auto others = make_loop<3>(without(index.shape, dim), {&source_others, &index_others, &y_others});
  const std::int64_t y_step = y.strides[dim], index_step = index.strides[dim], source_step = source.strides[dim];
  dispatch_numbers(y.dtype, "scatter_add", [&]<class S>() {
    for_each_line(others, index.shape[dim], source_step, [&](std::int64_t i, std::int64_t j, const std::int64_t* at) {
      const std::int64_t to = index.as<const std::int64_t>()[at[1] + j * others.inner_stride(1) + i * index_step];
      S& target = y.as<S>()[at[2] + j * others.inner_stride(2) + to * y_step];
      target = sum_of(target, source.as<const S>()[at[0] + j * others.inner_stride(0) + i * source_step]);
    });
  });
}

void index_select(Cpu, const View& x, const View& index, const View& y) {
  check_indices("index_select", index, x.shape[1]);
  if (y.numel() == 0) return;  // memcpy takes no null, not even for nothing
  const std::int64_t count = y.shape[1], width = y.shape[2], x_stride = x.strides[2], y_stride = y.strides[2];
  dispatch_size(y.dtype, [&]<class U>() {
    parallel_units(y.shape[0] * count, width, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t a = row / count, i = row % count, from_row = index.as<const std::int64_t>()[i * index.strides[0]];
        const U* from = x.as<const U>() + a * x.strides[0] + from_row * x.strides[1];
        U* to = y.as<U>() + a * y.strides[0] + i * y.strides[1];
        if (x_stride == 1 && y_stride == 1) std::memcpy(to, from, static_cast<std::size_t>(width) * sizeof(U));
        else
          for (std::int64_t c = 0; c < width; ++c) to[c * y_stride] = from[c * x_stride];
      }
    });
  });
}

/// index_add of 16-bit floats: what goes to one element is summed in float32 and rounded once.
template <class S>
static void add_in_float(const View& y, const View& index, const View& source) {
  constexpr std::int64_t block = 32;
  const std::int64_t outer = y.shape[0], count = source.shape[1], width = y.shape[2], blocks = (width + block - 1) / block;
  // The rows that are added to, each once, and which of them an index means.
  const Scratch<std::int32_t> place_of_row(y.shape[1], y.stream);
  std::fill_n(place_of_row.data(), y.shape[1], -1);
  std::vector<std::int64_t> rows;
  std::vector<std::int32_t> places(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = index.as<const std::int64_t>()[i * index.strides[0]];
    std::int32_t& place = place_of_row.data()[row];
    if (place < 0) place = static_cast<std::int32_t>(rows.size()), rows.push_back(row);
    places[static_cast<std::size_t>(i)] = place;
  }
  parallel_units(outer * blocks, count * block, stream_grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sums(rows.size() * block);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t a = unit / blocks, first = unit % blocks * block, columns = std::min(width - first, block);
      const auto for_rows = [&](auto&& f) {
        for (std::size_t r = 0; r < rows.size(); ++r) {
          S* const to = y.as<S>() + a * y.strides[0] + rows[r] * y.strides[1] + first * y.strides[2];
          for (std::int64_t c = 0; c < columns; ++c) f(to[c * y.strides[2]], sums[r * block + static_cast<std::size_t>(c)]);
        }
      };
      for_rows([](S element, float& sum) { sum = static_cast<float>(element); });
      for (std::int64_t i = 0; i < count; ++i) {
        const S* const from = source.as<const S>() + a * source.strides[0] + i * source.strides[1] + first * source.strides[2];
        float* const to = sums.data() + places[static_cast<std::size_t>(i)] * block;
        for (std::int64_t c = 0; c < columns; ++c) to[c] += static_cast<float>(from[c * source.strides[2]]);
      }
      for_rows([](S& element, float sum) { element = S(sum); });
    }
  });
}

void index_add(Cpu, const View& y, const View& index, const View& source) {
  check_indices("index_add", index, y.shape[1]);
  const std::int64_t outer = y.shape[0], count = source.shape[1], width = y.shape[2], y_stride = y.strides[2], stride = source.strides[2];
  // Threads take columns: equal indices then meet in one thread, in order, and frequent ones cannot unbalance the work.
  // A column block is a multiple of a cache line, so that threads do not write to the same one.
  constexpr std::int64_t block = 32;
  const std::int64_t blocks = (width + block - 1) / block;
  dispatch_numbers(y.dtype, "index_add", [&]<class S>() {
    if constexpr (sizeof(S) == 2) return add_in_float<S>(y, index, source);
    parallel_units(outer * blocks, count * block, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        const std::int64_t a = begin / blocks, first = begin % blocks * block, last = std::min(width, first + (end - begin) * block);
        for (std::int64_t i = 0; i < count; ++i) {
          const S* from = source.as<const S>() + a * source.strides[0] + i * source.strides[1];
          S* to = y.as<S>() + a * y.strides[0] + index.as<const std::int64_t>()[i * index.strides[0]] * y.strides[1];
          if (y_stride == 1 && stride == 1) {
#pragma omp simd
            for (std::int64_t c = first; c < last; ++c) to[c] = sum_of(to[c], from[c]);
          } else {
            for (std::int64_t c = first; c < last; ++c) to[c * y_stride] = sum_of(to[c * y_stride], from[c * stride]);
          }
        }
        begin += (last - first + block - 1) / block;
      }
    });
  });
}

}  // namespace tern::kernels
