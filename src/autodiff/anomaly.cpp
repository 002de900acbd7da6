#include "autodiff/anomaly.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "tensor/dispatch.h"

namespace tern {

std::string running_module() {
  const ModuleScope* scope = context().scope;
  if (!scope) return "";
  const std::string* path = context().names ? context().names->find(scope->module) : nullptr;
  return path && !path->empty() ? fmt::format("{} ({})", *path, scope->type) : scope->type;
}

/// The first kind of number found that is not finite: "a NaN" before "an Inf"; null where all are.
static const char* fault_in(const Tensor& x) {
  if (!x.defined() || !is_floating(x.dtype())) return nullptr;
  return dispatch_floats(x.dtype(), "anomaly", [&]<class T>() -> const char* {
    bool has_infinity = false;
    for (const T element : x.to_vector<T>()) {
      const auto value = static_cast<double>(element);
      if (std::isnan(value)) return "a NaN";
      has_infinity = has_infinity || std::isinf(value);
    }
    return has_infinity ? "an Inf" : nullptr;
  });
}

static bool has_infinity(const Tensor& x) {
  if (!x.defined() || !is_floating(x.dtype())) return false;
  return dispatch_floats(x.dtype(), "anomaly", [&]<class T>() {
    const std::vector<T> values = x.to_vector<T>();
    return std::any_of(values.begin(), values.end(), [](T value) { return std::isinf(static_cast<double>(value)); });
  });
}

static std::string in_module(const std::string& module) { return module.empty() ? "" : " in module " + module; }

/// Ops that put a number where they are told to, of which -Inf is the usual one.
static bool places_numbers(std::string_view op) { return op == "masked_fill" || op == "pad" || op == "where"; }

void detail::check_anomaly(const char* op, std::span<const Tensor> outputs, const TensorList& inputs) {
  for (const Tensor& y : outputs) {
    const char* const fault = fault_in(y);
    if (!fault) continue;
    if (fault == std::string_view("an Inf") && (places_numbers(op) || std::any_of(inputs.begin(), inputs.end(), has_infinity))) continue;
    fail(op, fmt::format("expected finite numbers but the forward of '{}'{} made {}, shape {}", op, in_module(running_module()), fault,
                         to_string(y.shape())));
  }
}

void check_gradients(const Node& node, const Tensors& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (const char* const fault = fault_in(gradients[i]))
      fail(node.op, fmt::format("expected finite numbers but the backward of '{}'{} made {} in the gradient of its "
                                "input {}, shape {}",
                                node.op, in_module(node.module), fault, i, to_string(gradients[i].shape())));
}

}  // namespace tern
