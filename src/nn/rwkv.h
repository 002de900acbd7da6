#pragma once
#include "nn/mixer.h"

namespace tern::nn {

/// Time mixing of RWKV-4, Peng et al., 2023: with k, v and r projections of x mixed with the token before it,
///     y = proj(sigmoid(r) (sum over i < t of exp(-(t - 1 - i) w + k_i) v_i + exp(first + k_t) v_t) / (the same sums without v)),
/// w = exp(log_decay), by channel. The sums are kept with their largest exponent, in a linear_recurrence. Parameters begin as in a layer
/// in the middle of a model.
struct Rwkv4Mixer final : MixerOf<Rwkv4Mixer> {
  Rwkv4Mixer() = default;
  /// Throws Error for a width below 1.
  explicit Rwkv4Mixer(std::int64_t width, Device device = default_device());
  void visit(Visitor& v) override;
  Tensor forward(const Tensor& x, MixerState* state = nullptr) const override;  ///< as Mixer::forward

  Tensor mix;         ///< (3, width): of k, v and r, the part of the token itself
  Linear key;         ///< width -> width
  Linear value;       ///< width -> width
  Linear receptance;  ///< width -> width, r
  Tensor log_decay;   ///< (width)
  Tensor first;       ///< (width)
  Linear proj;        ///< width -> width
};

/// Time mixing of RWKV-7, Peng et al., 2025, in heads: r, w, k, v, a and g are projections of x mixed with the token before it, with
/// w = exp(-exp(-1/2) sigmoid(decay + ...)), a = sigmoid(rate + ...), w, a and g with 32 units between. With removal key
/// h = k removal of length 1 and k' = k (1 + (a - 1) replacement),
///     S_t = (diag(w) - (a h)^T h) S_(t-1) + k'^T v,   y = proj(g (group_norm(r S_t) + (r k' bonus) v)),
/// by linear_recurrence. A value of an earlier layer is not mixed in.
struct Rwkv7Mixer final : MixerOf<Rwkv7Mixer> {
  Rwkv7Mixer() = default;
  /// Throws Error unless heads divide the width.
  explicit Rwkv7Mixer(std::int64_t width, std::int64_t heads = 1, Device device = default_device());
  void visit(Visitor& v) override;
  std::string settings() const override;
  Tensor forward(const Tensor& x, MixerState* state = nullptr) const override;  ///< as Mixer::forward

  std::int64_t heads = 1;  ///< heads, each with a state
  Tensor mix;              ///< (6, width): of r, w, k, v, a and g, the part of the token before
  Linear receptance;       ///< width -> width, r
  Linear key;              ///< width -> width
  Linear value;            ///< width -> width
  Linear decay_down;       ///< width -> 32, with tanh
  Linear decay_up;         ///< 32 -> width
  Linear rate_down;        ///< width -> 32
  Linear rate_up;          ///< 32 -> width
  Linear gate_down;        ///< width -> 32, with sigmoid
  Linear gate_up;          ///< 32 -> width
  Tensor decay;            ///< (width)
  Tensor rate;             ///< (width)
  Tensor removal;          ///< (width)
  Tensor replacement;      ///< (width)
  Tensor bonus;            ///< (width)
  GroupNorm norm;          ///< of each head
  Linear proj;             ///< width -> width
};

}  // namespace tern::nn
