#pragma once
#include <optional>

#include "tensor/tensor.h"

namespace tern {

/// Attention mask: the keys that a query sees. In scores (B, ..., T, S) query t of batch row b sees key s if all of these hold:
///   not causal, or s <= t + S - T, or s < prefix[b]
///   no window, or s > t + S - T - window
///   s < key_lengths[b]
///   the padding does not hide the key
/// A query that sees no key gives zeros, and its gradients are zeros.
struct AttentionMask {
  bool causal = false;      ///< a query sees keys up to its own position; the last query is aligned to the last key
  Tensor padding = {};      ///< (B, S): bool, true where a key is hidden, or floating, added to the scores; -1e4 or less hides the key
  Tensor prefix = {};       ///< (B), i64; needs `causal`
  Tensor key_lengths = {};  ///< (B), i64
  std::int64_t window = 0;  ///< number of keys that a query sees, its own included; 0: no limit. Needs `causal`, excludes a prefix
};

/// Options of one call of attention; those of the attention module are in nn/attention.h.
struct AttentionParams {
  AttentionMask mask = {};  ///< keys that each query sees
  /// Bias of q's dtype, broadcast to (B, H, T, S), added to the scaled scores; it gets a gradient. -inf hides a key, no finite number does.
  Tensor bias = {};
  std::optional<double> scale = {};  ///< factor of q k^T; 1 / sqrt(D) where not given
  double dropout = 0;                ///< probability of dropout of the attention probabilities, in training
  bool training = false;             ///< dropout is applied only while training
  /// Packed sequences (variable length): sequence n of N has the rows query_starts[n] to query_starts[n + 1] - 1 of q (total, H, D), and
  /// the rows given by key_starts in the same way of k and v (total, Hkv, D). (N + 1), i64, ascending from 0 to the total. Mask and bias
  /// are then those of a batch of N with T = max_queries and S = max_keys; no sequence may be longer. A causal mask is aligned to each
  /// sequence's own last query and key.
  Tensor query_starts = {};
  Tensor key_starts = {};        ///< (N + 1), i64; both are given, or neither
  std::int64_t max_queries = 0;  ///< packed sequences: upper bound of their lengths in q
  std::int64_t max_keys = 0;     ///< packed sequences: upper bound of their lengths in k and v
};

/// Scaled dot-product attention, softmax(scale q k^T + bias + mask) v for every head: q (B, T, H, D), k and v (B, S, Hkv, D), any strides
/// -> (B, T, H, D). Grouped queries: Hkv divides H, and head h uses the keys and values of head h / (H / Hkv). A query that sees no key
/// gives zeros, with gradients of zero; one that sees a score of NaN or +inf gives NaN. Element i of the probabilities (B, H, T, S) is
/// dropped or kept by random number i. Vaswani et al., 2017; Ainslie et al., "GQA", 2023. Throws Error for floating dtypes that differ, for
/// shapes that do not fit, and on the CPU for starts that are not ascending or leave the range of rows.
///
/// One fused op (flash attention), in memory that grows with T and S and not with T S: backward keeps the inputs, the result and one number
/// for each query and head, two with a bias (Dao, "FlashAttention-2", 2023). Calls that no kernel of the GPU takes are composed of other
/// ops, in chunks of queries where the scores are large; with dropout, a prefix or packed sequences, and in a PlainKernels scope, they are
/// composed whole, in memory that grows with T S. On a GPU a query whose largest score is beyond 2^30 in magnitude may have no gradient,
/// unless there is a bias.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params = {});

/// Softmax of scores (B, ..., T, S) over the keys that each row sees; the probabilities of other keys are 0, and a row that sees no key is
/// 0, as is its gradient. A score of -inf hides its key, too; no finite score does. If a row sees NaN or +inf, its probabilities are NaN at
/// all keys that the mask shows. At least two dimensions, three with padding or a prefix. Throws Error if shapes, dtypes or devices do not
/// fit.
///
/// One kernel, by which the scores are read once, and no mask is written to memory, after Wang et al., "LightSeq2", 2021; on a GPU with a
/// window or key_lengths, and in a PlainKernels scope, composed of other ops.
Tensor attention_softmax(const Tensor& scores, const AttentionMask& mask = {});

/// RoPE scaling: lower rotation frequencies, for texts longer than the training length. A `factor` of 1 changes nothing.
struct RopeScaling {
  double factor = 1;  ///< positions are divided by it: position interpolation (Chen et al., 2023)
  /// Length of the training texts. 0: all pairs are slowed down alike. Otherwise as in Llama 3: pairs that turn more than `high_turns`
  /// times over this length keep their frequency, those that turn less than `low_turns` times are slowed down by `factor`, and in between
  /// the two are blended.
  std::int64_t original_length = 0;
  double low_turns = 1;   ///< see original_length
  double high_turns = 4;  ///< see original_length
};

/// Cosines and sines of t base^(-2i / D), a frequency that `scaling` changes, for positions t < length and pairs i < D / 2: (length, D / 2,
/// 2), f32. Throws Error for an odd D, and for numbers that are not positive.
Tensor rope_table(std::int64_t length, std::int64_t head_dim, double base = 10000, Device device = default_device(),
                  const RopeScaling& scaling = {});

/// Layout of the pairs of elements of a head that are rotated together, as pair i.
enum class RopePairs : std::uint8_t {
  adjacent,  ///< 2i and 2i + 1, as in the paper
  halves,    ///< i and D / 2 + i, "rotate half" in Hugging Face's models
};

/// Rotary position embedding: rotates each pair i of x (B, H, T, D) at position t by the angle table[t, i] of rope_table, (at least T, D /
/// 2, 2). With `heads`, only the first `heads` heads are rotated and the others are copied: for queries and keys beside values in one
/// projection. Su et al., "RoFormer", 2021. Throws Error if D is odd or shapes do not fit.
Tensor rope(const Tensor& x, const Tensor& table, std::optional<std::int64_t> heads = {}, RopePairs pairs = RopePairs::adjacent);

}  // namespace tern
