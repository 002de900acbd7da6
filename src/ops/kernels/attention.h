#pragma once
#include "ops/kernels/attention_softmax.h"
#include "tensor/random.h"

namespace tern::kernels {

/// Attention as kernels take it: parameters of a call with q (B, T, H, D), k and v (B, S, Hkv, D), y (B, T, H, D). The last stride of each
/// is 1, the others are arbitrary. Head h uses the keys and values of head h / (H / Hkv).
struct Attention {
  AttentionMask mask;
  View bias;           ///< (B, H, T, S), any strides, 0 where broadcast, of q's dtype, added to scale q k^T; no data: none
  double scale = 1;    ///< factor of q k^T
  double dropout = 0;  ///< probability of dropout of the attention probabilities
  PhiloxState draws;   ///< element i of the probabilities (B, H, T, S) uses random number i, as in dropout
  /// Packed sequences: (N + 1), i64, contiguous. q is (1, total, H, D), and sequence n has its rows query_starts[n] to query_starts[n + 1]
  /// - 1; k and v likewise by key_starts. The masks' B is then N, the T and S above are those of each sequence, and max_queries and
  /// max_keys, those of the longest, are the T and S by which probabilities are numbered for `draws`. No data: one sequence for each batch
  /// row.
  View query_starts, key_starts;
  std::int64_t max_queries = 0, max_keys = 0;
};

/// Flash attention: y = dropout(softmax(scale q k^T + bias + mask)) v in tiles, without scores in memory. Products in the dtype (f32: in
/// the matmul precision), sums in float32 (f64 for f64). log_sums (B, H, T), or (1, H, total) for packed sequences, f32 (f64 for f64), gets
/// log2 of the sum of each query's exponentials, infinity for a query that sees no key. With a bias, which may be as large as the dtype
/// allows, there are two of them, (2, B, H, T): the second ones are what rounding has taken from the first. On a GPU without a bias, a sum
/// beyond 2^30 is infinity, too: the query then has no gradient.
void flash_attention(Cpu, const View& q, const View& k, const View& v, const Attention& attention, const View& y, const View& log_sums);
void flash_attention(Cuda, const View& q, const View& k, const View& v, const Attention& attention, const View& y, const View& log_sums);

/// Attention of one query per sequence, as in decoding with cached keys: q and y (B, 1, H, D), no dropout, no packed sequences. Keys and
/// values are read in place, once for all query heads that share them, split along the keys (split-KV) into parts of decode_part keys,
/// whose sums are added in order. A sequence's result depends neither on other sequences nor on hidden keys after its own.
void decode_attention(Cpu, const View& q, const View& k, const View& v, const Attention& attention, const View& y);
void decode_attention(Cuda, const View& q, const View& k, const View& v, const Attention& attention, const View& y);
inline constexpr int decode_part = 256;

/// dq, dk, dv (each like its input: last stride 1, other strides arbitrary), and dbias unless it has no data (contiguous, of the bias's
/// shape with broadcast dimensions 1), from g, the gradient of y, last stride 1, and from y and log_sums of forward. Deterministic.
struct AttentionGradients {
  View q, k, v, bias;
};
void flash_attention_grad(Cpu, const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                          const Attention& attention, const AttentionGradients& gradients);
void flash_attention_grad(Cuda, const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                          const Attention& attention, const AttentionGradients& gradients);

// Kernels that only CUDA has: called through on_cuda, queried through cuda_has.

/// True if flash_attention takes these views on the device. flash_attention_grad then takes them with a contiguous g, and with gradients
/// whose strides are those of the inputs or contiguous.
bool has_flash_attention(Cuda, const View& q, const View& k, const View& v, const View& y, const Attention& attention);

/// True if decode_attention takes these views on the device.
bool has_decode_attention(Cuda, const View& q, const View& k, const View& v, const Attention& attention);

/// True if self_attention takes heads of this length and head_dim.
bool has_self_attention(Cuda, DType dtype, std::int64_t length, std::int64_t head_dim);

/// y (B, T, H, D) = dropout(softmax(scale q k^T + mask)) v for qkv (B, T, 3, H, D); contiguous, float32.
void self_attention(Cuda, const View& qkv, const Attention& attention, const View& y);

/// dqkv from g, the gradient of y. The probabilities are recomputed, with forward's random numbers.
void self_attention_grad(Cuda, const View& qkv, const View& g, const Attention& attention, const View& dqkv);

}  // namespace tern::kernels
