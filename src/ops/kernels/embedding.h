#pragma once
#include "tensor/random.h"
#include "tensor/view.h"

namespace tern::kernels {

// The embeddings of tokens and positions that enter a transformer, as one kernel each way. CUDA alone has them: they are called through
// on_cuda, and asked for through cuda_has.

/// Whether there are such kernels for `count` elements in rows of `width`.
inline bool has_embed(Cuda, std::int64_t count, std::int64_t width) { return width % 4 == 0 && count < (std::int64_t{1} << 31); }

/// y (B, T, D) = dropout(table[ids] + positions[:T]) for ids (B, T), i64, table (V, D) and positions (P, D), P >= T, or without data for
/// zeros. Indices outside the table read as zero. Contiguous, y aligned, one floating dtype. The sum is rounded before the dropout, whose
/// draws are kernels::dropout's; p may be 0.
void embed(Cuda, const View& table, const View& positions, const View& ids, double p, PhiloxState draws, const View& y);

/// dsum (B, T, D) = dropout(g), the gradient of the sum; dsum is aligned and may be g; it is not written where p = 0. dpositions (T, D) +=
/// its sum over the batch, in ascending order, before rounding; without data for none.
void embed_grad(Cuda, const View& g, double p, PhiloxState draws, const View& dsum, const View& dpositions);

}  // namespace tern::kernels
