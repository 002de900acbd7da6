// Every op of the table within a checkpointed function: the same gradients, bit for bit, whatever it saves and draws.
#include "autodiff/engine.h"
#include "for_each_case.h"
#include "ops/checkpoint.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "tensor/context.h"

namespace tern::op_cases {

namespace {

/// The results, and the gradients of the leaves. Results are squared, so that what arrives differs from element to element.
std::vector<std::vector<unsigned char>> pass(const Case& op, DType dtype, std::optional<CheckpointPolicy> policy, Device device) {
  manual_seed(7);
  Tensors leaves;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    leaves.push_back(to(make_input(op.inputs[i], dtype, i), device));
    if (op.inputs[i].differentiable && is_floating(leaves.back().dtype())) leaves.back().set_requires_grad();
  }
  // The op is given results of another op, within the function: they are among what is computed again.
  const auto f = [&](const Tensors& in) {
    Tensors results = in;
    for (Tensor& x : results)
      if (x.requires_grad()) x = x * 1.0;
    results = op.call({results, dtype, device});
    for (Tensor& y : results)
      if (is_floating(y.dtype())) y = y * y;
    return results;
  };
  const Tensors outputs = policy ? checkpoint(f, leaves, *policy) : f(leaves);
  Tensors sums;
  std::vector<std::vector<unsigned char>> result;
  for (const Tensor& y : outputs) {
    result.push_back(storage_bytes(to(y, cpu)));
    if (y.requires_grad()) sums.push_back(sum(y));
  }
  if (!sums.empty()) backward(sums);
  for (const Tensor& x : leaves)
    if (x.grad().defined()) result.push_back(storage_bytes(to(x.grad(), cpu)));
  return result;
}

/// A checkpointed function runs on two threads, and the function itself on one: gradients do not depend on their number.
void check_on(Device device) {
  const int before = num_threads();
  std::optional<GuardedMemory> memory;
  if (device == cpu) memory.emplace();
  for_each_case(
      [&](const Row& row, const Case& op, DType dtype) {
        const bool edits = std::any_of(op.inputs.begin(), op.inputs.end(), [](const Input& x) { return x.edited; });
        if (!row.differentiable || !is_floating(dtype) || edits || (device != cpu && row.on_cuda_in_any_order)) return;
        set_num_threads(1);
        const auto want = pass(op, dtype, {}, device);
        set_num_threads(2);
        CHECK((pass(op, dtype, CheckpointPolicy::full, device) == want));  // bytes that nobody reads
        CHECK((pass(op, dtype, CheckpointPolicy::selective, device) == want));
        if (memory) CHECK(memory->overruns() == 0);
      },
      device);
  set_num_threads(before);
}

}  // namespace

TEST_CASE("Ops in a checkpointed function have the gradients that they have outside, bit for bit") { check_on(cpu); }
TEST_CASE("Ops in a checkpointed function have the same gradients on a GPU, bit for bit", "[cuda]") { check_on(cuda()); }

}  // namespace tern::op_cases
