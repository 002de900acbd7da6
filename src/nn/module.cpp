#include "nn/module.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "autodiff/autograd_state.h"
#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "ops/captured_step.h"
#include "ops/factory.h"

namespace tern::nn {

std::string Visitor::join(std::string_view name) const { return path_.empty() ? std::string(name) : path_ + "." + std::string(name); }

void Visitor::operator()(std::string_view name, Tensor& parameter) {
  if (parameter.defined()) on_parameter(join(name), parameter);
}

void Visitor::buffer(std::string_view name, Tensor& buffer) {
  if (buffer.defined()) on_buffer(join(name), buffer);
}

void Visitor::constant(std::string_view name, Tensor& constant) {
  if (constant.defined()) on_constant(join(name), constant);
}

void Visitor::operator()(std::string_view name, Module& child) {
  std::string outer = join(name);
  path_.swap(outer);
  walk(child);
  path_.swap(outer);
}

void Visitor::walk(Module& root) {
  on_module(path_, root);
  root.visit(*this);
}

namespace {

/// Visitor made from functions; `seen` skips tensors that were visited before.
template <class F>
struct EachTensor final : Visitor {
  EachTensor(F f, bool with_parameters, bool with_buffers, bool with_repeats)
      : function(std::move(f)), parameters(with_parameters), buffers(with_buffers), repeats(with_repeats) {}
  void on_parameter(const std::string& path, Tensor& x) override {
    if (parameters && (repeats || seen.insert(x.ref().get()).second)) function(path, x);
  }
  void on_buffer(const std::string& path, Tensor& x) override {
    if (buffers && (repeats || seen.insert(x.ref().get()).second)) function(path, x);
  }
  F function;
  bool parameters, buffers, repeats;
  std::unordered_set<const TensorImpl*> seen;
};

template <class F>
struct EachModule final : Visitor {
  explicit EachModule(F f) : function(std::move(f)) {}
  void on_module(const std::string& path, Module& module) override { function(path, module); }
  F function;
};

/// Moves constants to a device.
struct MoveConstants final : Visitor {
  explicit MoveConstants(Device device_) : device(device_) {}
  void on_constant(const std::string&, Tensor& x) override {
    if (x.device() != device) detail::rebind(x, tern::to(x.detach(), device));
  }
  Device device;
};

/// visit is not const, because some visitors replace tensors. Visitors of a const module only read.
Module& seen_by_readers(const Module& module) { return const_cast<Module&>(module); }

/// Checks a list of parameters: names are unique, because two tensors of one name would be one in a file, and layers are distinct. Copies
/// of a module share its parameters, so a list of copies is one layer several times, which is an error unless it is intended (is_shared).
struct CheckNames final : Visitor {
  void on_parameter(const std::string& path, Tensor& x) override {
    check(path, x);
    parameters.emplace_back(path, x.ref().get());
  }
  void on_buffer(const std::string& path, Tensor& x) override { check(path, x); }
  void on_module(const std::string& path, Module& module) override { modules.push_back({path, &module, parameters.size()}); }

  void check(const std::string& path, const Tensor& x) {
    const TensorImpl* const tensor = x.ref().get();
    if (names.emplace(path, tensor).first->second != tensor)
      fail("visit", "expected different names but two tensors of the module are '" + path + "': give each member of visit its own");
  }

  void check_lists() const {
    std::map<std::pair<std::string, std::vector<const TensorImpl*>>, const Place*> lists;
    for (const Place& place : modules) {
      const std::size_t dot = place.path.rfind('.'), digits = dot == std::string::npos ? 0 : dot + 1;
      if (place.module->is_shared || digits == place.path.size()) continue;
      if (place.path.find_first_not_of("0123456789", digits) != std::string::npos) continue;
      std::vector<const TensorImpl*> own;
      for (std::size_t i = place.first; i < parameters.size() && parameters[i].first.starts_with(place.path + "."); ++i)
        own.push_back(parameters[i].second);
      if (own.empty()) continue;
      const auto [found, is_new] = lists.try_emplace({place.path.substr(0, digits), std::move(own)}, &place);
      if (!is_new)
        fail("visit", "expected modules with separate parameters but '" + found->second->path + "' and '" + place.path +
                          "' have the same: copies share them. nn::layers(n, [] { return ...; }) makes n modules; set is_shared = true "
                          "in a module that is repeated intentionally");
    }
  }

  struct Place {
    std::string path;
    const Module* module;
    std::size_t first;  ///< index of its first parameter
  };
  std::unordered_map<std::string, const TensorImpl*> names;
  std::vector<std::pair<std::string, const TensorImpl*>> parameters;
  std::vector<Place> modules;
};

void check_names(const Module& module) {
  CheckNames check;
  check.walk(seen_by_readers(module));
  check.check_lists();
}

std::vector<NamedTensor> collect(const Module& module, bool with_parameters, bool with_buffers) {
  std::vector<NamedTensor> result;
  check_names(module);
  EachTensor([&](const std::string& path, const Tensor& x) { result.push_back({path, x}); }, with_parameters, with_buffers, false)
      .walk(seen_by_readers(module));
  return result;
}

/// Replaces every parameter and buffer, and their gradients and masters, by the result of `convert`, which returns its argument if nothing
/// changes.
template <class F>
void convert_all(Module& module, F convert) {
  const NoGrad unrecorded;
  bool has_moved_flat = false;
  std::vector<std::pair<Tensor, Tensor>> masters;
  for (const NamedTensor& entry : collect(module, true, true)) {
    const Tensor& x = entry.tensor;
    const Tensor before = x.detach(), master = master_of(before);
    Tensor after = convert(before);
    if (after.is_same(before)) continue;
    if (master.defined() && after.dtype() != before.dtype()) after = convert(master);  // not from the rounded 16-bit values
    if (master.defined() && after.dtype() == before.dtype()) masters.emplace_back(x, convert(master));
    has_moved_flat = has_moved_flat || is_flat(before);
    const Tensor gradient = x.grad();
    detail::rebind(x, after);
    if (gradient.defined()) Tensor(x).set_grad(convert(gradient));
  }
  if (has_moved_flat) flatten_parameters(module);
  for (const auto& [x, master] : masters)
    if (const Tensor slice = master_of(x); slice.defined()) copy_(slice, master);
}

}  // namespace

std::string Module::type_name() const { return tern::detail::short_name(typeid(*this)); }

static std::string path_within(const void* root, const void* module) {
  std::string result;
  const auto compare = [&](const std::string& path, const Module& child) {
    if (&child == module) result = path;
  };
  EachModule(compare).walk(seen_by_readers(*static_cast<const Module*>(root)));
  return result;
}

ModuleScope::ModuleScope(const Module* module_, const char* type_) : ModuleFrame(module_, type_, &path_within) {
  if (module_->before_forward) module_->before_forward();
}

void Module::train(bool on) {
  EachModule([on](const std::string&, Module& module) {
    if (std::exchange(module.training, on) != on) tern::detail::note_module_mode(&module, on);
  }).walk(*this);
}

std::vector<NamedTensor> named_parameters(const Module& module) { return collect(module, true, false); }
std::vector<NamedTensor> named_buffers(const Module& module) { return collect(module, false, true); }

Tensors parameters(const Module& module) {
  Tensors result;
  for (NamedTensor& entry : named_parameters(module)) result.push_back(std::move(entry.tensor));
  return result;
}

std::int64_t count_parameters(const Module& module) {
  std::int64_t count = 0;
  for (const Tensor& x : parameters(module)) count += x.numel();
  return count;
}

void to(Module& module, Device device) {
  convert_all(module, [device](const Tensor& x) { return tern::to(x, device); });
  MoveConstants(device).walk(module);
}

void to(Module& module, DType dtype) {
  if (!is_floating(dtype)) fail("to", std::string("expected a floating dtype for a module but got ") + name(dtype));
  convert_all(module, [dtype](const Tensor& x) { return is_floating(x.dtype()) ? cast(x, dtype) : x; });
}

void set_requires_grad(Module& module, bool requires_grad) {
  for (Tensor& x : parameters(module)) x.set_requires_grad(requires_grad);
}

ModuleNames module_names(const Module& module) {
  ModuleNames names;
  EachModule([&](const std::string& path, const Module& child) { names.add(&child, path); }).walk(seen_by_readers(module));
  return names;
}

void detail::own_parameters(Module& module) {
  const NoGrad unrecorded;
  std::unordered_map<const TensorImpl*, Tensor> copies;
  const auto own = [&](const std::string&, Tensor& x) {
    Tensor& copy = copies[x.ref().get()];
    if (!copy.defined()) {
      copy = tern::clone(x);
      if (autograd_state(x)) copy.set_requires_grad(x.requires_grad());
    }
    x = copy;
  };
  EachTensor(own, true, true, true).walk(module);
  EachModule([](const std::string&, Module& each) { each.before_forward = {}; }).walk(module);
}

// Note [Rebinding]
// A parameter is identified by its handle: by the module and its copies, the optimizer, the other owners of a tied weight, and gradient
// hooks. Moving one to another device, dtype or location in a flat buffer therefore changes what the shared handle points to, and no owner
// needs to be notified. A graph that saved the parameter before must not run backward on the new memory: the version of the storage is
// raised above the old one's, so that the saved tensor reports an edit.
void detail::rebind(const Tensor& x, const Tensor& data) {
  const std::uint32_t version = x.version();
  Tensor(x).set_grad({});  // set_grad changes what the handle shares
  TensorImpl& into = x.impl();
  const TensorImpl& from = data.impl();
  into.storage = from.storage;
  into.offset = from.offset;
  into.shape = from.shape;
  into.strides = from.strides;
  into.dtype = from.dtype;
  while (into.storage->version() <= version) into.storage->bump_version();
  count_mode_change();
}

void Sequential::visit(Visitor& v) {
  for (std::size_t i = 0; i < items.size(); ++i) v(std::to_string(i), items[i].module());
}

Tensor Sequential::forward(const Tensor& x) const {
  const ModuleScope scope(this, "Sequential");
  Tensor y = x;
  for (const AnyModule& module : items) y = module.forward(y);
  return y;
}

Sequential& Sequential::add(AnyModule module) {
  items.push_back(std::move(module));
  return *this;
}

AnyModule& Sequential::item(std::size_t i) {
  if (i >= items.size()) fail("Sequential", "expected an index below " + std::to_string(items.size()) + " but got " + std::to_string(i));
  return items[i];
}

static FlatParameters flatten(const Tensors& parameters, DType dtype, bool with_gradients) {
  const Device device = parameters[0].device();
  for (const Tensor& x : parameters)
    if (x.device() != device)
      fail("flatten_parameters",
           fmt::format("expected parameters of {} on one device but got {} and {}", name(dtype), to_string(device), to_string(x.device())));
  const std::int64_t total = padded_size(parameters, dtype);
  FlatParameters flat{flat_zeros(total, dtype, device), {}, {}};
  const Tensors data = windows_of(flat.parameters, parameters, dtype);
  Tensors masters, gradients;
  if (size_of(dtype) == 2) {
    flat.masters = flat_zeros(total, DType::f32, device);
    masters = windows_of(flat.masters, parameters, dtype);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& x = parameters[i];
    const Tensor master = master_of(x), values = master.defined() ? master : x.detach();
    copy_(data[i], values);
    if (flat.masters.defined()) copy_(masters[i], values);
    gradients.push_back(with_gradients ? x.grad() : Tensor());
    detail::rebind(x, data[i]);
  }
  if (with_gradients) {
    // Allocated only after the parameters' own memory has been freed.
    flat.gradients = flat_zeros(total, dtype, device);
    const Tensors windows = windows_of(flat.gradients, parameters, dtype);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (gradients[i].defined()) copy_(windows[i], gradients[i]);
      Tensor(parameters[i]).set_grad(windows[i]);
    }
  }
  FlatStorage* storage = flat_storage(flat.parameters);
  storage->masters = flat.masters;
  storage->masters_version = storage->version();
  return flat;
}

/// The parameters that require gradients, in one buffer for each dtype that `stored` returns for them.
template <class F>
static std::vector<FlatParameters> flatten_all(Tensors trained, F stored, bool with_gradients = true) {
  const NoGrad unrecorded;
  std::erase_if(trained, [](const Tensor& x) { return !x.requires_grad(); });
  // Matrices before vectors: the usual split into parameters with and without weight decay then leaves two segments.
  std::stable_sort(trained.begin(), trained.end(), [&](const Tensor& a, const Tensor& b) {
    return std::tuple(stored(a), a.dims() < 2) < std::tuple(stored(b), b.dims() < 2);
  });
  std::vector<FlatParameters> result;
  for (auto first = trained.begin(); first != trained.end();) {
    const DType dtype = stored(*first);
    const auto last = std::find_if(first, trained.end(), [&](const Tensor& x) { return stored(x) != dtype; });
    result.push_back(flatten(Tensors(first, last), dtype, with_gradients));
    first = last;
  }
  return result;
}

std::vector<FlatParameters> flatten_parameters(Module& module) { return flatten_parameters(parameters(module)); }

std::vector<FlatParameters> flatten_parameters(const Tensors& parameters, bool with_gradients) {
  return flatten_all(parameters, [](const Tensor& x) { return x.dtype(); }, with_gradients);
}

std::vector<FlatParameters> flatten_parameters(Module& module, DType dtype) {
  if (!is_floating(dtype)) fail("flatten_parameters", std::string("expected a floating dtype but got ") + name(dtype));
  return flatten_all(parameters(module), [dtype](const Tensor&) { return dtype; });
}

std::vector<NamedTensor> named_masters(const Module& module, bool with_frozen) {
  std::vector<NamedTensor> result = named_parameters(module);
  if (!with_frozen) std::erase_if(result, [](const NamedTensor& entry) { return !entry.tensor.requires_grad(); });
  for (NamedTensor& entry : result)
    if (const Tensor master = master_of(entry.tensor); master.defined()) entry.tensor = master;
  return result;
}

void zero_grad(const Tensors& parameters) {
  for (const Tensor& x : parameters)
    if (const AutogradState* const state = autograd_state(x); state && state->sink) state->sink->clear();
}

void zero_grad(const Module& module) { zero_grad(parameters(module)); }

}  // namespace tern::nn
