// Rows of ops/quantize.h. The references round weights anew, from what ggml's format and docs/quantised.md say, and sum the values that the
// bytes stand for in float64.
#include <cstring>

#include "op_cases.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/quantize.h"

namespace tern::op_cases {

namespace {

using reference::Array, reference::make;
using Bytes = std::vector<std::uint8_t>;

template <class T>
void append(Bytes& to, T value) {
  std::uint8_t bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  for (std::uint8_t byte : bytes) to.push_back(byte);
}

/// A row's bytes, and the values that they stand for.
struct Encoded {
  Bytes bytes;
  std::vector<double> values;
};

Encoded encode(std::vector<float> x, QuantFormat format) {
  Encoded result;
  const std::size_t in = x.size();
  if (format == QuantFormat::int8 || format == QuantFormat::dynamic_int8) {
    float top = 0;
    for (float v : x) top = std::max(top, std::abs(v));
    const float scale = top / 127;
    append(result.bytes, scale);
    for (float v : x) {
      const double q = scale == 0 ? 0 : std::nearbyint(v / scale);
      result.bytes.push_back(static_cast<std::uint8_t>(128 + q));
      result.values.push_back(double(scale) * q);
    }
    while (result.bytes.size() % 4 != 0) result.bytes.push_back(128);
    return result;
  }
  while (x.size() % 32 != 0) x.push_back(0);
  for (std::size_t first = 0; first < x.size(); first += 32) {
    float extreme = 0;
    for (std::size_t i = first; i < first + 32; ++i)
      if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
    const bool is_q8 = format == QuantFormat::q8_0;
    const float d = is_q8 ? std::abs(extreme) / 127.0F : extreme / -8.0F, inverse = d == 0 ? 0 : 1.0F / d;
    append(result.bytes, f16(d).bits);
    int q[32];
    for (std::size_t i = 0; i < 32; ++i) {
      const double scaled = double(x[first + i]) * double(inverse);
      q[i] = is_q8 ? static_cast<int>(std::lround(float(scaled))) : std::min(15, static_cast<int>(std::floor(scaled + 8.5)));
      result.values.push_back(double(float(f16(d))) * (is_q8 ? q[i] : q[i] - 8));
    }
    if (is_q8)
      for (int each : q) result.bytes.push_back(static_cast<std::uint8_t>(each & 255));
    else
      for (std::size_t i = 0; i < 16; ++i) result.bytes.push_back(static_cast<std::uint8_t>(q[i] + 16 * q[i + 16]));
  }
  result.values.resize(in);
  return result;
}

std::vector<float> row_of(const Array& x, std::int64_t row) {
  std::vector<float> result;
  for (std::int64_t k = 0; k < x.shape.back(); ++k) result.push_back(float(x.values[static_cast<std::size_t>(row * x.shape.back() + k)]));
  return result;
}

Array bytes_of(const Array& weight, QuantFormat format) {
  Array y{{weight.size(0), row_bytes(format, weight.size(1))}, DType::u8, {}};
  for (std::int64_t i = 0; i < weight.size(0); ++i)
    for (std::uint8_t byte : encode(row_of(weight, i), format).bytes) y.values.push_back(byte);
  return y;
}

Array values_of(const Array& weight, QuantFormat format, DType dtype) {
  Array y{weight.shape, dtype, {}};
  for (std::int64_t i = 0; i < weight.size(0); ++i)
    for (double value : encode(row_of(weight, i), format).values) y.values.push_back(value);
  return y;
}

Array layer(const Array& x, const Array& weight, const Array* bias, QuantFormat format, DType dtype) {
  const Array w = values_of(weight, format, DType::f64);
  const std::int64_t in = weight.size(1), out = weight.size(0);
  Shape shape = x.shape;
  shape.back() = out;
  Array y{shape, dtype, {}};
  const std::int64_t rows = out == 0 ? 0 : numel(shape) / out;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::vector<float> values = row_of(x, r);
    for (std::int64_t j = 0; j < out; ++j) {
      double sum = bias ? bias->values[static_cast<std::size_t>(j)] : 0;
      for (std::int64_t k = 0; k < in; ++k)
        sum += double(values[static_cast<std::size_t>(k)]) * w.values[static_cast<std::size_t>(j * in + k)];
      y.values.push_back(sum);
    }
  }
  return y;
}

/// A weight is no input of a case: what is done to inputs (other devices, NaN) a weight goes through before it is quantised, or not at all.
Tensor weight_of(const Shape& shape) { return make_input({shape, -0.5, 0.5}, DType::f32, 1); }
QuantizedWeight quantized(const Shape& shape, QuantFormat format, Device device) { return quantize(to(weight_of(shape), device), format); }

const std::vector<Shape> matrices = {{1, 1}, {3, 31}, {2, 32}, {33, 33}, {5, 0}, {0, 7}, {2, 1025}, {1025, 3}, {17, 64}};

void add_rounding(Rows& rows) {
  Row bytes{"quantize", {}}, values{"dequantize", {}};
  for (QuantFormat format : quant_formats)
    for (const Shape& shape : matrices) {
      bytes.cases.push_back({{value(shape)},
                             [format](In in) -> Tensors { return {quantize(in[0], format).rows}; },
                             [format](Ref in) { return one(bytes_of(in[0], format)); }});
      // Of bytes, which no check of floating inputs touches.
      values.cases.push_back({{{shape, 0, 256, DType::u8}},
                              [=](In in) -> Tensors { return {dequantize(quantize(cast(in[0], DType::f32) - 100.0, format), in.dtype)}; },
                              [=](Ref in) {
                                Array weight = in[0];
                                for (double& v : weight.values) v -= 100;
                                return one(values_of(weight, format, in.dtype));
                              }});
    }
  bytes.differentiable = values.differentiable = false;
  const auto infinite = [] { return Tensor::from(std::vector<float>{1, std::numeric_limits<float>::infinity()}, {1, 2}); };
  const auto large = [] { return Tensor::from(std::vector<float>{1e30F, 1}, {1, 2}); };
  bytes.mistakes = {{[] { quantize(sample({3}), QuantFormat::int8); }, {"(out, in)", "(3,)"}},
                    {[] { quantize(sample({3, 3}, DType::i64), QuantFormat::int8); }, {"floating", "i64"}},
                    {[=] { quantize(infinite(), QuantFormat::q8_0); }, {"finite"}},
                    {[=] { quantize(large(), QuantFormat::q4_0); }, {"f16", "e+29"}}};
  values.mistakes = {{[] { dequantize({}); }, {"none"}},
                     {[] { dequantize(quantize(sample({3, 3}), QuantFormat::int8), DType::i64); }, {"floating", "i64"}},
                     {[] { dequantize({QuantFormat::q8_0, 64, sample({3, 34}, DType::u8)}); }, {"68", "q8_0", "(3, 34)"}}};
  rows.push_back(bytes);
  rows.push_back(values);
}

void add_linear(Rows& rows) {
  Row row{"quantized_linear", {}};
  row.dtypes = {DType::f32, DType::f16, DType::bf16};
  row.differentiable = false;
  row.slack = 600;  // a row of x has 16 bits
  struct Layer {
    Shape x;
    std::int64_t in, out;
  };
  for (QuantFormat format : quant_formats)
    for (const Layer& l : {Layer{{1}, 1, 1},
                           {{3, 31}, 31, 2},
                           {{2, 2, 33}, 33, 5},
                           {{33, 31}, 31, 33},
                           {{64, 96}, 96, 40},
                           {{13, 32}, 32, 65},
                           {{1, 64}, 64, 100},
                           {{2, 1025}, 1025, 3},
                           {{3, 2}, 2, 1025},
                           {{0, 3}, 3, 2},
                           {{3, 0}, 0, 2},
                           {{2, 3}, 3, 0}})
      for (const bool bias : {true, false}) {
        const Shape shape{l.out, l.in};
        // The CPU rounds x to 8 bits for all but int8 (quantized_products_test.cpp), which changes neither 1 nor 0; a GPU does not.
        std::vector<Input> inputs = {format == QuantFormat::int8 ? value(l.x, -0.5, 0.5) : whole(l.x, -1, 2)};
        if (bias) inputs.push_back(value({l.out}));
        if (bias) inputs.back().optional = true;
        row.cases.push_back(
            {inputs,
             [=](In in) -> Tensors { return {quantized_linear(in[0], quantized(shape, format, in.device), bias ? in[1] : Tensor())}; },
             [=](Ref in) { return one(layer(in[0], read(weight_of(shape)), bias ? &in[1] : nullptr, format, in.dtype)); }});
      }
  const auto weight = [] { return quantize(sample({4, 3}), QuantFormat::q8_0); };
  const auto trained = [] { return Tensor(sample({2, 3})).set_requires_grad(); };
  row.mistakes = {{[=] { quantized_linear(sample({2, 2}), weight()); }, {"(..., 3)", "(2, 2)", "none"}},
                  {[=] { quantized_linear(sample({2, 3}), weight(), sample({3})); }, {"(4,)", "(3,)"}},
                  {[=] { quantized_linear(sample({}), weight()); }, {"()"}},
                  {[=] { quantized_linear(sample({2, 3}, DType::f64), weight()); }, {"f64"}},
                  {[=] { quantized_linear(sample({2, 3}), weight(), sample({4}, DType::f16)); }, {"f32", "f16"}},
                  {[=] { quantized_linear(sample({2, 3}), {}); }, {"none"}},
                  {[=] { quantized_linear(trained(), weight()); }, {"gradients", "inference"}}};
  rows.push_back(row);
}

void add_embedding(Rows& rows) {
  Row row{"quantized_embedding", {}};
  row.differentiable = false;
  for (QuantFormat format : quant_formats)
    for (const auto& pair : std::vector<std::pair<Shape, Shape>>{{{1}, {1, 1}},
                                                                 {{2, 3}, {31, 33}},
                                                                 {{0}, {3, 31}},
                                                                 {{}, {2, 64}},
                                                                 {{33}, {1025, 3}},
                                                                 {{5}, {7, 1025}},
                                                                 {{3}, {3, 0}},
                                                                 {{31}, {2, 2}},
                                                                 {{1025}, {9, 1}}}) {
      const Shape ids = pair.first, table = pair.second;
      row.cases.push_back({{index(ids, table[0])},
                           [=](In in) -> Tensors { return {quantized_embedding(quantized(table, format, in.device), in[0], in.dtype)}; },
                           [=](Ref in) {
                             const Array values = values_of(read(weight_of(table)), format, in.dtype);
                             Shape shape = in[0].shape;
                             shape.push_back(table[1]);
                             return one(make(shape, in.dtype, [&](const Shape& i) {
                               const Shape at(i.begin(), i.end() - 1);
                               return values({static_cast<std::int64_t>(in[0](at)), i.back()});
                             }));
                           }});
    }
  const auto table = [] { return quantize(sample({4, 3}), QuantFormat::int8); };
  row.mistakes = {{[=] { quantized_embedding(table(), sample({2})); }, {"i64", "f32"}},
                  {[=] { quantized_embedding(table(), Tensor::scalar<std::int64_t>(4)); }, {"[0, 4)", "4"}},
                  {[=] { quantized_embedding(table(), Tensor::scalar<std::int64_t>(-1)); }, {"[0, 4)", "-1"}},
                  {[=] { quantized_embedding(table(), Tensor::scalar<std::int64_t>(1), DType::u8); }, {"floating", "u8"}},
                  {[] { quantized_embedding({}, Tensor::scalar<std::int64_t>(1)); }, {"none"}}};
  rows.push_back(row);
}

}  // namespace

void add_quantize(Rows& rows) {
  add_rounding(rows);
  add_linear(rows);
  add_embedding(rows);
}

}  // namespace tern::op_cases
