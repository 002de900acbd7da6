#pragma once
#include <concepts>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "autodiff/anomaly.h"
#include "tensor/tensor.h"

namespace tern::nn {

struct Module;

/// Receives a module's members, one line for each: `v("fc", fc)`. It tracks the path, so that a weight arrives as
/// `blocks.0.attn.qkv.weight`. Undefined tensors and empty optionals are skipped. A member that visit leaves out is neither trained nor
/// saved. A parameter must be marked as trained, set_requires_grad(), or frozen, set_requires_grad(false): optimizers refuse unmarked ones.
class Visitor {
 public:
  virtual ~Visitor() = default;

  /// A parameter: a tensor that is trained, or frozen.
  void operator()(std::string_view name, Tensor& parameter);
  /// A submodule, whose members follow with the prefix `name.`.
  void operator()(std::string_view name, Module& child);
  /// Modules `name.0`, `name.1`, ... Copies of one module share its parameters: std::vector<Linear>(4, Linear(8, 8)) is one layer four
  /// times, which parameters() and summary() refuse; nn::layers(4, [] { return Linear(8, 8); }) are four layers.
  template <std::derived_from<Module> M>
  void operator()(std::string_view name, std::vector<M>& children) {
    for (std::size_t i = 0; i < children.size(); ++i)
      (*this)(std::string(name) + "." + std::to_string(i), static_cast<Module&>(children[i]));
  }
  /// An optional module; skipped if there is none.
  template <std::derived_from<Module> M>
  void operator()(std::string_view name, std::optional<M>& child) {
    if (child) (*this)(name, static_cast<Module&>(*child));
  }
  /// A buffer: a tensor of the module's state that is not trained.
  void buffer(std::string_view name, Tensor& buffer);
  /// A constant: a table computed from the module's options. It moves to the module's device, and is neither trained, saved nor cast.
  void constant(std::string_view name, Tensor& constant);

  /// Visits the whole tree, including the root under the path "".
  void walk(Module& root);

 protected:
  /// Called for a parameter with its full path; subclasses override this, and the three below.
  virtual void on_parameter(const std::string& /*path*/, Tensor& /*parameter*/) {}
  /// Called for a buffer with its full path.
  virtual void on_buffer(const std::string& /*path*/, Tensor& /*buffer*/) {}
  /// Called for a constant with its full path.
  virtual void on_constant(const std::string& /*path*/, Tensor& /*constant*/) {}
  /// Called for a module with its full path, before its members.
  virtual void on_module(const std::string& /*path*/, Module& /*module*/) {}

 private:
  std::string join(std::string_view name) const;
  std::string path_;
};

/// Base class of all layers and models. `visit` is the only reflection: saving, moving, counting, naming and training modes are visitors. A
/// module is a copyable value that holds tensor handles: a copy has its own structure and mode and shares the parameters; clone() copies
/// the parameters too. A forward opens a ModuleScope, so that errors, anomaly mode and profiles can name the module; Callable does so for
/// user-defined classes.
struct Module {
  virtual ~Module() = default;
  /// Passes each member with its name, in the order in which parameters are listed and saved: `v("fc", fc);`.
  virtual void visit(Visitor& v) = 0;

  /// For printing: "Linear" of "Linear(in=8, out=4, bias=true)". By default the class name without namespaces.
  virtual std::string type_name() const;
  /// Settings that are printed after the type, "in=8, out=4, bias=true"; none by default.
  virtual std::string settings() const { return ""; }

  /// Sets training or evaluation mode, which dropout reads, for the module and all modules below it.
  void train(bool on = true);
  void eval() { train(false); }  ///< train(false)

  bool training = true;    ///< set by train(); dropout and batch norms read it
  bool is_shared = false;  ///< copies in one list share the parameters intentionally

  std::function<void()> before_forward;  ///< called when a forward begins, e.g. to gather sharded parameters; usually empty
};

/// Scope of a running forward: `const ModuleScope scope(this, "Linear")`. Errors then name the module by its path, if it can be found below
/// the outermost running module.
struct ModuleScope : ModuleFrame {
  /// Opens the scope, with the function that finds a module's path below the outermost one. `type_` is a literal.
  ModuleScope(const Module* module_, const char* type_);
};

namespace detail {
/// Class name without namespaces and template arguments; it lives as long as the program.
template <class M>
const char* type_name();
std::string short_name(const std::type_info& type);
}  // namespace detail

/// Module whose call is its forward: with `struct Net final : nn::Callable<Net> { ... Tensor forward(const Tensor& x) const; }`, net(x) is
/// net.forward(x) in a ModuleScope. The call is a template, so an argument in braces needs its type: net(x, AttentionMask{...}). `Base` is
/// another module that M extends.
template <class M, class Base = Module>
struct Callable : Base {
  using Base::Base;
  /// forward(args...) in a ModuleScope.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    const ModuleScope scope(this, detail::type_name<M>());
    return static_cast<const M&>(*this).forward(std::forward<Args>(args)...);
  }
  /// The same for a forward that changes the module.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    const ModuleScope scope(this, detail::type_name<M>());
    return static_cast<M&>(*this).forward(std::forward<Args>(args)...);
  }
};

/// Tree of a module, one line for each: `(fc): Linear(in=8, out=4, bias=true)`. Equal neighbours in a list share a line.
std::string to_string(const Module& module);
std::ostream& operator<<(std::ostream& out, const Module& module);  ///< the same text

/// Parameters in the order of visit; a shared tensor (tied weights) is listed once, under its first name. Throws Error if two tensors have
/// one name, and if two modules of a list that are not is_shared share all of their parameters.
std::vector<NamedTensor> named_parameters(const Module& module);
/// Buffers: state that is not trained, such as running means.
std::vector<NamedTensor> named_buffers(const Module& module);
/// The tensors of named_parameters.
Tensors parameters(const Module& module);
/// Number of elements of all parameters, shared ones counted once.
std::int64_t count_parameters(const Module& module);

/// @{
/// Moves parameters, buffers, constants and gradients to a device, or converts the floating ones except constants to a dtype. Existing
/// handles stay valid: optimizers, copies and tied weights see the change. Flattened parameters are flattened again.
void to(Module& module, Device device);
void to(Module& module, DType dtype);
/// @}

/// @{
/// Drops the gradients; those in a flat buffer stay there and are zeroed lazily instead, see Note [Gradient sink].
void zero_grad(const Module& module);
void zero_grad(const Tensors& parameters);
/// @}

/// Makes all parameters require gradients, or none of them, which freezes them.
void set_requires_grad(Module& module, bool requires_grad);

/// Paths of all modules in the tree, for AnomalyMode. The module must not move while the names are in use.
ModuleNames module_names(const Module& module);

namespace detail {
/// Gives every parameter and buffer handle in the tree a new tensor with the same elements.
void own_parameters(Module& module);
/// Moves a handle, and all of its copies, to other memory. See Note [Rebinding].
void rebind(const Tensor& x, const Tensor& data);

template <class M>
const char* type_name() {
  static const std::string name = short_name(typeid(M));
  return name.c_str();
}
}  // namespace detail

/// Copy with separate parameters and buffers; ties are kept, gradients are not.
template <std::derived_from<Module> M>
M clone(const M& module) {
  M copy = module;
  detail::own_parameters(copy);
  return copy;
}

}  // namespace tern::nn
