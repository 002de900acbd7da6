#pragma once
#include "autodiff/node.h"
#include "ops/attention.h"
#include "ops/kernels/attention.h"
#include "tensor/random.h"

// Attention composed of other ops: the reference of the kernels, and their fallback where none takes the inputs.
namespace tern::detail {

/// Sizes of a call; `queries` and `keys` of packed sequences are those of the longest.
struct AttentionSizes {
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, width = 0;
  bool is_packed = false;

  Shape scores() const { return {batch, heads, queries, keys}; }
};

/// Factor of q k^T.
double scale_of(const AttentionSizes& sizes, const AttentionParams& params);

/// Reserves one random number for each probability if there is dropout.
PhiloxState draws_for(const AttentionSizes& sizes, const AttentionParams& params);

/// By matrix products and attention_softmax.
Tensor compose(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params);

/// The plain composition with random numbers that were reserved before, of q, k, v and the bias: the reference of the kernels.
Tensors compose_again(const AttentionSizes& sizes, const Tensors& in, AttentionParams params, PhiloxState draws);

/// The composition for a chunk of queries at a time, in memory that does not grow with T S; backward composes each chunk again (Chen et
/// al., "Training Deep Nets with Sublinear Memory Cost", 2016).
Tensor attention_in_chunks(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
                           std::int64_t bytes = kernels::attention_chunk_bytes);

/// The mask with tensors as the kernels take them: padding that is added to the scores, contiguous prefixes and lengths.
AttentionMask kernel_mask(const AttentionMask& mask, DType scores);
/// View of such a mask, whose tensors live as long.
kernels::AttentionMask mask_view(const AttentionMask& mask);

/// Throws Error unless the mask fits scores of that shape (B, ..., T, S), dtype and device.
void check_mask(const char* op, const Shape& scores, DType dtype, Device device, const AttentionMask& mask);

/// attention_softmax of sequences of different lengths: row b has query_lengths[b] queries and key_lengths[b] keys, (B) of i64, which take
/// the place of T and S in the mask.
Tensor attention_softmax(const Tensor& scores, const AttentionMask& mask, const Tensor& query_lengths, const Tensor& key_lengths);

}  // namespace tern::detail
