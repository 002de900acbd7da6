#include "nn/gradient_scale.h"

#include <fmt/format.h>

#include "nn/flat.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"

namespace tern::nn {

Tensor clip_grad_norm(const Tensors& parameters, double max_norm) {
  if (!(max_norm > 0)) fail("clip_grad_norm", fmt::format("expected max_norm > 0 but got {}", max_norm));
  const NoGrad unrecorded;
  Tensors contiguous_gradients, runs;
  for (const Tensor& x : parameters) {
    const Tensor gradient = x.grad();
    if (gradient.defined()) (gradient.is_contiguous() ? contiguous_gradients : runs).push_back(gradient);
  }
  for (Tensor& run : contiguous_runs(std::move(contiguous_gradients))) runs.push_back(std::move(run));
  if (runs.empty()) return zeros({}, DType::f32, parameters.empty() ? cpu : parameters[0].device());
  Tensor total;
  for (const Tensor& run : runs) {
    const Tensor squares = cast(sum(square(run.dtype() == DType::f64 ? run : cast(run, DType::f32))), DType::f32);
    total = total.defined() ? total + squares : squares;
  }
  const Tensor norm = sqrt(total), factor = minimum(max_norm / (norm + 1e-6), 1.0);
  for (const Tensor& run : runs) mul_(run, cast(factor, run.dtype()));
  return norm;
}

}  // namespace tern::nn
