// Forward mode over the whole table: jvp of every op, of its gradient and of its jvp, against central differences along the tangents in
// f64; and in the other dtypes against f64.
#include <algorithm>

#include "autodiff/engine.h"
#include "for_each_case.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern::op_cases {

namespace {

bool is_checked(const Input& input) { return input.differentiable && is_floating(input.dtype.value_or(DType::f64)); }

Tensors inputs_of(const Case& op, Layout layout = Layout::contiguous) {
  Tensors result;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) result.push_back(with_layout(make_input(op.inputs[i], DType::f64, i), layout));
  return result;
}

/// Numbers in [-1, 1) that know nothing of the inputs.
Tensor direction(const Tensor& like, std::size_t number, Layout layout = Layout::contiguous) {
  return with_layout(make_input(value(like.shape(), -1, 1), DType::f64, 20 + number), layout);
}

/// A tangent for each input whose derivative is checked, or for one of them alone.
Tensors tangents_of(const Case& op, const Tensors& inputs, Layout layout = Layout::contiguous, std::size_t only = SIZE_MAX) {
  Tensors result;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool has_one = is_checked(op.inputs[i]) && (only == SIZE_MAX || only == i);
    result.push_back(has_one ? direction(inputs[i], i, layout) : Tensor());
  }
  return result;
}

/// The op as a function, whose draws are the same each time.
TensorFunction function_of(const Case& op) {
  return [&op](const Tensors& x) {
    manual_seed(7);
    return op.call({x, DType::f64, cpu});
  };
}

/// The products of jvp are the derivative along the tangents that differences give.
void check(const TensorFunction& f, const Tensors& inputs, const Tensors& tangents) {
  const double step = 1e-6;
  const auto at = [&](double t) {
    Tensors moved;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!tangents[i].defined()) {
        moved.push_back(inputs[i]);
        continue;
      }
      // In place, so that the strides are those of the input.
      const Tensor storage = inputs[i].window({static_cast<std::int64_t>(inputs[i].impl().storage->bytes() / 8)}, {1}, 0);
      moved.push_back(clone(storage).window(inputs[i].shape(), inputs[i].strides(), inputs[i].offset()));
      add_(moved.back(), tangents[i] * t);
    }
    Tensors results = f(moved);
    for (Tensor& y : results) y = y.defined() ? y.detach() : y;
    return results;
  };
  const JacobianProduct found = jvp(f, inputs, tangents);
  const Tensors values = at(0), high = at(step), low = at(-step);
  const bool is_empty = std::any_of(inputs.begin(), inputs.end(), [](const Tensor& x) { return x.numel() == 0; });
  REQUIRE(found.products.size() == values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) continue;
    CHECK(found.outputs[i].dtype() == values[i].dtype());
    CHECK(difference(found.outputs[i], values[i], tolerance(DType::f64, 4, 0)) == "");  // one query has a kernel for values alone
    CHECK(found.products[i].defined() == is_floating(values[i].dtype()));
    if (!found.products[i].defined() || is_empty) continue;  // a mean of nothing is NaN, and so is a difference of two
    const std::string wrong = difference(found.products[i], read((high[i] - low[i]) / (2 * step)), Tolerance{1e-6, 1e-6});
    if (!wrong.empty()) FAIL_CHECK("output " << i << ": " << wrong);
  }
}

/// Calls f(row, case) for every case whose derivative is checked, in f64.
template <class F>
void for_each_differentiable(F f) {
  for_each_case([&](const Row& row, const Case& op, DType dtype) {
    const bool any = std::any_of(op.inputs.begin(), op.inputs.end(), is_checked);
    const bool edits = std::any_of(op.inputs.begin(), op.inputs.end(), [](const Input& x) { return x.edited; });
    if (row.differentiable && any && !edits && dtype == DType::f64) f(row, op);
  });
}

/// Of second order, and small: a jvp within a jvp of a fused op is one of its composition, for every op of that.
bool is_checked_twice(const Row& row, const Case& op) {
  std::int64_t elements = 0;
  for (const Input& x : op.inputs) elements += numel(x.shape);
  return row.twice && op.twice && elements <= 256;
}

/// Gradients, or tangents, of f as a function of its inputs alone.
TensorFunction gradients_of(const TensorFunction& f) {
  return [f](const Tensors& x) {
    Tensors cotangents;
    for (const Tensor& y : f(x))
      cotangents.push_back(y.defined() && is_floating(y.dtype()) ? direction(y, 10 + cotangents.size()) : Tensor());
    return vjp(f, x, cotangents).products;
  };
}
TensorFunction tangents_of(const TensorFunction& f, const Tensors& tangents) {
  return [=](const Tensors& x) { return jvp(f, x, tangents).products; };
}

}  // namespace

TEST_CASE("jvp of every op agrees with differences") {
  for_each_differentiable([](const Row&, const Case& op) {
    for (Layout layout : {Layout::contiguous, Layout::transposed, Layout::stepped, Layout::reversed}) {
      INFO(name(layout));
      const Tensors inputs = inputs_of(op, layout);
      check(function_of(op), inputs, tangents_of(op, inputs, layout == Layout::stepped ? Layout::transposed : Layout::contiguous));
    }
  });
}

TEST_CASE("jvp of every op agrees with differences where one input alone has a tangent") {
  for_each_differentiable([](const Row&, const Case& op) {
    const Tensors inputs = inputs_of(op);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      INFO("input " << i);
      if (is_checked(op.inputs[i])) check(function_of(op), inputs, tangents_of(op, inputs, Layout::contiguous, i));
    }
  });
}

TEST_CASE("jvp of every op agrees with differences where inputs are broadcast") {
  for_each_differentiable([](const Row&, const Case& op) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      for (int dim = 0; is_checked(op.inputs[i]) && dim < op.inputs[i].shape.size(); ++dim) {
        if (op.inputs[i].shape[dim] < 2 || op.inputs[i].distinct) continue;
        INFO("input " << i << ", dimension " << dim);
        Input narrow = op.inputs[i];
        narrow.shape[dim] = 1;
        Tensors inputs = inputs_of(op);
        inputs[i] = make_input(narrow, DType::f64, i);
        const TensorFunction f = [&, call = function_of(op)](const Tensors& x) {
          Tensors in = x;
          in[i] = broadcast_to(x[i], op.inputs[i].shape);
          return call(in);
        };
        check(f, inputs, tangents_of(op, inputs));
      }
    }
  });
}

TEST_CASE("jvp of every op's gradient agrees with differences, and so does jvp of its jvp") {
  for_each_differentiable([](const Row& row, const Case& op) {
    if (!is_checked_twice(row, op)) return;
    const Tensors inputs = inputs_of(op), tangents = tangents_of(op, inputs);
    Tensors others;
    for (std::size_t i = 0; i < inputs.size(); ++i) others.push_back(tangents[i].defined() ? direction(inputs[i], 5 + i) : Tensor());
    {
      INFO("gradient");
      check(gradients_of(function_of(op)), inputs, tangents);
    }
    INFO("jvp");
    check(tangents_of(function_of(op), others), inputs, tangents);
  });
}

static void check_dtypes_on(Device device) {
  for_each_case([device](const Row& row, const Case& op, DType dtype) {
    const bool edits = std::any_of(op.inputs.begin(), op.inputs.end(), [](const Input& x) { return x.edited; });
    if (!row.differentiable || edits || !is_floating(dtype) || (dtype == DType::f64 && device == cpu)) return;
    Tensors inputs, wide, tangents, wide_tangents;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      inputs.push_back(make_input(op.inputs[i], dtype, i));
      const bool is_floating_input = is_floating(inputs[i].dtype());
      wide.push_back(is_floating_input ? cast(inputs[i], DType::f64) : inputs[i]);
      tangents.push_back(is_floating_input && op.inputs[i].differentiable ? cast(direction(inputs[i], i), inputs[i].dtype()) : Tensor());
      wide_tangents.push_back(tangents[i].defined() ? cast(tangents[i], DType::f64) : Tensor());
    }
    const auto call = [&](DType of) {
      return [&op, of](const Tensors& x) {
        manual_seed(7);
        return op.call({x, of, x.empty() ? cpu : x[0].device()});
      };
    };
    // A fused op has the tangents of its plain reference, each op of which rounds value and tangent to 16 bits.
    const double roundings = size_of(dtype) > 2 ? 1 : 4;
    for (Tensors* list : {&inputs, &tangents})
      for (Tensor& x : *list)
        if (x.defined()) x = to(x, device);
    const Tensors found = jvp(call(dtype), inputs, tangents).products, want = jvp(call(DType::f64), wide, wide_tangents).products;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i].defined() || !want[i].defined()) continue;
      const std::string wrong =
          difference(cast(to(found[i], cpu), DType::f64), read(cast(want[i], DType::f64)), gradient_tolerance(row, dtype) * roundings);
      if (!wrong.empty()) FAIL_CHECK("output " << i << ": " << wrong);
    }
  });
}

TEST_CASE("jvp of every op in the other dtypes agrees with f64") { check_dtypes_on(cpu); }
TEST_CASE("jvp of every op on a GPU agrees with f64 on the CPU", "[cuda]") { check_dtypes_on(cuda()); }

}  // namespace tern::op_cases
