#pragma once
#include "tensor/random.h"
#include "tensor/view.h"

namespace tern::kernels {

// Token and position embeddings at a transformer's input, fused into one kernel each way. Only CUDA has them: they are called through
// on_cuda, and queried through cuda_has.

/// True if there are such kernels for `count` elements in rows of `width`.
inline bool has_embed(Cuda, std::int64_t count, std::int64_t width) { return width % 4 == 0 && count < (std::int64_t{1} << 31); }

/// y (B, T, D) = dropout(table[ids] + positions[:T]) for ids (B, T), i64, table (V, D) and positions (P, D), P >= T, or without data for
/// zeros. Indices outside the table read as zero. Contiguous, y aligned, one floating dtype. The sum is rounded before the dropout, which
/// uses the random numbers of kernels::dropout; p may be 0.
void embed(Cuda, const View& table, const View& positions, const View& ids, double p, PhiloxState draws, const View& y);

/// dsum (B, T, D) = dropout(g), the gradient of the sum; dsum is aligned and may be g; it is not written if p = 0. dpositions (T, D) += the
/// sum of dsum over the batch, in ascending order, before rounding; without data it is not computed.
void embed_grad(Cuda, const View& g, double p, PhiloxState draws, const View& dsum, const View& dpositions);

}  // namespace tern::kernels
