#include <map>
#include <optional>

#include "compile/rewrite.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/matmul.h"
#include "tensor/overlap.h"

namespace tern::compiler {

namespace {

constexpr std::size_t least_uses = 4;                                      ///< of a copy: it takes as long as about two products lose
constexpr std::int64_t max_rows = 32;                                      ///< of a product for which its weight is not packed
constexpr std::int64_t max_multiplications = (std::int64_t{1} << 22) - 1;  ///< of one that no library sums in another order

/// The dimension of a weight along which a product reads vectors; nothing if it has more rows, or the weight lies in that order.
std::optional<int> vectors_of(const Call& call) {
  const auto* const product = call.kernel->as<kernels::Matmul>();
  const auto* const linear = call.kernel->as<kernels::Linear>();
  if (!linear && (!product || product->c.dims() != 2)) return std::nullopt;
  const View x = linear ? linear->x : product->a, weight = linear ? linear->weight : product->b;
  const int dim = linear ? 0 : 1;
  const bool is_small = x.dtype == DType::f32 && x.shape[0] > 1 && x.shape[0] <= max_rows && weight.shape[dim] > 1 && weight.numel() > 0 &&
                        x.shape[0] * weight.numel() <= max_multiplications;
  return is_small && weight.strides[dim] != 1 ? std::optional(dim) : std::nullopt;
}

/// A weight that nothing writes, and the products of it.
struct Uses {
  View weight;  ///< whose address is its offset in the block
  int dim;
  std::vector<std::size_t> calls;
};

/// The second view of a call, its weight.
View& weight_of(const Call& call) {
  View* weight = nullptr;
  int k = 0;
  each_view(call, [&](View& view, kernels::Access, const Call::Place&) {
    if (k++ == 1) weight = &view;
  });
  return *weight;
}

}  // namespace

void transpose_weights(std::vector<Call>& calls, std::vector<Block>& blocks) {
  std::multimap<std::size_t, Uses> weights;         // by their blocks
  std::map<std::size_t, std::vector<Call>> copies;  // before calls
  const auto finish = [&](const Uses& uses) {
    if (uses.calls.size() < least_uses) return;
    const Call& first = calls[uses.calls[0]];
    View y = uses.weight;
    y.strides[uses.dim] = 1, y.strides[1 - uses.dim] = y.shape[uses.dim];
    copies[uses.calls[0]].push_back({std::make_unique<detail::KernelCallOf<kernels::Copy>>(kernels::Copy{uses.weight, y}),
                                     {first.places[1], {blocks.size(), 0}},
                                     {},
                                     first.module,
                                     first.ways});
    for (const std::size_t call : uses.calls) weight_of(calls[call]).strides = y.strides, calls[call].places[1] = {blocks.size(), 0};
    blocks.push_back({.kind = Block::Kind::inner, .memory = nullptr, .bytes = static_cast<std::size_t>(y.numel()) * size_of(y.dtype)});
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (const std::optional<int> dim = vectors_of(calls[i])) {
      const Call::Place& place = calls[i].places[1];
      const View weight = window_of(weight_of(calls[i]), place);
      auto [at, end] = weights.equal_range(place.block);
      while (at != end && (at->second.weight.data != weight.data || at->second.weight.shape != weight.shape ||
                           at->second.weight.strides != weight.strides || at->second.dim != *dim))
        ++at;
      if (at == end) at = weights.insert({place.block, {weight, *dim, {}}});
      at->second.calls.push_back(i);
    }
    each_view(calls[i], [&](const View& view, kernels::Access access, const Call::Place& place) {
      if (access == kernels::Access::read || place.block == Call::Place::none) return;
      for (auto [at, end] = weights.equal_range(place.block); at != end;)
        if (overlap(at->second.weight, window_of(view, place)) == Overlap::none) ++at;
        else finish(at->second), at = weights.erase(at);
    });
  }
  for (const auto& [block, uses] : weights) finish(uses);
  std::vector<Call> all;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (const auto before = copies.find(i); before != copies.end())
      for (Call& copy : before->second) all.push_back(std::move(copy));
    all.push_back(std::move(calls[i]));
  }
  calls = std::move(all);
}

}  // namespace tern::compiler
