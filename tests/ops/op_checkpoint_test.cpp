// Every op of the table within a checkpointed function: the same gradients, bit for bit, whatever it saves and draws.
#include "autodiff/engine.h"
#include "for_each_case.h"
#include "ops/checkpoint.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "tensor/context.h"

namespace tern::op_cases {

namespace {

/// The results, and the gradients of the leaves. Results are squared, so that what arrives differs from element to element.
std::vector<std::vector<unsigned char>> pass(const Case& op, DType dtype, std::optional<CheckpointPolicy> policy) {
  manual_seed(7);
  Tensors leaves;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    leaves.push_back(make_input(op.inputs[i], dtype, i));
    if (op.inputs[i].differentiable && is_floating(leaves.back().dtype())) leaves.back().set_requires_grad();
  }
  // The op is given results of another op, within the function: they are among what is computed again.
  const auto f = [&](const Tensors& in) {
    Tensors results = in;
    for (Tensor& x : results)
      if (x.requires_grad()) x = x * 1.0;
    results = op.call({results, dtype, cpu});
    for (Tensor& y : results)
      if (is_floating(y.dtype())) y = y * y;
    return results;
  };
  const Tensors outputs = policy ? checkpoint(f, leaves, *policy) : f(leaves);
  Tensors sums;
  std::vector<std::vector<unsigned char>> result;
  for (const Tensor& y : outputs) {
    result.push_back(storage_bytes(y));
    if (y.requires_grad()) sums.push_back(sum(y));
  }
  if (!sums.empty()) backward(sums);
  for (const Tensor& x : leaves)
    if (x.grad().defined()) result.push_back(storage_bytes(x.grad()));
  return result;
}

}  // namespace

TEST_CASE("Ops in a checkpointed function have the gradients that they have outside, bit for bit") {
  for_each_case([](const Row& row, const Case& op, DType dtype) {
    const bool edits = std::any_of(op.inputs.begin(), op.inputs.end(), [](const Input& x) { return x.edited; });
    if (!row.differentiable || !is_floating(dtype) || edits) return;
    const auto want = pass(op, dtype, {});
    CHECK(pass(op, dtype, CheckpointPolicy::full) == want);
    CHECK(pass(op, dtype, CheckpointPolicy::selective) == want);
  });
}

}  // namespace tern::op_cases
