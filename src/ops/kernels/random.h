#pragma once
#include "tensor/random.h"
#include "tensor/view.h"

namespace tern::kernels {

/// Random numbers are functions of (state, row-major element index) alone: see PhiloxState. Both devices give the same words; y is
/// contiguous and floating unless said otherwise.

/// y = low + (high - low) * unit_float(word).
void uniform(Cpu, const View& y, double low, double high, PhiloxState state);
void uniform(Cuda, const View& y, double low, double high, PhiloxState state);

/// Box-Muller on words (0, 1) and (2, 3) of a block: r = sqrt(-2 ln(u1)), u1 = (word >> 8 + 0.5) 2^-24, angle 2 pi u2;
/// the first of a pair takes the cosine, the second the sine. y = mean + deviation * z.
void normal(Cpu, const View& y, double mean, double deviation, PhiloxState state);
void normal(Cuda, const View& y, double mean, double deviation, PhiloxState state);

/// y = unit_float(word) < probability, as 1 or 0, in any dtype.
void bernoulli(Cpu, const View& y, double probability, PhiloxState state);
void bernoulli(Cuda, const View& y, double probability, PhiloxState state);

/// y (n), i64 = the order that sorts n random 64-bit keys (block i: word 0 low, word 1 high), ties by position.
void permutation(Cpu, const View& y, PhiloxState state);
void permutation(Cuda, const View& y, PhiloxState state);

/// y = unit_float(word) < p ? 0 : x / (1 - p); x contiguous of y's shape and dtype; y may be x.
void dropout(Cpu, const View& x, const View& y, double p, PhiloxState state);
void dropout(Cuda, const View& x, const View& y, double p, PhiloxState state);

}  // namespace tern::kernels
