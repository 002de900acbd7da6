#pragma once
#include <concepts>
#include <functional>
#include <iosfwd>
#include <memory>
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
  static const std::string name = tern::detail::short_name(typeid(M));
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

/// A module that AnyModule can hold: copyable, with a forward from one tensor to one.
template <class M>
concept TakesTensor = std::derived_from<M, Module> && std::copy_constructible<M> && requires(const M& module, const Tensor& x) {
  { module.forward(x) } -> std::convertible_to<Tensor>;
};

/// Any module from one tensor to one, by value: a copy holds a copy of the module, which shares the parameters.
class AnyModule {
 public:
  /// Takes a module: a temporary, or a copy.
  template <TakesTensor M>
  AnyModule(M module) : held_(std::make_unique<Held<M>>(std::move(module))) {}
  /// Copies the module; the copy shares its parameters.
  AnyModule(const AnyModule& other) : held_(other.held_->copy()) {}
  AnyModule(AnyModule&&) noexcept = default;  ///< the source may then only be assigned to or destroyed
  /// Replaces the module.
  AnyModule& operator=(AnyModule other) noexcept {
    held_ = std::move(other.held_);
    return *this;
  }

  Tensor forward(const Tensor& x) const { return held_->forward(x); }  ///< the module's forward
  Tensor operator()(const Tensor& x) const { return forward(x); }      ///< forward(x)
  /// @{
  /// The module as a Module; as<M>() gives its own type.
  Module& module() { return held_->module(); }
  const Module& module() const { return held_->module(); }
  /// @}
  /// The module in its own type. Throws Error that names both types if it has another one.
  template <std::derived_from<Module> M>
  M& as() {
    if (M* const found = dynamic_cast<M*>(&module())) return *found;
    fail("AnyModule", std::string("expected a ") + detail::type_name<M>() + " but got a " + module().type_name());
  }
  /// The const form.
  template <std::derived_from<Module> M>
  const M& as() const {
    return const_cast<AnyModule*>(this)->as<M>();
  }

 private:
  struct Holder {
    virtual ~Holder() = default;
    virtual std::unique_ptr<Holder> copy() const = 0;
    virtual Tensor forward(const Tensor& x) const = 0;
    virtual Module& module() = 0;
  };
  template <class M>
  struct Held final : Holder {
    explicit Held(M module) : held(std::move(module)) {}
    std::unique_ptr<Holder> copy() const override { return std::make_unique<Held>(held); }
    Tensor forward(const Tensor& x) const override { return held.forward(x); }
    Module& module() override { return held; }
    M held;
  };

  std::unique_ptr<Holder> held_;  ///< null only after a move
};

namespace detail {
inline Module& as_module(Module& module) { return module; }
inline Module& as_module(AnyModule& module) { return module.module(); }
template <class Make>
decltype(auto) make_one(Make& make, std::int64_t i) {
  if constexpr (std::is_invocable_v<Make&, std::int64_t>) return make(i);
  else return make();
}
}  // namespace detail

/// `count` modules, each from a call of make() or make(i), with separate parameters: `layers(4, [] { return Linear(8, 8); })`.
/// (std::vector<Linear>(4, Linear(8, 8)) is one layer four times: copies share parameters.)
template <class Make>
auto layers(std::int64_t count, Make make) {
  std::vector<std::remove_cvref_t<decltype(detail::make_one(make, 0))>> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(detail::make_one(make, i));
  return result;
}

/// List of modules that is a module itself, with members "0", "1", ...; of one type, ModuleList<Linear>, or of any, ModuleList<>. A
/// std::vector<Linear> in visit has the same names. It has no forward: the owner's forward uses the modules.
template <class M = AnyModule>
struct ModuleList final : Module {
  ModuleList() = default;
  /// Takes the modules in order: nn::layers(4, ...).
  ModuleList(std::vector<M> modules) : items(std::move(modules)) {}
  void visit(Visitor& v) override {
    for (std::size_t i = 0; i < items.size(); ++i) v(std::to_string(i), detail::as_module(items[i]));
  }

  /// Appends a module, whose name is the next number.
  void push_back(M module) { items.push_back(std::move(module)); }
  std::size_t size() const { return items.size(); }  ///< number of modules
  bool empty() const { return items.empty(); }       ///< true if there is no module
  /// Module at an index. Throws std::out_of_range for an index beyond the list.
  M& operator[](std::size_t i) { return items.at(i); }
  /// The const form.
  const M& operator[](std::size_t i) const { return items.at(i); }
  /// @{
  /// The modules as a range, in order.
  auto begin() { return items.begin(); }
  auto end() { return items.end(); }
  auto begin() const { return items.begin(); }
  auto end() const { return items.end(); }
  /// @}

  std::vector<M> items;  ///< the modules
};

/// Modules that run one after the other: `Sequential(Linear(2, 8), ReLU(), Linear(8, 1))`. It owns them; copies share their parameters,
/// clone() does not. Members are named "0", "1", ..., as in torch.nn.Sequential.
struct Sequential final : Callable<Sequential> {
  Sequential() = default;
  /// A single Sequential as argument is copied, not nested: use Sequential().add(inner) to nest it.
  template <class... M>
    requires(sizeof...(M) != 1 || !(std::same_as<M, Sequential> && ...)) && (TakesTensor<M> && ...)
  explicit Sequential(M... modules) {
    items.reserve(sizeof...(M));
    (add(std::move(modules)), ...);
  }
  void visit(Visitor& v) override;
  /// Runs the modules in order; an empty Sequential returns x itself.
  Tensor forward(const Tensor& x) const;

  /// Appends a module. Returns the Sequential, for chaining.
  Sequential& add(AnyModule module);
  std::size_t size() const { return items.size(); }  ///< number of modules
  /// Module at an index, in its own type: seq.at<Linear>(0). Throws Error for another type, and for an index beyond the last.
  template <std::derived_from<Module> M>
  M& at(std::size_t i) {
    return item(i).as<M>();
  }
  /// The const form.
  template <std::derived_from<Module> M>
  const M& at(std::size_t i) const {
    return const_cast<Sequential*>(this)->item(i).as<M>();
  }

  std::vector<AnyModule> items;  ///< the modules, in the order in which they run

 private:
  AnyModule& item(std::size_t i);
};

/// The parameters of a module in one dtype, one after the other, and their gradients in the same layout.
struct FlatParameters {
  Tensor parameters;  ///< (N), padding included; the padding is zero and stays zero
  Tensor gradients;   ///< (N), in the same layout; undefined if not requested
  Tensor masters;     ///< (N), f32, the masters of 16-bit parameters; else undefined
};

/// Moves the parameters that require gradients into one storage per dtype, each slice aligned to 16 bytes, and binds their gradients to
/// slices of a buffer of the same layout. Every parameter stays an ordinary leaf under its old handle and keeps its value and gradient.
/// Afterwards zero_grad costs nothing (Note [Gradient sink]: read gradients through grad()), and an optimizer's step is one kernel. 16-bit
/// parameters get masters, which optimizers update. Throws Error if parameters of one dtype are on several devices.
std::vector<FlatParameters> flatten_parameters(Module& module);
/// Flattens these parameters, all of which require gradients. Without a buffer of gradients they have none, and `gradients` is undefined.
std::vector<FlatParameters> flatten_parameters(const Tensors& parameters, bool with_gradients = true);
/// Also converts the parameters to a floating dtype; in 16 bits, the masters keep their current values.
std::vector<FlatParameters> flatten_parameters(Module& module, DType dtype);

/// As named_parameters, for files: 16-bit parameters are replaced by their masters, if there are any. Frozen parameters can be left out.
std::vector<NamedTensor> named_masters(const Module& module, bool with_frozen = true);

/// Row of a summary: a parameter or buffer of a model.
struct SummaryRow {
  std::string path;          ///< `blocks.0.fc.weight`
  std::string kind;          ///< type of its module: `Linear`
  Shape shape;               ///< shape of the tensor
  DType dtype = DType::f32;  ///< dtype of its elements
  std::int64_t count = 0;    ///< number of elements
  std::int64_t bytes = 0;    ///< bytes of the elements, without padding
  bool is_buffer = false;    ///< state that is not trained, such as running means
  bool is_trained = false;   ///< true for a parameter that requires a gradient; others are frozen
  std::string shared_with;   ///< for a tied tensor that was listed before: its first path, where it is counted
};

/// Summary of all tensors of a model, in the order of visit, with totals in which tied ones count once.
struct Summary {
  std::vector<SummaryRow> rows;      ///< tied tensors have a row for each occurrence
  std::int64_t parameters = 0;       ///< elements, trained or frozen
  std::int64_t trained = 0;          ///< elements of those that require gradients
  std::int64_t buffers = 0;          ///< number of elements
  std::int64_t parameter_bytes = 0;  ///< without gradients and an optimizer's state
  std::int64_t buffer_bytes = 0;     ///< includes quantized weights, which are buffers
};

/// Summarizes a module. Throws Error as parameters() does.
Summary summary(const Module& module);

/// Table with a line for each row, and two lines of totals.
std::string to_string(const Summary& summary);
std::ostream& operator<<(std::ostream& out, const Summary& summary);  ///< the same table

}  // namespace tern::nn
