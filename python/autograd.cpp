// Autograd from Python: grad, backward, gradcheck, Jacobian products, and ops with a gradient of one's own (tern/function.py).
#include <memory>
#include <set>

#include "autodiff/engine.h"
#include "binding.h"
#include "modules.h"
#include "ops/factory.h"
#include "ops/gradcheck.h"

namespace tern::python {

namespace {

/// A tensor or several, as a function of Python's returns them.
Tensors tensors_of(nb::handle result, const char* where) {
  TensorOrMore tensors;
  if (!nb::try_cast(result, tensors))
    fail(where, "expected a function that returns a tensor, or several, but got a " + std::string(Py_TYPE(result.ptr())->tp_name));
  return tensors;
}

/// A function of Python's as the library calls it, without the GIL.
TensorFunction function_of(const nb::callable& f, const char* where) {
  return [&f, where](const Tensors& inputs) {
    const nb::gil_scoped_acquire held;
    return tensors_of(f(*nb::tuple(nb::cast(inputs))), where);
  };
}

using Products = std::pair<std::vector<MaybeTensor>, std::vector<MaybeTensor>>;
Products pair_of(const JacobianProduct& found) {
  Products result;
  for (const Tensor& x : found.outputs) result.first.push_back(maybe(x));
  for (const Tensor& x : found.products) result.second.push_back(maybe(x));
  return result;
}

/// A recorded call of a Function: its class, and what its forward left for its backward. It goes with the graph, in any thread, under the
/// GIL. Python's collector does not see through a graph: a class, whose program keeps a result, would keep them all beyond the end. So the
/// calls that live are known, and let go when the interpreter ends.
struct RecordedCall {
  RecordedCall(nb::object type_, nb::object context_, std::size_t arguments_)
      : type(std::move(type_)), context(std::move(context_)), arguments(arguments_) {
    all().insert(this);
  }
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;
  ~RecordedCall() { all().erase(this); }

  static std::set<RecordedCall*>& all() {
    static auto* const calls = new std::set<RecordedCall*>;
    return *calls;
  }
  static void let_go() {
    std::vector<nb::object> objects;
    for (RecordedCall* const call : all()) {
      objects.push_back(std::move(call->type));
      objects.push_back(std::move(call->context));
    }
  }

  nb::object type, context;
  std::vector<std::size_t> places;  ///< of the tensors among the arguments
  std::size_t arguments = 0;
  std::vector<Tensor> like;  ///< shapes of the outputs, for zeros
  bool is_once = false;
};
struct ReleaseCall {
  void operator()(RecordedCall* call) const {
    if (const nb::detail::cleanup_guard alive{}) delete call;  // after the interpreter there is nobody to give it back to
  }
};

Tensors gradients_of(const RecordedCall& recorded, const char* name, const Backward& call) {
  if (!recorded.type.is_valid()) fail(name, "expected backward before the interpreter ends");
  nb::list saved, gradients;
  for (std::size_t i = 0; i < call.saved_count(); ++i) saved.append(maybe(call.saved(i)));
  for (std::size_t i = 0; i < recorded.like.size(); ++i) {
    const Tensor& gradient = call.grad(i);
    gradients.append(gradient.defined() ? gradient : zeros_like(recorded.like[i]));
  }
  nb::list needed;
  for (std::size_t i = 0, tensor = 0; i < recorded.arguments; ++i) {
    const bool is_tensor = tensor < recorded.places.size() && recorded.places[tensor] == i;
    needed.append(is_tensor && call.needs(tensor));
    tensor += is_tensor;
  }
  // The tensors leave the context again: with the history that they have here they would keep the graph alive, and it them.
  recorded.context.attr("_saved") = nb::tuple(saved);
  recorded.context.attr("needs_input_grad") = nb::tuple(needed);
  saved.clear();
  nb::object result;
  try {
    result = recorded.type.attr("backward")(recorded.context, *nb::tuple(gradients));
  } catch (...) {
    recorded.context.attr("_saved") = nb::none();
    throw;
  }
  recorded.context.attr("_saved") = nb::none();
  if (!PyTuple_Check(result.ptr()) && !PyList_Check(result.ptr())) result = nb::make_tuple(result);
  if (nb::len(result) != recorded.arguments)
    fail(name, "expected backward to return " + std::to_string(recorded.arguments) +
                   " gradients, one for each argument of forward, but got " + std::to_string(nb::len(result)));
  Tensors found;
  for (const std::size_t i : recorded.places) {
    const nb::object one = result[i];
    MaybeTensor gradient;
    if (!nb::try_cast(one, gradient))
      fail(name, "expected backward to return tensors, or None, but got a " + std::string(Py_TYPE(one.ptr())->tp_name));
    found.push_back(given(gradient));
  }
  return found;
}

/// Runs forward without recording it, and records the call.
nb::object apply(const nb::object& type, const nb::object& context, const nb::args& arguments) {
  const char* const name = kept_name(nb::cast<std::string>(type.attr("__name__")));
  std::unique_ptr<RecordedCall, ReleaseCall> recorded(new RecordedCall(type, context, arguments.size()));
  Tensors inputs;
  nb::list needed;
  for (std::size_t i = 0; i < recorded->arguments; ++i) {
    Tensor* x = nullptr;
    const bool is_tensor = nb::try_cast(arguments[i], x, false) && x;
    needed.append(is_tensor && x->requires_grad());
    if (!is_tensor) continue;
    recorded->places.push_back(i);
    inputs.push_back(*x);
  }
  context.attr("needs_input_grad") = nb::tuple(needed);
  nb::object result;
  {
    const NoGrad unrecorded;
    result = type.attr("forward")(context, *arguments);
  }
  const bool is_one = nb::isinstance<Tensor>(result);
  Tensors outputs = tensors_of(result, name), saved;
  for (const nb::handle x : nb::object(context.attr("_saved"))) saved.push_back(given(nb::cast<MaybeTensor>(x)));
  context.attr("_saved") = nb::none();
  // New handles get the history: those of forward may be inputs, or attributes of the context, which the graph keeps alive.
  for (Tensor& y : outputs) {
    const Tensor recorded_one = y.detach();
    for (Tensor& x : saved)
      if (x.is_same(y)) x = recorded_one;
    y = recorded_one;
    recorded->like.push_back(recorded_one.detach());
  }
  recorded->is_once = nb::cast<bool>(type.attr("once_differentiable"));
  std::vector<detail::TensorSpec> specs;
  for (const Tensor& x : inputs) specs.push_back({x.shape(), x.dtype()});
  const std::shared_ptr<RecordedCall> shared = std::move(recorded);
  const auto backward = [shared, specs, name](const Backward& call) {
    Tensors gradients;
    {
      const nb::gil_scoped_acquire held;
      gradients = gradients_of(*shared, name, call);
    }
    detail::check_gradient_specs(name, specs, gradients);
    if (tern::context().grad) detail::forbid_second_derivative(name, call, gradients, shared->is_once);
    return gradients;
  };
  detail::end_call({name}, outputs, inputs, saved, backward, nullptr);
  if (is_one) return nb::cast(outputs[0]);
  return nb::tuple(nb::cast(outputs));
}

}  // namespace

void bind_autograd(nb::module_& m) {
  m.def(
      "grad",
      [](const TensorOrMore& outputs, const TensorOrMore& inputs, const TensorOrMore& grad_outputs, bool create_graph, bool retain_graph) {
        std::vector<MaybeTensor> result;
        for (const Tensor& x : grad(outputs, inputs, grad_outputs, create_graph, retain_graph)) result.push_back(maybe(x));
        return result;
      },
      "outputs"_a, "inputs"_a, "grad_outputs"_a = TensorOrMore(), "create_graph"_a = false, "retain_graph"_a = false, Released());
  m.def(
      "backward",
      [](const TensorOrMore& outputs, const TensorOrMore& grad_outputs, bool retain_graph, bool create_graph) {
        backward(outputs, grad_outputs, retain_graph, create_graph);
      },
      "outputs"_a, "grad_outputs"_a = TensorOrMore(), "retain_graph"_a = false, "create_graph"_a = false, Released(),
      "Adds gradients to every leaf, as Tensor.backward does, for several outputs at once.");
  const auto check = [&](const char* name, GradcheckResult (*f)(const TensorFunction&, const Tensors&, const GradcheckOptions&)) {
    m.def(
        name,
        [name, f](const nb::callable& function, const TensorOrMore& inputs, double step, double relative, double absolute,
                  std::uint64_t seed) {
          const TensorFunction called = function_of(function, name);
          const nb::gil_scoped_release released;
          const GradcheckResult found = f(called, inputs, {step, relative, absolute, seed});
          if (!found.ok) fail(name, "expected gradients that agree with differences but got " + found.message);
          return true;
        },
        "f"_a, "inputs"_a, nb::kw_only(), "step"_a = 1e-6, "relative"_a = 1e-6, "absolute"_a = 1e-7, "seed"_a = 0,
        (std::string(name) == "gradcheck"
             ? "Compares the gradients of f(*inputs) with central differences, element by element; the inputs are f64 and those of them "
               "that require a gradient are checked. True, or an Error that says which element differs."
             : "As gradcheck, for the gradients of f themselves."));
  };
  check("gradcheck", &gradcheck);
  check("gradgradcheck", &gradgradcheck);
  const auto product = [&](const char* name, const char* vectors,
                           JacobianProduct (*f)(const TensorFunction&, const Tensors&, const Tensors&)) {
    m.def(
        name,
        [name, f](const nb::callable& function, const TensorOrMore& inputs, const TensorOrMore& along) {
          const TensorFunction called = function_of(function, name);
          const nb::gil_scoped_release released;
          return pair_of(f(called, inputs, along));
        },
        "f"_a, "inputs"_a, nb::arg(vectors));
  };
  product("vjp", "cotangents", &vjp);
  product("jvp", "tangents", &jvp);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&RecordedCall::let_go));
  m.def("_apply_function", &apply, "type"_a, "context"_a, "arguments"_a,
        nb::sig("def _apply_function(type: type, context: object, *arguments: typing.Any) -> typing.Any"));
}

}  // namespace tern::python
