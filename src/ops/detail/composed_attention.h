#pragma once
#include "autodiff/node.h"
#include "ops/attention.h"
#include "tensor/random.h"

// Attention by other ops: the plain composition, which is the reference of the fused op, and what the fused op does where no kernel takes
// its inputs.
namespace tern::detail {

/// T and S of packed sequences are the longest ones'.
struct AttentionSizes {
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, width = 0;
  bool is_packed = false;

  Shape scores() const { return {batch, heads, queries, keys}; }
};

/// Of q k^T.
double scale_of(const AttentionSizes& sizes, const AttentionParams& params);

/// Reserves a draw for each probability where some are dropped.
PhiloxState draws_for(const AttentionSizes& sizes, const AttentionParams& params);

/// By products and a softmax, the fused one or the plain.
Tensor compose(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
               bool is_fused);

/// The composition with draws that were made before, from q, k, v and the bias: the reference of the fused ops.
Tensors compose_again(const AttentionSizes& sizes, const Tensors& in, AttentionParams params, PhiloxState draws);

/// On a GPU, as products of whole batches and fused kernels between them, for self attention with as many heads of keys as of queries. The
/// heads are brought side by side first: cuBLAS takes a batch with one stride faster than a list of addresses.
Tensor attention_by_products(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params);

/// Bytes of scores at a time.
inline constexpr std::int64_t chunk_bytes = std::int64_t{256} << 20;

/// Whether the scores are more than a chunk, and the mask allows chunks.
bool needs_chunks(const AttentionSizes& sizes, const Tensor& q, const AttentionParams& params);
/// The composition for some queries at a time, in memory that does not grow with T S; backward composes each chunk again (Chen et al.,
/// "Training Deep Nets with Sublinear Memory Cost", 2016).
Tensor attention_in_chunks(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
                           std::int64_t bytes = chunk_bytes);

}  // namespace tern::detail
