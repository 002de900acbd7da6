#pragma once
#include "tensor/kernel.h"
#include "tensor/random.h"

namespace tern::kernels {

/// A key whose padding is this or less is hidden regardless of its score: masks of -inf, of -1e30 and of f16's lowest number mean the same.
inline constexpr float hidden_padding = -1e4f;

/// Attention mask: the keys that a query sees. In scores (B, ..., T, S) query t of batch row b sees key s if all of these hold:
///   s < key_lengths[b]
///   not causal, or s <= t + S - T, or s < prefix[b]
///   window == 0, or s > t + S - T - window
///   padding[b, s] > hidden_padding
/// A query that sees no key gives zeros, and its gradients are zeros.
struct AttentionMask {
  In padding;               ///< (B, S), f32 (f64 for f64 scores), contiguous, added to the scores; no data: nothing is added
  In prefix;                ///< (B), i64, contiguous; no data: all 0. Only with `causal`
  In key_lengths;           ///< (B), i64, contiguous; no data: all S
  std::int64_t window = 0;  ///< number of keys that a query sees, its own included; 0: no limit. Only with `causal`
  bool causal = false;
};

/// y = softmax(x + padding) over the columns that a row sees, and 0 in the others; a row that sees no column, or only scores of -inf, is 0.
/// x (B, ..., T, S), at least two dimensions, contiguous, floating; y likewise, and may be x. CUDA takes no key_lengths and no window.
struct AttentionSoftmax {
  In x;
  AttentionMask mask;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// dx = y (g - sum(g y)) for each row of (..., S); everything contiguous and of one dtype. dx may be y or g.
struct AttentionSoftmaxGrad {
  In y, g;
  Out dx;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Attention as kernels take it: parameters of a call with q (B, T, H, D), k and v (B, S, Hkv, D), y (B, T, H, D). The last stride of each
/// is 1, the others are arbitrary. Head h uses the keys and values of head h / (H / Hkv).
struct Attention {
  AttentionMask mask;
  In bias;             ///< (B, H, T, S), any strides, 0 where broadcast, of q's dtype, added to scale q k^T; no data: none
  double scale = 1;    ///< factor of q k^T
  double dropout = 0;  ///< probability of dropout of the attention probabilities
  PhiloxState draws;   ///< element i of the probabilities (B, H, T, S) uses random number i, as in dropout
  /// Packed sequences: (N + 1), i64, contiguous. q is (1, total, H, D), and sequence n has its rows query_starts[n] to query_starts[n + 1]
  /// - 1; k and v likewise by key_starts. The masks' B is then N, the T and S above are those of each sequence, and max_queries and
  /// max_keys, those of the longest, are the T and S by which probabilities are numbered for `draws`. No data: one sequence for each batch
  /// row.
  In query_starts, key_starts;
  std::int64_t max_queries = 0, max_keys = 0;
};

/// Flash attention: y = dropout(softmax(scale q k^T + bias + mask)) v in tiles, without scores in memory. Products in the dtype (f32: in
/// the matmul precision), sums in float32 (f64 for f64). log_sums (B, H, T), or (1, H, total) for packed sequences, f32 (f64 for f64), gets
/// log2 of the sum of each query's exponentials, infinity for a query that sees no key. With a bias, which may be as large as the dtype
/// allows, there are two of them, (2, B, H, T): the second ones are what rounding has taken from the first. On a GPU without a bias, a sum
/// beyond 2^30 is infinity, too: the query then has no gradient.
struct FlashAttention {
  In q, k, v;
  Attention attention;
  Out y, log_sums;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Attention of one query per sequence, as in decoding with cached keys: q and y (B, 1, H, D), no dropout, no packed sequences. Keys and
/// values are read in place, once for all query heads that share them, split along the keys (split-KV) into parts of decode_part keys,
/// whose sums are added in order. A sequence's result depends neither on other sequences nor on hidden keys after its own.
struct DecodeAttention {
  In q, k, v;
  Attention attention;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};
inline constexpr int decode_part = 256;

/// Gradients of attention, each like its input: last stride 1, other strides arbitrary. The bias's may have no data.
struct AttentionGradients {
  Out q, k, v, bias;
};
/// Gradients from g, the gradient of y, last stride 1, and from y and log_sums of forward. dbias, unless it has no data, is contiguous, of
/// the bias's shape with broadcast dimensions 1. Deterministic.
struct FlashAttentionGrad {
  In q, k, v, y, log_sums, g;
  Attention attention;
  AttentionGradients gradients;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Ways to compute a call. Each device has a table of the calls that it sends each way: a GPU's is at the top of
/// cuda/attention/attention.cpp.
enum class AttentionWay {
  decode,       ///< decode_attention
  single_tile,  ///< self_attention
  flash,        ///< flash_attention, and flash_attention_grad with gradients whose strides are those of the inputs or contiguous
  flash_dense,  ///< the same, of contiguous copies of q, k and v
  chunks,       ///< other ops, for a chunk of queries at a time
  composed      ///< other ops
};
/// The way of a call whose y is contiguous. `is_recorded`: a gradient will be needed.
AttentionWay attention_way(Cpu, const View& q, const View& k, const View& v, const Attention& attention, bool is_recorded);
AttentionWay attention_way(Cuda, const View& q, const View& k, const View& v, const Attention& attention, bool is_recorded);

/// True if decode_attention serves the call, if it takes the views.
inline bool may_decode(const View& q, const Attention& attention, bool is_recorded) {
  return q.shape[1] == 1 && !attention.query_starts.data && attention.dropout == 0 && !is_recorded;
}

/// Bytes of scores in memory at a time: larger ones are computed in chunks of queries.
inline constexpr std::int64_t attention_chunk_bytes = std::int64_t{256} << 20;

/// y (B, H, T, D) = x with each pair of elements at position t of the first `heads` heads, (2i, 2i + 1) or with `halves` (i, D / 2 + i),
/// rotated by the angle whose cosine and sine are table[t, i] (T, D / 2, 2), contiguous, f32 (f64 for f64 x); rotated back if `inverse`.
/// The other heads are copied. x and y have unit last stride, and any other strides.
struct Rope {
  In x, table;
  Out y;
  std::int64_t heads;
  bool halves, inverse;
  void run(Cpu) const;
  void run(Cuda) const;
};

// Kernels that only CUDA has.

/// y (B, T, H, D) = dropout(softmax(scale q k^T + mask)) v for qkv (B, T, 3, H, D); contiguous, float32, T up to 64, D 32 or 64.
struct SelfAttention {
  In qkv;
  Attention attention;
  Out y;
  void run(Cuda) const;
};

/// dqkv from g, the gradient of y. The probabilities are recomputed, with forward's random numbers.
struct SelfAttentionGrad {
  In qkv, g;
  Attention attention;
  Out dqkv;
  void run(Cuda) const;
};

}  // namespace tern::kernels
