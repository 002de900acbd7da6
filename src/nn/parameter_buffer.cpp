#include "nn/parameter_buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "autodiff/autograd_state.h"
#include "autodiff/node.h"
#include "ops/copy.h"

namespace tern::nn {

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

std::vector<NamedTensor> named_masters(const Module& module) {
  std::vector<NamedTensor> result = named_parameters(module);
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
