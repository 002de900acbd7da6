#pragma once
#include "nn/mixer.h"

namespace tern::nn {

/// Mamba, Gu & Dao, 2023: u and a gate z are projections of x to twice the width, u goes through a convolution of 4 taps with SiLU, and
/// y = proj((selective_scan(u, dt, -exp(a_log), b, c) + skip u) silu(z)), whose dt = softplus(dt(d) + dt_bias), b and c are projections of
/// u. A channel's state has 16 numbers, and d has a sixteenth of the width. At first a is -1 to -16, and dt 0.001 to 0.1 for u = 0.
struct MambaMixer final : MixerOf<MambaMixer> {
  MambaMixer() = default;
  /// Throws Error for a width below 1.
  explicit MambaMixer(std::int64_t width, Device device = default_device());
  void visit(Visitor& v) override;
  Tensor forward(const Tensor& x, MixerState* state = nullptr) const override;  ///< as Mixer::forward

  Linear in;        ///< width -> u and z
  CausalConv conv;  ///< of u
  Linear rates;     ///< u's elements -> d, b and c
  Linear dt;        ///< d -> u's elements
  Tensor dt_bias;   ///< (2 width)
  Tensor a_log;     ///< (2 width, 16)
  Tensor skip;      ///< (2 width)
  Linear proj;      ///< 2 width -> width
};

/// H3, Fu et al., 2023: with q, k and v projections of x, y = proj(q * ssm(shift(k) * v)). The shift is a convolution of 4 taps, and ssm a
/// diagonal state space model of 32 complex numbers s for each channel (S4D-Lin, Gu et al., 2022),
///     s_t = exp(dt (-exp(rate) + i frequency)) s_(t-1) + u_t,   y_t = 2 dt Re(c s_t) + skip u_t,
/// computed as a long_conv, whose filter takes memory for T powers of each. In 16 bits frequencies are rounded by parts of a turn within
/// some tens of tokens: keep them in f32.
struct H3Mixer final : MixerOf<H3Mixer> {
  H3Mixer() = default;
  /// Throws Error for a width below 1.
  explicit H3Mixer(std::int64_t width, Device device = default_device());
  void visit(Visitor& v) override;
  Tensor forward(const Tensor& x, MixerState* state = nullptr) const override;  ///< as Mixer::forward

  Linear qkv;        ///< width -> 3 width
  CausalConv shift;  ///< of k
  Tensor log_dt;     ///< (width): at first 0.001 to 0.1
  Tensor rate;       ///< (width, 32): the logarithm, at first of 1/2
  Tensor frequency;  ///< (width, 32): at first pi n
  Tensor c_re;       ///< (width, 32): real parts of c
  Tensor c_im;       ///< (width, 32): imaginary parts of c
  Tensor skip;       ///< (width)
  Linear proj;       ///< width -> width
};

}  // namespace tern::nn
