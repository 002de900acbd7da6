#include "autodiff/anomaly.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tensor/dispatch.h"

namespace tern {

AnomalyMode::AnomalyMode(ModuleNames names) : names_(std::move(names)), anomaly_before_(context().anomaly), names_before_(context().names) {
  context().anomaly = true;
  context().names = &names_;
}

AnomalyMode::~AnomalyMode() {
  context().anomaly = anomaly_before_;
  context().names = names_before_;
}

std::string running_module() {
  const ModuleScope* scope = context().scope;
  if (!scope) return "";
  const std::string* path = context().names ? context().names->find(scope->module) : nullptr;
  return path && !path->empty() ? fmt::format("{} ({})", *path, scope->type) : scope->type;
}

static bool has_nan(const Tensor& x) {
  if (!x.defined() || !is_floating(x.dtype())) return false;
  return dispatch_floats(x.dtype(), "anomaly", [&]<class T>() {
    const std::vector<T> values = x.to_vector<T>();
    return std::any_of(values.begin(), values.end(), [](T value) { return std::isnan(static_cast<double>(value)); });
  });
}

static std::string in_module(const std::string& module) { return module.empty() ? "" : " in module " + module; }

void detail::check_anomaly(const char* op, std::span<const Tensor> outputs) {
  for (const Tensor& y : outputs)
    if (has_nan(y))
      fail(op, fmt::format("expected finite numbers but the forward of '{}'{} made a NaN, shape {}", op, in_module(running_module()),
                           to_string(y.shape())));
}

void check_gradients(const Node& node, const Tensors& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (has_nan(gradients[i]))
      fail(node.op, fmt::format("expected finite numbers but the backward of '{}'{} made a NaN in the gradient of its "
                                "input {}, shape {}",
                                node.op, in_module(node.module), i, to_string(gradients[i].shape())));
}

}  // namespace tern
