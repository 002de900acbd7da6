#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "ops/factory.h"
#include "ops/index.h"
#include "ops/kernels/recurrence.h"
#include "ops/matmul.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/recurrent.h"
#include "ops/reduce.h"
#include "ops/view.h"

// Note [Chunked form]
// The composition works on chunks of C = 64 tokens, so that almost all of its work is products of matrices. With P_i the decay from a
// chunk's start to token i, its own included, R_ij that of the tokens j + 1 .. i, and S the state at the chunk's start,
//
//     y_i = (q_i P_i) S + sum over j <= i of (q_i R_ij k_j) u_j        u_i = v_i, or for the delta rule the solution of
//     S'  = P_C S + sum over j of (R_Cj k_j)^T u_j                     u_i = beta_i (v_i - (k_i P_i) S - sum over j < i of (k_i R_ij k_j)
//     u_j).
//
// That system has the matrix I + M, M strictly lower triangular (the UT transform of Yang et al., 2024), whose inverse does not depend on
// S: u = X (beta v) - X (beta k P) S. Only S goes from chunk to chunk, all else is computed for all chunks at once.
//
// Decays are kept as logarithms, and every factor is the exponential of a sum of them over tokens that follow one another: from earlier
// to later, at most 0. None is a difference of sums or a quotient of decays, so none overflows, and a decay of 0 (-inf) gives no NaN.
namespace tern {

namespace {

constexpr std::int64_t longest_chunk = 64;

Tensor transposed(const Tensor& x) { return transpose(x, -1, -2); }

/// Sums of the logarithms over a block's tokens (..., C, E): up to each token, or over those after it.
Tensor sums_to(const Tensor& logs) { return cumsum(logs, -2); }
Tensor sums_after(const Tensor& logs) {
  const Tensor later = pad(slice(logs, -2, 1), -2, 0, 1);
  return flip(cumsum(flip(later, {-2}), -2), {-2});
}

/// Lower triangular matrices (M, C, C) from their diagonals (M, C, 1, 1), C a power of two: diagonal blocks (M, C / s, s, s) become those
/// of 2 s by the block between them, lower(s, upper left, lower right) (M, C / 2 s, s, s).
template <class Lower>
Tensor by_halves(Tensor blocks, std::int64_t size, Lower lower) {
  const std::int64_t count = blocks.size(0);
  for (std::int64_t s = 1; s < size; s *= 2) {
    const Tensor pairs = reshape(blocks, {count, size / (2 * s), 2, s, s}), first = select(pairs, 2, 0), second = select(pairs, 2, 1);
    blocks = cat({pad(first, -1, 0, s), cat({lower(s, first, second), second}, -1)}, -2);
  }
  return reshape(blocks, {count, size, size});
}

/// Inverses of I + the part of m (M, C, C) below the diagonal. By blocks, which is as stable as substitution: powers of m may be large.
Tensor unit_inverse(const Tensor& m) {
  const std::int64_t count = m.size(0), size = m.size(1);
  return by_halves(
      full({count, size, 1, 1}, 1, m.dtype(), m.device()), size, [&](std::int64_t s, const Tensor& first, const Tensor& second) {
        const std::int64_t pairs = size / (2 * s);
        const Tensor lower = select(select(reshape(m, {count, pairs, 2, s, pairs, 2, s}), 5, 0), 2, 1);  // (M, pairs, s, pairs, s)
        return -matmul(second, matmul(movedim(diagonal(lower, 0, 1, 3), -1, 1), first));
      });
}

/// Decays of all chunks, (M, C, E) logarithms with E of 1 or Dk; undefined: none.
struct Decay {
  Tensor logs, ratios;  ///< ratios (M, C, C), R_ij for j <= i, if E is 1

  explicit Decay(const Tensor& logs_) : logs(logs_) {
    if (!logs.defined() || logs.size(2) != 1) return;
    const std::int64_t size = logs.size(1);
    const Tensor tokens = arange(size, DType::i64, logs.device());
    ratios = exp(sums_to(where(gt(unsqueeze(tokens, 1), tokens), logs, 0.0)));
  }

  /// x times the decay up to each token, y times that after it.
  Tensor from_start(const Tensor& x) const { return logs.defined() ? x * exp(sums_to(logs)) : x; }
  Tensor to_end(const Tensor& y) const { return logs.defined() ? y * exp(sums_after(logs)) : y; }

  /// x_i R_ij y_j for j <= i, of x and y (M, C, Dk): (M, C, C), 0 for others. With a decay for each key channel there is no matrix of
  /// ratios: for tokens in two halves of a block, R_ij is the decay after j within the first times that up to i within the second.
  Tensor products(const Tensor& x, const Tensor& y) const {
    if (!logs.defined() || ratios.defined()) {
      const Tensor all = matmul(x, transposed(y));
      return tril(ratios.defined() ? all * ratios : all);
    }
    const std::int64_t count = x.size(0), size = x.size(1), width = x.size(2);
    return by_halves(reshape(sum(x * y, {2}), {count, size, 1, 1}), size, [&](std::int64_t s, const Tensor&, const Tensor&) {
      const auto half = [&](const Tensor& z, std::int64_t which) {
        return select(reshape(z, {count, size / (2 * s), 2, s, width}), 2, which);
      };
      return matmul(half(x, 1) * exp(sums_to(half(logs, 1))), transposed(half(y, 0) * exp(sums_after(half(logs, 0)))));
    });
  }
};

/// Operations of a kernel's forward, for the profiler: a number of a state decays, is added to and read, and with a beta read once more.
void count_forward(const Tensor& k, const Tensor& v, const Tensor& decay, const Tensor& beta) {
  const double operations = 4 + (decay.defined() ? 1 : 0) + (beta.defined() ? 2 : 0);
  backend::count_flops(operations * static_cast<double>(k.numel()) * static_cast<double>(v.size(3)), false);
}

struct LinearRecurrence {
  static constexpr Op op{.name = "linear_recurrence"};

  struct Kept {
    Tensor q, k, v, log_decay, beta, initial;
  };

  Tensors plain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                const Tensor& initial) const {
    return chunked_form(q, k, v, log_decay, beta, initial, {}, {});
  }
  static Tensors chunked_form(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& log_decay, const Tensor& beta_,
                              const Tensor& initial, const Tensor& read_, const Tensor& write_) {
    const NoAutocast exact;
    const std::int64_t batch = q_.size(0), tokens = q_.size(1), heads = q_.size(2), width = q_.size(3), columns = v_.size(3);
    const std::int64_t rows = batch * heads;
    const auto size = std::min<std::int64_t>(longest_chunk, std::bit_ceil(static_cast<std::uint64_t>(tokens)));
    const std::int64_t chunks = std::max<std::int64_t>((tokens + size - 1) / size, 1), all = rows * chunks;
    Tensor state = initial.defined() ? initial : zeros({batch, heads, width, columns}, q_.dtype(), q_.device());

    // (B, T, H, D) as (B H chunks, C, D). Keys and values of 0 without a decay, after the last token, change nothing.
    const auto chunked = [&](const Tensor& x) {
      const Tensor padded = pad(x, 1, 0, chunks * size - tokens);
      return reshape(transpose(padded, 1, 2), {all, size, x.size(3)});
    };
    const auto by_chunk = [&](const Tensor& x) { return split(reshape(x, {rows, chunks, x.size(1), x.size(2)}), 1, 1); };
    const Tensor q = chunked(q_), k = chunked(k_), v = chunked(v_);
    const Decay decay(log_decay.defined() ? chunked(log_decay) : Tensor());

    const Tensor ends = decay.to_end(k);
    Tensors values, reads, writes, keys, decays, states;
    Tensor write, more;
    if (read_.defined()) {
      // The same system, without beta: u_i = (read_i P_i) S + sum over j < i of (read_i R_ij write_j) u_j + (read_i R_ij k_j) v_j.
      const Tensor read = chunked(read_);
      write = chunked(write_);
      const Tensor inverse = unit_inverse(-decay.products(read, write));
      values = by_chunk(matmul(inverse, matmul(tril(decay.products(read, k), -1), v)));
      reads = by_chunk(-matmul(inverse, decay.from_start(read)));
      keys = by_chunk(transposed(decay.to_end(write)));
      writes = by_chunk(matmul(transposed(ends), v));
      more = matmul(decay.products(q, k), v);
    } else if (beta_.defined()) {
      const Tensor beta = chunked(unsqueeze(beta_, 3)), inverse = unit_inverse(beta * decay.products(k, k));
      values = by_chunk(matmul(inverse, beta * v));
      reads = by_chunk(matmul(inverse, beta * decay.from_start(k)));
      keys = by_chunk(transposed(ends));
    } else {
      writes = by_chunk(matmul(transposed(ends), v));
    }
    if (log_decay.defined()) decays = by_chunk(transposed(exp(sum(decay.logs, {1}, true))));
    state = reshape(state, {rows, 1, width, columns});
    for (std::size_t c = 0; c < static_cast<std::size_t>(chunks); ++c) {
      states.push_back(state);
      Tensor written = writes.empty() ? Tensor() : writes[c];
      if (!values.empty()) {
        values[c] = values[c] - matmul(reads[c], state);
        const Tensor corrected = matmul(keys[c], values[c]);
        written = written.defined() ? written + corrected : corrected;
      }
      state = (log_decay.defined() ? state * decays[c] : state) + written;
    }
    const auto joined = [&](const Tensors& xs) { return reshape(cat(xs, 1), {all, xs[0].size(2), columns}); };
    const Tensor u = values.empty() ? v : joined(values);
    Tensor y = matmul(decay.from_start(q), joined(states)) + matmul(decay.products(q, write.defined() ? write : k), u);
    if (more.defined()) y = y + more;
    const Tensor in_order = transpose(reshape(y, {batch, heads, chunks * size, columns}), 1, 2);
    return {slice(in_order, 1, 0, tokens), reshape(state, {batch, heads, width, columns})};
  }

  Result<Tensors, Kept> forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                                const Tensor& initial) const {
    const NoGrad unrecorded;
    const Tensor y = empty(v.shape(), v.dtype(), cpu), state = empty({q.size(0), q.size(2), q.size(3), v.size(3)}, v.dtype(), cpu);
    const Operands x{q, k, v, log_decay, beta, initial};
    const backend::KernelScope observed(nullptr);
    count_forward(k, v, log_decay, beta);
    launch(Cpu{}, kernels::LinearRecurrence{x.q, x.k, x.v, view_of(x.decay), view_of(x.beta), view_of(x.initial), y, state});
    return {{y, state}, {q, k, v, log_decay, beta, initial}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [q, k, v, log_decay, beta, initial] = kept;
    if (context().grad)
      return vjp(call, {q, k, v, log_decay, beta, initial},
                 [&](const Tensors& in) { return plain(in[0], in[1], in[2], in[3], in[4], in[5]); });
    const auto like = [](const Tensor& x) { return x.defined() ? empty(x.shape(), x.dtype(), cpu) : Tensor(); };
    const Operands x{q, k, v, log_decay, beta, initial};
    const Tensor dy = unit_stride(call.grad(0).defined() ? call.grad(0) : zeros_like(v)), dstate = detail::contiguous_or_none(call.grad(1));
    const Tensor dq = like(q), dk = like(k), dv = like(v), dlog_decay = like(log_decay), dbeta = like(beta), dinitial = like(initial);
    launch(Cpu{}, kernels::LinearRecurrenceGrad{x.q, x.k, x.v, view_of(x.decay), view_of(x.beta), view_of(x.initial), dy, view_of(dstate),
                                                dq, dk, dv, view_of(dlog_decay), view_of(dbeta), view_of(dinitial)});
    return {dq, dk, dv, dlog_decay, dbeta, dinitial};
  }

 private:
  static Tensor unit_stride(const Tensor& x) { return x.strides()[3] == 1 ? x : contiguous(x); }

  /// As the kernels take them.
  struct Operands {
    Tensor q, k, v, decay, beta, initial;

    Operands(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& log_decay, const Tensor& beta_, const Tensor& initial_)
        : q(unit_stride(q_)),
          k(unit_stride(k_)),
          v(unit_stride(v_)),
          decay(log_decay.defined() ? contiguous(exp(log_decay)) : Tensor()),
          beta(detail::contiguous_or_none(beta_)),
          initial(detail::contiguous_or_none(initial_)) {}
  };
};

/// The same in one dtype of 16 bits on a GPU, by kernels for the chunked form: log_decay (B, T, H), f32, or (B, T, H, Dk), f32 or of q's
/// dtype, beta and initial in f32.
struct ChunkedRecurrence {
  static constexpr Op op = LinearRecurrence::op;
  using Kept = LinearRecurrence::Kept;

  Tensors plain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                const Tensor& initial) const {
    const Tensor decay = log_decay.defined() && log_decay.dims() == 3 ? unsqueeze(log_decay, 3) : log_decay;
    using detail::widened;
    const Tensors results = LinearRecurrence().plain(widened(q), widened(k), widened(v), widened(decay), beta, initial);
    return {cast(results[0], v.dtype()), results[1]};
  }

  Result<Tensors, Kept> forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                                const Tensor& initial) const {
    const NoGrad unrecorded;
    const Tensor y = empty(v.shape(), v.dtype(), v.device());
    const Tensor state = empty({q.size(0), q.size(2), q.size(3), v.size(3)}, DType::f32, v.device());
    const Kept x = operands(q, k, v, log_decay, beta, initial);
    const backend::KernelScope observed(nullptr);
    count_forward(k, v, log_decay, beta);
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
  const bool is_chunked = !reads && with_backend(q.device(), [&](auto dev) {
    return kernels::has_chunked_recurrence(dev, q.view(), k.view(), v.view(), view_of(log_decay), view_of(beta));
  });
  const DType dtype = v.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto computed = [&](const Tensor& x) { return x.defined() ? cast(x, dtype) : x; };
  Tensor decay =
      is_chunked && log_decay.defined() && log_decay.dims() == 4 && log_decay.dtype() == q.dtype() ? log_decay : computed(log_decay);
  if (decay.defined() && decay.dims() == 1) decay = broadcast_to(reshape(decay, {1, 1, q.size(2)}), by_token);
  if (is_chunked) {
    const Tensors results = call(ChunkedRecurrence(), q, k, v, decay, computed(beta), computed(initial_state));
    return {results[0], results[1]};
  }
  if (decay.defined() && decay.dims() == 3) decay = unsqueeze(decay, 3);
  const LinearRecurrence f;
  const Tensor in[] = {computed(q), computed(k), computed(v), decay, computed(beta), computed(initial_state)};
  const Tensors results = reads               ? f.chunked_form(in[0], in[1], in[2], in[3], {}, in[5], computed(read), computed(write))
                          : q.device() == cpu ? call(f, in[0], in[1], in[2], in[3], in[4], in[5])
                                              : f.plain(in[0], in[1], in[2], in[3], in[4], in[5]);
  return {cast(results[0], v.dtype()), results[1]};
}

}  // namespace tern
