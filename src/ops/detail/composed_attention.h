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

}  // namespace tern::detail
