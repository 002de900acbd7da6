#pragma once
#include <string>
#include <unordered_map>

#include "autodiff/node.h"

namespace tern {

/// A frame of the chain of running modules; a module's forward opens one. Costs three stores, and a look for observers. A frame of the
/// module that runs already, as that of m(x) and of m.forward(x) within, tells observers nothing.
struct ModuleFrame : backend::ObservedScope {
  /// The path of a module in the tree below a root, "" where it is not there or is the root itself; for errors.
  using FindPath = std::string (*)(const void* root, const void* module);

  /// Opens the frame: context().scope is this one until it ends.
  ModuleFrame(const void* module_, const char* type_, FindPath find_path_ = nullptr)
      : module(module_), type(type_), outer(context().scope), find_path(find_path_) {
    context().scope = this;
    if (is_observed() && !is_inner()) backend::tell([this](backend::Observer& told) { told.begin_module(module, type); });
  }
  ~ModuleFrame() {
    context().scope = outer;
    if (!is_inner()) tell_end([](backend::Observer& told) { told.end_module(); });
  }

  const void* module;        ///< address of the module that runs
  const char* type;          ///< "Linear"
  const ModuleFrame* outer;  ///< frame of the module that called it, or null
  FindPath find_path;        ///< in the tree below `module`, or null where that is not known

 private:
  bool is_inner() const { return outer && outer->module == module; }
};

/// The paths of a model's modules by address; nn::module_names(model) fills one.
class ModuleNames {
 public:
  /// A module's path from now on; a later one replaces it.
  void add(const void* module, std::string path);
  /// Null for a module that is not known.
  const std::string* find(const void* module) const;

 private:
  std::unordered_map<const void*, std::string> paths_;
};

/// While it lives, the output of every op, views left out, and the gradients that every backward returns are searched for NaN and Inf; the
/// first one found throws Error with the op's name and the path and type of the module whose forward called it. An Inf that an op was
/// given, as a mask's -Inf is, passes through; one that it made does not, nor does any in a gradient: a GradScaler's first scales may be
/// such. Slow: every op waits for its result.
class AnomalyMode {
 public:
  /// `names` are the model's, nn::module_names(model); without them errors name types alone.
  explicit AnomalyMode(ModuleNames names = {})
      : names_(std::move(names)), anomaly_(context().anomaly, true), in_use_(context().names, &names_) {}

 private:
  ModuleNames names_;
  ScopedValue<bool> anomaly_;
  ScopedValue<const ModuleNames*> in_use_;
};

/// `blocks.0.attn.qkv (Linear)` for the innermost running module; "" outside any.
std::string running_module();

/// Throws Error that names the node's op and module if one of its gradients has a NaN or an Inf.
void check_gradients(const Node& node, const Tensors& gradients);

}  // namespace tern
