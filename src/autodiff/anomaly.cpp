#include "autodiff/anomaly.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "backend/error.h"
#include "tensor/dispatch.h"

namespace tern {

void ModuleNames::add(const void* module, std::string path) { paths_[module] = std::move(path); }

const std::string* ModuleNames::find(const void* module) const {
  const auto found = paths_.find(module);
  return found == paths_.end() ? nullptr : &found->second;
}

// typeid gives `tern::nn::ModuleList<tern::nn::Linear>`, mangled.
std::string detail::short_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  std::string name = readable ? readable.get() : type.name();
  name.erase(std::min(name.find('<'), name.size()));
  const std::size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

std::string running_module() {
  const ModuleFrame* scope = context().diagnosis.module;
  if (!scope) return "";
  const std::string* path = context().diagnosis.names ? context().diagnosis.names->find(scope->module) : nullptr;
  return path && !path->empty() ? fmt::format("{} ({})", *path, scope->type) : scope->type;
}

/// As running_module(), but without names it searches the tree of the outermost running module. A search that fails returns the type alone,
/// and its own failure names no module.
static std::string failing_module() {
  const ModuleFrame* const scope = context().diagnosis.module;
  std::string known = running_module();
  if (!scope || known != scope->type) return known;
  const ScopedValue<const ModuleFrame*> outside(context().diagnosis.module, nullptr);
  std::string path;
  try {
    for (const ModuleFrame* root = scope; root; root = root->outer)
      if (std::string found = root->find_path ? root->find_path(root->module, scope->module) : ""; !found.empty()) path = std::move(found);
  } catch (const std::exception&) {  // from a visit; the original failure is the one to report
  }
  return path.empty() ? known : fmt::format("{} ({})", path, scope->type);
}
[[maybe_unused]] static const bool failures_name_modules = (backend::failing_place = failing_module, true);

/// Counts of the elements of a tensor that are not finite.
struct NonFiniteCounts {
  bool nan = false, inf = false;
  explicit operator bool() const { return nan || inf; }
  const char* name() const { return nan ? "a NaN" : "an Inf"; }
};

static NonFiniteCounts count_non_finite(const Tensor& x) {
  NonFiniteCounts faults;
  if (!x.defined() || !is_floating(x.dtype())) return faults;
  dispatch_floats(x.dtype(), "anomaly", [&]<class T>() {
    for (const T element : x.to_vector<T>()) {
      const auto value = static_cast<double>(element);
      faults.nan = faults.nan || std::isnan(value);
      faults.inf = faults.inf || std::isinf(value);
    }
  });
  return faults;
}

static std::string in_module(const std::string& module) { return module.empty() ? "" : " in module " + module; }

/// Ops that write a given number, usually -Inf.
static bool places_numbers(std::string_view op) { return op == "masked_fill" || op == "pad" || op == "where"; }

/// Views compute no elements. Ops take views of a result before their kernel has written it, when it may hold any bits.
static bool is_view(const Tensor& y, std::span<const Tensor> inputs) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const Tensor& x) { return x.defined() && x.impl().storage.get() == y.impl().storage.get(); });
}

void AnomalyMode::end_op(const OpCall& call) {
  if (!context().diagnosis.anomaly) return;  // within a backward or a rule of tangents, whose result is checked as a whole
  for (const Tensor& y : call.outputs) {
    if (!y.defined() || is_view(y, call.inputs)) continue;
    const NonFiniteCounts faults = count_non_finite(y);
    if (!faults) continue;
    const auto has_inf = [](const Tensor& x) { return count_non_finite(x).inf; };
    if (!faults.nan && (places_numbers(call.op.name) || std::any_of(call.inputs.begin(), call.inputs.end(), has_inf))) continue;
    const std::string message = fmt::format("expected finite numbers but the forward of '{}'{} made {}, shape {}", call.op.name,
                                            in_module(running_module()), faults.name(), to_string(y.shape()));
    const ScopedValue<const ModuleFrame*> outside(context().diagnosis.module, nullptr);  // the message already names the module
    fail(call.op.name, message);
  }
}

void check_gradients(const Node& node, const Tensors& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (const NonFiniteCounts faults = count_non_finite(gradients[i]))
      fail(node.op, fmt::format("expected finite numbers but the backward of '{}'{} made {} in the gradient of its "
                                "input {}, shape {}",
                                node.op, in_module(node.module), faults.name(), i, to_string(gradients[i].shape())));
}

}  // namespace tern
