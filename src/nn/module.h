#pragma once
#include <concepts>
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

/// Receives a module's members, one line for each: `v("fc", fc)`. It knows the path so far, so that a weight
/// arrives as `blocks.0.attn.qkv.weight`. Undefined tensors and empty optionals are passed over. A member that visit leaves out is neither
/// trained nor saved. A parameter must say that it is one, set_requires_grad(), or that it is frozen, set_requires_grad(false): an
/// optimizer refuses others.
class Visitor {
 public:
  virtual ~Visitor() = default;

  /// A parameter: a tensor that is trained, or frozen.
  void operator()(std::string_view name, Tensor& parameter);
  /// A module below this one, whose members follow with `name.` in front.
  void operator()(std::string_view name, Module& child);
  /// `name.0`, `name.1`, ... Copies of one module share its parameters: std::vector<Linear>(4, Linear(8, 8)) is one layer four times, which
  /// parameters() and summary() refuse, and nn::layers(4, [] { return Linear(8, 8); }) are four.
  template <std::derived_from<Module> M>
  void operator()(std::string_view name, std::vector<M>& children) {
    for (std::size_t i = 0; i < children.size(); ++i)
      (*this)(std::string(name) + "." + std::to_string(i), static_cast<Module&>(children[i]));
  }
  /// A module that there may be: nothing where there is none.
  template <std::derived_from<Module> M>
  void operator()(std::string_view name, std::optional<M>& child) {
    if (child) (*this)(name, static_cast<Module&>(*child));
  }
  /// A tensor that belongs to the module's state but is not trained.
  void buffer(std::string_view name, Tensor& buffer);
  /// A table that the module has made from its options: it goes to the module's device, and is neither trained, saved nor cast.
  void constant(std::string_view name, Tensor& constant);

  /// Shows the whole tree, the root included under the path "".
  void walk(Module& root);

 protected:
  /// A parameter, at its whole path; for subclasses to override, as the three below.
  virtual void on_parameter(const std::string& /*path*/, Tensor& /*parameter*/) {}
  /// A buffer, at its whole path.
  virtual void on_buffer(const std::string& /*path*/, Tensor& /*buffer*/) {}
  /// A constant, at its whole path.
  virtual void on_constant(const std::string& /*path*/, Tensor& /*constant*/) {}
  /// A module, at its whole path, before its members.
  virtual void on_module(const std::string& /*path*/, Module& /*module*/) {}

 private:
  std::string join(std::string_view name) const;
  std::string path_;
};

/// Base of all layers and models. `visit` is the only reflection: saving, moving, counting, naming and training modes
/// are visitors. A module is a copyable value that holds tensor handles: a copy has its own structure and mode and
/// shares the parameters; clone() gives one with parameters of its own. A forward opens a ModuleScope, so that errors, anomaly mode and
/// profiles can name the place; Callable does it for a class of one's own.
struct Module {
  virtual ~Module() = default;
  /// Hands each member over by its name, in the order in which parameters are to be listed and saved: `v("fc", fc);`.
  virtual void visit(Visitor& v) = 0;

  /// For printing: "Linear", and "in=8, out=4, bias=true". The first is the class's name without namespaces, unless it says another.
  virtual std::string type_name() const;
  /// The numbers that a printed module shows behind its type; none unless it overrides this.
  virtual std::string settings() const { return ""; }

  /// Switches the module and all below it between training and evaluation, which dropout asks for.
  void train(bool on = true);
  void eval() { train(false); }  ///< train(false)
  /// Switches the module and all below it between fused kernels and plain ones, which give the same but for rounding.
  void set_use_fused_kernel(bool on = true);

  bool training = true;           ///< set by train(); dropout and batch norms read it
  bool use_fused_kernel = false;  ///< for layers that have fused kernels
  bool is_shared = false;         ///< copies of it in one list, which share its parameters, are meant to
};

/// The frame of a running forward: `const ModuleScope scope(this, "Linear")`. Errors then name the module by its path, as far as the
/// outermost module that runs leads to it.
struct ModuleScope : ModuleFrame {
  /// Opens the frame, with a way to find the module's path in that of the outermost one. `type_` is a literal.
  ModuleScope(const Module* module_, const char* type_);
};

namespace detail {
/// The class's name without namespaces and template arguments; it lives as long as the program.
template <class M>
const char* type_name();
std::string short_name(const std::type_info& type);
}  // namespace detail

/// A module whose call is its forward: with `struct Net final : nn::Callable<Net> { ... Tensor forward(const Tensor& x) const; }`,
/// net(x) is net.forward(x) in a ModuleScope. As the call takes any arguments, one in braces needs its type: net(x, AttentionMask{...}).
template <class M>
struct Callable : Module {
  /// forward(args...) in a ModuleScope.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    const ModuleScope scope(this, detail::type_name<M>());
    return static_cast<const M&>(*this).forward(std::forward<Args>(args)...);
  }
  /// For a forward that changes the module.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    const ModuleScope scope(this, detail::type_name<M>());
    return static_cast<M&>(*this).forward(std::forward<Args>(args)...);
  }
};

/// The tree of a module, a line each: `(fc): Linear(in=8, out=4, bias=true)`. Equal neighbours in a list are one line.
std::string to_string(const Module& module);
std::ostream& operator<<(std::ostream& out, const Module& module);  ///< the same text

/// In the order of visit; a tensor that is shared (tied weights) is listed once, under its first name. Throw Error where two tensors have
/// one name, and where two modules of a list share all of their parameters, and are not is_shared.
std::vector<NamedTensor> named_parameters(const Module& module);
/// State that is not trained, such as running means.
std::vector<NamedTensor> named_buffers(const Module& module);
/// Those of named_parameters, without their names.
Tensors parameters(const Module& module);
/// The number of elements of all parameters, shared ones counted once.
std::int64_t count_parameters(const Module& module);

/// @{
/// Moves parameters, buffers, constants and gradients to a device, or the floating ones but constants to a dtype, behind the handles that
/// exist: optimizers, copies and ties follow. Flattened parameters are flattened again.
void to(Module& module, Device device);
void to(Module& module, DType dtype);
/// @}

/// @{
/// Forgets the gradients; those in a flat buffer stay there and stand for zeros instead, see Note [Gradient sink].
void zero_grad(const Module& module);
void zero_grad(const Tensors& parameters);
/// @}

/// Asks for gradients of all parameters, or of none: freezes them.
void set_requires_grad(Module& module, bool requires_grad);

/// The path of every module in the tree, for AnomalyMode. The module must stay where it is while the names are in use.
ModuleNames module_names(const Module& module);

namespace detail {
/// Gives every parameter and buffer handle in the tree a new tensor with the same elements.
void own_parameters(Module& module);
/// Puts a handle, and all of its copies, on other memory. See Note [Rebinding].
void rebind(const Tensor& x, const Tensor& data);

template <class M>
const char* type_name() {
  static const std::string name = short_name(typeid(M));
  return name.c_str();
}
}  // namespace detail

/// A copy with parameters and buffers of its own; ties are kept, gradients are not.
template <std::derived_from<Module> M>
M clone(const M& module) {
  M copy = module;
  detail::own_parameters(copy);
  return copy;
}

}  // namespace tern::nn
