#include <fmt/format.h>

#include "ops/factory.h"
#include "ops/kernels/recurrence.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/recurrent.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/sizes.h"

namespace tern {

namespace {

/// x[i](start, start + step, ... < stop) along a dimension, of each.
Tensors every(const Tensors& xs, int dim, std::int64_t start, std::int64_t stop, std::int64_t step) {
  Tensors result;
  for (const Tensor& x : xs) result.push_back(slice(x, dim, start, stop, step));
  return result;
}

/// evens[0], odds[0], evens[1], ... along a dimension; there may be one more of the evens.
Tensor in_turn(const Tensor& evens, const Tensor& odds, int dim) {
  const std::int64_t pairs = odds.size(dim);
  const Tensor both = flatten(stack({slice(evens, dim, 0, pairs), odds}, dim + 1), dim, dim + 1);
  return evens.size(dim) == pairs ? both : cat({both, slice(evens, dim, pairs)}, dim);
}

/// Pairs of neighbours are combined and scanned, which gives the odd places; an even place is the odd one before it and its own element.
Tensors scan(const ScanPair& combine, const Tensors& x, int dim) {
  const std::int64_t n = x[0].size(dim);
  if (n < 2) return x;
  const auto combined = [&](const Tensors& before, const Tensors& after) {
    Tensors result = combine(before, after);
    if (result.size() != x.size())
      fail("associative_scan", fmt::format("expected {} tensors of combine but got {}", x.size(), result.size()));
    return result;
  };
  const Tensors odds = scan(combine, combined(every(x, dim, 0, n - 1, 2), every(x, dim, 1, n, 2)), dim);
  Tensors evens = every(x, dim, 0, 1, 1);
  if (n > 2) {
    const Tensors later = combined(every(odds, dim, 0, (n - 1) / 2, 1), every(x, dim, 2, n, 2));
    for (std::size_t i = 0; i < x.size(); ++i) evens[i] = cat({evens[i], later[i]}, dim);
  }
  Tensors result;
  for (std::size_t i = 0; i < x.size(); ++i) result.push_back(in_turn(evens[i], odds[i], dim));
  return result;
}

struct SelectiveScan {
  static constexpr Op op{.name = "selective_scan"};

  struct Kept {
    Tensor x, dt, a, b, c, initial;
  };
  /// The state before the first token is one more element of a scan.
  Tensors plain(const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& initial) const {
    const Tensor decays = exp(unsqueeze(dt, 3) * a), added = unsqueeze(dt * x, 3) * unsqueeze(b, 2);
    const ScanPair pair = [](const Tensors& l, const Tensors& r) -> Tensors { return {l[0] * r[0], l[1] * r[0] + r[1]}; };
    const Tensor states = scan(pair, {pad(decays, 1, 1, 0, 1), cat({unsqueeze(initial, 1), added}, 1)}, 1)[1];
    return {sum(slice(states, 1, 1) * unsqueeze(c, 2), {3}), select(states, 1, x.size(1))};
  }
  Result<Tensors, Kept> forward(const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b, const Tensor& c,
                                const Tensor& initial) const {
    const NoGrad unrecorded;
    const Kept kept{contiguous(x), contiguous(dt), contiguous(a), contiguous(b), contiguous(c), contiguous(initial)};
    const Tensor y = empty(x.shape(), x.dtype(), x.device()), state = empty(initial.shape(), x.dtype(), x.device());
    const backend::KernelScope observed(nullptr);
    // Of each number of a state: the decay, two operations to make it and one to apply it, two for what is added, two to read it.
    backend::count_flops(7 * static_cast<double>(x.numel()) * static_cast<double>(a.size(1)), false);
    launch(x.device(), kernels::SelectiveScan{kept.x, kept.dt, kept.a, kept.b, kept.c, kept.initial, y, state});
    return {{y, state}, {x, dt, a, b, c, initial}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [x, dt, a, b, c, initial] = kept;
    if (context().grad)
      return vjp(call, {x, dt, a, b, c, initial}, [&](const Tensors& in) { return plain(in[0], in[1], in[2], in[3], in[4], in[5]); });
    const auto made = [&](const Shape& shape) { return empty(shape, x.dtype(), x.device()); };
    const std::int64_t groups = ceil_div(x.size(2), kernels::SelectiveScanGrad::group);
    const Tensor dy = call.grad(0).defined() ? contiguous(call.grad(0)) : zeros(x.shape(), x.dtype(), x.device()),
                 dstate = detail::contiguous_or_none(call.grad(1));
    const Tensor dx = made(x.shape()), ddt = made(x.shape()), da = made(initial.shape()), dinitial = made(initial.shape());
    const Shape parts{groups, b.size(0), b.size(1), b.size(2)};
    const Tensor db = made(parts), dc = made(parts);
    launch(x.device(), kernels::SelectiveScanGrad{contiguous(x), contiguous(dt), contiguous(a), contiguous(b), contiguous(c),
                                                  contiguous(initial), dy, view_of(dstate), dx, ddt, da, db, dc, dinitial});
    return {dx, ddt, sum(da, {0}), sum(db, {0}), sum(dc, {0}), dinitial};
  }
};

}  // namespace

Tensors associative_scan(const ScanPair& combine, const Tensors& elements, int dim) {
  constexpr const char* op = "associative_scan";
  if (elements.empty()) fail(op, "expected one tensor or more but got none");
  const int dims = elements[0].dims(), at = dim < 0 ? dim + dims : dim;
  for (const Tensor& x : elements) {
    check_one_device(op, {&elements[0], &x});
    if (at < 0 || at >= dims || x.dims() != dims || x.size(at) != elements[0].size(at))
      fail(op, fmt::format("expected tensors with a dimension {} of one length but got {} and {}", dim, to_string(elements[0].shape()),
                           to_string(x.shape())));
  }
  return scan(combine, elements, at);
}

Recurrence selective_scan(const Tensor& x_, const Tensor& dt_, const Tensor& a_, const Tensor& b_, const Tensor& c_,
                          const Tensor& initial_state) {
  constexpr const char* op = "selective_scan";
  for (const Tensor* operand : {&x_, &dt_, &a_, &b_, &c_, &initial_state})
    if (operand->defined()) detail::check_floating(op, *operand);
  check_one_device(op, {&x_, &dt_, &a_, &b_, &c_, &initial_state});
  if (x_.dims() != 3 || dt_.shape() != x_.shape() || a_.dims() != 2 || a_.size(0) != x_.size(2) || c_.shape() != b_.shape() ||
      b_.shape() != Shape{x_.size(0), x_.size(1), a_.size(1)})
    fail(op, fmt::format("expected x and dt (B, T, D), a (D, N), b and c (B, T, N) but got {}, {}, {}, {} and {}", to_string(x_.shape()),
                         to_string(dt_.shape()), to_string(a_.shape()), to_string(b_.shape()), to_string(c_.shape())));
  const Shape state{x_.size(0), x_.size(2), a_.size(1)};
  if (initial_state.defined() && initial_state.shape() != state)
    fail(op, fmt::format("expected an initial_state of {} but got {}", to_string(state), to_string(initial_state.shape())));

  const NoAutocast exact;
  const DType dtype = x_.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto computed = [&](const Tensor& operand) { return cast(operand, dtype); };
  const Tensor before = initial_state.defined() ? computed(initial_state) : zeros(state, dtype, x_.device());
  const Tensor in[] = {computed(x_), computed(dt_), computed(a_), computed(b_), computed(c_)};
  const SelectiveScan f;
  const bool has_kernel = with_backend(x_.device(), [&](auto dev) { return kernels::has_selective_scan(dev, x_.view(), a_.view()); });
  const Tensors results =
      has_kernel ? call(f, in[0], in[1], in[2], in[3], in[4], before) : f.plain(in[0], in[1], in[2], in[3], in[4], before);
  return {cast(results[0], x_.dtype()), results[1]};
}

}  // namespace tern
