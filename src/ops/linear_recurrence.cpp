#include <fmt/format.h>

#include <algorithm>

#include "ops/factory.h"
#include "ops/kernels/recurrence.h"
#include "ops/matmul.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/recurrent.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

Tensor transposed(const Tensor& x) { return transpose(x, -1, -2); }

/// Operations of a kernel's forward, for the profiler: a number of a state decays, is added to and read; with a beta it is read once more,
/// with keys that read and write added to, too.
void count_forward(const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta, const Tensor& read) {
  const double operations = 4 + (decay.defined() ? 1 : 0) + (beta.defined() ? 2 : 0) + (read.defined() ? 4 : 0);
  backend::count_flops(operations * static_cast<double>(k.numel()) * static_cast<double>(v.size(3)), false);
}

struct LinearRecurrence {
  static constexpr Op op{.name = "linear_recurrence"};

  struct Kept {
    Tensor q, k, v, log_decay, beta, initial, read, write;
  };

  /// The definition, token by token.
  Tensors plain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta, const Tensor& initial,
                const Tensor& read, const Tensor& write) const {
    const NoAutocast exact;
    if (q.size(1) == 0) {  // as one token of zeros, which results depend on
      const auto one = [](const Tensor& x) { return x.defined() ? pad(x, 1, 0, 1) : x; };
      const Tensors results = plain(one(q), one(k), one(v), one(log_decay), one(beta), initial, one(read), one(write));
      return {slice(results[0], 1, 0, 0), results[1]};
    }
    const std::int64_t batch = q.size(0), heads = q.size(2);
    Tensor state = initial.defined() ? initial : zeros({batch, heads, q.size(3), v.size(3)}, q.dtype(), q.device());
    Tensors ys;
    for (std::int64_t t = 0; t < q.size(1); ++t) {
      const auto row = [&](const Tensor& x) { return unsqueeze(select(x, 1, t), 2); };  // (B, H, 1, D)
      if (log_decay.defined()) state = state * exp(transposed(row(log_decay)));
      Tensor added = row(v), read_out;
      if (read.defined()) read_out = matmul(row(read), state);
      if (beta.defined()) added = reshape(select(beta, 1, t), {batch, heads, 1, 1}) * (added - matmul(row(k), state));
      state = state + transposed(row(k)) * added;
      if (read.defined()) state = state + transposed(row(write)) * read_out;
      ys.push_back(matmul(row(q), state));
    }
    return {transpose(cat(ys, 2), 1, 2), state};
  }

  Result<Tensors, Kept> forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                                const Tensor& initial, const Tensor& read, const Tensor& write) const {
    const NoGrad unrecorded;
    const Tensor y = empty(v.shape(), v.dtype(), v.device()),
                 state = empty({q.size(0), q.size(2), q.size(3), v.size(3)}, v.dtype(), v.device());
    const Kept x = operands({q, k, v, log_decay, beta, initial, read, write});
    const backend::KernelScope observed(nullptr);
    count_forward(k, v, log_decay, beta, read);
    launch(v.device(),
           kernels::LinearRecurrence{
               x.q, x.k, x.v, view_of(x.log_decay), view_of(x.beta), view_of(x.initial), {view_of(x.read), view_of(x.write)}, y, state});
    return {{y, state}, {q, k, v, log_decay, beta, initial, read, write}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [q, k, v, log_decay, beta, initial, read, write] = kept;
    if (context().grad)
      return vjp(call, {q, k, v, log_decay, beta, initial, read, write},
                 [&](const Tensors& in) { return plain(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7]); });
    const auto like = [](const Tensor& x) { return x.defined() ? empty(x.shape(), x.dtype(), x.device()) : Tensor(); };
    const Kept x = operands(kept);
    const Tensor dy = unit_stride(call.grad(0).defined() ? call.grad(0) : zeros_like(v)), dstate = detail::contiguous_or_none(call.grad(1));
    const Tensor dq = like(q), dk = like(k), dv = like(v), dbeta = like(beta), dinitial = like(initial), dread = like(read),
                 dwrite = like(write);
    const bool is_summed = log_decay.defined() && v.device() != cpu && log_decay.size(3) != q.size(3);
    const Tensor dlog_decay = is_summed ? like(q) : like(log_decay);
    launch(v.device(), kernels::LinearRecurrenceGrad{x.q,
                                                     x.k,
                                                     x.v,
                                                     view_of(x.log_decay),
                                                     view_of(x.beta),
                                                     view_of(x.initial),
                                                     {view_of(x.read), view_of(x.write)},
                                                     dy,
                                                     view_of(dstate),
                                                     dq,
                                                     dk,
                                                     dv,
                                                     view_of(dlog_decay),
                                                     view_of(dbeta),
                                                     view_of(dinitial),
                                                     {view_of(dread), view_of(dwrite)}});
    return {dq, dk, dv, is_summed ? sum(dlog_decay, {3}, true) : dlog_decay, dbeta, dinitial, dread, dwrite};
  }

 private:
  static Tensor unit_stride(const Tensor& x) { return !x.defined() || x.strides()[3] == 1 ? x : contiguous(x); }
  /// As the kernels take them: with decays for their logarithms.
  static Kept operands(const Kept& x) {
    return {unit_stride(x.q),
            unit_stride(x.k),
            unit_stride(x.v),
            x.log_decay.defined() ? contiguous(exp(x.log_decay)) : Tensor(),
            detail::contiguous_or_none(x.beta),
            detail::contiguous_or_none(x.initial),
            unit_stride(x.read),
            unit_stride(x.write)};
  }
};

/// The same in one dtype of 16 bits on a GPU, by kernels for the chunked form: log_decay (B, T, H), f32, or (B, T, H, Dk), f32 or of q's
/// dtype, beta and initial in f32.
struct ChunkedRecurrence {
  static constexpr Op op = LinearRecurrence::op;

  struct Kept {
    Tensor q, k, v, log_decay, beta, initial;
  };

  Tensors plain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                const Tensor& initial) const {
    const Tensor decay = log_decay.defined() && log_decay.dims() == 3 ? unsqueeze(log_decay, 3) : log_decay;
    using detail::widened;
    const Tensors results = LinearRecurrence().plain(widened(q), widened(k), widened(v), widened(decay), beta, initial, {}, {});
    return {cast(results[0], v.dtype()), results[1]};
  }

  Result<Tensors, Kept> forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                                const Tensor& initial) const {
    const NoGrad unrecorded;
    const Tensor y = empty(v.shape(), v.dtype(), v.device());
    const Tensor state = empty({q.size(0), q.size(2), q.size(3), v.size(3)}, DType::f32, v.device());
    const Kept x = operands(q, k, v, log_decay, beta, initial);
    const backend::KernelScope observed(nullptr);
    count_forward(k, v, log_decay, beta, {});
    launch(Cuda{}, kernels::ChunkedRecurrence{x.q, x.k, x.v, view_of(x.log_decay), view_of(x.beta), view_of(x.initial), y, state});
    return {{y, state}, {q, k, v, log_decay, beta, initial}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [q, k, v, log_decay, beta, initial] = kept;
    if (context().grad)
      return vjp(call, {q, k, v, log_decay, beta, initial},
                 [&](const Tensors& in) { return plain(in[0], in[1], in[2], in[3], in[4], in[5]); });
    const auto like = [](const Tensor& x) { return x.defined() ? empty(x.shape(), x.dtype(), x.device()) : Tensor(); };
    const Kept x = operands(q, k, v, log_decay, beta, initial);
    const Tensor dy = call.grad(0).defined() ? with_rows(call.grad(0)) : zeros_like(v), dstate = detail::contiguous_or_none(call.grad(1));
    const Tensor dq = like(q), dk = like(k), dv = like(v), dlog_decay = like(log_decay), dbeta = like(beta), dinitial = like(initial);
    launch(Cuda{}, kernels::ChunkedRecurrenceGrad{x.q, x.k, x.v, view_of(x.log_decay), view_of(x.beta), view_of(x.initial), dy,
                                                  view_of(dstate), dq, dk, dv, view_of(dlog_decay), view_of(dbeta), view_of(dinitial)});
    return {dq, dk, dv, dlog_decay, dbeta, dinitial};
  }

 private:
  /// x, or a copy, with rows of unit stride at multiples of 16 bytes.
  static Tensor with_rows(const Tensor& x) {
    const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
    bool is_aligned = x.strides()[3] == 1 && reinterpret_cast<std::uintptr_t>(x.view().data) % 16 == 0;
    for (int d = 0; d < 3; ++d) is_aligned = is_aligned && x.strides()[d] * size % 16 == 0;
    return is_aligned ? x : clone(x);
  }
  static Kept operands(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                       const Tensor& initial) {
    const bool is_channel = log_decay.defined() && log_decay.dims() == 4;
    return {
        with_rows(q), with_rows(k), with_rows(v), is_channel ? with_rows(log_decay) : log_decay, beta, detail::contiguous_or_none(initial)};
  }
};

/// The part of a dimension of x, if it is there.
Tensor part_of(const Tensor& x, int dim, std::int64_t first, std::int64_t end) { return x.defined() ? slice(x, dim, first, end) : x; }

/// Blocks of up to `width` channels of a call, each a call of its own: the columns of a state are recurrences of their own, and without a
/// beta so are its rows, whose y add up. Sizes are padded with zeros to multiples of 8.
Recurrence in_blocks(const Tensor& q_, const Tensor& k_, const Tensor& v_, const LinearRecurrenceParams& params, std::int64_t width) {
  const auto padded = [](const Tensor& x, int dim) {
    return x.defined() ? pad(x, dim, 0, round_up(x.size(dim), std::int64_t{8}) - x.size(dim)) : x;
  };
  const bool is_channel = params.log_decay.defined() && params.log_decay.dims() == 4;
  const Tensor q = padded(q_, 3), k = padded(k_, 3), v = padded(v_, 3), initial = padded(padded(params.initial_state, 3), 2),
               decay = is_channel ? padded(params.log_decay, 3) : params.log_decay;
  Tensors ys, states;
  for (std::int64_t value = 0; value < v.size(3); value += width) {
    const std::int64_t last_value = std::min(value + width, v.size(3));
    Tensor y;
    Tensors rows;
    for (std::int64_t key = 0; key < q.size(3); key += width) {
      const std::int64_t last_key = std::min(key + width, q.size(3));
      const Recurrence one = linear_recurrence(slice(q, 3, key, last_key), slice(k, 3, key, last_key), slice(v, 3, value, last_value),
                                               {.log_decay = is_channel ? slice(decay, 3, key, last_key) : decay,
                                                .beta = params.beta,
                                                .initial_state = part_of(part_of(initial, 3, value, last_value), 2, key, last_key)});
      y = y.defined() ? y + one.y : one.y;
      rows.push_back(one.state);
    }
    ys.push_back(y);
    states.push_back(cat(rows, 2));
  }
  return {slice(cat(ys, 3), 3, 0, v_.size(3)), slice(slice(cat(states, 3), 3, 0, v_.size(3)), 2, 0, q_.size(3))};
}

}  // namespace

Recurrence linear_recurrence(const Tensor& q, const Tensor& k, const Tensor& v, const LinearRecurrenceParams& params) {
  constexpr const char* op = LinearRecurrence::op.name;
  const auto& [log_decay, beta, initial_state, read, write] = params;
  for (const Tensor* x : {&q, &k, &v, &log_decay, &beta, &initial_state, &read, &write})
    if (x->defined()) detail::check_floating(op, *x);
  check_one_device(op, {&q, &k, &v, &log_decay, &beta, &initial_state, &read, &write});
  if (q.dims() != 4 || k.shape() != q.shape() || v.dims() != 4 || v.size(0) != q.size(0) || v.size(1) != q.size(1) ||
      v.size(2) != q.size(2))
    fail(op, fmt::format("expected q and k (B, T, H, Dk) and v (B, T, H, Dv) but got {}, {} and {}", to_string(q.shape()),
                         to_string(k.shape()), to_string(v.shape())));
  const Shape by_token{q.size(0), q.size(1), q.size(2)}, by_head{q.size(2)}, state{q.size(0), q.size(2), q.size(3), v.size(3)};
  if (log_decay.defined() && log_decay.shape() != by_head && log_decay.shape() != by_token && log_decay.shape() != q.shape())
    fail(op, fmt::format("expected a log_decay of {}, {} or {}: for each head, its tokens or their key channels; but got {}",
                         to_string(by_head), to_string(by_token), to_string(q.shape()), to_string(log_decay.shape())));
  if (beta.defined() && beta.shape() != by_token)
    fail(op, fmt::format("expected a beta of {} but got {}", to_string(by_token), to_string(beta.shape())));
  const bool reads = read.defined() || write.defined();
  if (reads && (beta.defined() || !read.defined() || !write.defined() || read.shape() != q.shape() || write.shape() != q.shape()))
    fail(op, fmt::format("expected read and write of {}, and no beta, or none of both; but got {} and {}", to_string(q.shape()),
                         detail::shape_or_none(read), detail::shape_or_none(write)));
  if (initial_state.defined() && initial_state.shape() != state)
    fail(op, fmt::format("expected an initial_state of {} but got {}", to_string(state), to_string(initial_state.shape())));

  const NoAutocast exact;
  const bool is_channel = log_decay.defined() && log_decay.dims() == 4;
  const bool has_chunked = size_of(v.dtype()) == 2 && q.dtype() == v.dtype() && k.dtype() == v.dtype() && q.numel() > 0 && v.numel() > 0 &&
                           !reads && !(beta.defined() && is_channel) &&
                           cuda_has(q.device(), [&](auto dev) { return kernels::has_chunked_recurrence(dev, q.device()); });
  constexpr std::int64_t widest = kernels::ChunkedRecurrence::widest;
  if (has_chunked && context().kernels.fused && (v.size(3) > widest || (q.size(3) > widest && !beta.defined())))
    return in_blocks(q, k, v, params, widest);
  const auto is_block = [](std::int64_t size) { return size <= widest && size % 8 == 0; };
  const bool is_chunked = has_chunked && is_block(q.size(3)) && is_block(v.size(3));
  const DType dtype = v.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto computed = [&](const Tensor& x) { return x.defined() ? cast(x, dtype) : x; };
  Tensor decay = is_chunked && is_channel && log_decay.dtype() == q.dtype() ? log_decay : computed(log_decay);
  if (decay.defined() && decay.dims() == 1) decay = broadcast_to(reshape(decay, {1, 1, q.size(2)}), by_token);
  if (is_chunked) {
    const Tensors results = call(ChunkedRecurrence(), q, k, v, decay, computed(beta), computed(initial_state));
    return {results[0], results[1]};
  }
  if (decay.defined() && decay.dims() == 3) decay = unsqueeze(decay, 3);
  const LinearRecurrence f;
  const Tensor in[] = {computed(q),    computed(k),    computed(v), decay, computed(beta), computed(initial_state),
                       computed(read), computed(write)};
  const bool has_kernel = with_backend(q.device(), [&](auto dev) { return kernels::has_linear_recurrence(dev, q.view(), v.view()); });
  const auto run = [&](auto&& as) { return as(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7]); };
  const Tensors results = run([&](const auto&... x) { return has_kernel ? call(f, x...) : f.plain(x...); });
  return {cast(results[0], v.dtype()), results[1]};
}

}  // namespace tern
