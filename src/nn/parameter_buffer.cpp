#include "nn/parameter_buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "autodiff/node.h"
#include "ops/copy.h"
#include "ops/factory.h"

namespace tern::nn {

static std::int64_t elements_per_slice(DType dtype) { return static_cast<std::int64_t>(flat_alignment / size_of(dtype)); }

static std::int64_t round_up(std::int64_t count, DType dtype) {
  const std::int64_t unit = elements_per_slice(dtype);
  return (count + unit - 1) / unit * unit;
}

static Tensor flat_zeros(std::int64_t count, DType dtype, Device device) {
  auto impl = make_ref<TensorImpl>();
  impl->storage = make_ref<FlatStorage>(static_cast<std::size_t>(count) * size_of(dtype), context().stream(device));
  impl->shape = {count};
  impl->strides = {1};
  impl->dtype = dtype;
  return zero_(Tensor(std::move(impl)));
}

static FlatStorage* flat_storage(const Tensor& x) { return dynamic_cast<FlatStorage*>(x.impl().storage.get()); }

static FlatParameters flatten(const Tensors& parameters, DType dtype) {
  const Device device = parameters[0].device();
  std::int64_t total = 0;
  for (const Tensor& x : parameters) {
    if (x.device() != device)
      fail("flatten_parameters",
           fmt::format("expected parameters of {} on one device but got {} and {}", name(dtype), to_string(device), to_string(x.device())));
    total += round_up(x.numel(), dtype);
  }
  FlatParameters flat{flat_zeros(total, dtype, device), flat_zeros(total, dtype, device), {}};
  if (size_of(dtype) == 2) flat.masters = flat_zeros(total, DType::f32, device);
  std::int64_t offset = 0;
  for (const Tensor& x : parameters) {
    const auto slice = [&](const Tensor& buffer) { return buffer.as_strided(x.shape(), contiguous_strides(x.shape()), offset); };
    const Tensor master = master_of(x), values = master.defined() ? master : x.detach();
    const Tensor data = copy_(slice(flat.parameters), values), gradient = slice(flat.gradients);
    if (flat.masters.defined()) copy_(slice(flat.masters), values);
    if (x.grad().defined()) copy_(gradient, x.grad());
    detail::rebind(x, data);
    Tensor(x).set_grad(gradient);
    offset += round_up(x.numel(), dtype);
  }
  FlatStorage* storage = flat_storage(flat.parameters);
  storage->masters = flat.masters;
  storage->masters_version = storage->version();
  return flat;
}

/// The parameters that require gradients, in one buffer for each dtype that `stored` says of them.
template <class F>
static std::vector<FlatParameters> flatten_all(Module& module, F stored) {
  const NoGrad unrecorded;
  Tensors trained = parameters(module);
  std::erase_if(trained, [](const Tensor& x) { return !x.requires_grad(); });
  // Matrices before vectors: the usual split into parameters with and without weight decay then leaves two runs.
  std::stable_sort(trained.begin(), trained.end(), [&](const Tensor& a, const Tensor& b) {
    return std::tuple(stored(a), a.dims() < 2) < std::tuple(stored(b), b.dims() < 2);
  });
  std::vector<FlatParameters> result;
  for (auto first = trained.begin(); first != trained.end();) {
    const DType dtype = stored(*first);
    const auto last = std::find_if(first, trained.end(), [&](const Tensor& x) { return stored(x) != dtype; });
    result.push_back(flatten(Tensors(first, last), dtype));
    first = last;
  }
  return result;
}

std::vector<FlatParameters> flatten_parameters(Module& module) {
  return flatten_all(module, [](const Tensor& x) { return x.dtype(); });
}

std::vector<FlatParameters> flatten_parameters(Module& module, DType dtype) {
  if (!is_floating(dtype)) fail("flatten_parameters", std::string("expected a floating dtype but got ") + name(dtype));
  return flatten_all(module, [dtype](const Tensor&) { return dtype; });
}

std::vector<NamedTensor> named_masters(const Module& module) {
  std::vector<NamedTensor> result = named_parameters(module);
  for (NamedTensor& entry : result)
    if (const Tensor master = master_of(entry.tensor); master.defined()) entry.tensor = master;
  return result;
}

bool is_flat(const Tensor& x) { return flat_storage(x) != nullptr; }

Tensor master_of(const Tensor& x) {
  const FlatStorage* storage = flat_storage(x);
  if (!storage || !storage->masters.defined() || size_of(x.dtype()) != 2) return {};
  return storage->masters.as_strided(x.shape(), contiguous_strides(x.shape()), x.offset());
}

bool follows(const Tensor& previous, const Tensor& next) {
  if (!(previous.impl().storage == next.impl().storage) || previous.dtype() != next.dtype()) return false;
  const std::int64_t gap = next.offset() - (previous.offset() + previous.numel());
  return gap == 0 || (gap > 0 && gap < elements_per_slice(next.dtype()) && is_flat(next));
}

Tensor run_of(const Tensor& first, const Tensor& last) {
  return first.as_strided({last.offset() + last.numel() - first.offset()}, {1}, first.offset());
}

bool lies_before(const Tensor& a, const Tensor& b) {
  const Storage *in_a = a.impl().storage.get(), *in_b = b.impl().storage.get();
  return in_a == in_b ? a.offset() < b.offset() : std::less<const Storage*>()(in_a, in_b);
}

Tensors contiguous_runs(Tensors tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), lies_before);
  Tensors runs;
  for (std::size_t first = 0, last; first < tensors.size(); first = last + 1) {
    for (last = first; last + 1 < tensors.size() && follows(tensors[last], tensors[last + 1]);) ++last;
    runs.push_back(run_of(tensors[first], tensors[last]));
  }
  return runs;
}

void zero_grad(const Tensors& parameters) {
  for (Tensor x : parameters) {
    const AutogradState* const state = autograd_state(x);
    if (!state || !state->grad.defined()) continue;
    if (is_flat(state->grad)) zero_later(x);
    else x.set_grad({});
  }
}

void zero_grad(const Module& module) { zero_grad(parameters(module)); }

}  // namespace tern::nn
