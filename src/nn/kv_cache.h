#pragma once
#include <functional>
#include <vector>

#include "ops/attention_mask.h"
#include "ops/rope.h"

namespace tern::nn {

class KvCache;

/// One layer's part of a KvCache, while a model reads tokens.
class LayerCache {
 public:
  /// Keeps the keys and values (B, T, 2 Hkv, D) of the tokens that are being read, and returns those that they attend to: of the first
  /// tokens these are their own, and later all that the cache has slots for, (B, S, 2 Hkv, D).
  Tensor append(const Tensor& keys_values) const;
  /// Which of the keys that `append` has returned the tokens that are being read see: of the first tokens `given` says it, and a later one
  /// sees all of its row. Throws Error if `given` then has a window, padding or key_lengths.
  AttentionMask mask(const AttentionMask& given) const;
  /// rope(x, table, heads, pairs) for x (B, heads, T, D), at the positions of the tokens that are being read.
  Tensor rotated(const Tensor& x, const Tensor& table, std::int64_t heads, RopePairs pairs = RopePairs::adjacent) const;
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
/// On a GPU the memory stays where it is while no more rows are asked for than there were, so that a recorded step (CapturedStep) finds it;
/// also from text to text with `restart`. On the CPU it grows with the longest row.
class KvCache {
 public:
  KvCache() = default;
  /// For `batch` rows of `capacity` tokens at the most. Memories may have `memory_capacity` tokens; 0: as many as the first one has. Throws
  /// Error for sizes below 1, and a memory_capacity below 0.
  KvCache(std::int64_t batch, std::int64_t capacity, std::size_t layers, Device device = cpu, std::int64_t memory_capacity = 0);

  /// Tokens in each row, where the next one goes: (B), i64.
  Tensor lengths;

  std::int64_t batch() const { return lengths.size(0); }  ///< rows in use
  std::int64_t capacity() const { return capacity_; }     ///< tokens of a row at most
  /// Rows for which there is memory: it has moved where this is another number than before.
  std::int64_t reserved() const { return all_lengths_.size(0); }
  /// Whether no token has been read.
  bool empty() const { return empty_; }
  /// Forgets all tokens and memories, for another text of `batch` rows, whose memories have at most `memory_used` tokens, which `select`
  /// then copies; 0: all of their capacity. Throws Error for a batch below 1, and for memory_used outside [0, memory_capacity].
  void restart(std::int64_t batch, std::int64_t memory_used = 0);
  /// Says that the first call was a graph that was replayed, of which the cache has seen nothing but what changed in its memory.
  void mark_read() { empty_ = false; }
  /// Row i becomes what row rows[i] was, for rows (N) of i64: as a beam search needs, or to drop rows. Memories follow, unless
  /// `keeps_memory`, for N rows that each stay with the memory they have: as the hypotheses of one sentence do. Of the tokens only the
  /// first `used` are copied, which is at least what the longest row has; 0: all of the capacity. Throws Error for keeps_memory with
  /// another number of rows, and for `used` beyond the capacity or, on the CPU, below the longest row.
  void select(const Tensor& rows, bool keeps_memory = false, std::int64_t used = 0);

  /// For models: begins to read ids (B, T). Throws Error for another number of rows, for T above the capacity, for T that is not 1 where
  /// there are tokens already, and on the CPU for a row that is full; on a GPU, where a check would have to wait, such a row loses the
  /// token.
  void begin(const Tensor& ids);
  /// A layer's part, for models: between begin() and end().
  LayerCache layer(std::size_t index) { return {*this, index}; }
  /// The mask of the memories, whose tensors have a row for each of the cache: computed by the first call. Throws Error for padding where
  /// memories have a capacity: they then have other columns than it.
  AttentionMask memory_mask(const std::function<AttentionMask()>& mask);
  /// Positions (B, T) of the tokens that are being read, i64.
  const Tensor& positions() const { return positions_; }
  /// For models: the tokens of begin() are read, and `lengths` counts them.
  void end();

 private:
  friend class LayerCache;
  struct Layer {
    Tensor keys_values;  ///< (R, slots, 2 Hkv, D)
    Tensor memory;       ///< (R, S, 2 Hkv, D), or of as many rows as there are, where memories have no capacity
  };
  /// The tokens of a row that memory is allocated for; grow() allocates for `tokens`, at least: Note [Cache slots].
  std::int64_t slots() const;
  void grow(std::int64_t tokens);
  /// The first rows of `all`, those in use.
  Tensor in_use(const Tensor& all) const;
  /// Writes x (B, T, ...) into the first rows and tokens of `all`, which becomes zeros (R, tokens, ...) first where it is undefined.
  void keep(Tensor& all, const Tensor& x, std::int64_t tokens);

  std::int64_t capacity_ = 0, memory_capacity_ = 0, memory_used_ = 0;
  bool empty_ = true;
  Tensor all_lengths_;  ///< (R), R reserved rows; `lengths` is the part in use
  std::vector<Layer> layers_;
  AttentionMask memory_mask_;  ///< with tensors of R rows
  // Of the tokens that are being read.
  std::int64_t reading_ = 0;
  Tensor positions_, rows_, seen_;  ///< rows_: (B), the slots of their keys, of B * slots(); seen_: (B), the keys that they see
};

}  // namespace tern::nn
