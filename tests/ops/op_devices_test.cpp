// Ops on tensors of two devices, over the whole table: an Error that names both, whether or not there is a GPU.
#include "autodiff/node.h"
#include "catch.h"
#include "message.h"
#include "op_cases.h"
#include "ops/factory.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/index.h"
#include "ops/reduce.h"

namespace tern::op_cases {

namespace {

/// A tensor that says it is on another device and has no memory: enough for an op that looks at devices before anything else, and a build
/// without CUDA can make it. No machine has that device, so that a kernel which takes the tensor is refused and never runs.
Tensor elsewhere(const Tensor& x) {
  auto impl = make_ref<TensorImpl>();
  impl->storage = make_ref<Storage>(0, Stream{cuda(100)});
  impl->shape = x.shape();
  impl->strides = x.strides();
  impl->dtype = x.dtype();
  return Tensor(std::move(impl));
}

}  // namespace

template <class Dev>
concept has_attention_kernels =
    requires(Dev dev, View x, kernels::Attention attention) { kernels::SelfAttention{x, attention, x}.run(dev); };
template <class Dev>
concept has_embedding_kernels = requires(Dev dev, View x, PhiloxState draws) { kernels::Embed{x, x, x, 0.0, draws, x}.run(dev); };

// A kernel that the CPU lacks is no function with an empty body: a call does not compile.
static_assert(has_attention_kernels<Cuda> && !has_attention_kernels<Cpu>);
static_assert(has_embedding_kernels<Cuda> && !has_embedding_kernels<Cpu>);

TEST_CASE("An op on tensors of two devices is an error that names both") {
  int checked = 0;
  for (const Row& row : table()) {
    for (std::size_t number = 0; number < row.cases.size(); ++number) {
      const Case& op = row.cases[number];
      if (op.inputs.size() < 2 || row.name == "copy_") continue;  // copy_ is for two devices
      const std::vector<DType> dtypes = dtypes_of(row, op);
      if (dtypes.empty()) continue;
      const DType dtype = dtypes.front();
      for (std::size_t moved = 0; moved < op.inputs.size(); ++moved) {
        INFO(describe(row, op, number, dtype) << ", input " << moved << " elsewhere");
        Tensors inputs;
        for (std::size_t i = 0; i < op.inputs.size(); ++i) inputs.push_back(make_input(op.inputs[i], dtype, i));
        inputs[moved] = elsewhere(inputs[moved]);
        const std::string message = message_of([&] { op.call({inputs, dtype, cpu}); });
        const std::string start = "[" + (row.shown_name.empty() ? row.name : row.shown_name) + "] expected tensors on one device but got ";
        CAPTURE(message);
        // These rows make an additive padding, a view or a sorted row by ops on that input alone, before the op is called.
        const bool calls_others = row.name.find("attention") != std::string::npos || row.name == "rope" || row.name == "searchsorted";
        if (calls_others && (message.starts_with("[device]") || message.starts_with("[cuda]") || message.starts_with("[window]"))) continue;
        CHECK((message == start + "cpu and cuda:100" || message == start + "cuda:100 and cpu"));
        ++checked;
      }
    }
  }
  CHECK(checked > 100);
}

TEST_CASE("The result of an op and its gradients are on the operands' device") {
  int checked = 0;
  for (const Row& row : table())
    for (std::size_t number = 0; number < row.cases.size(); ++number) {
      const Case& op = row.cases[number];
      if (op.inputs.empty() || row.name.starts_with("quantized")) continue;  // those rows make a weight of their own
      const std::vector<DType> dtypes = dtypes_of(row, op);
      if (dtypes.empty()) continue;
      const DType dtype = dtypes.front();
      INFO(describe(row, op, number, dtype));
      Tensors inputs;
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        inputs.push_back(make_input(op.inputs[i], dtype, i));
        if (row.differentiable && is_floating(inputs.back().dtype()) && !op.inputs[i].edited) inputs.back().set_requires_grad();
      }
      // No machine has this device: a tensor that is made there is an error.
      const DeviceScope scope(cuda(100));
      const std::string message = message_of([&] {
        for (const Tensor& y : op.call({inputs, dtype, cpu})) {
          CHECK(y.device() == cpu);
          if (y.requires_grad()) y.backward(ones_like(y), true);
        }
      });
      CAPTURE(message);
      CHECK(message.find("cuda") == std::string::npos);
      ++checked;
    }
  CHECK(checked > 500);
}

TEST_CASE("check_one_device names the first two devices that differ") {
  const Tensor here = sample({2}), there = elsewhere(here), none;
  CHECK_NOTHROW(check_one_device("op", {}));
  CHECK_NOTHROW(check_one_device("op", {&none, &here, &none, &here}));
  CHECK_NOTHROW(check_one_device("op", {&none, &there, &there}));
  CHECK(message_of([&] { check_one_device("op", {&none, &there, &none, &here}); }) ==
        "[op] expected tensors on one device but got cuda:100 and cpu");
  CHECK(message_of([&] { check_one_device("op", Tensors{here, here, there}); }) ==
        "[op] expected tensors on one device but got cpu and cuda:100");
}

TEST_CASE("A gradient on another device than its tensor is an error that names both") {
  const std::string expected = "[backward] expected tensors on one device but got cpu and cuda:100";
  Tensor x = sample({2}).set_requires_grad();
  CHECK(message_of([&] { x.backward(elsewhere(x)); }) == expected);
  // One that a user's op returns for a leaf.
  const Tensor y = record({"mine"}, clone(x.detach()), {x}, {}, [&](const Backward&) -> Tensors { return {elsewhere(x)}; });
  CHECK(message_of([&] { sum(y).backward(); }) == expected);
  CHECK_FALSE(x.grad().defined());
}

}  // namespace tern::op_cases
