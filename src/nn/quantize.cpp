#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <unordered_map>

#include "nn/layers.h"
#include "ops/factory.h"
#include "ops/pointwise.h"

namespace tern::nn {

namespace {

/// Calls f(path, weight, quantized) for each Linear and each Embedding.
struct EachWeight final : Visitor {
  using Function = std::function<void(const std::string& path, Tensor& weight, QuantizedForm& quantized)>;
  explicit EachWeight(Function f) : function(std::move(f)) {}
  void on_module(const std::string& path, Module& module) override {
    if (auto* const layer = dynamic_cast<Linear*>(&module); layer && layer->defined()) function(path, layer->weight, layer->quantized);
    if (auto* const table = dynamic_cast<Embedding*>(&module)) function(path, table->weight, table->quantized);
  }
  Function function;
};

void replace_weights(Module& module, const std::function<QuantizedWeight(const Tensor&)>& convert) {
  // All weights are quantized before one is replaced, so that a weight that does not fit leaves the model unchanged.
  std::unordered_map<const TensorImpl*, QuantizedWeight> made;
  EachWeight([&](const std::string& path, const Tensor& weight, const QuantizedForm& quantized) {
    if (quantized.defined()) fail("quantize", fmt::format("expected a model with floating weights but '{}' is quantised already", path));
    if (!weight.defined() || made.contains(weight.ref().get())) return;
    try {
      made.emplace(weight.ref().get(), convert(weight));
    } catch (const Error& error) {
      fail("quantize", fmt::format("'{}': {}", path, error.what()));
    }
  }).walk(module);
  EachWeight([&](const std::string&, Tensor& weight, QuantizedForm& quantized) {
    if (!weight.defined()) return;
    quantized = {made.at(weight.ref().get()), quantized_linear, quantized_embedding};
    weight = {};
  }).walk(module);
  set_requires_grad(module, false);
  // In a flat buffer they would keep the memory of the weights alive.
  const NoGrad unrecorded;
  for (const Tensor& x : parameters(module)) detail::rebind(x, tern::clone(x.detach()));
}

bool has_finite_scales(const QuantizedWeight& weight) {
  const Tensor rows = contiguous(to(weight.rows, cpu));
  const auto* const bytes = static_cast<const std::uint8_t*>(rows.view().data);
  const auto step = static_cast<std::size_t>(has_blocks(weight.format) ? block_bytes(weight.format) : row_bytes(weight.format, weight.in));
  for (std::size_t at = 0; at < static_cast<std::size_t>(rows.numel()); at += step) {
    f16 half;
    float scale = 0;
    if (has_blocks(weight.format)) {
      std::memcpy(&half, &bytes[at], sizeof half);
      scale = static_cast<float>(half);
    } else {
      std::memcpy(&scale, &bytes[at], sizeof scale);
    }
    if (!std::isfinite(scale)) return false;
  }
  return true;
}

}  // namespace

void quantize(Module& module, QuantFormat format) {
  replace_weights(module, [format](const Tensor& weight) { return tern::quantize(weight, format); });
}

void make_quantized(Module& module, QuantFormat format) {
  replace_weights(module, [format](const Tensor& weight) {
    const std::int64_t in = weight.size(1);
    return QuantizedWeight{format, in, empty({weight.size(0), row_bytes(format, in)}, DType::u8, weight.device())};
  });
}

std::string find_bad_scale(const Module& module) {
  std::string found;
  EachWeight([&](const std::string& path, const Tensor&, const QuantizedForm& quantized) {
    if (found.empty() && quantized.defined() && !has_finite_scales(quantized)) found = path + ".weight";
  }).walk(const_cast<Module&>(module));  // visit is not const, but this only reads
  return found;
}

}  // namespace tern::nn
