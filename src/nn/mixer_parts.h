#pragma once
#include <utility>

#include "nn/mixer.h"

// Parts that the mixers share.
namespace tern::nn::parts {

inline constexpr std::int64_t taps = 4;  ///< of convolutions before a recurrence

/// x (B, T, heads D) as (B, T, heads, D).
Tensor in_heads(const Tensor& x, std::int64_t heads);
/// Rows of length 1.
Tensor normalized(const Tensor& x);
/// 16-bit numbers in f32, in which decays are computed: near 1 a decay has few bits.
Tensor in_f32(const Tensor& x);
/// `count` numbers from first to last, evenly apart, as a parameter of f of each.
Tensor spaced(
    std::int64_t count, double first, double last, Device device, const std::function<double(double)>& f = [](double x) { return x; });
/// The dt_bias of `count` rates dt = softplus(dt_bias) from 0.001 to 0.1, evenly apart by their logarithms.
Tensor spaced_dt_bias(std::int64_t count, Device device);

/// u (B, T, C) with the `before` tokens before it, `past` (B, before, C), at first undefined, for zeros: (B, before + T, C). Then past
/// becomes those before the tokens that follow. `lengths` as in MixerState.
Tensor with_past(const Tensor& u, std::int64_t before, Tensor& past, const Tensor& lengths);
/// The tokens that rows have, (B, T) of bool, for lengths as in MixerState.
Tensor is_there(const Tensor& lengths, std::int64_t tokens);

}  // namespace tern::nn::parts
