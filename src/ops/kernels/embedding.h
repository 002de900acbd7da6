#pragma once
#include "tensor/random.h"
#include "tensor/view.h"

namespace tern::kernels {

/// A transformer's input embedding, as one kernel each way, for `count` elements in rows of `width`. Indices outside the table read as
/// zero.
inline bool has_embed(Cpu, std::int64_t, std::int64_t) { return false; }
inline bool has_embed(Cuda, std::int64_t count, std::int64_t width) { return width % 4 == 0 && count < (std::int64_t{1} << 31); }

/// y (B, T, D) = dropout(table[ids] + positions[:T]) for ids (B, T), i64, table (V, D) and positions (P, D), P >= T, or without data for
/// zeros. Contiguous, y aligned, one floating dtype. The sum is rounded before the dropout, whose draws are kernels::dropout's; p may be 0.
inline void embed(Cpu, const View&, const View&, const View&, double, PhiloxState, const View&) {}
void embed(Cuda, const View& table, const View& positions, const View& ids, double p, PhiloxState draws, const View& y);

/// dsum (B, T, D) = dropout(g), the gradient of the sum; dsum is aligned and may be g; it is not written where p = 0. dpositions (T, D) +=
/// its sum over the batch, in ascending order, before rounding; without data for none.
inline void embed_grad(Cpu, const View&, double, PhiloxState, const View&, const View&) {}
void embed_grad(Cuda, const View& g, double p, PhiloxState draws, const View& dsum, const View& dpositions);

}  // namespace tern::kernels
