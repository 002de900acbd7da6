#include "nn/rwkv.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "nn/init.h"
#include "nn/mixer_parts.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/recurrent.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::nn {

using namespace parts;

/// Rows (count, width) from 1 / 2 width to 1 - 1 / 2 width.
static Tensor spaced_rows(std::int64_t count, std::int64_t width, Device device) {
  const NoGrad unrecorded;
  const double half = 0.5 / static_cast<double>(width);
  return contiguous(broadcast_to(linspace(half, 1 - half, width, DType::f32, device), {count, width})).set_requires_grad();
}

/// The token before each of x, `past` as in parts::with_past.
static Tensor tokens_before(const Tensor& x, Tensor& past, const Tensor& lengths) {
  return slice(with_past(x, 1, past, lengths), 1, 0, x.size(1));
}

Rwkv4Mixer::Rwkv4Mixer(std::int64_t width, Device device) {
  if (width < 1) fail("Rwkv4Mixer", fmt::format("expected a width >= 1 but got {}", width));
  mix = spaced_rows(3, width, device);
  key = Linear(width, width, false, device);
  value = Linear(width, width, false, device);
  receptance = Linear(width, width, false, device);
  log_decay = spaced(width, -5, 3, device);
  first = init::constant(detail::parameter({width}, device), std::log(0.3));
  proj = Linear(width, width, false, device);
}

void Rwkv4Mixer::visit(Visitor& v) {
  v("mix", mix);
  v("key", key);
  v("value", value);
  v("receptance", receptance);
  v("log_decay", log_decay);
  v("first", first);
  v("proj", proj);
}

/// The largest exponents of the sums up to each token, for tokens whose exponents are k after those before have lost w:
/// m_t = max(m_(t-1) - w, k_t), with m_(-1) = before (B, C): (B, T + 1, C), from m_(-1) on. Constants: no result depends on them.
static Tensor largest_exponents(const Tensor& k, const Tensor& w, const Tensor& before) {
  const NoGrad unrecorded;
  const Tensor lost = pad(cumsum(w, 1), 1, 1, 0);
  return cummax(cat({unsqueeze(before, 1), k}, 1) + lost, 1) - lost;
}

Tensor Rwkv4Mixer::forward(const Tensor& x, MixerState* state) const {
  const ModuleScope scope(this, "Rwkv4Mixer");
  const std::int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2);
  const bool goes_on = state && !state->kept.empty();
  Tensor past = goes_on ? state->kept[2] : Tensor();
  const Tensor lengths = state ? state->lengths : Tensor(), before = tokens_before(x, past, lengths);
  const auto mixed = [&](std::int64_t i) { return before + (x - before) * select(mix, 0, i); };
  const Tensor k = in_f32(key.forward(mixed(0))), v = in_f32(value.forward(mixed(1)));

  Tensor w = broadcast_to(exp(in_f32(log_decay)), k.shape()), exponent = k;
  constexpr double none = -1e30;  // of no tokens: -inf would give NaN
  if (lengths.defined()) {
    const Tensor there = unsqueeze(is_there(lengths, tokens), 2);
    w = where(there, w, 0.0), exponent = where(there, k, none);
  }
  // Sums of exp(k) v and exp(k), less by their largest exponent: a state (1, 2) for each channel.
  const Tensor all = largest_exponents(exponent, w, goes_on ? state->kept[1] : full({batch, width}, none, k.dtype(), k.device()));
  const Tensor before_it = slice(all, 1, 0, tokens), largest = slice(all, 1, 1);
  const Tensor sums = goes_on ? state->kept[0] : zeros({batch, width, 1, 2}, k.dtype(), k.device());
  const Recurrence result = linear_recurrence(ones({batch, tokens, width, 1}, k.dtype(), k.device()), unsqueeze(exp(exponent - largest), 3),
                                              stack({v, ones(v.shape(), v.dtype(), v.device())}, 3),
                                              {.log_decay = before_it - w - largest, .initial_state = sums});
  if (state) state->kept = {result.state, select(all, 1, tokens), past};

  const Tensor earlier = cat({transpose(sums, 1, 2), slice(result.y, 1, 0, tokens - 1)}, 1);
  const Tensor own = k + in_f32(first), most = maximum(before_it, own).detach();
  const Tensor old = exp(before_it - most), fresh = exp(own - most);
  const Tensor y = (select(earlier, 3, 0) * old + fresh * v) / (select(earlier, 3, 1) * old + fresh);
  return proj.forward(sigmoid(receptance.forward(mixed(2))) * cast(y, x.dtype()));
}

Rwkv7Mixer::Rwkv7Mixer(std::int64_t width, std::int64_t heads_, Device device) : heads(heads_) {
  if (width < 1 || heads < 1 || width % heads != 0)
    fail("Rwkv7Mixer", fmt::format("expected a width that the number of heads divides but got {} and {}", width, heads));
  constexpr std::int64_t between = 32;
  const auto layer = [&](std::int64_t in, std::int64_t out) { return Linear(in, out, false, device); };
  const auto constant = [&](double value_) { return init::constant(detail::parameter({width}, device), value_); };
  mix = spaced_rows(6, width, device);
  receptance = layer(width, width);
  key = layer(width, width);
  value = layer(width, width);
  decay_down = layer(width, between), decay_up = layer(between, width);
  rate_down = layer(width, between), rate_up = layer(between, width);
  gate_down = layer(width, between), gate_up = layer(between, width);
  decay = spaced(width, -6.5, -1.5, device);
  rate = constant(0);
  removal = constant(0.85);
  replacement = constant(1);
  bonus = constant(0);
  norm = GroupNorm(heads, width, {.eps = 1e-5 * static_cast<double>(width / heads), .device = device});
  proj = layer(width, width);
}

void Rwkv7Mixer::visit(Visitor& v) {
  v("mix", mix);
  v("receptance", receptance);
  v("key", key);
  v("value", value);
  v("decay_down", decay_down);
  v("decay_up", decay_up);
  v("rate_down", rate_down);
  v("rate_up", rate_up);
  v("gate_down", gate_down);
  v("gate_up", gate_up);
  v("decay", decay);
  v("rate", rate);
  v("removal", removal);
  v("replacement", replacement);
  v("bonus", bonus);
  v("norm", norm);
  v("proj", proj);
}

std::string Rwkv7Mixer::settings() const { return fmt::format("heads={}", heads); }

Tensor Rwkv7Mixer::forward(const Tensor& x, MixerState* state) const {
  const ModuleScope scope(this, "Rwkv7Mixer");
  const std::int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2);
  const bool goes_on = state && !state->kept.empty();
  Tensor past = goes_on ? state->kept[1] : Tensor();
  const Tensor lengths = state ? state->lengths : Tensor(), change = tokens_before(x, past, lengths) - x;
  const auto mixed = [&](std::int64_t i) { return x + change * select(mix, 0, i); };
  const auto heads_of = [&](const Tensor& z) { return in_heads(z, heads); };

  const Tensor r = heads_of(receptance.forward(mixed(0))), v = heads_of(value.forward(mixed(3)));
  const Tensor of_decay = in_f32(decay_up.forward(tanh(decay_down.forward(mixed(1))))) + in_f32(decay);
  Tensor logs = heads_of(sigmoid(of_decay) * -std::exp(-0.5));
  const Tensor a = sigmoid(in_f32(rate_up.forward(rate_down.forward(mixed(4)))) + in_f32(rate)), k_ = in_f32(key.forward(mixed(2)));
  const Tensor removed = normalized(heads_of(k_ * in_f32(removal)));
  Tensor k = heads_of(k_ * ((a - 1.0) * in_f32(replacement) + 1.0)), write = -heads_of(a) * removed;
  if (lengths.defined()) {
    const Tensor there = reshape(is_there(lengths, tokens), {batch, tokens, 1, 1});
    logs = where(there, logs, 0.0), k = where(there, k, 0.0), write = where(there, write, 0.0);
  }
  // The removal key reads the state before its decay, which is at least exp(-0.61).
  const Recurrence result = linear_recurrence(
      r, k, v, {.log_decay = logs, .initial_state = goes_on ? state->kept[0] : Tensor(), .read = removed * exp(-logs), .write = write});
  if (state) state->kept = {result.state, past};
  const Tensor y = reshape(norm.forward(reshape(result.y, {batch * tokens, width})), {batch, tokens, width});
  const Tensor own = sum(in_f32(r) * k * heads_of(reshape(in_f32(bonus), {1, 1, width})), {3}, true);
  const Tensor direct = reshape(v * cast(own, v.dtype()), {batch, tokens, width});
  return proj.forward((y + direct) * gate_up.forward(sigmoid(gate_down.forward(mixed(5)))));
}

}  // namespace tern::nn
