#include "ops/kernels/reduce.h"

#include <cmath>

#include "ops/cpu/loops.h"
#include "ops/cpu/rows.h"
#include "ops/kernels/math.h"
#include "tensor/sizes.h"

namespace tern::kernels {

using namespace loops;

// Note [Reductions]: the dimensions are divided into those that y keeps and those that are reduced. If a reduced dimension has x's smallest
// stride, each output folds runs of memory ("by rows"); if a kept one has it, a block of neighbouring outputs folds row after row into a
// buffer ("by columns"), so that memory is read in order either way. A few outputs of many elements each are divided into parts of a fixed
// size, which threads share and which are folded at the end. Parts, blocks and their order depend on the shape alone, so the result does
// not depend on the number of threads.
//
// A block of at most `chunk` elements is folded in the lanes of a few vectors, and blocks are combined pairwise (Cascade), so the error
// of a sum grows with the logarithm of its length.

namespace {

/// Fold of values of type C. `block` folds contiguous values to one; `columns` folds n values into n accumulators.
template <class C>
struct Fold {
  C identity;
  C (*block)(const C* x, std::int64_t n);
  void (*columns)(C* accumulators, const C* x, std::int64_t n);
};

template <class F, class C>
constexpr Fold<C> fold_of() {
  return {F::template identity<C>(), fold_run<F, C>, fold_columns<F, C>};
}

template <class C>
Fold<C> fold_for(ReduceFunction f) {
  switch (f) {
    case ReduceFunction::sum: return fold_of<Sum, C>();
    case ReduceFunction::prod: return fold_of<Product, C>();
    case ReduceFunction::max: return fold_of<Largest, C>();
    default: return fold_of<Smallest, C>();
  }
}

/// Folds rows of equal width pairwise: level 0 takes 16 rows in order, each further level 4 rows of the level below.
template <class C>
class Cascade {
 public:
  static constexpr int level_count = 8;  // beyond 16 * 4^7 rows the top level continues in order

  /// `levels` has room for level_count rows.
  Cascade(const Fold<C>& fold, C* levels, std::int64_t width) : fold_(fold), levels_(levels), width_(width) {
    std::fill_n(levels_, width_, fold_.identity);
  }
  void add(const C* row) {
    fold_.columns(levels_, row, width_);
    if (++count_ % 16 == 0) carry();
  }
  /// Fold of all rows.
  C* finish() {
    for (int k = 1; k < used_; ++k) fold_.columns(levels_, levels_ + k * width_, width_);
    return levels_;
  }

 private:
  void carry() {
    std::int64_t rows = count_ / 16;
    for (int k = 0; k + 1 < level_count; ++k, rows /= 4) {
      C *const level = levels_ + k * width_, *const above = level + width_;
      if (k + 1 == used_) {
        std::copy_n(level, width_, above);
        ++used_;
      } else {
        fold_.columns(above, level, width_);
      }
      std::fill_n(level, width_, fold_.identity);
      if (rows % 4 != 0) break;
    }
  }

  const Fold<C>& fold_;
  C* levels_;
  std::int64_t width_;
  std::int64_t count_ = 0;
  int used_ = 1;
};

/// Division of the work: blocks of neighbouring outputs, and parts of their reduced dimensions.
struct Plan {
  Layout<2> kept;     ///< strides in x and in y
  Layout<1> reduced;  ///< strides in x
  bool by_columns = false;
  std::int64_t width = 1;  ///< outputs in a block
  std::int64_t blocks = 0, parts = 1;

  std::int64_t part_begin(std::int64_t part) const { return reduced.numel() * part / parts; }
};

Plan make_plan(const View& x, const View& y, bool may_part) {
  Shape kept_shape, reduced_shape;
  Strides x_kept, y_kept, x_reduced;
  for (int d = 0; d < x.dims(); ++d) {
    if (y.shape[d] == x.shape[d]) {
      kept_shape.push_back(x.shape[d]);
      x_kept.push_back(x.strides[d]);
      y_kept.push_back(y.strides[d]);
    } else {
      reduced_shape.push_back(x.shape[d]);
      x_reduced.push_back(x.strides[d]);
    }
  }
  Plan plan{make_loop<2>(kept_shape, {x_kept, y_kept}), make_loop<1>(reduced_shape, {x_reduced})};
  const auto step = [](std::int64_t stride) { return stride == 0 ? std::numeric_limits<std::int64_t>::max() : std::abs(stride); };
  plan.by_columns =
      plan.reduced.numel() == 1 || (plan.kept.numel() > 1 && step(plan.kept.inner_stride(0)) < step(plan.reduced.inner_stride(0)));
  if (plan.kept.numel() == 0) return plan;
  // Wide blocks read long stretches of memory; even ones balance the threads.
  constexpr std::int64_t widest = 8192;
  const std::int64_t inner = plan.kept.inner(), per_row = plan.by_columns ? ceil_div(inner, widest) : inner;
  plan.width = ceil_div(inner, per_row);
  plan.blocks = plan.kept.numel() / inner * ceil_div(inner, plan.width);
  constexpr std::int64_t enough_blocks = 64, part_size = 32768, part_rows = 32;
  if (may_part && plan.blocks < enough_blocks)
    plan.parts = std::clamp<std::int64_t>(plan.reduced.numel() / std::max(part_rows, part_size / plan.width), 1, enough_blocks);
  return plan;
}

/// Calls f(x offset, y offset, width) for the blocks [begin, end).
template <class F>
void walk_blocks(const Plan& plan, std::int64_t begin, std::int64_t end, F&& f) {
  const std::int64_t inner = plan.kept.inner(), per_row = ceil_div(inner, plan.width);
  const auto element = [&](std::int64_t block) { return block / per_row * inner + block % per_row * plan.width; };
  walk(plan.kept, element(begin), element(end), plan.width, [&](const std::int64_t* at, std::int64_t width) { f(at[0], at[1], width); });
}

/// Buffers of one thread.
template <class C>
struct Workspace {
  C *row, *exponentials, *shift, *levels;

  /// Elements of all buffers, a multiple of a cache line.
  static std::int64_t size(const Plan& plan) {
    const std::int64_t width = padded(plan.width);
    return 2 * std::max(width, chunk) + (1 + Cascade<C>::level_count) * width;
  }
  Workspace(const Plan& plan, C* memory) {
    const std::int64_t width = padded(plan.width);
    row = memory;
    exponentials = row + std::max(width, chunk);
    shift = exponentials + std::max(width, chunk);
    levels = shift + width;
  }

 private:
  static std::int64_t padded(std::int64_t width) { return round_up(width, 64); }
};

/// Folds the reduced elements [begin, end) of the `width` outputs whose first element is at x. The result is in the workspace.
template <class S, class C>
C* fold_part(const Plan& plan, const Fold<C>& fold, const S* x, std::int64_t width, std::int64_t begin, std::int64_t end,
             const Workspace<C>& work) {
  Cascade<C> cascade(fold, work.levels, width);
  if (plan.by_columns) {
    const std::int64_t stride = plan.kept.inner_stride(0);
    walk(plan.reduced, begin, end, 1, [&](const std::int64_t* at, std::int64_t) { cascade.add(load(x + at[0], stride, width, work.row)); });
  } else {
    const std::int64_t stride = plan.reduced.inner_stride(0);
    walk(plan.reduced, begin, end, chunk, [&](const std::int64_t* at, std::int64_t n) {
      const C value = fold.block(load(x + at[0], stride, n, work.row), n);
      cascade.add(&value);
    });
  }
  return cascade.finish();
}

template <class S, class C, class R>
void reduce_as(const Fold<C>& fold, const View& x, const View& y, double scale) {
  const Plan plan = make_plan(x, y, true);
  const std::int64_t y_stride = plan.kept.inner_stride(1);
  const auto write = [&](C* values, std::int64_t at, std::int64_t width) {
    if (scale != 1)
      for (std::int64_t i = 0; i < width; ++i) values[i] = C(static_cast<double>(values[i]) * scale);
    store(values, y.as<R>() + at, width == 1 ? 1 : y_stride, width);
  };
  const Scratch<C> partial(plan.parts > 1 ? plan.blocks * plan.parts * plan.width : 0, y.stream);
  const std::int64_t unit = plan.reduced.numel() * plan.width / plan.parts;
  const Scratch<C> memory(num_threads() * Workspace<C>::size(plan), y.stream);
  parallel_units(plan.blocks * plan.parts, unit, stream_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
    const Workspace<C> work(plan, memory.data() + thread * Workspace<C>::size(plan));
    if (plan.parts == 1) {
      walk_blocks(plan, begin, end, [&](std::int64_t x_at, std::int64_t y_at, std::int64_t width) {
        write(fold_part(plan, fold, x.as<const S>() + x_at, width, 0, plan.reduced.numel(), work), y_at, width);
      });
      return;
    }
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t block = i / plan.parts, part = i % plan.parts;
      walk_blocks(plan, block, block + 1, [&](std::int64_t x_at, std::int64_t, std::int64_t width) {
        const std::int64_t first = plan.part_begin(part), last = plan.part_begin(part + 1);
        std::copy_n(fold_part(plan, fold, x.as<const S>() + x_at, width, first, last, work), width, partial.data() + i * plan.width);
      });
    }
  });
  if (plan.parts == 1) return;
  const Workspace<C> work(plan, memory.data());
  std::int64_t i = 0;
  walk_blocks(plan, 0, plan.blocks, [&](std::int64_t, std::int64_t y_at, std::int64_t width) {
    Cascade<C> cascade(fold, work.levels, width);
    for (std::int64_t part = 0; part < plan.parts; ++part) cascade.add(partial.data() + i++ * plan.width);
    write(cascade.finish(), y_at, width);
  });
}

/// Subtracting an infinite maximum would give NaN; without it the sum is 0 or infinite, and so is its logarithm.
template <class C>
C finite_or_zero(C maximum) {
  return std::abs(maximum) <= std::numeric_limits<C>::max() ? maximum : C(0);
}

template <class S, class C>
void logsumexp(const View& x, const View& y) {
  const Plan plan = make_plan(x, y, false);
  const Fold<C> largest = fold_of<Largest, C>(), sum = fold_of<Sum, C>();
  const std::int64_t y_stride = plan.kept.inner_stride(1), x_stride = plan.kept.inner_stride(0),
                     reduced_stride = plan.reduced.inner_stride(0);
  const Scratch<C> memory(num_threads() * Workspace<C>::size(plan), y.stream);
  parallel_units(plan.blocks, plan.reduced.numel() * plan.width, function_grain,
                 [&](std::int64_t first, std::int64_t last, std::int64_t thread) {
                   const Workspace<C> work(plan, memory.data() + thread * Workspace<C>::size(plan));
                   walk_blocks(plan, first, last, [&](std::int64_t x_at, std::int64_t y_at, std::int64_t width) {
                     const S* const from = x.as<const S>() + x_at;
                     const C* const maxima = fold_part(plan, largest, from, width, 0, plan.reduced.numel(), work);
                     C* const shift = work.shift;
                     for (std::int64_t i = 0; i < width; ++i) shift[i] = finite_or_zero(maxima[i]);
                     Cascade<C> cascade(sum, work.levels, width);
                     walk(plan.reduced, 0, plan.reduced.numel(), plan.by_columns ? 1 : chunk, [&](const std::int64_t* at, std::int64_t n) {
                       C* const e = work.exponentials;
                       if (plan.by_columns) {
                         const C* row = load(from + at[0], x_stride, width, work.row);
#pragma omp simd
                         for (std::int64_t i = 0; i < width; ++i) e[i] = vector_math::exp(row[i] - shift[i]);
                         cascade.add(e);
                       } else {
                         const C* row = load(from + at[0], reduced_stride, n, work.row);
                         const C one_shift = shift[0];
#pragma omp simd
                         for (std::int64_t i = 0; i < n; ++i) e[i] = vector_math::exp(row[i] - one_shift);
                         const C value = sum.block(e, n);
                         cascade.add(&value);
                       }
                     });
                     C* const sums = cascade.finish();
                     for (std::int64_t i = 0; i < width; ++i) sums[i] = shift[i] + std::log(sums[i]);
                     store(sums, y.as<S>() + y_at, width == 1 ? 1 : y_stride, width);
                   });
                 });
}

}  // namespace

void Reduce::run(Cpu) const {
  if (f == ReduceFunction::any || f == ReduceFunction::all) {
    const Fold<bool> fold = f == ReduceFunction::any ? fold_of<Largest, bool>() : fold_of<Smallest, bool>();
    dispatch_all(x.dtype, [&]<class S>() { reduce_as<S, bool, bool>(fold, x, y, 1); });
  } else if (f == ReduceFunction::logsumexp) {
    dispatch_floats(x.dtype, "logsumexp", [&]<class S>() { logsumexp<S, compute_t<S>>(x, y); });
  } else if (!is_floating(x.dtype) && (f == ReduceFunction::sum || f == ReduceFunction::prod)) {
    dispatch_all(x.dtype, [&]<class S>() {
      if constexpr (std::is_integral_v<S>) reduce_as<S, std::int64_t, std::int64_t>(fold_for<std::int64_t>(f), x, y, 1);
    });
  } else {
    dispatch_numbers(x.dtype, "reduce", [&]<class S>() {
      using C = compute_t<S>;
      reduce_as<S, C, S>(fold_for<C>(f), x, y, f == ReduceFunction::sum ? scale : 1);
    });
  }
}

void ArgReduce::run(Cpu) const {
  Shape shape = x.shape;
  Strides x_strides = x.strides, y_strides = y.strides;
  const std::int64_t length = x.shape[dim], step = x.strides[dim];
  shape.erase(dim);
  x_strides.erase(dim);
  y_strides.erase(dim);
  const auto loop = make_loop<2>(shape, {x_strides, y_strides});
  dispatch_numbers(x.dtype, "arg_reduce", [&]<class S>() {
    using C = compute_t<S>;
    const Fold<C> fold = largest ? fold_of<Largest, C>() : fold_of<Smallest, C>();
    // By rows, an output at a time: find the value, then its first position. By columns, a block of outputs at a time.
    const bool by_rows = std::abs(step) <= std::abs(loop.inner_stride(0)) || loop.numel() == 1;
    const std::int64_t limit = by_rows ? 1 : chunk;
    parallel_units(loop.numel(), length, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) C buffer[chunk];
      alignas(64) C best[chunk];
      walk(loop, begin, end, limit, [&](const std::int64_t* at, std::int64_t n) {
        const S* const from = x.as<const S>() + at[0];
        std::int64_t* const to = y.as<std::int64_t>() + at[1];
        const std::int64_t y_stride = loop.inner_stride(1);
        if (by_rows) {
          std::int64_t found = 0;
          C value = fold.identity;
          for (std::int64_t i = 0; i < length; i += chunk) {
            const std::int64_t m = std::min(chunk, length - i);
            const C* run = load(from + i * step, step, m, buffer);
            C better = value;
            const C here = fold.block(run, m);
            fold.columns(&better, &here, 1);
            // Only a chunk with a better value, or the first chunk, is searched; an earlier NaN always stays.
            if (i > 0 && (value != value || better == value)) continue;
            value = better;
            found = i + (std::find_if(run, run + m, [&](C v) { return v == value || (v != v && value != value); }) - run);
          }
          *to = found;
          return;
        }
        for (std::int64_t i = 0; i < n; ++i) to[i * y_stride] = 0;
        for (std::int64_t r = 0; r < length; ++r) {
          const C* row = load(from + r * step, loop.inner_stride(0), n, buffer);
          if (r == 0) std::copy_n(row, n, best);
          for (std::int64_t i = 0; i < n; ++i) {
            const bool is_nan = row[i] != row[i];
            const bool better = is_nan ? best[i] == best[i] : largest ? row[i] > best[i] : row[i] < best[i];
            if (!better) continue;
            best[i] = row[i];
            to[i * y_stride] = r;
          }
        }
      });
    });
  });
}

namespace {

/// Accumulates in C what is read as S and written as R; `add` puts an element into what is before it.
template <class S, class C, class R, class Add>
void accumulate(const Cumulative& kernel, C identity, Add add) {
  const View &x = kernel.x, &y = kernel.y;
  const int dim = kernel.dim;
  const bool reverse = kernel.reverse;
  Shape shape = x.shape;
  Strides x_strides = x.strides, y_strides = y.strides;
  const std::int64_t length = x.shape[dim];
  const std::int64_t x_step = reverse ? -x.strides[dim] : x.strides[dim], y_step = reverse ? -y.strides[dim] : y.strides[dim];
  const std::int64_t x_first = reverse ? (length - 1) * x.strides[dim] : 0, y_first = reverse ? (length - 1) * y.strides[dim] : 0;
  shape.erase(dim);
  x_strides.erase(dim);
  y_strides.erase(dim);
  const auto loop = make_loop<2>(shape, {y_strides, x_strides});
  const bool across = loop.inner() > 1 && std::abs(loop.inner_stride(0)) < std::abs(y_step);
  parallel_units(loop.numel(), length, stream_grain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) C before[chunk];
    walk(loop, begin, end, across ? chunk : 1, [&](const std::int64_t* at, std::int64_t n) {
      const S* from = x.as<const S>() + at[1] + x_first;
      R* to = y.as<R>() + at[0] + y_first;
      if (!across) {
        C all = identity;
        for (std::int64_t r = 0; r < length; ++r) to[r * y_step] = convert<R>(add(all, convert<C>(from[r * x_step])));
        return;
      }
      std::fill_n(before, n, identity);
      for (std::int64_t r = 0; r < length; ++r, from += x_step, to += y_step)
        for (std::int64_t i = 0; i < n; ++i)
          to[i * loop.inner_stride(0)] = convert<R>(add(before[i], convert<C>(from[i * loop.inner_stride(1)])));
    });
  });
}

}  // namespace

void Cumulative::run(Cpu) const {
  if (y.numel() == 0) return;
  dispatch_all(x.dtype, [&]<class S>() {
    using R = std::conditional_t<std::is_integral_v<S>, std::int64_t, S>;
    // A running sum cannot be pairwise; a wider accumulator compensates for that.
    using C = std::conditional_t<std::is_integral_v<S>, std::uint64_t, double>;
    if (f == CumulativeFunction::sum) return accumulate<S, C, R>(*this, C(0), [](C& sum, C value) { return sum += value; });
    using M = std::conditional_t<std::is_integral_v<S>, S, double>;
    const M least = std::is_integral_v<S> ? std::numeric_limits<M>::lowest() : -std::numeric_limits<M>::infinity();
    accumulate<S, M, S>(*this, least, [](M& most, M value) { return most = value > most || value != value ? value : most; });
  });
}

}  // namespace tern::kernels
