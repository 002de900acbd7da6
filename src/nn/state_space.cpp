#include "nn/state_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "nn/init.h"
#include "nn/mixer_parts.h"
#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/recurrent.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::nn {

using namespace parts;

static constexpr std::int64_t mamba_size = 16, h3_size = 32;

static void check_width(const char* where, std::int64_t width) {
  if (width < 1) fail(where, fmt::format("expected a width >= 1 but got {}", width));
}

MambaMixer::MambaMixer(std::int64_t width, Device device) {
  check_width("MambaMixer", width);
  const std::int64_t inner = checked_mul("MambaMixer", 2, width), rank = (width + 15) / 16;
  in = Linear(width, 2 * inner, false, device);
  conv = CausalConv(inner, taps, device);
  rates = Linear(inner, rank + 2 * mamba_size, false, device);
  dt = Linear(rank, inner, false, device);
  dt_bias = spaced_dt_bias(inner, device);
  const NoGrad unrecorded;
  a_log = contiguous(broadcast_to(log(linspace(1, mamba_size, mamba_size, DType::f32, device)), {inner, mamba_size})).set_requires_grad();
  skip = spaced(inner, 1, 1, device);
  proj = Linear(inner, width, false, device);
}

void MambaMixer::visit(Visitor& v) {
  v("in", in);
  v("conv", conv);
  v("rates", rates);
  v("dt", dt);
  v("dt_bias", dt_bias);
  v("a_log", a_log);
  v("skip", skip);
  v("proj", proj);
}

Tensor MambaMixer::forward(const Tensor& x, MixerState* state) const {
  const ModuleScope scope(this, "MambaMixer");
  const bool goes_on = state && !state->kept.empty();
  Tensor past = goes_on ? state->kept[1] : Tensor();
  const Tensor lengths = state ? state->lengths : Tensor();
  const Tensors parts = chunk(in.forward(x), 2, 2);
  const Tensor u = conv.forward(parts[0], true, state ? &past : nullptr, lengths);
  const Tensors of = split(rates.forward(u), {dt.weight.size(1), mamba_size, mamba_size}, 2);
  Tensor step = softplus(in_f32(dt.forward(of[0])) + in_f32(dt_bias));
  // A step of 0 leaves the state as it is.
  if (lengths.defined()) step = where(unsqueeze(is_there(lengths, x.size(1)), 2), step, 0.0);
  const Recurrence result = selective_scan(u, step, -exp(in_f32(a_log)), of[1], of[2], goes_on ? state->kept[0] : Tensor());
  if (state) state->kept = {result.state, past};
  return proj.forward((result.y + u * skip) * silu(parts[1]));
}

H3Mixer::H3Mixer(std::int64_t width, Device device) {
  check_width("H3Mixer", width);
  qkv = Linear(width, checked_mul("H3Mixer", 3, width), true, device);
  shift = CausalConv(width, taps, device);
  log_dt = spaced(width, std::log(0.001), std::log(0.1), device);
  const Shape shape{width, h3_size};
  rate = init::constant(detail::parameter(shape, device), std::log(0.5));
  c_re = init::normal(detail::parameter(shape, device));
  c_im = init::normal(detail::parameter(shape, device));
  skip = init::normal(detail::parameter({width}, device));
  proj = Linear(width, width, true, device);
  const NoGrad unrecorded;
  const Tensor n = arange(h3_size, DType::f32, device);
  frequency = contiguous(broadcast_to(n * std::numbers::pi, shape)).set_requires_grad();
}

void H3Mixer::visit(Visitor& v) {
  v("qkv", qkv);
  v("shift", shift);
  v("log_dt", log_dt);
  v("rate", rate);
  v("frequency", frequency);
  v("c_re", c_re);
  v("c_im", c_im);
  v("skip", skip);
  v("proj", proj);
}

namespace {

/// Complex numbers.
struct Complex {
  Tensor re, im;

  friend Complex operator*(const Complex& a, const Complex& b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
};

}  // namespace

Tensor H3Mixer::forward(const Tensor& x, MixerState* state) const {
  const ModuleScope scope(this, "H3Mixer");
  const std::int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2);
  const bool goes_on = state && !state->kept.empty();
  Tensor past = goes_on ? state->kept[2] : Tensor();
  const Tensor lengths = state ? state->lengths : Tensor();
  const Tensors parts = chunk(qkv.forward(x), 3, 2);
  const Tensor u = shift.forward(parts[1], false, state ? &past : nullptr, lengths) * parts[2];

  // exp(n (a + i b)), for numbers n of steps.
  const Tensor dt = unsqueeze(exp(in_f32(log_dt)), 1), a = -exp(in_f32(rate)) * dt, b = in_f32(frequency) * dt;
  const auto power = [&](const Tensor& n, const Tensor& a_, const Tensor& b_) -> Complex {
    const Tensor size = exp(n * a_);
    return {size * cos(n * b_), size * sin(n * b_)};
  };
  // (width, size, T), as products of a few large powers and a few small ones: sines take long.
  const auto few = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(tokens)))), many = (tokens + few - 1) / few;
  const auto counted = [&](std::int64_t n) { return arange(n, a.dtype(), x.device()); };
  const Complex large =
      power(unsqueeze(counted(many) * static_cast<double>(few), 1), unsqueeze(unsqueeze(a, 2), 3), unsqueeze(unsqueeze(b, 2), 3));
  const Complex both = large * power(counted(few), unsqueeze(unsqueeze(a, 2), 3), unsqueeze(unsqueeze(b, 2), 3));
  const auto in_a_row = [&](const Tensor& z) { return slice(flatten(z, 2, 3), 2, 0, tokens); };
  const Complex powers{in_a_row(both.re), in_a_row(both.im)};
  const Complex c{in_f32(c_re) * dt * 2.0, in_f32(c_im) * dt * 2.0};
  Tensor y = long_conv(u, sum(unsqueeze(c.re, 2) * powers.re - unsqueeze(c.im, 2) * powers.im, {1}));
  if (goes_on) {
    // Of the state before, c s times the step's power reaches token 0, and its further powers those that follow.
    const Complex s = Complex{state->kept[0], state->kept[1]} * (c * power(ones({}, a.dtype(), x.device()), a, b));  // (B, width, size)
    const auto reached = [&](const Tensor& of, const Tensor& by) { return permute(matmul(transpose(of, 0, 1), by), {1, 2, 0}); };
    y = y + cast(reached(s.re, powers.re) - reached(s.im, powers.im), y.dtype());
  }
  if (state) {
    // The tokens from a row's last one back, each with as many powers; of the state before, those of all the row's.
    Tensor back = flip(in_f32(u), {1}), count = full({batch}, static_cast<double>(tokens), DType::i64, x.device());
    if (lengths.defined()) {
      const Tensor places = unsqueeze(lengths - 1, 1) - arange(tokens, DType::i64, x.device());
      const Tensor index = broadcast_to(unsqueeze(maximum(places, 0.0), 2), {batch, tokens, width});
      back = where(unsqueeze(is_there(lengths, tokens), 2), gather(in_f32(u), 1, index), 0.0);
      count = lengths;
    }
    const auto read = [&](const Tensor& of) { return transpose(matmul(permute(back, {2, 0, 1}), transpose(of, 1, 2)), 0, 1); };
    Complex s{read(powers.re), read(powers.im)};
    if (goes_on) {
      const Complex before = Complex{state->kept[0], state->kept[1]} * power(reshape(cast(count, a.dtype()), {batch, 1, 1}), a, b);
      s = {s.re + before.re, s.im + before.im};
    }
    state->kept = {s.re, s.im, past};
  }
  return proj.forward(parts[0] * (y + u * skip));
}

}  // namespace tern::nn
