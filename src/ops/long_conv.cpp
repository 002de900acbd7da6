#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/kernels/conv.h"
#include "ops/matmul.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

/// Complex numbers.
struct Spectrum {
  Tensor re, im;
};

/// Discrete Fourier transforms of n = rows columns real numbers, as products with matrices (the four-step form of Bailey, 1990): of the
/// columns, then twiddle factors, then of the rows. The order of frequencies is that of no sorting, the same for all. The inverse is the
/// transpose, divided by n.
class ProductTransform {
 public:
  /// For `length` numbers or more.
  ProductTransform(std::int64_t length, DType dtype, Device device) {
    while (rows_ * columns_ < length) (rows_ <= columns_ ? rows_ : columns_) *= 2;
    const auto [first_re, first_im] = roots(rows_, rows_, rows_, dtype, device);
    const auto [last_re, last_im] = roots(columns_, columns_, columns_, dtype, device);
    first_ = cat({first_re, first_im}, 0);
    twiddles_ = roots(rows_, columns_, rows_ * columns_, dtype, device);
    last_ = cat({cat({last_re, last_im}, 1), cat({-last_im, last_re}, 1)}, 0);
  }

  /// Of x (M, t), t <= n, and zeros.
  Spectrum of(const Tensor& x) const {
    const Tensor grid = reshape(pad(x, 1, 0, rows_ * columns_ - x.size(1)), {x.size(0), rows_, columns_});
    const Tensor by_columns = matmul(first_, grid);
    const Tensor re = slice(by_columns, 1, 0, rows_), im = slice(by_columns, 1, rows_);
    const Tensor twiddled = cat({re * twiddles_.re - im * twiddles_.im, re * twiddles_.im + im * twiddles_.re}, 2);
    const Tensor all = matmul(twiddled, last_);
    return {slice(all, 2, 0, columns_), slice(all, 2, columns_)};
  }
  /// The first t of the real parts of the inverse.
  Tensor inverse(const Spectrum& x, std::int64_t t) const {
    const Tensor by_rows = matmul(cat({x.re, x.im}, 2), transpose(last_, 0, 1));
    const Tensor re = slice(by_rows, 2, 0, columns_), im = slice(by_rows, 2, columns_);
    const Tensor twiddled = cat({re * twiddles_.re + im * twiddles_.im, im * twiddles_.re - re * twiddles_.im}, 1);
    const Tensor all = matmul(transpose(first_, 0, 1), twiddled) * (1 / static_cast<double>(rows_ * columns_));
    return slice(flatten(all, 1, 2), 1, 0, t);
  }

 private:
  /// exp(-2 pi i j k / of) of rows j and columns k. Angles are in f64: they are large.
  static Spectrum roots(std::int64_t rows, std::int64_t columns, std::int64_t of, DType dtype, Device device) {
    const Tensor products = unsqueeze(arange(rows, DType::f64, device), 1) * arange(columns, DType::f64, device);
    const Tensor angles = products * (-2 * std::numbers::pi / static_cast<double>(of));
    return {cast(cos(angles), dtype), cast(sin(angles), dtype)};
  }

  std::int64_t rows_ = 1, columns_ = 1;
  Tensor first_;       ///< (2 rows, rows)
  Spectrum twiddles_;  ///< (rows, columns)
  Tensor last_;        ///< (2 columns, 2 columns)
};

/// u (B, T, C) by a matrix (T, T) for each channel, whose row i has the filter h (C, K), K <= T, from its column i down to column 0. Rows
/// of 2 T - 1 of a text of period 2 T, the filter backwards and zeros, begin one place earlier each.
Tensor by_matrices(const Tensor& u, const Tensor& h) {
  const std::int64_t length = u.size(1), channels = u.size(2), period = 2 * length;
  const Tensor row = pad(flip(h, {1}), 1, length - h.size(1), length);
  const Tensor rows = reshape(broadcast_to(unsqueeze(row, 1), {channels, length, period}), {channels, length * period});
  const Tensor shifted = reshape(slice(rows, 1, length - 1, length * period - 1), {channels, length, period - 1});
  return permute(matmul(slice(shifted, 2, 0, length), permute(u, {2, 1, 0})), {2, 1, 0});
}

struct LongConv {
  static constexpr Op op{.name = "long_conv"};

  struct Kept {
    Tensor u, h;
  };
  Tensor plain(const Tensor& u, const Tensor& h) const {
    const std::int64_t batch = u.size(0), length = u.size(1), channels = u.size(2), taps = std::min(h.size(1), length);
    if (u.numel() == 0) return u * sum(h, {1});
    // Matrices take the memory of 2 length / batch such signals, and up to this length fewer operations.
    if (length <= 512 && length <= 2 * batch) return by_matrices(u, slice(h, 1, 0, taps));
    const ProductTransform transform(length + taps - 1, u.dtype(), u.device());
    const Spectrum x = transform.of(reshape(transpose(u, 1, 2), {batch * channels, length})), filter = transform.of(slice(h, 1, 0, taps));
    const auto by_channel = [&](const Tensor& z) { return reshape(z, {batch, channels, z.size(1), z.size(2)}); };
    const Tensor re = by_channel(x.re), im = by_channel(x.im);
    const Spectrum product{flatten(re * filter.re - im * filter.im, 0, 1), flatten(re * filter.im + im * filter.re, 0, 1)};
    return transpose(reshape(transform.inverse(product, length), {batch, channels, length}), 1, 2);
  }
  Result<Tensor, Kept> forward(const Tensor& u, const Tensor& h) const {
    const Tensor y = empty(u.shape(), u.dtype(), cpu);
    if (y.numel() > 0) launch(Cpu{}, kernels::LongConv{u, h, y});
    return {y, {u, h}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [u, h] = kept;
    if (context().grad) return vjp(call, {u, h}, [&](const Tensors& in) -> Tensors { return {plain(in[0], in[1])}; });
    const Tensor du = call.needs(0) ? empty(u.shape(), u.dtype(), cpu) : Tensor();
    const Tensor dh = call.needs(1) ? zeros(h.shape(), h.dtype(), cpu) : Tensor();
    if (u.numel() > 0) launch(Cpu{}, kernels::LongConvGrad{u, h, call.grad(), view_of(du), view_of(dh)});
    return {du, dh};
  }
};

}  // namespace

Tensor long_conv(const Tensor& u, const Tensor& h) {
  constexpr const char* op = LongConv::op.name;
  detail::check_floating(op, u);
  detail::check_floating(op, h);
  check_one_device(op, {&u, &h});
  if (u.dims() != 3 || h.dims() != 2 || h.size(0) != u.size(2) || h.size(1) < 1)
    fail(op, fmt::format("expected u (B, T, C) and h (C, K) with K >= 1 but got {} and {}", to_string(u.shape()), to_string(h.shape())));
  const NoAutocast exact;
  const DType dtype = u.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const LongConv f;
  const Tensor x = cast(u, dtype), filter = cast(h, dtype);
  return cast(u.device() == cpu ? call(f, x, filter) : f.plain(x, filter), u.dtype());
}

}  // namespace tern
