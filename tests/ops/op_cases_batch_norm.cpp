// The row of batch_norm. Note [The table] in op_cases.h.
#include "op_cases.h"
#include "ops/normalize.h"

namespace tern::op_cases {

using namespace reference;

namespace {

constexpr double eps = 1e-3;

Dims others(const Shape& shape) {
  Dims dims;
  for (int d = 0; d < shape.size(); ++d)
    if (d != 1) dims.push_back(d);
  return dims;
}

Shape by_channel(const Shape& shape) {
  Shape result = Shape::filled(shape.size(), 1);
  result[1] = shape[1];
  return result;
}

DType wide(DType dtype) { return dtype == DType::f64 ? dtype : DType::f32; }

Array mean_of(A x, bool keepdim) {
  return reduce(x, others(x.shape), keepdim, wide(x.dtype), [](const std::vector<double>& s) { return sum_of(s) / double(s.size()); });
}
Array variance_of(A x, bool keepdim) {
  return reduce(x, others(x.shape), keepdim, wide(x.dtype), [](const std::vector<double>& s) {
    const double mean = sum_of(s) / double(s.size());
    double total = 0;
    for (const double v : s) total += (v - mean) * (v - mean);
    return total / double(s.size());
  });
}

Array scaled(A x, A mean, A variance, const Array* gamma, const Array* beta) {
  const Array centered = zip(x, mean, x.dtype, [](double a, double b) { return a - b; });
  Array y = zip(centered, variance, x.dtype, [](double a, double v) { return a / std::sqrt(v + eps); });
  const Shape channels = by_channel(x.shape);
  if (gamma) y = zip(y, reshaped(*gamma, channels), x.dtype, [](double a, double b) { return a * b; });
  if (beta) y = zip(y, reshaped(*beta, channels), x.dtype, [](double a, double b) { return a + b; });
  return y;
}

}  // namespace

void add_batch_norm(Rows& rows) {
  Row row{"batch_norm", {}};
  row.slack = 30;
  row.gradient_roundings = 9;
  for (const Shape& shape : {Shape{3, 0, 2}, {2, 1}, {31, 3}, {33, 2, 1}, {2, 3, 7}, {1, 2, 1025}, {3, 4, 2, 3}, {2, 2, 3, 1, 2}})
    for (const std::size_t parameters : {0u, 1u, 2u}) {
      const Shape channels = {shape[1]};
      Case training, evaluation;
      training.inputs = {value(shape)};
      evaluation.inputs = {value(shape), value(channels), positive(channels)};
      for (Case* op : {&training, &evaluation})
        for (std::size_t i = 0; i < parameters; ++i) op->inputs.push_back(value(channels));
      training.call = [=](In in) -> Tensors {
        const BatchNormResult r = batch_norm(in[0], parameters > 0 ? in[1] : Tensor(), parameters > 1 ? in[2] : Tensor(), eps);
        return {r.y, r.mean, r.variance};
      };
      training.reference = [=](Ref in) -> Arrays {
        return {scaled(in[0], mean_of(in[0], true), variance_of(in[0], true), parameters > 0 ? &in[1] : nullptr,
                       parameters > 1 ? &in[2] : nullptr),
                mean_of(in[0], false), variance_of(in[0], false)};
      };
      evaluation.call = [=](In in) -> Tensors {
        return {batch_norm(in[0], in[1], in[2], parameters > 0 ? in[3] : Tensor(), parameters > 1 ? in[4] : Tensor(), eps)};
      };
      evaluation.reference = [=](Ref in) {
        const Shape spread = by_channel(in[0].shape);
        return one(scaled(in[0], reshaped(in[1], spread), reshaped(in[2], spread), parameters > 0 ? &in[3] : nullptr,
                          parameters > 1 ? &in[4] : nullptr));
      };
      row.cases.push_back(training);
      row.cases.push_back(evaluation);
    }
  const auto f = [](const Shape& shape, T gamma = {}, T beta = {}, double e = eps) { batch_norm(sample(shape), gamma, beta, e); };
  row.mistakes = {{[=] { f({6}); }, {"(6,)"}},
                  {[=] { f({0, 6}); }, {"(0, 6)", "one element"}},
                  {[=] { f({2, 6}, sample({5})); }, {"(6,)", "(5,)"}},
                  {[=] { f({2, 6}, {}, sample({6, 1})); }, {"(6, 1)"}},
                  {[=] { f({2, 6}, sample({6}, DType::f64)); }, {"f32", "f64"}},
                  {[=] { f({2, 6}, {}, {}, 0); }, {"eps"}},
                  {[] { batch_norm(sample({2, 6}, DType::i64), {}, {}); }, {"floating", "i64"}},
                  {[] { batch_norm(sample({2, 6}), sample({5}), sample({6}), {}, {}); }, {"(5,)"}},
                  {[] { batch_norm(sample({2, 6}), sample({6}), {}, {}, {}); }, {"undefined"}}};
  rows.push_back(row);
}

}  // namespace tern::op_cases
