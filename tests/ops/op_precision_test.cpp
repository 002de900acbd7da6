// Gradients of the whole table in lower precisions against f64, and proof that the tolerances of outputs and gradients, Note
// [Tolerances], are less than a mistake makes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "autodiff/engine.h"
#include "for_each_case.h"
#include "ops/factory.h"

namespace tern::op_cases {

namespace {

bool is_checked(const Input& input) { return input.differentiable && is_floating(input.dtype.value_or(DType::f64)); }

/// The gradients of a case's inputs, computed in `used`, where inputs and incoming gradients are numbers that `dtype` holds.
Tensors gradients_in(const Case& op, DType dtype, DType used, bool is_fused) {
  const FusedKernels kernels(is_fused);
  Tensors inputs, leaves, outputs, weights;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    Tensor x = make_input(op.inputs[i], dtype, i);
    if (is_floating(x.dtype())) x = cast(x, op.inputs[i].dtype.value_or(used));
    if (is_checked(op.inputs[i])) leaves.push_back(x.set_requires_grad());
    inputs.push_back(x);
  }
  for (const Tensor& y : op.call({inputs, used, cpu})) {
    if (!y.requires_grad()) continue;
    outputs.push_back(y);
    weights.push_back(cast(make_input({y.shape()}, dtype, 10 + outputs.size()), y.dtype()));
  }
  return outputs.empty() ? Tensors(leaves.size()) : grad(outputs, leaves, weights);
}

/// A computed tensor and what it should be, with a name and what it may be off by.
struct Pair {
  std::string name;
  reference::Array got, want;
  Tolerance tolerance;
};

std::vector<Pair> gradient_pairs(const Row& row, const Case& op, DType dtype) {
  if (!row.differentiable || std::none_of(op.inputs.begin(), op.inputs.end(), is_checked)) return {};
  // By plain kernels, so that a fused one is tested against its composition at every size.
  const Tensors got = gradients_in(op, dtype, dtype, true), want = gradients_in(op, dtype, DType::f64, false);
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < got.size(); ++i) {
    REQUIRE(got[i].defined() == want[i].defined());
    if (!got[i].defined()) continue;
    pairs.push_back({fmt::format("gradient {}", i), read(got[i]), read(want[i]), gradient_tolerance(row, got[i].dtype())});
    pairs.back().want.dtype = got[i].dtype();
  }
  return pairs;
}

std::vector<Pair> output_pairs(const Row& row, const Case& op, DType dtype) {
  Tensors inputs;
  References references{{}, dtype};
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    inputs.push_back(make_input(op.inputs[i], dtype, i));
    references.inputs.push_back(read(inputs[i]));
  }
  const reference::Arrays want = op.reference(references);
  const Tensors got = op.call({inputs, dtype, cpu});
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < got.size(); ++i)
    if (is_floating(got[i].dtype()))
      pairs.push_back({fmt::format("output {}", i), read(got[i]), want[i], forward_tolerance(row, got[i].dtype())});
  return pairs;
}

/// The largest finite magnitude, and where it is.
std::pair<double, std::size_t> largest(const std::vector<double>& values) {
  std::pair<double, std::size_t> result{0, 0};
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i]) && std::abs(values[i]) > result.first) result = {std::abs(values[i]), i};
  return result;
}

/// Fails unless each way to spoil the computed tensor is noticed: by the comparison with the reference, and, of the whole tensor, also by
/// the one between devices, each of which may be off by the tolerance.
void check_spoilt(const Pair& pair, std::size_t largest_element) {
  for (const double factor : {0.5, 0.0, -1.0}) {
    Pair spoilt = pair;
    for (double& x : spoilt.got.values) x *= factor;
    if (difference(spoilt.got, spoilt.want, pair.tolerance * 2).empty()) FAIL_CHECK(pair.name << " times " << factor << " passes");
  }
  Pair spoilt = pair;
  spoilt.got.values[largest_element] *= 1.1;
  if (difference(spoilt.got, spoilt.want, pair.tolerance).empty()) FAIL_CHECK(pair.name << " with an element times 1.1 passes");
}

/// Kernels that write a leaf's gradient overwrite it in a first pass, and add to it in a second.
void check_second_pass(Device device) {
  for_each_case(
      [device](const Row& row, const Case& op, DType dtype) {
        if (!row.differentiable || (dtype != DType::f32 && dtype != DType::bf16)) return;
        Tensors inputs, leaves, once;
        for (std::size_t i = 0; i < op.inputs.size(); ++i) {
          inputs.push_back(to(make_input(op.inputs[i], dtype, i), device));
          if (op.inputs[i].differentiable && is_floating(inputs[i].dtype())) leaves.push_back(inputs[i].set_requires_grad());
        }
        for (const bool is_second : {false, true}) {
          manual_seed(7);
          Tensors outputs, weights;
          for (const Tensor& y : op.call({inputs, dtype, device})) {
            if (!y.requires_grad()) continue;
            outputs.push_back(y);
            weights.push_back(to(make_input({y.shape()}, y.dtype(), 10 + outputs.size()), y.device()));
          }
          if (outputs.empty()) return;
          backward(outputs, weights);
          for (std::size_t i = 0; i < leaves.size(); ++i) {
            const Tensor& g = leaves[i].grad();
            if (!is_second) once.push_back(g.defined() ? clone(g) : Tensor());
            else if (g.defined() && !is_huge(op)) {
              reference::Array want = read(once[i]);
              for (double& x : want.values) x *= 2;
              INFO("gradient " << i);
              CHECK(difference(g, want, gradient_tolerance(row, g.dtype()) * 2) == "");
            }
          }
        }
      },
      device);
}

}  // namespace

TEST_CASE("A second pass adds the same gradients to those that leaves have") { check_second_pass(cpu); }
TEST_CASE("A second pass on a GPU adds the same gradients to those that leaves have", "[cuda]") { check_second_pass(cuda()); }

TEST_CASE("Gradients in lower precision agree with f64, and what is spoilt is refused") {
  // Of each output and gradient of a row: the largest magnitude that is expected, over all cases.
  std::map<std::string, double> magnitudes;
  for_each_case([&](const Row& row, const Case& op, DType dtype) {
    if (!is_floating(dtype)) return;
    std::vector<Pair> pairs = output_pairs(row, op, dtype);  // which op_forward_test.cpp compares
    for (Pair& pair : gradient_pairs(row, op, dtype)) {
      const std::string found = difference(pair.got, pair.want, pair.tolerance);
      if (!found.empty()) FAIL_CHECK(pair.name << ": " << found);
      pairs.push_back(std::move(pair));
    }
    for (const Pair& pair : pairs) {
      const auto [magnitude, at] = largest(pair.want.values);
      double& known = magnitudes[fmt::format("{} {}, {}", row.name, name(dtype), pair.name)];
      known = std::max(known, magnitude);
      // Below the least scale of Note [Tolerances] a tensor may be all rounding.
      if (magnitude >= 0.25) check_spoilt(pair, at);
    }
  });
  for (const auto& [what, magnitude] : magnitudes) {
    INFO(what << " is never larger than " << magnitude << ", so that no mistake in it would be noticed");
    CHECK((magnitude == 0 || magnitude >= 0.25));
  }
}

}  // namespace tern::op_cases
