#pragma once
#include <string>
#include <typeinfo>
#include <unordered_map>

#include "autodiff/node.h"

namespace tern {

/// Frame of the chain of running modules; a module's forward opens one. Costs three stores, and a check for observers. A frame of the
/// module that is already running, as with m(x) and m.forward(x) within it, is not reported to observers.
struct ModuleFrame : backend::ObservedScope {
  /// Path of a module in the tree below a root, for errors; "" if it is not there or is the root itself.
  using FindPath = std::string (*)(const void* root, const void* module);

  /// Opens the frame: context().diagnosis.module points to it until it ends.
  ModuleFrame(const void* module_, const char* type_, FindPath find_path_ = nullptr)
      : module(module_), type(type_), outer(context().diagnosis.module), find_path(find_path_) {
    context().diagnosis.module = this;
    if (is_observed() && !is_inner()) backend::tell([this](backend::Observer& told) { told.begin_module(module, type); });
  }
  ~ModuleFrame() {
    context().diagnosis.module = outer;
    if (!is_inner()) tell_end([](backend::Observer& told) { told.end_module(); });
  }

  const void* module;        ///< address of the running module
  const char* type;          ///< class name, "Linear"
  const ModuleFrame* outer;  ///< frame of the module that called it, or null
  FindPath find_path;        ///< searches the tree below `module`; null if that is not known

 private:
  bool is_inner() const { return outer && outer->module == module; }
};

/// Paths of a model's modules by address; nn::module_names(model) fills one.
class ModuleNames {
 public:
  /// Sets a module's path, replacing an earlier one.
  void add(const void* module, std::string path);
  /// Path of a module; null if it is not known.
  const std::string* find(const void* module) const;

 private:
  std::unordered_map<const void*, std::string> paths_;
};

/// Scope of anomaly mode: the output of every op except views, and the gradients that every backward returns, are checked for NaN and Inf.
/// The first one found throws Error with the op's name and the path and type of the module whose forward called it. An Inf in an op's
/// input, such as a mask's -Inf, may appear in its output; one that the op produces is an error, and so is any in a gradient (the first
/// scales of a GradScaler may cause some). Slow: every op waits for its result.
class AnomalyMode : backend::Observer {
 public:
  /// `names` are the paths of the model's modules, nn::module_names(model); without them errors contain only types.
  explicit AnomalyMode(ModuleNames names = {})
      : names_(std::move(names)), anomaly_(context().diagnosis.anomaly, true), in_use_(context().diagnosis.names, &names_) {
    watch();
  }
  ~AnomalyMode() override { unwatch(); }
  AnomalyMode(const AnomalyMode&) = delete;
  AnomalyMode& operator=(const AnomalyMode&) = delete;

 private:
  void end_op(const OpCall& call) override;

  ModuleNames names_;
  ScopedValue<bool> anomaly_;
  ScopedValue<const ModuleNames*> in_use_;
};

namespace detail {
/// Name of a class without namespaces and template arguments: "Linear".
std::string short_name(const std::type_info& type);
}  // namespace detail

/// Path and type of the innermost running module, `blocks.0.attn.qkv (Linear)`; "" outside of any.
std::string running_module();

/// Throws Error that names the node's op and module if one of its gradients has a NaN or an Inf.
void check_gradients(const Node& node, const Tensors& gradients);

}  // namespace tern
