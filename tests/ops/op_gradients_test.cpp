// Gradient checks over the whole table: first and second derivatives against central differences in f64, with inputs
// and incoming gradients of every kind of stride. The lower precisions are in op_precision_test.cpp.
#include <fmt/format.h>

#include "catch.h"
#include "op_cases.h"
#include "ops/factory.h"
#include "ops/gradcheck.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::op_cases {

namespace {

/// Central differences cost two calls per element.
constexpr std::int64_t checked_elements = 48;

bool is_checked(const Input& input) { return input.differentiable && is_floating(input.dtype.value_or(DType::f64)); }

/// Calls f(row, case, what) for every case that is small enough to be differentiated element by element.
template <class F>
void for_each_case(F f) {
  for (const Row& row : table()) {
    if (!row.differentiable) continue;
    std::size_t small = 0;
    for (std::size_t i = 0; i < row.cases.size(); ++i) {
      const Case& op = row.cases[i];
      std::int64_t elements = 0;
      bool any = false;
      for (const Input& input : op.inputs) {
        elements += numel(input.shape);
        any = any || is_checked(input);
      }
      const bool floating = op.dtypes.empty() || op.dtypes.front() == DType::f64;
      if (!any || !floating || elements > checked_elements) continue;
      if (elements > 1) ++small;
      const std::string what = describe(row, op, i, DType::f64);
      INFO(what);
      try {
        f(row, op);
      } catch (const std::exception& error) {
        FAIL_CHECK("threw " << error.what());
      }
    }
    INFO(row.name << " has no case that is small enough for gradcheck");
    CHECK(small > 0);
  }
}

/// A mean over nothing is NaN, and so is its derivative with respect to the incoming gradient.
bool is_checked_twice(const Row& row, const Case& op) {
  return row.twice && op.twice && std::all_of(op.inputs.begin(), op.inputs.end(), [](const Input& x) { return numel(x.shape) > 0; });
}

Tensors leaves_of(const Case& op, Layout layout, std::size_t only = SIZE_MAX) {
  Tensors leaves;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    leaves.push_back(with_layout(make_input(op.inputs[i], DType::f64, i), layout));
    if (is_checked(op.inputs[i]) && (only == SIZE_MAX || only == i)) leaves.back().set_requires_grad();
  }
  return leaves;
}

std::size_t checked_inputs(const Case& op) {
  std::size_t count = 0;
  for (const Input& input : op.inputs) count += is_checked(input);
  return count;
}

/// x with its dimensions in reverse order, so that the gradient which arrives is not contiguous.
Tensor reversed(const Tensor& x) {
  Dims order;
  for (int i = x.dims() - 1; i >= 0; --i) order.push_back(i);
  return permute(x, order);
}

void check(const TensorFunction& f, const Tensors& leaves, bool twice) {
  // Numbers that cancel, as equal ones minus their mean, leave roundings that the central difference enlarges.
  const GradcheckOptions options{.absolute = 1e-6};
  const GradcheckResult first = gradcheck(f, leaves, options);
  if (!first) FAIL_CHECK("gradcheck: " << first.message);
  if (!twice) return;
  const GradcheckResult second = gradgradcheck(f, leaves, options);
  if (!second) FAIL_CHECK("gradgradcheck: " << second.message);
}

}  // namespace

TEST_CASE("Derivatives agree with central differences") {
  for_each_case([](const Row& row, const Case& op) {
    check([&](const Tensors& x) { return op.call({x, DType::f64, cpu}); }, leaves_of(op, Layout::contiguous), is_checked_twice(row, op));
  });
}

TEST_CASE("Derivatives agree where one input alone asks for a gradient") {
  for_each_case([](const Row& row, const Case& op) {
    if (checked_inputs(op) < 2) return;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (!is_checked(op.inputs[i])) continue;
      INFO("input " << i);
      check([&](const Tensors& x) { return op.call({x, DType::f64, cpu}); }, leaves_of(op, Layout::contiguous, i),
            is_checked_twice(row, op));
    }
  });
}

TEST_CASE("Derivatives agree where inputs and incoming gradients have strides") {
  for (Layout layout : {Layout::transposed, Layout::stepped}) {
    INFO(name(layout));
    for_each_case([&](const Row& row, const Case& op) {
      const TensorFunction f = [&](const Tensors& x) {
        Tensors outputs = op.call({x, DType::f64, cpu});
        for (Tensor& y : outputs) y = reversed(y);
        return outputs;
      };
      check(f, leaves_of(op, layout), is_checked_twice(row, op));
    });
  }
}

TEST_CASE("Derivatives agree where inputs and incoming gradients are broadcast") {
  for_each_case([](const Row& row, const Case& op) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      for (int dim = 0; is_checked(op.inputs[i]) && dim < op.inputs[i].shape.size(); ++dim) {
        if (op.inputs[i].shape[dim] < 2) continue;
        INFO("input " << i << ", dimension " << dim);
        Input narrow = op.inputs[i];
        narrow.shape[dim] = 1;
        Tensors leaves = leaves_of(op, Layout::contiguous);
        leaves[i] = make_input(narrow, DType::f64, i).set_requires_grad();
        const TensorFunction f = [&](const Tensors& x) {
          Tensors inputs = x;
          inputs[i] = broadcast_to(x[i], op.inputs[i].shape);
          Tensors outputs = op.call({inputs, DType::f64, cpu});
          for (Tensor& y : outputs)
            if (is_floating(y.dtype())) y = sum(y);
          return outputs;
        };
        check(f, leaves, is_checked_twice(row, op));
      }
    }
  });
}

TEST_CASE("A gradient that is recorded is the same as one that is not") {
  // Fast kernels serve the one, compositions of ops the other; gradgradcheck alone would see the second only.
  for_each_case([](const Row&, const Case& op) {
    for (Layout layout : {Layout::contiguous, Layout::stepped}) {
      const Tensors leaves = leaves_of(op, layout);
      Tensors wanted, outputs, weights;
      for (const Tensor& x : leaves)
        if (x.requires_grad()) wanted.push_back(x);
      for (const Tensor& y : op.call({leaves, DType::f64, cpu})) {
        if (!y.requires_grad()) continue;
        outputs.push_back(y);
        weights.push_back(make_input({y.shape()}, DType::f64, 10 + outputs.size()));
      }
      const Tensors recorded = grad(outputs, wanted, weights, true), plain = grad(outputs, wanted, weights);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        const std::string found = difference(recorded[i], plain[i], tolerance(DType::f64, 20, 0));
        if (!found.empty()) FAIL_CHECK(name(layout) << ", gradient " << i << ": " << found);
      }
    }
  });
}

}  // namespace tern::op_cases
