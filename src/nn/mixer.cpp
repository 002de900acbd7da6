#include <fmt/format.h>

#include <algorithm>
#include <array>
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

static constexpr std::array<std::pair<MixerKind, const char*>, 16> kind_names{{{MixerKind::attention, "attention"},
                                                                               {MixerKind::window, "window"},
                                                                               {MixerKind::conv, "conv"},
                                                                               {MixerKind::h3, "h3"},
                                                                               {MixerKind::hyena, "hyena"},
                                                                               {MixerKind::rwkv4, "rwkv4"},
                                                                               {MixerKind::rwkv7, "rwkv7"},
                                                                               {MixerKind::mamba, "mamba"},
                                                                               {MixerKind::mamba2, "mamba2"},
                                                                               {MixerKind::based, "based"},
                                                                               {MixerKind::linear, "linear"},
                                                                               {MixerKind::retnet, "retnet"},
                                                                               {MixerKind::gla, "gla"},

                                                                               {MixerKind::deltanet, "deltanet"},
                                                                               {MixerKind::gated_deltanet, "gated-deltanet"},
                                                                               {MixerKind::own, "own"}}};

const char* name(MixerKind kind) {
  for (const auto& [known, text] : kind_names)
    if (known == kind) return text;
  return "";
}

std::optional<MixerKind> mixer_kind_of(std::string_view name) {
  for (const auto& [kind, text] : kind_names)
    if (kind != MixerKind::own && name == text) return kind;
  return std::nullopt;
}

namespace parts {

Tensor in_heads(const Tensor& x, std::int64_t heads) { return reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}); }

Tensor normalized(const Tensor& x) { return x * rsqrt(sum(square(x), {-1}, true) + 1e-6); }

Tensor in_f32(const Tensor& x) { return size_of(x.dtype()) == 2 ? cast(x, DType::f32) : x; }

Tensor spaced(std::int64_t count, double first, double last, Device device, const std::function<double(double)>& f) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(
        f(count == 1 ? (first + last) / 2 : first + (last - first) * static_cast<double>(i) / static_cast<double>(count - 1))));
  Tensor x = Tensor::from(values, {count}, device);
  return x.set_requires_grad();
}

Tensor spaced_dt_bias(std::int64_t count, Device device) {
  return spaced(count, std::log(0.001), std::log(0.1), device, [](double x) { return std::log(std::expm1(std::exp(x))); });
}

Tensor with_past(const Tensor& u, std::int64_t before, Tensor& past, const Tensor& lengths) {
  const std::int64_t batch = u.size(0), channels = u.size(2), all = before + u.size(1);
  const Tensor joined = cat({past.defined() ? past : zeros({batch, before, channels}, u.dtype(), u.device()), u}, 1);
  if (lengths.defined()) {
    const Tensor starts = lengths + arange(batch, DType::i64, u.device()) * static_cast<double>(all);
    const Tensor rows = unsqueeze(starts, 1) + arange(before, DType::i64, u.device());
    past = reshape(index_select(reshape(joined, {batch * all, channels}), 0, flatten(rows)), {batch, before, channels});
  } else {
    past = slice(joined, 1, all - before);
  }
  return joined;
}

Tensor is_there(const Tensor& lengths, std::int64_t tokens) {
  return lt(arange(tokens, DType::i64, lengths.device()), unsqueeze(lengths, 1));
}

}  // namespace parts

using namespace parts;

CausalConv::CausalConv(std::int64_t channels, std::int64_t taps_, Device device) {
  if (channels < 1 || taps_ < 1) fail("CausalConv", fmt::format("expected sizes >= 1 but got {} channels and {} taps", channels, taps_));
  detail::make_weight_and_bias(weight, bias, {channels, 1, taps_}, true, device);
}

std::string CausalConv::settings() const { return weight.defined() ? fmt::format("{}, taps={}", weight.size(0), weight.size(2)) : ""; }

Tensor CausalConv::forward(const Tensor& u, bool silu, Tensor* past, const Tensor& lengths) const {
  const ModuleScope scope(this, "CausalConv");
  const Tensor w = select(weight, 1, 0);
  if (!past) return depthwise_conv1d(u, w, bias, {.silu = silu});
  return depthwise_conv1d(with_past(u, w.size(1) - 1, *past, lengths), w, bias, {.padding = ConvPadding::given, .silu = silu});
}

ConvMixer::ConvMixer(std::int64_t width, Device device) : conv(width, taps, device), gate(width, width, true, device) {}

Tensor ConvMixer::forward(const Tensor& x, MixerState* state) const {
  const ModuleScope scope(this, "ConvMixer");
  if (!state) return conv.forward(x, false) * gate.forward(x);
  state->kept.resize(1);
  return conv.forward(x, false, &state->kept[0], state->lengths) * gate.forward(x);
}

HyenaMixer::HyenaMixer(std::int64_t width, std::int64_t length, Device device) {
  if (width < 1 || length < 1) fail("HyenaMixer", fmt::format("expected sizes >= 1 but got width {} and length {}", width, length));
  constexpr std::int64_t bands = 16, hidden = 64;
  qkv = Linear(width, checked_mul("HyenaMixer", 3, width), true, device);
  conv = CausalConv(3 * width, 3, device);
  in = Linear(1 + 2 * bands, hidden, true, device);
  mid = Linear(hidden, hidden, true, device);
  out = Linear(hidden, width, false, device);
  bias = init::normal(detail::parameter({width}, device));
  proj = Linear(width, width, true, device);
  // Features of t in [0, 1], which goes back from the current token: t itself, and cosines and sines of f w t for frequencies f up to
  // bands - 1 and w = 2 pi. The window falls to 0.01 in 0.3 to 1.5 of the length, and then stays at 0.05.
  const Tensor t = unsqueeze(arange(length, DType::f32, device), 1) * (1 / static_cast<double>(std::max<std::int64_t>(length - 1, 1)));
  const Tensor angles = t * linspace(1e-4, bands - 1, bands, DType::f32, device) * (2 * std::numbers::pi);
  features_ = cat({t, cos(angles), sin(angles)}, 1);
  const double fall = std::log(0.01);
  window_ = exp(t * linspace(fall / 1.5, fall / 0.3, width, DType::f32, device)) + 0.05;
}

void HyenaMixer::visit(Visitor& v) {
  v("qkv", qkv);
  v("conv", conv);
  v("in", in);
  v("mid", mid);
  v("out", out);
  v("bias", bias);
  v("proj", proj);
  v.constant("features", features_);
  v.constant("window", window_);
}

std::string HyenaMixer::settings() const { return fmt::format("length={}", features_.size(0)); }

Tensor HyenaMixer::filter(std::int64_t taps_) const {
  const auto rows = [&](const Tensor& x) { return cast(slice(x, 0, 0, taps_), bias.dtype()); };
  const Tensor h = out.forward(sin(mid.forward(sin(in.forward(rows(features_)) * 10.0)) * 10.0)) * rows(window_);
  return transpose(h, 0, 1);
}

Tensor HyenaMixer::forward(const Tensor& x, MixerState* state) const {
  const ModuleScope scope(this, "HyenaMixer");
  const std::int64_t length = features_.size(0);
  if (x.size(1) > length) fail("HyenaMixer", fmt::format("expected at most {} tokens but got {}", length, x.size(1)));
  if (state) state->kept.resize(2);
  const Tensor lengths = state ? state->lengths : Tensor();
  const Tensors parts = chunk(conv.forward(qkv.forward(x), false, state ? &state->kept[0] : nullptr, lengths), 3, 2);
  const Tensor u = parts[1] * parts[2];
  Tensor y;
  if (!state) {
    y = long_conv(u, filter(x.size(1)));
  } else {
    // The taps reach back over all that the state keeps.
    const Tensor h = filter(length), all = with_past(u, length - 1, state->kept[1], lengths);
    if (x.size(1) == 1) y = depthwise_conv1d(all, flip(h, {1}), {}, {.padding = ConvPadding::given});
    else y = slice(long_conv(all, h), 1, length - 1);
  }
  return proj.forward(parts[0] * (y + u * bias));
}

namespace {

/// Parts that a kind of RecurrentMixer has, beside its decay.
struct Form {
  bool has_conv = false, has_dt = false, has_beta = false, has_gate = true, has_norm = true;

  int rates() const { return has_dt + has_beta; }
};
Form form_of(MixerKind kind) {
  switch (kind) {
    case MixerKind::linear:
    case MixerKind::based: return {.has_gate = false, .has_norm = false};
    case MixerKind::retnet:
    case MixerKind::gla: return {};
    case MixerKind::mamba2: return {.has_conv = true, .has_dt = true};
    case MixerKind::deltanet: return {.has_conv = true, .has_beta = true, .has_gate = false};
    case MixerKind::gated_deltanet: return {.has_conv = true, .has_dt = true, .has_beta = true};
    default:
      fail("RecurrentMixer", fmt::format("expected based, linear, retnet, gla, mamba2, deltanet or gated-deltanet but got {}", name(kind)));
  }
}

Tensor elu_plus_1(const Tensor& x) { return elu(x) + 1.0; }

/// Feature map of Based: products of features are 1 + s + s^2 / 2, the exponential's first terms, of s = q k / sqrt(size).
Tensor taylor(const Tensor& x_) {
  const Tensor x = x_ * std::pow(static_cast<double>(x_.size(3)), -0.25);
  const Tensor squares = flatten(unsqueeze(x, 4) * unsqueeze(x, 3), 3, 4) * (1 / std::numbers::sqrt2);
  return cat({full({x.size(0), x.size(1), x.size(2), 1}, 1, x.dtype(), x.device()), x, squares}, 3);
}

/// linear_recurrence of taylor(q), taylor(k) and v from no state on, by the products of all queries and keys: T^2 numbers a head.
Tensor taylor_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor tokens = arange(q.size(1), DType::i64, q.device()), is_later = gt(tokens, unsqueeze(tokens, 1));
  const Tensor s = in_f32(matmul(transpose(q, 1, 2), permute(k, {0, 2, 3, 1}), 1 / std::sqrt(static_cast<double>(q.size(3)))));
  const Tensor weights = where(is_later, 0.0, s * s * 0.5 + s + 1.0);
  return transpose(matmul(cast(weights, v.dtype()), transpose(v, 1, 2)), 1, 2);
}

}  // namespace

RecurrentMixer::RecurrentMixer(MixerKind kind_, std::int64_t width, const RecurrentMixerOptions& options_)
    : kind(kind_), options(options_) {
  const Form form = form_of(kind);
  constexpr const char* where = "RecurrentMixer";
  if (width < 1 || options.heads < 1 || options.head_dim < 0 || (options.head_dim == 0 && width % options.heads != 0))
    fail(where, fmt::format("expected a width that the number of heads divides, or a head_dim, but got {}, {} and {}", width, options.heads,
                            options.head_dim));
  if (options.head_dim == 0) options.head_dim = width / options.heads;
  const Device device = options.device;
  const std::int64_t keys = (kind == MixerKind::mamba2 ? 1 : options.heads) * key_dim();
  const std::int64_t values = checked_mul(where, options.heads, value_dim()), all = checked_add(where, 2 * keys, values);
  qkv = Linear(width, all, false, device);
  if (form.has_conv) conv.emplace(all, taps, device);
  if (form.rates() > 0) rates.emplace(width, form.rates() * options.heads, false, device);
  if (kind == MixerKind::gla) {
    constexpr std::int64_t between = 16;
    down.emplace(width, between, false, device);
    up.emplace(between, keys, true, device);
  }
  if (form.has_gate) gate.emplace(width, values, false, device);
  if (form.has_norm) norm.emplace(NormKind::rms, kind == MixerKind::mamba2 ? values : value_dim(), NormOptions{.device = device});
  proj = Linear(values, width, false, device);
  if (form.has_dt) {
    a_log = spaced(options.heads, 1, 16, device, [](double a) { return std::log(a); });
    dt_bias = spaced_dt_bias(options.heads, device);
  }
  if (kind == MixerKind::mamba2) skip = spaced(options.heads, 1, 1, device);
  if (kind == MixerKind::retnet) {
    std::vector<float> decays;
    for (std::int64_t h = 0; h < options.heads; ++h)
      decays.push_back(static_cast<float>(std::log1p(-std::exp2(-5.0 - static_cast<double>(h)))));
    decays_ = Tensor::from(decays, {options.heads}, device);
  } else {
    options.rope = {};
  }
}

std::int64_t RecurrentMixer::key_dim() const { return kind == MixerKind::based ? 16 : options.head_dim; }

std::int64_t RecurrentMixer::value_dim() const { return (kind == MixerKind::mamba2 ? 2 : 1) * options.head_dim; }

void RecurrentMixer::visit(Visitor& v) {
  v("qkv", qkv);
  v("conv", conv);
  v("rates", rates);
  v("down", down);
  v("up", up);
  v("gate", gate);
  v("norm", norm);
  v("proj", proj);
  v("a_log", a_log);
  v("dt_bias", dt_bias);
  v("skip", skip);
  v.constant("rope", options.rope);
  v.constant("decays", decays_);
}

std::string RecurrentMixer::settings() const {
  return fmt::format("{}, heads={}, head_dim={}", name(kind), options.heads, options.head_dim);
}

Tensor RecurrentMixer::log_decay(const Tensor& x, const Tensor& dt) const {
  if (kind == MixerKind::retnet) return decays_;
  if (kind == MixerKind::gla) return in_heads(in_f32(up->forward(down->forward(x))), options.heads);
  return dt.defined() ? -exp(in_f32(a_log)) * dt : Tensor();
}

Tensor RecurrentMixer::rotated(const Tensor& x, const Tensor& positions) const {
  if (!options.rope.defined()) return x;
  if (!positions.defined()) return transpose(rope(transpose(x, 1, 2), options.rope, {}, options.rope_pairs), 1, 2);
  // Each row has positions of its own: the tokens of all rows are those of one.
  const std::int64_t batch = x.size(0), tokens = x.size(1), heads = x.size(2), width = x.size(3);
  const Tensor own = flatten(unsqueeze(positions, 1) + arange(tokens, DType::i64, x.device()));
  const Tensor in_one = transpose(reshape(x, {1, batch * tokens, heads, width}), 1, 2);
  return reshape(transpose(rope(in_one, index_select(options.rope, 0, own), {}, options.rope_pairs), 1, 2), {batch, tokens, heads, width});
}

Tensor RecurrentMixer::forward(const Tensor& x, MixerState* state) const {
  const ModuleScope scope(this, "RecurrentMixer");
  const Form form = form_of(kind);
  const std::int64_t batch = x.size(0), tokens = x.size(1), heads = options.heads;
  // A state is that of the recurrence, and the convolution's past or the position of the next token.
  const Tensor before = state && !state->kept.empty() ? state->kept[0] : Tensor();
  Tensor more = state && state->kept.size() > 1 ? state->kept[1] : Tensor();
  const Tensor lengths = state ? state->lengths : Tensor();

  Tensor joined = qkv.forward(x);
  if (conv) joined = conv->forward(joined, true, state ? &more : nullptr, lengths);
  const std::int64_t keys = (joined.size(2) - heads * value_dim()) / 2, key_heads = keys / key_dim();
  const Tensors parts = split(joined, {keys, keys, heads * value_dim()}, 2);
  Tensor q = in_heads(parts[0], key_heads), k = in_heads(parts[1], key_heads), v = in_heads(parts[2], heads);

  const Tensors of_rates = rates ? chunk(in_f32(rates->forward(x)), form.rates(), 2) : Tensors();
  const Tensor dt = form.has_dt ? softplus(of_rates.back() + in_f32(dt_bias)) : Tensor();
  LinearRecurrenceParams params{
      .log_decay = log_decay(x, dt), .beta = form.has_beta ? sigmoid(of_rates.front()) : Tensor(), .initial_state = before};
  const Tensor direct = v;
  // Texts of fewer tokens than features need fewer numbers by tokens.
  const bool is_short = kind == MixerKind::based && !state && tokens <= 1 + key_dim() + key_dim() * key_dim();
  switch (kind) {
    case MixerKind::linear:
    case MixerKind::based:
      if (kind == MixerKind::linear) q = elu_plus_1(q), k = elu_plus_1(k);
      else if (!is_short) q = taylor(q), k = taylor(k);
      v = cat({v, ones({batch, tokens, heads, 1}, v.dtype(), v.device())}, 3);  // the sum of the keys, in one channel more
      break;
    case MixerKind::retnet: q = rotated(q, more), k = rotated(k, more) * (1 / std::sqrt(static_cast<double>(options.head_dim))); break;
    case MixerKind::gla:
      params.log_decay = softplus(-params.log_decay) * (-1.0 / 16);
      k = k * (1 / std::sqrt(static_cast<double>(options.head_dim)));
      break;
    case MixerKind::mamba2: {
      const Shape shared{batch, tokens, heads, options.head_dim};
      q = broadcast_to(q, shared), k = broadcast_to(k, shared), v = v * cast(unsqueeze(dt, 3), v.dtype());
      break;
    }
    default: q = normalized(q), k = normalized(k); break;
  }
  if (lengths.defined()) {
    // A key of 0 and no decay leave the state as it is.
    const Tensor there = unsqueeze(is_there(lengths, tokens), 2);
    k = where(unsqueeze(there, 3), k, 0.0);
    Tensor& decay = params.log_decay;
    if (decay.defined() && decay.dims() == 1) decay = broadcast_to(decay, {batch, tokens, heads});
    if (decay.defined()) decay = where(decay.dims() == 4 ? unsqueeze(there, 3) : there, decay, 0.0);
  }
  const Recurrence result = is_short ? Recurrence{taylor_attention(q, k, v), {}} : linear_recurrence(q, k, v, params);
  if (state) {
    if (options.rope.defined()) {
      const Tensor read = lengths.defined() ? lengths : full({batch}, static_cast<double>(tokens), DType::i64, x.device());
      more = more.defined() ? more + read : read;
    }
    state->kept = {result.state};
    if (more.defined()) state->kept.push_back(more);
  }

  Tensor y = result.y;
  if (kind == MixerKind::linear || kind == MixerKind::based) y = slice(y, 3, 0, value_dim()) / (slice(y, 3, value_dim()) + 1e-6);
  if (kind == MixerKind::mamba2) y = y + direct * unsqueeze(skip, 1);
  if (norm && kind != MixerKind::mamba2) y = norm->forward(y);
  y = flatten(y, 2, 3);
  if (gate) y = y * silu(gate->forward(x));
  if (kind == MixerKind::mamba2) y = norm->forward(y);
  return proj.forward(y);
}

}  // namespace tern::nn
