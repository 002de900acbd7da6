#include "nn/attention.h"

#include <fmt/format.h>

#include <limits>

#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/view.h"
#include "tensor/checked.h"

namespace tern::nn {

AttentionMask shared_by_layers(const AttentionMask& mask) {
  AttentionMask result = mask;
  if (mask.padding.defined() && mask.padding.dtype() == DType::boolean)
    result.padding =
        masked_fill(zeros(mask.padding.shape(), DType::f32, mask.padding.device()), mask.padding, -std::numeric_limits<double>::infinity());
  return result;
}

MultiHeadAttention::MultiHeadAttention(std::int64_t width, const AttentionOptions& options_) : options(options_) {
  if (options.heads < 1 || width < 1 || options.head_dim < 0 || (options.head_dim == 0 && width % options.heads != 0))
    fail("MultiHeadAttention", fmt::format("expected a width that the number of heads divides, or a head_dim, but got {}, {} and {}", width,
                                           options.heads, options.head_dim));
  if (options.head_dim == 0) options.head_dim = width / options.heads;
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  if (options.kv_heads < 1 || options.heads % options.kv_heads != 0)
    fail("MultiHeadAttention", fmt::format("expected kv_heads that divide the {} heads but got {}", options.heads, options.kv_heads));
  constexpr const char* where = "MultiHeadAttention";
  const std::int64_t query_width = checked_mul(where, options.heads, options.head_dim);
  const std::int64_t kv_widths = checked_mul(where, 2, checked_mul(where, options.kv_heads, options.head_dim));
  [[maybe_unused]] const Dropout valid(options.dropout);
  if (options.rope.defined() && options.cross)
    fail("MultiHeadAttention", "expected no rope in cross attention, whose two sides have positions of their own");
  if (options.cross) {
    query.emplace(width, query_width, options.bias, options.device);
    key_value.emplace(width, kv_widths, options.bias, options.device);
  } else {
    qkv.emplace(width, checked_add(where, query_width, kv_widths), options.bias, options.device);
  }
  proj = Linear(query_width, width, options.bias, options.device);
}

void MultiHeadAttention::visit(Visitor& v) {
  v("qkv", qkv);
  v("query", query);
  v("key_value", key_value);
  v("proj", proj);
  v.constant("rope", options.rope);
}

/// Splits x (B, T, heads head_dim) into heads: (B, T, heads, head_dim).
static Tensor in_heads(const Tensor& x, std::int64_t heads) { return reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}); }

Tensor MultiHeadAttention::heads_joined(const Tensor& x, const Tensor& memory, const AttentionMask& mask, const LayerCache* cache) const {
  const ModuleScope scope(this, "MultiHeadAttention");
  if (memory.defined() == qkv.has_value())
    fail("MultiHeadAttention",
         qkv ? "expected no memory: the layer was made for self attention" : "expected a memory: the layer was made for cross attention");
  const std::int64_t heads = options.heads, kv_heads = options.kv_heads;
  Tensors parts;
  if (qkv) {
    Tensor joined = in_heads(qkv->forward(x), heads + 2 * kv_heads);
    if (options.rope.defined()) {
      const Tensor by_heads = transpose(joined, 1, 2);
      const std::int64_t rotated = heads + kv_heads;
      joined = transpose(cache ? cache->rotated(by_heads, options.rope, rotated, options.rope_pairs)
                               : rope(by_heads, options.rope, rotated, options.rope_pairs),
                         1, 2);
    }
    if (cache) {
      const Tensors fresh = split(joined, {heads, 2 * kv_heads}, 2);
      parts = split(cache->append(fresh[1]), kv_heads, 2);
      parts.insert(parts.begin(), fresh[0]);
    } else {
      parts = split(joined, {heads, kv_heads, kv_heads}, 2);  // one op, whose gradient is written in one piece
    }
  } else {
    const auto keys_values = [&] { return in_heads(key_value->forward(memory), 2 * kv_heads); };
    parts = split(cache ? cache->memory(keys_values) : keys_values(), kv_heads, 2);
    parts.insert(parts.begin(), in_heads(query->forward(x), heads));
  }
  const AttentionMask seen = cache && qkv ? cache->mask(mask) : mask;
  const AttentionParams params{.mask = seen, .dropout = options.dropout, .training = training};
  const Tensor y = scaled_dot_product_attention(parts[0], parts[1], parts[2], params);
  return reshape(y, {y.size(0), y.size(1), y.size(2) * y.size(3)});
}

Tensor MultiHeadAttention::forward(const Tensor& x, const AttentionMask& mask) const { return forward(x, {}, mask); }

Tensor MultiHeadAttention::forward(const Tensor& x, const Tensor& memory, const AttentionMask& mask) const {
  const ModuleScope scope(this, "MultiHeadAttention");
  return proj.forward(heads_joined(x, memory, mask));
}

}  // namespace tern::nn
