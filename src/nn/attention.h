#pragma once
#include <functional>
#include <vector>

#include "nn/mixer.h"

namespace tern::nn {

class KvCache;

/// One layer of a KvCache, while a model reads tokens.
class LayerCache {
 public:
  /// Appends the keys and values (B, T, 2 Hkv, D) of the current tokens, and returns those to attend to: for the first tokens only their
  /// own, later all that the cache has slots for, (B, S, 2 Hkv, D).
  Tensor append(const Tensor& keys_values) const;
  /// Mask over the keys that `append` returned for the current tokens: `given` for the first tokens; a later token sees all tokens of its
  /// row, or those in the window. Throws Error if `given` then has padding or key_lengths.
  AttentionMask mask(const AttentionMask& given) const;
  /// rope(x, table, heads, pairs) for x (B, heads, T, D), at the positions of the current tokens.
  Tensor rotated(const Tensor& x, const Tensor& table, std::int64_t heads, RopePairs pairs = RopePairs::adjacent) const;
  /// Keys and values (B, S, 2 Hkv, D) of a memory, for cross attention: computed once.
  Tensor memory(const std::function<Tensor()>& keys_values) const;
  /// State of the mixer in attention's place after the tokens so far; nothing before the first ones.
  Tensors mixer_state() const;
  /// Keeps it, in the memory that it had before.
  void keep(const Tensors& mixer_state) const;

 private:
  friend class KvCache;
  LayerCache(KvCache& cache, std::size_t layer) : cache_(&cache), layer_(layer) {}
  KvCache* cache_;
  std::size_t layer_;
};

/// KV cache: keys and values of the tokens that a model has read, or the states of its mixers, for all of its layers, so that it can read
/// one more token without reading the earlier ones again. A model's first call with a cache reads any number of tokens, each later call one
/// token per row. If rows were padded to one length, copy_ their actual lengths into `lengths` after the first call: later tokens then
/// overwrite the padding; mixers need them as the mask's key_lengths in that call. Copies of a cache share its memory. On a GPU the memory
/// does not move as long as the number of rows does not grow, so that a captured or compiled step (CapturedStep, compile()) stays valid,
/// also from text to text with `restart`. On the CPU it grows with the longest row, unless it is told to stay.
class KvCache {
 public:
  KvCache() = default;
  /// For `batch` rows of at most `capacity` tokens. Memories may have `memory_capacity` tokens; 0: as many as the first one has. Throws
  /// Error for sizes below 1, and a memory_capacity below 0.
  KvCache(std::int64_t batch, std::int64_t capacity, std::size_t layers, Device device = default_device(),
          std::int64_t memory_capacity = 0);

  /// Number of tokens in each row, which is the slot of the next one: (B), i64.
  Tensor lengths;

  std::int64_t batch() const { return lengths.size(0); }  ///< number of rows in use
  std::int64_t capacity() const { return capacity_; }     ///< maximal number of tokens of a row
  /// Number of rows for which there is memory: if it changes, the memory has moved.
  std::int64_t reserved() const { return all_lengths_.size(0); }
  /// True if no token has been read.
  bool empty() const { return empty_; }
  /// On the CPU: allocates the memory of all tokens at once, as on a GPU, so that it does not move and a step can be compiled.
  void stay();
  /// Drops all tokens and memories, for a new text of `batch` rows, whose memories have at most `memory_used` tokens, which are all that
  /// `select` copies; 0: their whole capacity. Throws Error for a batch below 1, and for memory_used outside [0, memory_capacity].
  void restart(std::int64_t batch, std::int64_t memory_used = 0);
  /// Marks the cache as filled after the first call was the replay of a graph, which only changes the cache's memory.
  void mark_read() { empty_ = false; }
  /// Reorders rows: row i becomes a copy of row rows[i], for rows (N) of i64, as for beam search, or to drop rows. Memories are reordered
  /// too, unless `keeps_memory`, for N rows that each keep their memory, like the hypotheses of one sentence. Only the first `used` tokens
  /// are copied, at least as many as the longest row has; 0: the whole capacity. Throws Error for keeps_memory with another number of rows,
  /// and for `used` beyond the capacity or, on the CPU, below the longest row.
  void select(const Tensor& rows, bool keeps_memory = false, std::int64_t used = 0);

  /// For models: starts reading ids (B, T). Throws Error for another number of rows, for T above the capacity, for T other than 1 if there
  /// are tokens already, and on the CPU for a row that is full; on a GPU, where a check would wait for the device, such a row drops the
  /// token.
  void begin(const Tensor& ids);
  /// For models: a layer's part, valid between begin() and end().
  LayerCache layer(std::size_t index) { return {*this, index}; }
  /// Mask of the memories, whose tensors have a row for each row of the cache: computed by the first call. Throws Error for padding if
  /// memories have a capacity, because they then have another number of columns.
  AttentionMask memory_mask(const std::function<AttentionMask()>& mask);
  /// Positions (B, T) of the current tokens, i64.
  const Tensor& positions() const { return positions_; }
  /// For models: ends reading the tokens of begin(), and adds them to `lengths`.
  void end();

 private:
  friend class LayerCache;
  struct Layer {
    Tensor keys_values;  ///< (R, slots, 2 Hkv, D)
    Tensor memory;       ///< (R, S, 2 Hkv, D), or with as many rows as are in use, if memories have no capacity
    Tensors state;       ///< (R, ...), a mixer's
  };
  /// Number of tokens of a row that memory is allocated for; grow() allocates for at least `tokens`: Note [Cache slots].
  std::int64_t slots() const;
  std::int64_t slots_for(std::int64_t tokens) const;  ///< number to allocate
  void grow(std::int64_t tokens);
  /// The rows of `all` that are in use, which are the first.
  Tensor in_use(const Tensor& all) const;
  /// Writes x (B, T, ...) to the first rows and tokens of `all`, which is first allocated as zeros (R, tokens, ...) if it is undefined.
  void keep(Tensor& all, const Tensor& x, std::int64_t tokens);

  std::int64_t capacity_ = 0, memory_capacity_ = 0, memory_used_ = 0;
  bool empty_ = true, stays_ = false;
  Tensor all_lengths_;  ///< (R) for R reserved rows; `lengths` is the part in use
  std::vector<Layer> layers_;
  AttentionMask memory_mask_;  ///< with tensors of R rows
  // State of the current tokens.
  std::int64_t reading_ = 0;
  Tensor positions_, rows_, seen_;  ///< rows_: (B), slots of their keys, of B * slots(); seen_: (B), number of keys that they see
};

/// The mask with its padding converted to the form that kernels take: for a mask that several layers share.
AttentionMask shared_by_layers(const AttentionMask& mask);

/// Options of MultiHeadAttention.
struct AttentionOptions {
  std::int64_t heads = 1;     ///< query heads
  std::int64_t kv_heads = 0;  ///< heads of keys and values, which groups of query heads share (Ainslie et al., 2023); 0: as many as heads
  std::int64_t head_dim = 0;  ///< elements of a head; 0: width / heads
  double dropout = 0;         ///< dropout of the probabilities
  bool bias = true;           ///< biases of the projections
  bool cross = false;         ///< cross attention: queries from x, keys and values from a memory
  std::int64_t window = 0;    ///< self attention: AttentionMask::window of every call; 0: that of the call's mask
  Tensor rope = {};           ///< table of rope_table, which rotates queries and keys; self attention only
  RopePairs rope_pairs = RopePairs::adjacent;  ///< see RopePairs
  Device device = default_device();            ///< device of the parameters
};

/// Multi-head attention: scaled_dot_product_attention over `heads` heads, then a projection. Vaswani et al., 2017. Self attention has one
/// fused projection `qkv` ((heads + 2 kv_heads) head_dim, width); cross attention has `query` and `key_value`.
struct MultiHeadAttention final : Callable<MultiHeadAttention> {
  MultiHeadAttention() = default;
  /// Throws Error unless kv_heads divides heads, and heads divides the width if no head_dim is given.
  MultiHeadAttention(std::int64_t width, const AttentionOptions& options);
  void visit(Visitor& v) override;
  /// Self attention: x (B, T, width) -> (B, T, width).
  Tensor forward(const Tensor& x, const AttentionMask& mask = {}) const;
  /// Cross attention: x (B, T, width), memory (B, S, width) -> (B, T, width).
  Tensor forward(const Tensor& x, const Tensor& memory, const AttentionMask& mask = {}) const;
  /// The heads' results before `proj`, for a caller that adds its bias later. Without a memory: self attention. With a cache, the tokens of
  /// x are appended to those in it.
  Tensor heads_joined(const Tensor& x, const Tensor& memory, const AttentionMask& mask, const LayerCache* cache = nullptr) const;

  std::optional<Linear> qkv;        ///< self attention: projection to queries, keys and values, in this order
  std::optional<Linear> query;      ///< cross attention: width -> heads head_dim
  std::optional<Linear> key_value;  ///< cross attention: width -> 2 kv_heads head_dim
  Linear proj;                      ///< heads head_dim -> width
  AttentionOptions options;         ///< with kv_heads and head_dim filled in
};

}  // namespace tern::nn
