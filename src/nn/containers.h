#pragma once
#include <memory>

#include "nn/module.h"

namespace tern::nn {

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

}  // namespace tern::nn
