#include "ops/kernels/loss.h"

#include <cmath>
#include <string>

#include "ops/cpu/loops.h"
#include "ops/cpu/rows.h"
#include "ops/kernels/math.h"

// Cross-entropy on the CPU, row by row in runs that stay in the L1 cache: a row's logsumexp and loss take one read of it, and its gradient,
// computed right after, a second one from the L2 cache.
namespace tern::kernels {

using namespace loops;

namespace {

void check_targets(const View& x, const TokenTargets& tokens) {
  const auto* const t = tokens.targets.as<const std::int64_t>();
  for (std::int64_t n = 0; n < x.shape[0]; ++n)
    if (t[n] != tokens.ignore_index && (t[n] < 0 || t[n] >= x.shape[1]))
      fail("cross_entropy", "expected targets from 0 to " + std::to_string(x.shape[1] - 1) + " but got " + std::to_string(t[n]));
}

/// Rows of logits of one call, of type S; C is the type of the arithmetic.
template <class C, class S>
class Rows {
 public:
  Rows(const View& x, const TokenTargets& tokens)
      : x_(x),
        targets_(tokens.targets.as<const std::int64_t>()),
        weights_(tokens.weights.as<const C>()),
        ignore_index_(tokens.ignore_index),
        smooth_(C(tokens.smoothing)),
        sharp_(C(1 - tokens.smoothing)) {}

  bool is_ignored(std::int64_t n) const { return targets_[n] == ignore_index_; }

  struct Loss {
    C value, lse;
  };

  /// By runs (online softmax): the running maximum of the logits, and the sum of exponentials relative to it.
  Loss loss(std::int64_t n) const {
    alignas(64) C buffer[chunk];
    const S* const row = x_.as<const S>() + n * x_.strides[0];
    C top = -std::numeric_limits<C>::infinity(), exponentials = 0, logits = 0;
    for (std::int64_t first = 0; first < columns(); first += chunk) {
      const std::int64_t m = std::min(chunk, columns() - first);
      const C* const run = load(row + first, 1, m, buffer);
      if (smooth_ != 0) logits += fold_run<Sum>(run, m);
      const C highest = std::max(top, fold_run<Largest>(run, m));  // ignores NaN, which then enters through the exponentials
      if (highest == -std::numeric_limits<C>::infinity()) {
        // Either all are -inf, or the maximum was compared with NaN: a sum decides.
        if (const C sum = fold_run<Sum>(run, m); std::isnan(sum)) exponentials = sum;
        continue;
      }
      if (highest > top) exponentials *= vector_math::exp(top - highest);
      top = highest;
      C part = 0;
#pragma omp simd reduction(+ : part)
      for (std::int64_t i = 0; i < m; ++i) part += vector_math::exp(run[i] - highest);
      exponentials += part;
    }
    const C lse = top + std::log(exponentials);
    C value = sharp_ * (lse - C(row[targets_[n]]));
    if (smooth_ != 0) value += smooth_ * (lse - logits / C(columns()));
    return {weights_ ? value * weights_[n] : value, lse};
  }

  /// g is the gradient of the row's loss; `to` may be the row itself.
  void gradient(std::int64_t n, C lse, C g, S* to) const {
    if (is_ignored(n)) {
      std::fill_n(to, columns(), S(C(0)));
      return;
    }
    alignas(64) C in[chunk];
    alignas(64) C result[chunk];
    const S* const row = x_.as<const S>() + n * x_.strides[0];
    const C factor = weights_ ? g * weights_[n] : g, even = smooth_ / C(columns());
    for (std::int64_t first = 0; first < columns(); first += chunk) {
      const std::int64_t m = std::min(chunk, columns() - first), target = targets_[n] - first;
      const C* run = load(row + first, 1, m, in);
      C* const out = tern::loops::target(to + first, 1, m, result);
      // The target's logit is read before it is overwritten.
      const bool hit = target >= 0 && target < m;
      const C at_target = hit ? run[target] : C(0);
#pragma omp simd
      for (std::int64_t i = 0; i < m; ++i) out[i] = factor * (vector_math::exp(run[i] - lse) - even);
      if (hit) out[target] = factor * (vector_math::exp(at_target - lse) - sharp_ - even);
      store(out, to + first, 1, m);
    }
  }

 private:
  std::int64_t columns() const { return x_.shape[1]; }

  const View& x_;
  const std::int64_t* targets_;
  const C* weights_;
  std::int64_t ignore_index_;
  C smooth_, sharp_;
};

/// Calls f(n, rows) for each row, shared among threads.
template <class F>
void for_rows(const View& x, const TokenTargets& tokens, F&& f) {
  check_targets(x, tokens);
  dispatch_floats(x.dtype, "cross_entropy", [&]<class S>() {
    const Rows<compute_t<S>, S> rows(x, tokens);
    parallel_units(x.shape[0], x.shape[1], function_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) f.template operator()<compute_t<S>, S>(n, rows);
    });
  });
}

/// Gradient of row n's loss.
template <class C>
C factor_of(const LossGradient& of_loss, std::int64_t n) {
  const C g = of_loss.g.data ? of_loss.g.as<const C>()[n * (of_loss.g.dims() > 0 ? of_loss.g.strides[0] : 0)] : C(1);
  if (!of_loss.total.data) return g;
  const C total = *of_loss.total.as<const C>();
  return total == 0 ? C(0) : g / total;
}

}  // namespace

void CrossEntropy::run(Cpu) const {
  for_rows(x, tokens, [&]<class C, class S>(std::int64_t n, const Rows<C, S>& rows) {
    const auto [loss, top] = rows.is_ignored(n) ? typename Rows<C, S>::Loss{} : rows.loss(n);
    losses.as<C>()[n] = loss;
    lse.as<C>()[n] = top;
  });
}

void ReduceLosses::run(Cpu) const {
  dispatch_floats(losses.dtype, "cross_entropy", [&]<class C>() {
    if constexpr (std::is_floating_point_v<C>) {
      const std::int64_t count = losses.shape[0];
      double sum = 0, weights = 0;
      for (std::int64_t n = 0; n < count; ++n) {
        sum += double(losses.as<const C>()[n]);
        if (tokens.targets.as<const std::int64_t>()[n] != tokens.ignore_index)
          weights += tokens.weights.data ? double(tokens.weights.as<const C>()[n]) : 1;
      }
      *total.as<C>() = mean ? C(weights) : C(1);
      *value.as<C>() = mean ? C(sum / weights) : C(sum);
    }
  });
}

void CrossEntropyGrad::run(Cpu) const {
  for_rows(x, tokens, [&]<class C, class S>(std::int64_t n, const Rows<C, S>& rows) {
    rows.gradient(n, lse.as<const C>()[n], factor_of<C>(of_loss, n), dx.as<S>() + n * dx.strides[0]);
  });
}

void CrossEntropyWithGrad::run(Cpu) const {
  for_rows(x, tokens, [&]<class C, class S>(std::int64_t n, const Rows<C, S>& rows) {
    const auto [loss, lse] = rows.is_ignored(n) ? typename Rows<C, S>::Loss{} : rows.loss(n);
    losses.as<C>()[n] = loss;
    rows.gradient(n, lse, factor_of<C>(of_loss, n), x.as<S>() + n * x.strides[0]);
  });
}

static void scale_one(const View& x, const LossGradient& of_loss, const View& y, Write write) {
  dispatch_floats(x.dtype, "scale", [&]<class S>() {
    using C = compute_t<S>;
    const C by = factor_of<C>(of_loss, 0);
    parallel_units(x.numel(), 1, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) C in[chunk];
      alignas(64) C sum[chunk];
      for (std::int64_t first = begin; first < end; first += chunk) {
        const std::int64_t m = std::min(chunk, end - first);
        const C* const run = load(x.as<const S>() + first, 1, m, in);
        S* const to = y.as<S>() + first;
        if (write == Write::accumulate) convert_run(to, sum, m);
        else std::fill_n(sum, m, C(0));
#pragma omp simd
        for (std::int64_t i = 0; i < m; ++i) sum[i] += by * run[i];
        convert_run(sum, to, m);
      }
    });
  });
}

void Scale::run(Cpu) const {
  for (const Scaling& one : all) scale_one(one.x, of_loss, one.y, one.write);
}

}  // namespace tern::kernels
