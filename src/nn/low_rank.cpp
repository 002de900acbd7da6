#include "nn/low_rank.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "autodiff/parameter_buffer.h"
#include "nn/init.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"

namespace tern::nn {

namespace {

struct Place {
  std::string path;
  Linear* layer;
};

/// Linear layers with parameters, and other owners' weights: the tables of embeddings.
struct FindLayers final : Visitor {
  explicit FindLayers(Module& module) { walk(module); }
  void on_module(const std::string& path, Module& module) override {
    if (auto* const layer = dynamic_cast<Linear*>(&module); layer && layer->defined()) linears.push_back({path, layer});
    if (auto* const table = dynamic_cast<Embedding*>(&module)) others.insert(table->weight.ref().get());
  }
  std::vector<Place> linears;
  std::unordered_set<const TensorImpl*> others;
};

}  // namespace

Tensor LowRank::operator()(const Tensor& x) const { return linear(linear(x, a) * scale, b); }

void add_low_rank(Module& module, const LowRankOptions& options) {
  constexpr const char* where = "add_low_rank";
  if (options.rank < 1 || !std::isfinite(options.alpha))
    fail(where, fmt::format("expected a rank >= 1 and a finite alpha but got {} and {}", options.rank, options.alpha));
  FindLayers found(module);
  std::erase_if(found.linears, [&](const Place& place) {
    const auto is_in_path = [&](const std::string& part) { return place.path.find(part) != std::string::npos; };
    if (std::any_of(options.layers.begin(), options.layers.end(), is_in_path)) return false;
    found.others.insert(place.layer->weight.ref().get());
    return true;
  });
  if (found.linears.empty())
    fail(where, fmt::format("expected a Linear whose path contains one of [{}] but the module has none", fmt::join(options.layers, ", ")));
  for (const auto& [path, layer] : found.linears) {
    const char* fault = layer->quantized.defined()                         ? "is quantised"
                        : layer->low_rank.defined()                        ? "has an adapter"
                        : found.others.contains(layer->weight.ref().get()) ? "shares its weight with another module"
                                                                           : nullptr;
    if (fault) fail(where, fmt::format("expected Linear layers with weights of their own and no adapters but '{}' {}", path, fault));
  }
  set_requires_grad(module, false);
  std::unordered_map<const TensorImpl*, LowRank> made;
  for (const auto& [path, layer] : found.linears) {
    const Tensor& weight = layer->weight;
    LowRank& adapter = made[weight.ref().get()];
    if (!adapter.defined()) {
      const auto matrix = [&](std::int64_t rows, std::int64_t columns) { return zeros({rows, columns}, weight.dtype(), weight.device()); };
      const double bound = 1 / std::sqrt(static_cast<double>(weight.size(1)));
      adapter.a = init::uniform(matrix(options.rank, weight.size(1)), -bound, bound).set_requires_grad();
      adapter.b = matrix(weight.size(0), options.rank).set_requires_grad();
      adapter.scale = options.alpha / static_cast<double>(options.rank);
    }
    layer->low_rank = adapter;
  }
}

void merge_low_rank(Module& module) {
  const NoGrad unrecorded;
  FindLayers found(module);
  std::erase_if(found.linears, [](const Place& place) { return !place.layer->low_rank.defined(); });
  for (const auto& [path, layer] : found.linears)
    if (layer->quantized.defined())
      fail("merge_low_rank", fmt::format("expected a floating weight but '{}' is quantised: merge before", path));
  const auto wide = [](const Tensor& x) {
    const Tensor value = x.detach(), master = master_of(value);
    return master.defined() ? master : cast(value, promote(x.dtype(), DType::f32));
  };
  for (const auto& [path, layer] : found.linears) {
    const LowRank adapter = std::exchange(layer->low_rank, {});
    const Tensor weight = layer->weight.detach();
    const Tensor sum = wide(weight) + matmul(wide(adapter.b), wide(adapter.a), adapter.scale);
    for (const Tensor& x : {weight, master_of(weight)})
      if (x.defined()) copy_(x, sum);
    fill_(adapter.b.detach(), 0);  // other layers of this weight, and copies of the module, have the adapter too
  }
}

}  // namespace tern::nn
