// The whole table on the GPU, against the CPU: results, gradients, and operands on different devices.
#include <fmt/format.h>

#include "autodiff/engine.h"
#include "for_each_case.h"
#include "ops/factory.h"
#include "skip.h"

namespace tern::op_cases {

namespace {

/// The same place in an equal storage on a GPU, so that strides are kept.
Tensor on_gpu(const Tensor& x, Device device = cuda()) {
  const auto elements = static_cast<std::int64_t>(x.impl().storage->bytes() / size_of(x.dtype()));
  return to(x.window({elements}, {1}, 0), device).window(x.shape(), x.strides(), x.offset());
}

/// Either device may be off by the tolerance of a result, of operands of a dtype.
Tolerance between_devices(const Row& row, DType operands, DType result) {
  if (row.on_cuda_bitwise) return {};
  return forward_tolerance(row, row.on_cuda_by_16_bits && size_of(operands) == 2 ? operands : result) * 2;
}

/// Makes the first GPU the current one of this thread, whatever ran before.
void make_first_gpu_current() { synchronize(cuda(0)); }

void check_ops_on(Device device) {
  for_each_case(
      [device](const Row& row, const Case& op, DType dtype) {
        const bool contiguous_only = row.name == "uniform_" || row.name == "normal_";
        for (Layout layout : layouts) {
          if ((op.inputs.empty() || is_huge(op)) && layout != Layout::contiguous) continue;
          if (contiguous_only && layout != Layout::contiguous && layout != Layout::offset) continue;
          INFO(name(layout));
          Tensors here, there, guards;
          for (std::size_t i = 0; i < op.inputs.size(); ++i) {
            here.push_back(with_layout(make_input(op.inputs[i], dtype, i), layout));
            there.push_back(on_gpu(here[i], device));
            guards.push_back(op.inputs[i].edited ? Tensor() : here[i]);
          }
          make_first_gpu_current();
          const Tensors want = op.call({here, dtype, cpu}), got = op.call({there, dtype, device});
          REQUIRE(got.size() == want.size());
          for (std::size_t i = 0; i < got.size(); ++i) {
            // `to` is the op that goes elsewhere.
            if (row.name != "to") CHECK(got[i].device() == device);
            const std::string found = difference(to(got[i], cpu), want[i], between_devices(row, dtype, want[i].dtype()));
            if (!found.empty()) FAIL_CHECK("output " << i << ": " << found);
          }
          for (std::size_t i = 0; i < there.size(); ++i) {
            // The whole storage: what an op edits is the same on both devices, and all else is as it was.
            const auto elements = static_cast<std::int64_t>(here[i].impl().storage->bytes() / size_of(here[i].dtype()));
            const Tensor whole = here[i].window({elements}, {1}, 0), copy = there[i].window({elements}, {1}, 0);
            const std::string found =
                difference(to(copy, cpu), whole, op.inputs[i].edited ? between_devices(row, dtype, whole.dtype()) : Tolerance{});
            if (!found.empty()) FAIL_CHECK("storage of input " << i << ": " << found);
          }
        }
      },
      device);
}

/// Of all inputs together, recorded and not; and in float32 of each alone, for which a kernel may leave out the others' gradients.
void check_gradients_on(Device device) {
  for_each_case(
      [device](const Row& row, const Case& op, DType dtype) {
        if (!row.differentiable || !is_floating(dtype)) return;
        const auto gradients_of = [&](bool on_device, bool create_graph, std::size_t only) {
          Tensors inputs, leaves, outputs, weights;
          for (std::size_t i = 0; i < op.inputs.size(); ++i) {
            const Tensor x = make_input(op.inputs[i], dtype, i);
            inputs.push_back(on_device ? on_gpu(x, device) : x);
            const bool is_leaf = op.inputs[i].differentiable && is_floating(x.dtype()) && (only == SIZE_MAX || only == i);
            if (is_leaf) leaves.push_back(inputs.back().set_requires_grad());
          }
          make_first_gpu_current();
          for (const Tensor& y : leaves.empty() ? Tensors() : op.call({inputs, dtype, on_device ? device : cpu})) {
            if (!y.requires_grad()) continue;
            outputs.push_back(y);
            weights.push_back(to(make_input({y.shape()}, y.dtype(), 10 + outputs.size()), y.device()));
          }
          make_first_gpu_current();
          return outputs.empty() ? Tensors() : grad(outputs, leaves, weights, create_graph);
        };
        const auto check = [&](bool create_graph, std::size_t only) {
          INFO("create_graph " << create_graph << ", input " << (only == SIZE_MAX ? "any" : std::to_string(only)));
          const Tensors want = gradients_of(false, create_graph, only), got = gradients_of(true, create_graph, only);
          REQUIRE(got.size() == want.size());
          for (std::size_t i = 0; i < want.size(); ++i) {
            REQUIRE(want[i].defined() == got[i].defined());
            if (!want[i].defined()) continue;
            const std::string found = difference(to(got[i], cpu), want[i], gradient_tolerance(row, want[i].dtype()) * 2);
            if (!found.empty()) FAIL_CHECK("gradient " << i << ": " << found);
          }
        };
        for (const bool create_graph : {false, true}) check(create_graph, SIZE_MAX);
        if (dtype != DType::f32 || is_huge(op)) return;
        for (std::size_t i = 0; op.inputs.size() > 1 && i < op.inputs.size(); ++i) check(false, i);
      },
      device);
}

}  // namespace

TEST_CASE("Ops on the GPU and their gradients write nothing past the end of any memory", "[cuda]") {
  GuardedMemory memory(cuda());
  for_each_case(
      [&](const Row& row, const Case& op, DType dtype) {
        if (is_huge(op)) return;
        Tensors inputs, leaves;
        for (std::size_t i = 0; i < op.inputs.size(); ++i) {
          inputs.push_back(to(make_input(op.inputs[i], dtype, i), cuda()));
          if (row.differentiable && !op.inputs[i].edited && op.inputs[i].differentiable && is_floating(inputs[i].dtype()))
            leaves.push_back(inputs[i].set_requires_grad());
        }
        Tensors outputs = op.call({inputs, dtype, cuda()}), weights;
        std::erase_if(outputs, [](const Tensor& y) { return !y.requires_grad(); });
        for (const Tensor& y : outputs) weights.push_back(to(make_input({y.shape()}, y.dtype(), 11), y.device()));
        if (!outputs.empty() && !leaves.empty()) grad(outputs, leaves, weights, false, true);
        inputs.clear(), leaves.clear(), outputs.clear(), weights.clear();
        CHECK(memory.overruns() == 0);
      },
      cuda());
}
TEST_CASE("Ops on the GPU give what the CPU gives", "[cuda]") { check_ops_on(cuda()); }
TEST_CASE("Ops on a second GPU give what the CPU gives, while the first is current", "[cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  check_ops_on(cuda(1));
}
TEST_CASE("Gradients on the GPU are what the CPU gives", "[cuda]") { check_gradients_on(cuda()); }
TEST_CASE("Gradients on a second GPU are what the CPU gives, while the first is current", "[cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  check_gradients_on(cuda(1));
}

}  // namespace tern::op_cases
