#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "ops/attention_mask.h"

namespace tern::nn {

class KvCache;

/// One layer's part of a KvCache, while a model reads tokens.
class LayerCache {
 public:
  /// Keeps the keys and values (B, T, 2 Hkv, D) of the tokens that are being read, and returns those that they attend to: of the first
  /// tokens these are their own, and later all that the cache has, (B, capacity, 2 Hkv, D).
  Tensor append(const Tensor& keys_values) const;
  /// Which of the keys that `append` has returned the tokens that are being read see: of the first tokens `given` says it, and a later one
  /// sees all of its row. Throws Error if `given` then has a window, padding or key_lengths.
  AttentionMask mask(const AttentionMask& given) const;
  /// rope(x, table, heads) for x (B, heads, T, D), at the positions of the tokens that are being read.
  Tensor rotated(const Tensor& x, const Tensor& table, std::int64_t heads) const;
  /// The keys and values (B, S, 2 Hkv, D) of a memory, for cross attention: computed once.
  Tensor memory(const std::function<Tensor()>& keys_values) const;

 private:
  friend class KvCache;
  LayerCache(KvCache& cache, std::size_t layer) : cache_(&cache), layer_(layer) {}
  KvCache* cache_;
  std::size_t layer_;
};

/// The keys and values of the tokens that a model has read, for all of its layers: with them a model reads one more token without reading
/// those before it again. A model's first call with a cache reads any number of tokens, each later one a token a row. Where rows were
/// filled up to one length, copy_ their own lengths into `lengths` after the first call: what follows is then written over the filling.
/// A copy of a cache shares its memory.
class KvCache {
 public:
  KvCache() = default;
  /// For `batch` rows of `capacity` tokens at the most. Throws Error for sizes below 1.
  KvCache(std::int64_t batch, std::int64_t capacity, std::size_t layers, Device device = cpu);

  /// Tokens in each row, where the next one goes: (B), i64.
  Tensor lengths;

  std::int64_t batch() const { return lengths.size(0); }
  std::int64_t capacity() const { return capacity_; }
  /// Whether no token has been read.
  bool empty() const { return empty_; }
  /// Row i becomes what row rows[i] was, for rows (N) of i64: as a beam search needs, or to drop rows. Memories follow, unless
  /// `keeps_memory`, for N rows that each stay with the memory they have: as the hypotheses of one sentence do. Of the tokens only the
  /// first `used` are copied, which is at least what the longest row has; 0: all of the capacity. Throws Error for keeps_memory with
  /// another number of rows, and for `used` beyond the capacity or, on the CPU, below the longest row.
  void select(const Tensor& rows, bool keeps_memory = false, std::int64_t used = 0);

  /// For models: begins to read ids (B, T). Throws Error for another number of rows, for T above the capacity, for T that is not 1 where
  /// there are tokens already, and on the CPU for a row that is full; on a GPU, where a check would have to wait, such a row loses the
  /// token.
  void begin(const Tensor& ids);
  LayerCache layer(std::size_t index) { return {*this, index}; }
  /// The mask of the memories: computed once.
  const AttentionMask& memory_mask(const std::function<AttentionMask()>& mask);
  /// Positions (B, T) of the tokens that are being read, i64.
  const Tensor& positions() const { return positions_; }
  void end();

 private:
  friend class LayerCache;
  struct Layer {
    Tensor keys_values;  ///< (B, capacity, 2 Hkv, D)
    Tensor memory;       ///< (B, S, 2 Hkv, D)
  };
  std::int64_t capacity_ = 0;
  bool empty_ = true;
  std::vector<Layer> layers_;
  std::optional<AttentionMask> memory_mask_;
  // Of the tokens that are being read.
  std::int64_t reading_ = 0;
  Tensor positions_, rows_, seen_;  ///< rows_: where their keys go among B capacity places; seen_: the keys that they see
};

}  // namespace tern::nn
