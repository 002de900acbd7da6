#include "ops/linalg.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/factory.h"
#include "ops/index.h"
#include "ops/kernels/linalg.h"
#include "ops/matmul.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

void check_matrices(const char* op, const Tensor& a, bool is_square) {
  if (a.dims() < 2 || (is_square && a.size(-1) != a.size(-2)))
    fail(op,
         fmt::format("expected {} but got {}", is_square ? "square matrices (..., N, N)" : "matrices (..., M, N)", to_string(a.shape())));
  if (a.dtype() != DType::f32 && a.dtype() != DType::f64) fail(op, fmt::format("expected f32 or f64 but got {}", name(a.dtype())));
  if (has_linalg(a.device())) return;
  if (a.device() == cpu) fail(op, "expected a build with Eigen: install libeigen3-dev, and configure and build again");
  fail(op, "expected a build with cuSOLVER: install libcusolver-dev, and configure and build again");
}

/// Empty tensor with a's leading dimensions and matrices of the given size.
Tensor empty_matrices(const Tensor& a, std::int64_t rows, std::int64_t columns) {
  Shape shape = a.shape();
  shape[a.dims() - 2] = rows;
  shape[a.dims() - 1] = columns;
  return empty(shape, a.dtype(), a.device());
}
Tensor empty_vectors(const Tensor& a, std::int64_t size) {
  Shape shape(a.shape().begin(), a.shape().end() - 1);
  shape.back() = size;
  return empty(shape, a.dtype(), a.device());
}

void check_all(const char* op, std::int64_t refused, const char* what) {
  if (refused >= 0) fail(op, fmt::format("expected {} but matrix {} is not", what, refused));
}

Tensor mt(const Tensor& x) { return transpose(x, -2, -1); }
/// diag(s) as a row vector that scales columns, and as a column vector that scales rows.
Tensor by_column(const Tensor& s) { return unsqueeze(s, -2); }
Tensor by_row(const Tensor& s) { return unsqueeze(s, -1); }
Tensor symmetric(const Tensor& x) { return (x + mt(x)) * 0.5; }

/// 1 / (s_j - s_i) off the diagonal, 0 on it.
Tensor inverse_gaps(const Tensor& s) {
  const Tensor gaps = by_column(s) - by_row(s), is_diagonal = eye(s.size(-1), s.size(-1), 0, DType::boolean, s.device());
  return where(is_diagonal, 0.0, reciprocal(where(is_diagonal, 1.0, gaps)));
}

/// Gradient of an output, or zeros if none arrived.
Tensor gradient_or_zeros(const Backward& call, std::size_t output, const Tensor& like) {
  return call.grads()[output].defined() ? call.grads()[output] : zeros_like(like);
}

/// Operand and result.
struct Kept {
  Tensor a, y;
};

struct Cholesky {
  static constexpr Op op{"cholesky"};

  Result<Tensor, Kept> forward(const Tensor& a) const {
    check_matrices(op.name, a, true);
    const Tensor y = empty_matrices(a, a.size(-2), a.size(-1));
    const std::int64_t refused = launch(a.device(), kernels::Cholesky{a, y});
    check_all(op.name, refused, "positive definite matrices");
    return {y, {{}, y}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor &l = kept.y, p = matmul(mt(l), tril(call.grad()));
    // Phi: the lower triangle, with half of the diagonal.
    const Tensor phi = tril(p) - eye(p.size(-1), {.dtype = p.dtype(), .device = p.device()}) * p * 0.5;
    // L^-T Phi L^-1.
    const Tensor left = solve(mt(l), phi);
    return {symmetric(mt(solve(mt(l), mt(left))))};
  }
};

struct QrFactors {
  static constexpr Op op{"qr"};

  Result<Tensors, Qr> forward(const Tensor& a) const {
    check_matrices(op.name, a, false);
    const std::int64_t k = std::min(a.size(-2), a.size(-1));
    const Tensor q = empty_matrices(a, a.size(-2), k), r = empty_matrices(a, k, a.size(-1));
    launch(a.device(), kernels::Qr{a, q, r});
    return {{q, r}, {q, r}};
  }
  Tensors backward(const Backward& call, const Qr& kept) const {
    const auto& [q, r] = kept;
    if (r.size(-2) != r.size(-1)) fail(op.name, fmt::format("expected M >= N for a gradient but got r {}", to_string(r.shape())));
    const Tensor gq = gradient_or_zeros(call, 0, q), gr = triu(gradient_or_zeros(call, 1, r));
    const Tensor m = matmul(r, mt(gr)) - matmul(mt(gq), q), lower = tril(m) + mt(tril(m, -1));
    // (gQ + Q lower) R^-T.
    return {mt(solve(r, mt(gq + matmul(q, lower))))};
  }
};

struct EighFactors {
  static constexpr Op op{"eigh"};

  Result<Tensors, Eigh> forward(const Tensor& a) const {
    check_matrices(op.name, a, true);
    const Tensor values = empty_vectors(a, a.size(-1)), vectors = empty_matrices(a, a.size(-2), a.size(-1));
    launch(a.device(), kernels::Eigh{a, values, vectors});
    return {{values, vectors}, {values, vectors}};
  }
  Tensors backward(const Backward& call, const Eigh& kept) const {
    const auto& [w, v] = kept;
    Tensor inner = by_row(gradient_or_zeros(call, 0, w)) * eye(w.size(-1), {.dtype = w.dtype(), .device = w.device()});
    if (call.grad(1).defined()) inner = inner + matmul(mt(v), call.grad(1)) * inverse_gaps(w);
    return {symmetric(matmul(matmul(v, inner), mt(v)))};
  }
};

struct SvdFactors {
  static constexpr Op op{"svd"};

  Result<Tensors, Svd> forward(const Tensor& a) const {
    check_matrices(op.name, a, false);
    const std::int64_t k = std::min(a.size(-2), a.size(-1));
    const Tensor u = empty_matrices(a, a.size(-2), k), s = empty_vectors(a, k), vt = empty_matrices(a, k, a.size(-1));
    launch(a.device(), kernels::Svd{a, u, s, vt});
    return {{u, s, vt}, {u, s, vt}};
  }
  Tensors backward(const Backward& call, const Svd& kept) const {
    const auto& [u, s, vt] = kept;
    const Tensor &gu = call.grad(0), &gvt = call.grad(2);
    const Tensor identity = eye(s.size(-1), {.dtype = s.dtype(), .device = s.device()});
    // u (...) vt: the parts within the spaces of u and v, and the part outside of them.
    Tensor inner = by_row(gradient_or_zeros(call, 1, s)) * identity, outside;
    const Tensor gaps = gu.defined() || gvt.defined() ? inverse_gaps(square(s)) : Tensor();
    if (gu.defined()) {
      const Tensor p = matmul(mt(u), gu);
      inner = inner + (gaps * (p - mt(p))) * by_column(s);
      outside = matmul((gu - matmul(u, p)) / by_column(s), vt);
    }
    if (gvt.defined()) {
      const Tensor p = matmul(vt, mt(gvt));
      inner = inner + by_row(s) * (gaps * (p - mt(p)));
      const Tensor part = matmul(u, (gvt - matmul(mt(p), vt)) / by_row(s));
      outside = outside.defined() ? outside + part : part;
    }
    const Tensor within = matmul(matmul(u, inner), vt);
    return {outside.defined() ? within + outside : within};
  }
};

/// solve() of operands that agree: a (..., N, N) and b (..., N, M) with the same leading dimensions.
struct Solve {
  static constexpr Op op{"solve"};

  Result<Tensor, Kept> forward(const Tensor& a, const Tensor& b) const {
    const Tensor y = empty(b.shape(), b.dtype(), b.device());
    check_all(op.name, launch(a.device(), kernels::Solve{a, b, y}), "regular matrices");
    return {y, {a, y}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor gb = solve(mt(kept.a), call.grad());
    return {call.needs(0) ? neg(matmul(gb, mt(kept.y))) : Tensor(), gb};
  }
};

struct Det {
  static constexpr Op op{"det"};

  Result<Tensor, Kept> forward(const Tensor& a) const {
    check_matrices(op.name, a, true);
    const Tensor y = empty(Shape(a.shape().begin(), a.shape().end() - 2), a.dtype(), a.device());
    launch(a.device(), kernels::Det{a, y});
    return {y, {a, y}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor scale = call.grad() * kept.y;
    return {unsqueeze(unsqueeze(scale, -1), -1) * mt(inverse(kept.a))};
  }
};

}  // namespace

bool has_linalg(Device device) {
  if (device == cpu) return kernels::has_linalg(Cpu{});
  return cuda_has(device, [](auto dev) { return kernels::has_linalg(dev); });
}

Tensor cholesky(const Tensor& a) { return call(Cholesky{}, a); }
Qr qr(const Tensor& a) {
  const Tensors y = call(QrFactors{}, a);
  return {y[0], y[1]};
}
Eigh eigh(const Tensor& a) {
  const Tensors y = call(EighFactors{}, a);
  return {y[0], y[1]};
}
Svd svd(const Tensor& a) {
  const Tensors y = call(SvdFactors{}, a);
  return {y[0], y[1], y[2]};
}
Tensor det(const Tensor& a) { return call(Det{}, a); }

Tensor solve(const Tensor& a, const Tensor& b) {
  check_one_device("solve", {&a, &b});
  check_matrices("solve", a, true);
  const bool is_vector = b.dims() == 1;
  if (b.dims() < 1 || b.dtype() != a.dtype() || b.size(is_vector ? 0 : -2) != a.size(-1))
    fail("solve", fmt::format("expected b (..., {0}, M) or ({0}) of {1} but got {2} {3}", a.size(-1), name(a.dtype()), name(b.dtype()),
                              to_string(b.shape())));
  const Tensor columns = is_vector ? unsqueeze(b, -1) : b;
  const auto lead_of = [](const Tensor& x) { return Shape(x.shape().begin(), x.shape().end() - 2); };
  Shape lead = broadcast_shapes(lead_of(a), lead_of(columns), "solve");
  const auto batched = [&](const Tensor& x) {
    Shape shape = lead;
    shape.push_back(x.size(-2));
    shape.push_back(x.size(-1));
    return broadcast_to(x, shape);
  };
  const Tensor x = call(Solve{}, batched(a), batched(columns));
  return is_vector ? squeeze(x, -1) : x;
}

Tensor inverse(const Tensor& a) {
  check_matrices("inverse", a, true);
  return solve(a, eye(a.size(-1), {.dtype = a.dtype(), .device = a.device()}));
}

}  // namespace tern
