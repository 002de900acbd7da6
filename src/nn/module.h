#pragma once
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
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

  void operator()(std::string_view name, Tensor& parameter);
  void operator()(std::string_view name, Module& child);
  /// `name.0`, `name.1`, ... Copies of one module share its parameters: std::vector<Linear>(4, Linear(8, 8)) is one layer four times, and
  /// four layers are four calls of emplace_back(8, 8).
  template <std::derived_from<Module> M>
  void operator()(std::string_view name, std::vector<M>& children) {
    for (std::size_t i = 0; i < children.size(); ++i)
      (*this)(std::string(name) + "." + std::to_string(i), static_cast<Module&>(children[i]));
  }
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
  virtual void on_parameter(const std::string& /*path*/, Tensor& /*parameter*/) {}
  virtual void on_buffer(const std::string& /*path*/, Tensor& /*buffer*/) {}
  virtual void on_constant(const std::string& /*path*/, Tensor& /*constant*/) {}
  virtual void on_module(const std::string& /*path*/, Module& /*module*/) {}

 private:
  std::string join(std::string_view name) const;
  std::string path_;
};

/// Base of all layers and models. `visit` is the only reflection: saving, moving, counting, naming and training modes
/// are visitors. A module is a copyable value that holds tensor handles: a copy has its own structure and mode and
/// shares the parameters; clone() gives one with parameters of its own. A forward opens a ModuleScope, so that anomaly
/// mode can name the place.
struct Module {
  virtual ~Module() = default;
  virtual void visit(Visitor& v) = 0;

  /// Switches the module and all below it between training and evaluation, which dropout asks for.
  void train(bool on = true);
  void eval() { train(false); }
  /// Switches the module and all below it between fused kernels and plain ones, which give the same but for rounding.
  void set_use_fused_kernel(bool on = true);

  bool training = true;
  bool use_fused_kernel = false;  ///< for layers that have fused kernels
};

/// In the order of visit; a tensor that is shared (tied weights) is listed once, under its first name. Throw Error where two tensors have
/// one name.
std::vector<NamedTensor> named_parameters(const Module& module);
std::vector<NamedTensor> named_buffers(const Module& module);
Tensors parameters(const Module& module);
/// The number of elements of all parameters, shared ones counted once.
std::int64_t count_parameters(const Module& module);

/// Moves parameters, buffers, constants and gradients to a device, or the floating ones but constants to a dtype, behind the handles that
/// exist: optimizers, copies and ties follow. Flattened parameters are flattened again.
void to(Module& module, Device device);
void to(Module& module, DType dtype);

/// Forgets the gradients; those in a flat buffer stay there and stand for zeros instead, see Note [Gradient sink].
void zero_grad(const Module& module);
void zero_grad(const Tensors& parameters);

/// Asks for gradients of all parameters, or of none: freezes them.
void set_requires_grad(Module& module, bool requires_grad);

/// The path of every module in the tree, for AnomalyMode. The module must stay where it is while the names are in use.
ModuleNames module_names(const Module& module);

namespace detail {
/// Gives every parameter and buffer handle in the tree a new tensor with the same elements.
void own_parameters(Module& module);
/// Puts a handle, and all of its copies, on other memory. See Note [Rebinding].
void rebind(const Tensor& x, const Tensor& data);
}  // namespace detail

/// A copy with parameters and buffers of its own; ties are kept, gradients are not.
template <std::derived_from<Module> M>
M clone(const M& module) {
  M copy = module;
  detail::own_parameters(copy);
  return copy;
}

}  // namespace tern::nn
