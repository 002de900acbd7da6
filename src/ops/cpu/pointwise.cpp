#include "ops/kernels/pointwise.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/loops.h"
#include "ops/kernels/attention.h"

namespace tern::kernels {

using namespace loops;

// Pointwise functions on the CPU. A kernel picks the storage type and walks the operands (Note [Chunks]); the block functions choose the
// function once per chunk and contain all the arithmetic, one loop per function and arithmetic type. `omp simd` tells the compiler that no
// element depends on another, which it cannot know if y is one of the operands. `flatten` makes sure that a functor is inlined into its
// loop: a call would keep the loop from being vectorized.

namespace {

template <class T>
[[gnu::flatten]] void unary_block(const UnaryFunction& f, const T* x, T* y, std::int64_t n) {
  dispatch_functor(f, [&](auto functor) {
    if constexpr (std::is_floating_point_v<T> || functor.integral) {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) y[i] = functor(x[i]);
    }
  });
}

template <class T>
[[gnu::flatten]] void unary_grad_block(const UnaryFunction& f, const T* g, const T* x, const T* y, T* dx, std::int64_t n) {
  dispatch_functor(f, [&](auto functor) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) dx[i] = functors::gradient(functor, g[i], x[i], y[i]);
  });
}

template <class T>
[[gnu::flatten]] void binary_block(const BinaryFunction& f, const T* a, const T* b, T* y, std::int64_t n) {
  dispatch_functor(f, [&](auto functor) {
    if constexpr (std::is_integral_v<T> || !is_integral_only<decltype(functor)>) {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) y[i] = functor(a[i], b[i]);
    }
  });
}

template <class T>
[[gnu::flatten]] void compare_block(const CompareFunction& f, const T* a, const T* b, bool* y, std::int64_t n) {
  dispatch_functor(f, [&](auto functor) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) y[i] = functor(a[i], b[i]);
  });
}

template <class Functions>
std::int64_t grain_of(const Functions& f) {
  return dispatch_functor(f, [](const auto& functor) { return functor.transcendental ? function_grain : stream_grain; });
}

/// Strides of an operand; a number has strides of 0.
Strides strides_of(const Operand& operand, const View& y) {
  return operand.is_number ? Strides::filled(y.dims(), 0) : operand.view.strides;
}

/// An operand's elements as contiguous C, run by run. Numbers, and elements that are broadcast along all runs of a walk, fill the buffer
/// only once.
template <class C, class S>
class Source {
 public:
  Source(const Operand& operand, std::int64_t stride) : stride_(stride) {
    if (operand.is_number) std::fill_n(buffer_, chunk, from_number<C>(operand.number));
    else data_ = operand.view.as<const S>();
  }
  const C* load(std::int64_t offset, std::int64_t n) {
    if (!data_) return buffer_;
    if (stride_ == 0 && n > 1) {
      if (filled_from_ != data_ + offset) std::fill_n(buffer_, chunk, convert<C>(data_[offset]));
      filled_from_ = data_ + offset;
      return buffer_;
    }
    filled_from_ = nullptr;
    return loops::load(data_ + offset, stride_, n, buffer_);
  }

 private:
  const S* data_ = nullptr;
  const S* filled_from_ = nullptr;
  std::int64_t stride_;
  alignas(64) C buffer_[chunk];
};

/// y = block(a, b) for elements stored as S and R and computed as C and R.
template <class C, class S, class R, class Block>
void binary_walk(const Operand& a, const Operand& b, const View& y, std::int64_t grain, Block&& block) {
  const auto loop = make_loop<3>(y.shape, {y.strides, strides_of(a, y), strides_of(b, y)});
  using Out = std::conditional_t<std::is_same_v<R, bool>, bool, C>;
  parallel(loop.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    Source<C, S> first(a, loop.inner_stride(1)), second(b, loop.inner_stride(2));
    alignas(64) Out result[chunk];
    walk(loop, begin, end, chunk, [&](const std::int64_t* at, std::int64_t n) {
      R* to = y.as<R>() + at[0];
      Out* out = target(to, loop.inner_stride(0), n, result);
      block(first.load(at[1], n), second.load(at[2], n), out, n);
      store(out, to, loop.inner_stride(0), n);
    });
  });
}

/// Dtype of a pair of operands of which at least one is a view.
DType dtype_of_views(const Operand& a, const Operand& b) { return a.is_number ? b.view.dtype : a.view.dtype; }

/// True if a comparison of integers with a number would be wrong in the integers' own type.
template <class T>
bool needs_double(const Operand& a, const Operand& b) {
  if constexpr (!std::is_integral_v<T>) return false;
  else {
    const auto fits = [](const Operand& x) { return !x.is_number || double(from_number<T>(x.number)) == x.number; };
    return !fits(a) || !fits(b);
  }
}

}  // namespace

void Unary::run(Cpu) const {
  const auto loop = make_loop<2>(y.shape, {y.strides, x.strides});
  const auto run = [&]<class S>() {
    using C = compute_t<S>;
    parallel(loop.numel(), grain_of(f), [&](std::int64_t begin, std::int64_t end) {
      alignas(64) C in[chunk];
      alignas(64) C result[chunk];
      walk(loop, begin, end, chunk, [&](const std::int64_t* at, std::int64_t n) {
        S* to = y.as<S>() + at[0];
        C* out = target(to, loop.inner_stride(0), n, result);
        unary_block<C>(f, load(x.as<const S>() + at[1], loop.inner_stride(1), n, in), out, n);
        store(out, to, loop.inner_stride(0), n);
      });
    });
  };
  if (takes_integers(f)) dispatch_numbers(y.dtype, "unary", run);
  else dispatch_floats(y.dtype, "unary", run);
}

void UnaryGrad::run(Cpu) const {
  const auto loop = make_loop<4>(dx.shape, {dx.strides, g.strides, x.strides, y.strides});
  dispatch_floats(dx.dtype, "unary_grad", [&]<class S>() {
    using C = compute_t<S>;
    parallel(loop.numel(), grain_of(f), [&](std::int64_t begin, std::int64_t end) {
      alignas(64) C buffers[3][chunk];
      alignas(64) C result[chunk];
      walk(loop, begin, end, chunk, [&](const std::int64_t* at, std::int64_t n) {
        const auto in = [&](const View& view, int k) { return load(view.as<const S>() + at[k], loop.inner_stride(k), n, buffers[k - 1]); };
        S* to = dx.as<S>() + at[0];
        C* out = target(to, loop.inner_stride(0), n, result);
        unary_grad_block<C>(f, in(g, 1), in(x, 2), in(y, 3), out, n);
        store(out, to, loop.inner_stride(0), n);
      });
    });
  });
}

void Binary::run(Cpu) const {
  // x^2 is by far the most frequent power; the product is as accurate as pow.
  const bool squares = std::holds_alternative<functors::Pow>(f) && b.is_number && b.number == 2;
  const BinaryFunction function = squares ? functors::Mul{} : f;
  dispatch_numbers(y.dtype, "binary", [&]<class S>() {
    using C = compute_t<S>;
    binary_walk<C, S, S>(a, squares ? a : b, y, grain_of(function),
                         [&](const C* p, const C* q, C* out, std::int64_t n) { binary_block<C>(function, p, q, out, n); });
  });
}

void Compare::run(Cpu) const {
  dispatch_all(dtype_of_views(a, b), [&]<class S>() {
    using C = std::conditional_t<std::is_same_v<S, bool>, std::uint8_t, compute_t<S>>;
    const auto block = [&](const auto* p, const auto* q, bool* out, std::int64_t n) { compare_block(f, p, q, out, n); };
    if constexpr (std::is_integral_v<S>)
      if (needs_double<C>(a, b)) return binary_walk<double, S, bool>(a, b, y, stream_grain, block);
    binary_walk<C, S, bool>(a, b, y, stream_grain, block);
  });
}

void Where::run(Cpu) const {
  const auto loop = make_loop<4>(y.shape, {y.strides, condition.strides, strides_of(a, y), strides_of(b, y)});
  // Elements are moved unchanged, so only their size matters; a number is converted to its bits in y's dtype.
  const auto bits_of = [&](const Operand& x, void* bits) {
    if (!x.is_number) return;
    dispatch_all(y.dtype, [&]<class T>() {
      const T value = from_number<T>(x.number);
      std::memcpy(bits, &value, sizeof value);
    });
  };
  std::uint64_t number_a = 0, number_b = 0;
  bits_of(a, &number_a);
  bits_of(b, &number_b);
  dispatch_bits(y.dtype, [&]<class U>() {
    const auto* const from_a = a.is_number ? reinterpret_cast<const U*>(&number_a) : a.view.as<const U>();
    const auto* const from_b = b.is_number ? reinterpret_cast<const U*>(&number_b) : b.view.as<const U>();
    parallel(loop.numel(), stream_grain, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) bool choices[chunk];
      alignas(64) U buffers[2][chunk];
      alignas(64) U result[chunk];
      walk(loop, begin, end, chunk, [&](const std::int64_t* at, std::int64_t n) {
        const bool* choose = load(condition.as<const bool>() + at[1], loop.inner_stride(1), n, choices);
        const U* p = load(from_a + at[2], loop.inner_stride(2), n, buffers[0]);
        const U* q = load(from_b + at[3], loop.inner_stride(3), n, buffers[1]);
        U* to = y.as<U>() + at[0];
        U* out = target(to, loop.inner_stride(0), n, result);
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) out[i] = choose[i] ? p[i] : q[i];
        store(out, to, loop.inner_stride(0), n);
      });
    });
  });
}

/// Rotary position embedding.
void Rope::run(Cpu) const {
  const std::int64_t all_heads = x.shape[1], length = x.shape[2], width = x.shape[3];
  dispatch_floats(x.dtype, "rope", [&]<class S>() {
    using C = compute_t<S>;
    const C direction = inverse ? C(-1) : C(1);
    parallel_units(x.shape[0] * all_heads * length, width, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t h = row % all_heads, t = row / all_heads % length, b = row / all_heads / length;
        const S* const from = x.as<const S>() + b * x.strides[0] + h * x.strides[1] + t * x.strides[2];
        const C* const turns = table.as<const C>() + t * width;
        S* const to = y.as<S>() + b * y.strides[0] + h * y.strides[1] + t * y.strides[2];
        if (h >= heads) {
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
