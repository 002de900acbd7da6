#include "ops/kernels/index.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "ops/cpu/loops.h"
#include "tensor/sizes.h"

namespace tern::kernels {

using namespace loops;

namespace {

/// Throws unless all indices are in [0, size). Kernels call it before they write anything.
void check_indices(const char* where, const View& index, std::int64_t size) {
  const auto loop = make_loop<1>(index.shape, {index.strides});
  const auto* const data = index.as<const std::int64_t>();
  // Without an early exit the loop vectorizes; the bad index is searched only if there is one.
  bool all_inside = true;
  walk(loop, 0, loop.numel(), loop.numel(), [&](const std::int64_t* at, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) all_inside &= std::uint64_t(data[at[0] + i * loop.inner_stride(0)]) < std::uint64_t(size);
  });
  if (all_inside) return;
  walk(loop, 0, loop.numel(), 1, [&](const std::int64_t* at, std::int64_t) {
    const std::int64_t value = data[at[0]];
    if (value < 0 || value >= size)
      fail(where, "expected indices from 0 to " + std::to_string(size - 1) + " but got " + std::to_string(value));
  });
}

/// Shape or strides of a view without one dimension.
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

/// Calls f(i, j, offsets) for all positions i along a dimension of the given length and all elements j of segments of the other dimensions,
/// in ascending order of i for each element; segments are shared among threads. `step` is the stride of the dimension in the first operand:
/// of i and j, the one with the smaller stride in memory is the inner loop.
template <int N, class F>
void for_each_line(const Layout<N>& others, std::int64_t length, std::int64_t step, F&& f) {
  const bool lines = std::abs(step) < std::abs(others.inner_stride(0)) || others.inner() == 1;
  parallel_units(others.numel(), length, function_grain, [&](std::int64_t begin, std::int64_t end) {
    walk(others, begin, end, lines ? 1 : chunk, [&](const std::int64_t* at, std::int64_t n) {
      for (std::int64_t i = 0; i < length; ++i)
        for (std::int64_t j = 0; j < n; ++j) f(i, j, at);
    });
  });
}

/// Note [Long sums]: the maximal length of a plain sum in float32. Each addition rounds: the error of a sum of numbers of one sign is at
/// most 1e-6 for 16 numbers, and 1% for a million. Longer sums are in float64, or in float32 for up to 16 numbers at a time, which is
/// faster, and these in float64. A sum of 16-bit floats is rounded to 16 bits once, at its end.
constexpr std::int64_t short_sum = 16;

/// scatter_add with float64 sums of whole lines of y along `dim`; copying y has cost as much already. others: the lines of source, index
/// and y.
template <class S>
void scatter_long_sums(const View& y, const View& index, const View& source, const Layout<3>& others, int dim) {
  constexpr std::int64_t max_sums = 131072, max_lines = 256;  // sums fit into the L2 cache, if lines are no longer than that
  const std::int64_t targets = y.shape[dim], length = index.shape[dim], lines = std::clamp<std::int64_t>(max_sums / targets, 1, max_lines);
  const Scratch<double> memory(num_threads() * targets * lines, y.stream);
  parallel_units(others.numel(), length, function_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
    double* const sums = memory.data() + thread * targets * lines;
    walk(others, begin, end, lines, [&](const std::int64_t* at, std::int64_t n) {
      const auto for_targets = [&](auto&& f) {
        for (std::int64_t t = 0; t < targets; ++t)
          for (std::int64_t j = 0; j < n; ++j) f(y.as<S>()[at[2] + j * others.inner_stride(2) + t * y.strides[dim]], sums[t * n + j]);
      };
      for_targets([](const S& element, double& sum) { sum = convert<double>(element); });
      for (std::int64_t i = 0; i < length; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          const std::int64_t to = index.as<const std::int64_t>()[at[1] + j * others.inner_stride(1) + i * index.strides[dim]];
          sums[to * n + j] += convert<double>(source.as<const S>()[at[0] + j * others.inner_stride(0) + i * source.strides[dim]]);
        }
      for_targets([](S& element, double sum) { element = convert<S>(sum); });
    });
  });
}

}  // namespace

void Gather::run(Cpu) const {
  check_indices("gather", index, x.shape[dim]);
  const Strides x_others = without(x.strides, dim), index_others = without(index.strides, dim), y_others = without(y.strides, dim);
  const auto others = make_loop<3>(without(y.shape, dim), {y_others, index_others, x_others});
  const std::int64_t y_step = y.strides[dim], index_step = index.strides[dim], x_step = x.strides[dim];
  dispatch_bits(y.dtype, [&]<class U>() {
    for_each_line(others, y.shape[dim], y_step, [&](std::int64_t i, std::int64_t j, const std::int64_t* at) {
      const std::int64_t from = index.as<const std::int64_t>()[at[1] + j * others.inner_stride(1) + i * index_step];
      y.as<U>()[at[0] + j * others.inner_stride(0) + i * y_step] = x.as<const U>()[at[2] + j * others.inner_stride(2) + from * x_step];
    });
  });
}

void ScatterAdd::run(Cpu) const {
  check_indices("scatter_add", index, y.shape[dim]);
  const Strides y_others = without(y.strides, dim), index_others = without(index.strides, dim);
  const Strides source_others = without(source.strides, dim);
  // Elements that share all other coordinates may have the same target, so a thread takes whole lines along `dim`.
  const auto others = make_loop<3>(without(index.shape, dim), {source_others, index_others, y_others});
  const std::int64_t y_step = y.strides[dim], index_step = index.strides[dim], source_step = source.strides[dim];
  dispatch_numbers(y.dtype, "scatter_add", [&]<class S>() {
    if (std::is_floating_point_v<compute_t<S>> && sizeof(S) < 8 && index.shape[dim] > (sizeof(S) == 2 ? 1 : short_sum))
      return scatter_long_sums<S>(y, index, source, others, dim);
    for_each_line(others, index.shape[dim], source_step, [&](std::int64_t i, std::int64_t j, const std::int64_t* at) {
      const std::int64_t to = index.as<const std::int64_t>()[at[1] + j * others.inner_stride(1) + i * index_step];
      S& target = y.as<S>()[at[2] + j * others.inner_stride(2) + to * y_step];
      target = sum_of(target, source.as<const S>()[at[0] + j * others.inner_stride(0) + i * source_step]);
    });
  });
}

namespace {

/// Copies rows between slices (A, I, C) and the rows (A, N, C) at an index, in either direction.
void copy_rows(const View& slices, const View& index, const View& rows, bool is_from_rows) {
  if (slices.numel() == 0) return;  // memcpy takes no null pointer, even for no bytes
  const std::int64_t count = slices.shape[1], width = slices.shape[2];
  const View &from = is_from_rows ? rows : slices, &to = is_from_rows ? slices : rows;
  const std::int64_t from_stride = from.strides[2], to_stride = to.strides[2];
  dispatch_bits(slices.dtype, [&]<class U>() {
    parallel_units(slices.shape[0] * count, width, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t unit = begin; unit < end; ++unit) {
        const std::int64_t a = unit / count, slice = unit % count, row = index.as<const std::int64_t>()[slice * index.strides[0]];
        const U* source = from.as<const U>() + a * from.strides[0] + (is_from_rows ? row : slice) * from.strides[1];
        U* target = to.as<U>() + a * to.strides[0] + (is_from_rows ? slice : row) * to.strides[1];
        if (from_stride == 1 && to_stride == 1) std::memcpy(target, source, static_cast<std::size_t>(width) * sizeof(U));
        else
          for (std::int64_t c = 0; c < width; ++c) target[c * to_stride] = source[c * from_stride];
      }
    });
  });
}

}  // namespace

void Positions::run(Cpu) const {
  const auto* const is_found = flags.as<const bool>();
  const auto* const rank = ends.as<const std::int64_t>();
  parallel(flags.numel(), stream_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      if (is_found[i]) found.as<std::int64_t>()[rank[i] - 1] = i;
  });
}

void IndexSelect::run(Cpu) const {
  check_indices("index_select", index, x.shape[1]);
  copy_rows(y, index, x, true);
}

void IndexCopy::run(Cpu) const {
  check_indices("index_copy_", index, y.shape[1]);
  copy_rows(source, index, y, false);
}

namespace {

/// Rows to which more than `at_most` slices are added.
class BusyRows {
 public:
  BusyRows(const View& index, std::int64_t length, std::int64_t at_most, const Stream& stream) : places_(length, stream) {
    std::int32_t* const counts = places_.data();
    std::fill_n(counts, length, 0);
    for (std::int64_t i = 0; length > 0 && i < index.shape[0]; ++i) ++counts[index.as<const std::int64_t>()[i * index.strides[0]]];
    for (std::int64_t row = 0; row < length; ++row) {
      const bool is_busy = counts[row] > at_most;
      counts[row] = is_busy ? static_cast<std::int32_t>(rows_.size()) : -1;
      if (is_busy) rows_.push_back(row);
    }
  }
  std::int64_t count() const { return std::int64_t(rows_.size()); }
  std::int64_t operator[](std::int64_t place) const { return rows_[std::size_t(place)]; }
  /// Index of a row among these, or -1.
  std::int32_t place_of(std::int64_t row) const { return rows_.empty() ? -1 : places_.data()[row]; }

 private:
  Scratch<std::int32_t> places_;
  std::vector<std::int64_t> rows_;
};

/// Memory for the sums of one thread, each (rows, pitch).
struct Sums {
  float* narrow;  ///< sums of all rows that are added to, if y has 16 bits
  double* long_sums;
  std::int32_t* added;  ///< count of additions to a long row since its float32 sum was moved to float64
  std::int64_t pitch;
};

/// y (N, C) += source (I, C) at the indices, in ascending order of i. Sums accumulate in y, or in float32 if y has 16 bits; those of long
/// rows are moved to float64 sums regularly, Note [Long sums].
template <class S>
void add_slices(const View& y, const View& index, const View& source, const BusyRows& narrow_rows, const BusyRows& long_rows,
                const Sums& sums) {
  using C = compute_t<S>;
  constexpr bool is_narrow = sizeof(S) == 2;
  const std::int64_t columns = y.shape[1], y_stride = y.strides[1], stride = source.strides[1], to_stride = is_narrow ? 1 : y_stride;
  alignas(64) C buffer[chunk];
  const auto row_of = [&](std::int64_t row) { return y.as<S>() + row * y.strides[0]; };
  const auto sum_at = [&](std::int64_t row) {
    if constexpr (is_narrow) return sums.narrow + narrow_rows.place_of(row) * sums.pitch;
    else return row_of(row);
  };
  if constexpr (is_narrow)
    for (std::int64_t r = 0; r < narrow_rows.count(); ++r) {
      const C* const held = load(row_of(narrow_rows[r]), y_stride, columns, buffer);
      std::copy_n(held, columns, sums.narrow + r * sums.pitch);
    }
  std::fill_n(sums.long_sums, long_rows.count() * sums.pitch, 0.0);
  std::fill_n(sums.added, long_rows.count(), 0);
  for (std::int64_t i = 0; i < source.shape[0]; ++i) {
    const std::int64_t row = index.as<const std::int64_t>()[i * index.strides[0]];
    const C* const slice = load(source.as<const S>() + i * source.strides[0], stride, columns, buffer);
    C* const sum = sum_at(row);
    if (to_stride == 1) {
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) sum[c] = sum_of(sum[c], slice[c]);
    } else {
      for (std::int64_t c = 0; c < columns; ++c) sum[c * to_stride] = sum_of(sum[c * to_stride], slice[c]);
    }
    const std::int32_t place = long_rows.place_of(row);
    if (place < 0 || ++sums.added[place] < short_sum) continue;
    sums.added[place] = 0;
    for (std::int64_t c = 0; c < columns; ++c) sums.long_sums[place * sums.pitch + c] += double(std::exchange(sum[c * to_stride], C(0)));
  }
  for (std::int64_t r = 0; r < long_rows.count(); ++r) {
    C* const sum = sum_at(long_rows[r]);
    for (std::int64_t c = 0; c < columns; ++c) sum[c * to_stride] = C(sums.long_sums[r * sums.pitch + c] + double(sum[c * to_stride]));
  }
  if constexpr (is_narrow)
    for (std::int64_t r = 0; r < narrow_rows.count(); ++r) store(sums.narrow + r * sums.pitch, row_of(narrow_rows[r]), y_stride, columns);
}

/// Columns [first, last) of matrix a of a view (A, N, C).
View columns_of(const View& x, std::int64_t a, std::int64_t first, std::int64_t last) {
  View part = x;
  part.data = static_cast<char*>(x.data) + (a * x.strides[0] + first * x.strides[2]) * std::int64_t(size_of(x.dtype));
  part.shape = {x.shape[1], last - first};
  part.strides = {x.strides[1], x.strides[2]};
  return part;
}

}  // namespace

void IndexAdd::run(Cpu) const {
  check_indices("index_add", index, y.shape[1]);
  const std::int64_t outer = y.shape[0], count = source.shape[1], width = y.shape[2];
  // Threads take columns: equal indices are then added by one thread, in order, and frequent ones do not unbalance the work. A block of
  // columns is a multiple of a cache line, so that threads do not write to the same line.
  constexpr std::int64_t block = 32, max_sums = 131072;
  const std::int64_t blocks = ceil_div(width, block);
  dispatch_numbers(y.dtype, "index_add", [&]<class S>() {
    constexpr bool is_narrow = sizeof(S) == 2, has_long = is_narrow || std::is_same_v<S, float>;
    const BusyRows narrow_rows(index, is_narrow ? y.shape[1] : 0, 0, y.stream),
        long_rows(index, has_long && count > short_sum ? y.shape[1] : 0, short_sum, y.stream);
    // As many columns at a time as keep their sums in the L2 cache.
    const std::int64_t at_once =
        std::clamp<std::int64_t>(max_sums / block / std::max<std::int64_t>(narrow_rows.count() + long_rows.count(), 1), 1, chunk / block);
    const std::int64_t pitch = at_once * block, narrow_size = narrow_rows.count() * pitch, long_size = long_rows.count() * pitch;
    const Scratch<float> narrow_memory(num_threads() * narrow_size, y.stream);
    const Scratch<double> long_memory(num_threads() * long_size, y.stream);
    const Scratch<std::int32_t> added(num_threads() * long_rows.count(), y.stream);
    parallel_units(outer * blocks, count * block, stream_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      const Sums sums{narrow_memory.data() + thread * narrow_size, long_memory.data() + thread * long_size,
                      added.data() + thread * long_rows.count(), pitch};
      while (begin < end) {
        const std::int64_t a = begin / blocks, first = begin % blocks * block,
                           last = std::min(width, first + std::min(end - begin, at_once) * block);
        add_slices<S>(columns_of(y, a, first, last), index, columns_of(source, a, first, last), narrow_rows, long_rows, sums);
        begin += ceil_div(last - first, block);
      }
    });
  });
}

}  // namespace tern::kernels
