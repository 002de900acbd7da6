#include "nn/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/view.h"

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
  if (options.window < 0 || (options.window > 0 && options.cross))
    fail("MultiHeadAttention", fmt::format("expected a window >= 0, of self attention alone, but got {}", options.window));
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
  AttentionMask given = mask;
  if (options.window > 0) given.window = options.window;
  const AttentionMask seen = cache && qkv ? cache->mask(given) : given;
  const AttentionParams params{.mask = seen, .dropout = options.dropout, .training = training};
  const Tensor y = scaled_dot_product_attention(parts[0], parts[1], parts[2], params);
  return reshape(y, {y.size(0), y.size(1), y.size(2) * y.size(3)});
}

Tensor MultiHeadAttention::forward(const Tensor& x, const AttentionMask& mask) const { return forward(x, {}, mask); }

Tensor MultiHeadAttention::forward(const Tensor& x, const Tensor& memory, const AttentionMask& mask) const {
  const ModuleScope scope(this, "MultiHeadAttention");
  return proj.forward(heads_joined(x, memory, mask));
}

KvCache::KvCache(std::int64_t batch, std::int64_t capacity, std::size_t layers, Device device, std::int64_t memory_capacity)
    : capacity_(capacity), memory_capacity_(memory_capacity), stays_(device != cpu), layers_(layers) {
  if (batch < 1 || capacity < 1) fail("KvCache", fmt::format("expected sizes >= 1 but got {} rows of {} tokens", batch, capacity));
  if (memory_capacity < 0) fail("KvCache", fmt::format("expected a memory_capacity >= 0 but got {}", memory_capacity));
  lengths = all_lengths_ = zeros({batch}, DType::i64, device);
}

void KvCache::restart(std::int64_t batch, std::int64_t memory_used) {
  if (batch < 1) fail("KvCache", fmt::format("expected one row or more but got {}", batch));
  if (memory_used < 0 || memory_used > memory_capacity_)
    fail("KvCache", fmt::format("expected memory_used in [0, {}], the memories' capacity, but got {}", memory_capacity_, memory_used));
  if (batch > reserved()) {
    const bool stays = stays_;
    *this = KvCache(batch, capacity_, layers_.size(), lengths.device(), memory_capacity_);
    stays_ = stays;
  }
  const NoGrad unrecorded;
  memory_used_ = memory_used;
  lengths = slice(all_lengths_, 0, 0, batch);
  fill_(lengths, 0);
  empty_ = true;
}

Tensor KvCache::in_use(const Tensor& all) const { return all.defined() ? slice(all, 0, 0, batch()) : all; }

void KvCache::stay() {
  stays_ = true;
  grow(capacity_);
}

// Note [Cache slots]: a slot holds a token's keys and values. On a GPU, and in a cache that stays, all slots are allocated at once, at
// addresses that a captured or compiled step keeps. Else there are as many as the longest row needs, and 1.5 times as many each time that
// they are full: sentences of a tenth of the capacity would otherwise pay for unused pages. An odd number of slots keeps the rows of a
// batch from mapping to the same cache sets.
std::int64_t KvCache::slots_for(std::int64_t tokens) const {
  return stays_ ? capacity_ : std::min(capacity_, (tokens + tokens / 2 + 16) | 1);
}

void KvCache::keep(Tensor& all, const Tensor& x, std::int64_t tokens) {
  const NoGrad unrecorded;
  Shape shape = x.shape();
  shape[0] = reserved();
  if (x.dims() > 1) shape[1] = tokens;
  // Slots without a token are zeros: their values are multiplied by probabilities of 0.
  if (!all.defined() || all.shape() != shape || all.dtype() != x.dtype()) all = zeros(shape, x.dtype(), x.device());
  const Tensor rows = in_use(all);
  copy_(x.dims() > 1 ? slice(rows, 1, 0, x.size(1)) : rows, x);
}

void KvCache::begin(const Tensor& ids) {
  const std::int64_t batch = ids.size(0), length = ids.size(1);
  if (batch != this->batch()) fail("KvCache", fmt::format("expected ids of {} rows but got {}", this->batch(), to_string(ids.shape())));
  if (empty_ ? length < 1 || length > capacity_ : length != 1)
    fail("KvCache", fmt::format("expected ids of {} but got {}",
                                empty_ ? fmt::format("1 to {} tokens, the cache's capacity,", capacity_)
                                       : "one token a row, as the cache has tokens already,",
                                to_string(ids.shape())));
  reading_ = length;
  if (empty_) {
    positions_ = broadcast_to(arange(length, DType::i64, ids.device()), {batch, length});
    return;
  }
  positions_ = unsqueeze(lengths, 1);
  seen_ = lengths + 1;
  if (!stays_) {
    const std::int64_t longest = max(lengths).item<std::int64_t>();
    if (longest >= capacity_)
      fail("KvCache", fmt::format("expected rows of fewer tokens than the cache's capacity, {}, but one is full", capacity_));
    grow(longest + 1);
  }
  const Tensor has_slot = lt(lengths, static_cast<double>(capacity_));
  const Tensor rows = arange(batch, DType::i64, ids.device()) * static_cast<double>(slots()) + lengths;
  rows_ = where(has_slot, rows, full(rows.shape(), -1, DType::i64, rows.device()));
}

std::int64_t KvCache::slots() const {
  for (const Layer& layer : layers_)
    if (layer.keys_values.defined()) return layer.keys_values.size(1);
  return capacity_;
}

void KvCache::grow(std::int64_t tokens) {
  const NoGrad unrecorded;
  for (Layer& layer : layers_) {
    Tensor& all = layer.keys_values;
    if (!all.defined() || all.size(1) >= tokens) continue;
    Shape shape = all.shape();
    shape[1] = slots_for(tokens);
    const Tensor wider = zeros(shape, all.dtype(), all.device());
    copy_(slice(wider, 1, 0, all.size(1)), all);
    all = wider;
  }
}

void KvCache::end() {
  // In place, so that a step that reads and writes it can be captured.
  if (empty_) fill_(lengths, static_cast<double>(reading_));
  else copy_(lengths, seen_);
  empty_ = false;
  positions_ = rows_ = seen_ = {};
}

void KvCache::select(const Tensor& rows, bool keeps_memory, std::int64_t used) {
  const NoGrad unrecorded;
  if (rows.dims() != 1) fail("KvCache", fmt::format("expected rows (N) to select but got {}", to_string(rows.shape())));
  const std::int64_t count = rows.size(0), before = batch();
  if (keeps_memory && count != before)
    fail("KvCache", fmt::format("expected {} rows, which keep the memories of those before them, but got {}", before, count));
  if (used < 0 || used > capacity_)
    fail("KvCache", fmt::format("expected used in [0, {}], the cache's capacity, but got {}", capacity_, used));
  if (used > 0 && lengths.device() == cpu && !all(le(lengths, static_cast<double>(used))).item<bool>())
    fail("KvCache", fmt::format("expected used to count the longest row's tokens but one has more than {}", used));
  // In place if there is room, so that a captured step stays valid.
  const auto select_of = [&](Tensor& x, std::int64_t tokens = 0) {
    if (!x.defined()) return;
    const auto part = [&](const Tensor& y, std::int64_t n) {
      const Tensor first = slice(y, 0, 0, n);
      return tokens > 0 && tokens < y.size(1) ? slice(first, 1, 0, tokens) : first;
    };
    const Tensor chosen = index_select(part(x, before), 0, rows);
    if (count > x.size(0)) {
      Shape shape = x.shape();
      shape[0] = count;
      x = zeros(shape, x.dtype(), x.device());
    }
    copy_(part(x, count), chosen);
  };
  select_of(all_lengths_);
  lengths = slice(all_lengths_, 0, 0, count);
  for (Layer& layer : layers_) {
    select_of(layer.keys_values, used);
    if (!keeps_memory) select_of(layer.memory, memory_used_);
    for (Tensor& state : layer.state) select_of(state);
  }
  if (keeps_memory) return;
  for (Tensor* x : {&memory_mask_.padding, &memory_mask_.prefix, &memory_mask_.key_lengths}) select_of(*x);
}

AttentionMask KvCache::memory_mask(const std::function<AttentionMask()>& mask) {
  constexpr Tensor AttentionMask::* members[] = {&AttentionMask::padding, &AttentionMask::prefix, &AttentionMask::key_lengths};
  if (empty_) {
    AttentionMask given = mask();
    if (memory_capacity_ > 0 && given.padding.defined())
      fail("KvCache", "expected no padding: memories have a capacity, and key_lengths say how much of it they fill");
    for (Tensor AttentionMask::* member : members) {
      const Tensor x = std::exchange(given.*member, memory_mask_.*member);
      if (x.defined()) keep(given.*member, x, x.dims() > 1 ? x.size(1) : 0);
      else given.*member = {};
    }
    memory_mask_ = given;
  }
  AttentionMask result = memory_mask_;
  for (Tensor AttentionMask::* member : members) result.*member = in_use(result.*member);
  return result;
}

Tensor LayerCache::append(const Tensor& keys_values) const {
  const NoGrad unrecorded;
  Tensor& cached = cache_->layers_[layer_].keys_values;
  const Shape& s = keys_values.shape();
  if (cache_->empty()) {
    const std::int64_t enough = cache_->slots_for(s[1]);
    cache_->keep(cached, keys_values, cached.defined() ? std::max(enough, cached.size(1)) : enough);
    return keys_values;
  }
  const Tensor rows = cache_->in_use(cached);
  index_copy_(reshape(rows, {s[0] * rows.size(1), s[2] * s[3]}), 0, cache_->rows_, reshape(keys_values, {s[0], s[2] * s[3]}));
  return rows;
}

AttentionMask LayerCache::mask(const AttentionMask& given) const {
  if (cache_->empty()) return given;
  if (given.padding.defined() || given.key_lengths.defined())
    fail("KvCache", "expected no padding or key_lengths: a token that joins others in a cache sees all of its row");
  AttentionMask result{.key_lengths = cache_->seen_};
  if (given.window > 0) {
    const Tensor first = unsqueeze(cache_->seen_, 1) - static_cast<double>(given.window);
    result.padding = lt(arange(cache_->slots(), DType::i64, first.device()), first);
  }
  return result;
}

Tensors LayerCache::mixer_state() const {
  Tensors result;
  if (cache_->empty()) return result;
  for (const Tensor& state : cache_->layers_[layer_].state) result.push_back(cache_->in_use(state));
  return result;
}

void LayerCache::keep(const Tensors& mixer_state) const {
  Tensors& kept = cache_->layers_[layer_].state;
  kept.resize(mixer_state.size());
  for (std::size_t i = 0; i < kept.size(); ++i)
    cache_->keep(kept[i], mixer_state[i], mixer_state[i].dims() > 1 ? mixer_state[i].size(1) : 0);
}

Tensor LayerCache::rotated(const Tensor& x, const Tensor& table, std::int64_t heads, RopePairs pairs) const {
  if (cache_->empty()) return rope(x, table, heads, pairs);
  // One token per row, each at its own position: the rows take the place of the positions.
  return transpose(rope(transpose(x, 0, 2), index_select(table, 0, cache_->lengths), heads, pairs), 0, 2);
}

Tensor LayerCache::memory(const std::function<Tensor()>& keys_values) const {
  Tensor& kept = cache_->layers_[layer_].memory;
  if (!cache_->empty()) return cache_->in_use(kept);
  const Tensor fresh = keys_values();
  const std::int64_t capacity = cache_->memory_capacity_;
  if (capacity > 0 && fresh.size(1) > capacity)
    fail("KvCache", fmt::format("expected memories of at most {} tokens but got {}", capacity, fresh.size(1)));
  if (capacity == 0) kept = fresh;
  else cache_->keep(kept, fresh, capacity);
  return fresh;
}

}  // namespace tern::nn
