#pragma once
#include "ops/kernels/attention_softmax.h"
#include "tensor/random.h"

namespace tern::kernels {

/// Attention as kernels take it: how q (B, T, H, D), k and v (B, S, Hkv, D) make y (B, T, H, D). The last stride of each is 1, all others
/// are any. Head h takes the keys and values of head h / (H / Hkv).
struct Attention {
  AttentionMask mask;
  View bias;           ///< (B, H, T, S) with any strides, 0 where it is broadcast, added to scale q k^T; of the dtype of q; no data: none
  double scale = 1;    ///< of q k^T
  double dropout = 0;  ///< of the probabilities
  PhiloxState draws;   ///< element i of the probabilities (B, H, T, S) takes draw i, as in dropout
  /// Packed sequences: (N + 1), i64, contiguous. q is (1, total, H, D), and sequence n has its rows query_starts[n] up to
  /// query_starts[n + 1]; k and v likewise by key_starts. Masks' B is then N; T and S above are those of each sequence by itself,
  /// and max_queries and max_keys the longest ones, which the rows of `draws` go by. No data: one sequence a batch row.
  View query_starts, key_starts;
  std::int64_t max_queries = 0, max_keys = 0;
};

/// y = dropout(softmax(scale q k^T + bias + mask)) v in tiles: no memory beside y and log_sums. Products of the dtype (f32: as the product
/// mode says), sums in float32 (f64 for f64). log_sums (B, H, T), (1, H, total) of packed sequences, f32 (f64 for f64), gets the logarithms
/// to base 2 of the sums of each query's exponentials; infinity for a query that sees no key.
void flash_attention(Cpu, const View& q, const View& k, const View& v, const Attention& attention, const View& y, const View& log_sums);
void flash_attention(Cuda, const View& q, const View& k, const View& v, const Attention& attention, const View& y, const View& log_sums);

/// y of one query a sequence, as in decoding with cached keys: q and y (B, 1, H, D), no dropout, no packed sequences. Keys and values are
/// read where they lie, once for all heads that share them, in parts of decode_part keys each, whose sums are joined in their order: a
/// sequence's result depends neither on the others nor on hidden keys behind its own.
void decode_attention(Cpu, const View& q, const View& k, const View& v, const Attention& attention, const View& y);
void decode_attention(Cuda, const View& q, const View& k, const View& v, const Attention& attention, const View& y);
inline constexpr int decode_part = 256;

/// dq, dk, dv (each like its input, with last stride 1 and any other strides), and dbias unless it has no data (contiguous, in the bias's
/// shape with broadcast dimensions 1), from g, the gradient of y, last stride 1; with y and log_sums as forward has left them. The same
/// bits in every run.
struct AttentionGradients {
  View q, k, v, bias;
};
void flash_attention_grad(Cpu, const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                          const Attention& attention, const AttentionGradients& gradients);
void flash_attention_grad(Cuda, const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                          const Attention& attention, const AttentionGradients& gradients);

// CUDA alone has these: they are called through on_cuda, and asked for through cuda_has.

/// Whether flash_attention takes these views on the device. flash_attention_grad then takes them with a contiguous g, and with gradients
/// whose rows lie as those of the inputs do or beside each other.
bool has_flash_attention(Cuda, const View& q, const View& k, const View& v, const View& y, const Attention& attention);

/// Whether decode_attention takes these views on the device.
bool has_decode_attention(Cuda, const View& q, const View& k, const View& v, const Attention& attention);

/// Whether self_attention takes heads of this length and head_dim.
bool has_self_attention(Cuda, DType dtype, std::int64_t length, std::int64_t head_dim);

/// y (B, T, H, D) = dropout(softmax(scale q k^T + mask)) v for qkv (B, T, 3, H, D); contiguous, float32.
void self_attention(Cuda, const View& qkv, const Attention& attention, const View& y);

/// dqkv from g, the gradient of y. The probabilities are computed again, from the same draws as forward's.
void self_attention_grad(Cuda, const View& qkv, const View& g, const Attention& attention, const View& dqkv);

}  // namespace tern::kernels
