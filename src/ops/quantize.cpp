#include "ops/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/factory.h"
#include "ops/kernels/matmul.h"
#include "ops/matmul.h"
#include "ops/op.h"
#include "ops/view.h"

namespace tern {

namespace {

/// The value with the largest magnitude, the first among equals.
float largest(const float* x, std::int64_t n) {
  float result = 0;
  for (std::int64_t i = 0; i < n; ++i)
    if (std::abs(x[i]) > std::abs(result)) result = x[i];
  return result;
}

void write_scale(float scale, std::uint8_t* to) {
  const f16 half(scale);
  if (std::isinf(static_cast<float>(half))) fail("quantize", fmt::format("expected a scale that f16 holds but got {}", scale));
  std::memcpy(to, &half, sizeof half);
}

void quantize_row(const float* x, std::int64_t in, std::uint8_t* to) {
  const float scale = std::abs(largest(x, in)) / 127;
  std::memcpy(to, &scale, sizeof scale);
  for (std::int64_t i = 0; i < in; ++i)
    to[4 + i] = static_cast<std::uint8_t>(128 + (scale > 0 ? std::clamp(std::nearbyint(x[i] / scale), -127.0F, 127.0F) : 0.0F));
  std::fill(to + 4 + in, to + row_bytes(QuantFormat::int8, in), std::uint8_t{128});
}

void quantize_q8_0(const float* x, std::uint8_t* to) {
  const float scale = std::abs(largest(x, quant_block)) / 127, inverse = scale != 0 ? 1 / scale : 0;
  write_scale(scale, to);
  for (std::int64_t i = 0; i < quant_block; ++i)
    to[2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(std::round(x[i] * inverse)));
}

void quantize_q4_0(const float* x, std::uint8_t* to) {
  constexpr std::int64_t half = quant_block / 2;
  const float scale = largest(x, quant_block) / -8, inverse = scale != 0 ? 1 / scale : 0;
  write_scale(scale, to);
  // In float64, where the product is exact: in float32 the compiler may or may not round it before the sum.
  const auto code = [&](std::int64_t i) { return std::min(15, static_cast<int>(double(x[i]) * double(inverse) + 8.5)); };
  for (std::int64_t i = 0; i < half; ++i) to[2 + i] = static_cast<std::uint8_t>(code(i) | code(i + half) << 4);
}

kernels::QuantizedRows rows_of(const QuantizedWeight& weight) {
  return {.data = weight.rows.view().as<const std::uint8_t>(), .format = weight.format, .out = weight.out(), .in = weight.in};
}

void check_weight(const char* op, const QuantizedWeight& weight) {
  if (!weight.defined()) fail(op, "expected a quantised weight but got none");
  const Tensor& rows = weight.rows;
  if (rows.dtype() != DType::u8 || rows.dims() != 2 || rows.size(1) != row_bytes(weight.format, weight.in) || !rows.is_contiguous())
    fail(op, fmt::format("expected the rows (out, {}) of u8 of a weight of {} with {} inputs but got {} {}",
                         row_bytes(weight.format, weight.in), name(weight.format), weight.in, name(rows.dtype()), to_string(rows.shape())));
}

/// Rows of a weight, all of them or those at ids, in a floating dtype.
struct Dequantize {
  Op op;
  QuantFormat format;
  std::int64_t in;
  DType dtype;

  Result<Tensor> forward(const Tensor& rows, const Tensor& indices) const {
    const Tensor ids = detail::contiguous_or_none(indices);
    Shape shape = ids.defined() ? ids.shape() : Shape{rows.size(0)};
    shape.push_back(in);
    const Tensor y = empty(shape, dtype, rows.device());
    launch(y.device(), kernels::Dequantize{rows_of({format, in, rows}), view_of(ids), y});
    return {y};
  }
};

struct QuantizedLinear {
  static constexpr Op op{"quantized_linear"};
  QuantFormat format;
  std::int64_t in;

  Result<Tensor> forward(const Tensor& x, const Tensor& rows, const Tensor& bias) const {
    const Tensor y = empty({x.size(0), rows.size(0)}, x.dtype(), x.device());
    launch(y.device(), kernels::QuantizedLinear{x, rows_of({format, in, rows}), view_of(bias), y});
    return {y};
  }
};

/// Elements of a weight that are dequantized at a time for a plain product: 16 MiB of float32.
constexpr std::int64_t tile_elements = std::int64_t{1} << 22;

}  // namespace

QuantizedWeight quantize(const Tensor& weight, QuantFormat format) {
  if (weight.dims() != 2 || !is_floating(weight.dtype()))
    fail("quantize", fmt::format("expected a floating weight (out, in) but got {} {}", name(weight.dtype()), to_string(weight.shape())));
  const std::vector<float> values = cast(weight.detach(), DType::f32).to_vector<float>();
  if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }))
    fail("quantize", "expected finite values but got a weight with others");
  const std::int64_t out = weight.size(0), in = weight.size(1), bytes = row_bytes(format, in);
  std::vector<std::uint8_t> rows(static_cast<std::size_t>(out * bytes));
  for (std::int64_t i = 0; i < out; ++i) {
    const float* const x = values.data() + i * in;
    std::uint8_t* const to = rows.data() + i * bytes;
    if (!has_blocks(format)) {
      quantize_row(x, in, to);
      continue;
    }
    for (std::int64_t k = 0; k < in; k += quant_block) {
      float block[quant_block] = {};
      std::copy_n(x + k, std::min(quant_block, in - k), block);
      (format == QuantFormat::q8_0 ? quantize_q8_0 : quantize_q4_0)(block, to + k / quant_block * block_bytes(format));
    }
  }
  return {format, in, Tensor::from(rows, {out, bytes}, weight.device())};
}

Tensor dequantize(const QuantizedWeight& weight, DType dtype) {
  check_weight("dequantize", weight);
  detail::check_floating("dequantize", dtype);
  return call(Dequantize{{"dequantize"}, weight.format, weight.in, dtype}, weight.rows, Tensor());
}

/// Product by parts of the weight, each dequantized only for the duration of its product.
static Tensor linear_by_parts(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias) {
  const std::int64_t step = std::max<std::int64_t>(1, tile_elements / std::max<std::int64_t>(weight.in, 1));
  Tensors parts;
  for (std::int64_t first = 0; first == 0 || first < weight.out(); first += step) {
    const std::int64_t end = std::min(first + step, weight.out());
    const QuantizedWeight part{weight.format, weight.in, slice(weight.rows, 0, first, end)};
    parts.push_back(linear(x, dequantize(part, x.dtype()), bias.defined() ? slice(bias, 0, first, end) : Tensor()));
  }
  return parts.size() == 1 ? parts.front() : cat(parts, 1);
}

Tensor quantized_linear(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias) {
  constexpr const char* op = "quantized_linear";
  check_weight(op, weight);
  check_one_device(op, {&x, &weight.rows, &bias});
  if (x.dtype() != DType::f32 && x.dtype() != DType::bf16 && x.dtype() != DType::f16)
    fail(op, fmt::format("expected x of f32, bf16 or f16 but got {}", name(x.dtype())));
  if (bias.defined() && bias.dtype() != x.dtype())
    fail(op, fmt::format("expected x and bias of one dtype but got {} and {}", name(x.dtype()), name(bias.dtype())));
  if (x.dims() == 0 || x.size(-1) != weight.in || (bias.defined() && bias.shape() != Shape{weight.out()}))
    fail(op, fmt::format("expected x (..., {}) and bias ({},) but got {} and {}", weight.in, weight.out(), to_string(x.shape()),
                         detail::shape_or_none(bias)));
  if (needs_record({x, bias}))
    fail(op, "expected operands without gradients: a quantised weight is for inference; train the float32 model, or use NoGrad");
  Shape shape = x.shape();
  shape.back() = weight.out();
  const std::int64_t count = weight.in == 0 ? numel(shape) / std::max<std::int64_t>(weight.out(), 1) : x.numel() / weight.in;
  Tensor rows = reshape(x.detach(), {count, weight.in});
  if (rows.strides()[1] != 1) rows = contiguous(rows);
  const bool has_kernel =
      x.device() == cpu || cuda_has(x.device(), [&](auto dev) { return kernels::has_quantized_linear(dev, rows.view()); });
  if (!has_kernel) return reshape(linear_by_parts(rows, weight, bias.defined() ? bias.detach() : bias), shape);
  return reshape(call(QuantizedLinear{weight.format, weight.in}, rows, weight.rows, bias), shape);
}

Tensor quantized_embedding(const QuantizedWeight& table, const Tensor& indices, DType dtype) {
  constexpr const char* op = "quantized_embedding";
  check_weight(op, table);
  check_one_device(op, {&table.rows, &indices});
  const Tensor ids = detail::as_indices(op, indices);
  detail::check_floating(op, dtype);
  if (ids.device() == cpu)
    for (const std::int64_t id : ids.to_vector<std::int64_t>())
      if (id < 0 || id >= table.out()) fail(op, fmt::format("expected indices in [0, {}) but got {}", table.out(), id));
  return call(Dequantize{{op}, table.format, table.in, dtype}, table.rows, ids);
}

}  // namespace tern
