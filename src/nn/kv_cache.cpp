#include "nn/kv_cache.h"

#include <fmt/format.h>

#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/rope.h"
#include "ops/view.h"

namespace tern::nn {

KvCache::KvCache(std::int64_t batch, std::int64_t capacity, std::size_t layers, Device device) : capacity_(capacity), layers_(layers) {
  if (batch < 1 || capacity < 1) fail("KvCache", fmt::format("expected sizes >= 1 but got {} rows of {} tokens", batch, capacity));
  lengths = zeros({batch}, DType::i64, device);
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
  const Tensor has_place = lt(lengths, static_cast<double>(capacity_));
  if (ids.device() == cpu && !all(has_place).item<bool>())
    fail("KvCache", fmt::format("expected rows of fewer tokens than the cache's capacity, {}, but one is full", capacity_));
  const Tensor rows = arange(batch, DType::i64, ids.device()) * static_cast<double>(capacity_) + lengths;
  rows_ = where(has_place, rows, full(rows.shape(), -1, DType::i64, rows.device()));
}

void KvCache::end() {
  // In place, so that a step that reads and writes it can be recorded.
  if (empty_) fill_(lengths, static_cast<double>(reading_));
  else copy_(lengths, seen_);
  empty_ = false;
  positions_ = rows_ = seen_ = {};
}

void KvCache::select(const Tensor& rows, bool keeps_memory, std::int64_t used) {
  const NoGrad unrecorded;
  if (rows.dims() != 1) fail("KvCache", fmt::format("expected rows (N) to select but got {}", to_string(rows.shape())));
  const std::int64_t count = rows.size(0);
  if (keeps_memory && count != batch())
    fail("KvCache", fmt::format("expected {} rows, which keep the memories of those before them, but got {}", batch(), count));
  if (used < 0 || used > capacity_)
    fail("KvCache", fmt::format("expected used in [0, {}], the cache's capacity, but got {}", capacity_, used));
  if (used > 0 && lengths.device() == cpu && !all(le(lengths, static_cast<double>(used))).item<bool>())
    fail("KvCache", fmt::format("expected used to count the longest row's tokens but one has more than {}", used));
  const auto selected = [&](const Tensor& x) { return x.defined() ? index_select(x, 0, rows) : x; };
  // In place where the number of rows stays, so that a step that selects can be recorded.
  const auto select_of = [&](Tensor& x) {
    const Tensor result = selected(x);
    if (result.shape() == x.shape()) copy_(x, result);
    else x = result;
  };
  const auto select_tokens_of = [&](Tensor& x) {
    if (used == 0 || used == capacity_) return select_of(x);
    const Tensor result = selected(slice(x, 1, 0, used));
    Shape shape = x.shape();
    shape[0] = count;
    // Places without a token are zeros: their values are multiplied by probabilities of 0.
    if (shape != x.shape()) x = zeros(shape, x.dtype(), x.device());
    copy_(slice(x, 1, 0, used), result);
  };
  select_of(lengths);
  for (Layer& layer : layers_) {
    if (layer.keys_values.defined()) select_tokens_of(layer.keys_values);
    if (layer.memory.defined() && !keeps_memory) select_of(layer.memory);
  }
  if (!memory_mask_ || keeps_memory) return;
  // Not in place: the tensors are the caller's.
  for (Tensor* x : {&memory_mask_->padding, &memory_mask_->prefix, &memory_mask_->key_lengths}) *x = selected(*x);
}

const AttentionMask& KvCache::memory_mask(const std::function<AttentionMask()>& mask) {
  if (!memory_mask_) memory_mask_ = mask();
  return *memory_mask_;
}

Tensor LayerCache::append(const Tensor& keys_values) const {
  const NoGrad unrecorded;
  Tensor& cached = cache_->layers_[layer_].keys_values;
  const Shape& s = keys_values.shape();
  if (cache_->empty()) {
    cached = zeros({s[0], cache_->capacity_, s[2], s[3]}, keys_values.dtype(), keys_values.device());
    copy_(slice(cached, 1, 0, s[1]), keys_values);
    return keys_values;
  }
  index_copy_(reshape(cached, {s[0] * cache_->capacity_, s[2] * s[3]}), 0, cache_->rows_, reshape(keys_values, {s[0], s[2] * s[3]}));
  return cached;
}

AttentionMask LayerCache::mask(const AttentionMask& given) const {
  if (cache_->empty()) return given;
  if (given.window > 0 || given.padding.defined() || given.key_lengths.defined())
    fail("KvCache", "expected no window, padding or key_lengths: a token that joins others in a cache sees all of its row");
  return {.key_lengths = cache_->seen_};
}

Tensor LayerCache::rotated(const Tensor& x, const Tensor& table, std::int64_t heads) const {
  if (cache_->empty()) return rope(x, table, heads);
  // A token a row, each at a position of its own: the rows take the place of the positions.
  return transpose(rope(transpose(x, 0, 2), index_select(table, 0, cache_->lengths), heads), 0, 2);
}

Tensor LayerCache::memory(const std::function<Tensor()>& keys_values) const {
  Tensor& kept = cache_->layers_[layer_].memory;
  if (!kept.defined()) kept = keys_values();
  return kept;
}

}  // namespace tern::nn
