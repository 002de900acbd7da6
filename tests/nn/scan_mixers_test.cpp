// Mixers of scans of numbers: Mamba, H3 and RWKVs are their papers' formulas, token by token in f64, with the gradients of all parameters.
#include "nn/fixture.h"
#include "ops/gradcheck.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace tern;

namespace {

constexpr std::int64_t width = 6, heads = 2, dim = 3, batch = 2, tokens = 21;

/// Parameters away from the ones, zeros and equal numbers that they begin with, which would hide a mistake.
template <class M>
M shaken(M mixer) {
  for (const NamedTensor& parameter : nn::named_parameters(mixer)) add_(parameter.tensor.detach(), rand(parameter.tensor.shape()) * 0.3);
  nn::to(mixer, DType::f64);
  return mixer;
}

Tensor times(const Tensor& x, const nn::Linear& layer) {
  const Tensor product = matmul(x, transpose(layer.weight, 0, 1));
  return layer.bias.defined() ? product + layer.bias : product;
}
/// Token t of a convolution of 4 taps, from the inputs up to it.
Tensor convolved(const Tensors& inputs, const nn::CausalConv& conv) {
  Tensor z = conv.bias;
  for (std::size_t k = 0; k < 4 && k < inputs.size(); ++k)
    z = z + inputs[inputs.size() - 1 - k] * select(select(conv.weight, 1, 0), 1, std::int64_t(3 - k));
  return z;
}
Tensor part(const Tensor& x, std::int64_t i, std::int64_t size) { return slice(x, 1, i * size, (i + 1) * size); }

/// Checks results and gradients of a mixer against those of a formula.
template <class M, class Formula>
void check_formula(const M& mixer, Formula formula, double close = 1e-6) {
  const Tensor x = cast(randn({batch, tokens, width}), DType::f64), weights = cast(randn({batch, tokens, width}), DType::f64);
  const Tensor y = mixer(x), expected = formula(mixer, unstack(x, 1));
  CHECK(distance(y, expected) < close);
  CHECK(double(max(abs(expected)).item()) > 1e-2);
  const Tensors parameters = nn::parameters(mixer), got = grad({y}, parameters, {weights}), want = grad({expected}, parameters, {weights});
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO(nn::named_parameters(mixer)[i].name);
    const double largest = double(max(abs(want[i])).item());
    CHECK(largest > 1e-6);
    CHECK(distance(got[i], want[i]) < 10 * close * std::max(1.0, largest));
  }
}

Tensor mamba(const nn::MambaMixer& m, const Tensors& x) {
  constexpr std::int64_t inner = 2 * width, size = 16;
  Tensor h = zeros({batch, inner, size}, DType::f64);
  Tensors inputs, results;
  for (const Tensor& token : x) {
    const Tensor both = times(token, m.in);
    inputs.push_back(part(both, 0, inner));
    Tensor u = convolved(inputs, m.conv);
    u = u * sigmoid(u);
    const Tensor rates = times(u, m.rates), b = slice(rates, 1, 1, 1 + size), c = slice(rates, 1, 1 + size);
    const Tensor dt = log1p(exp(times(slice(rates, 1, 0, 1), m.dt) + m.dt_bias));
    h = exp(unsqueeze(dt, 2) * -exp(m.a_log)) * h + unsqueeze(dt * u, 2) * unsqueeze(b, 1);
    const Tensor z = part(both, 1, inner);
    results.push_back(times((sum(h * unsqueeze(c, 1), {2}) + u * m.skip) * z * sigmoid(z), m.proj));
  }
  return stack(results, 1);
}

Tensor h3(const nn::H3Mixer& m, const Tensors& x) {
  const Tensor dt = unsqueeze(exp(m.log_dt), 1), size = exp(-exp(m.rate) * dt), re = size * cos(m.frequency * dt),
               im = size * sin(m.frequency * dt);
  Tensor s_re = zeros({batch, width, 32}, DType::f64), s_im = s_re;
  Tensors keys, results;
  for (const Tensor& token : x) {
    const Tensor qkv = times(token, m.qkv);
    keys.push_back(part(qkv, 1, width));
    const Tensor u = convolved(keys, m.shift) * part(qkv, 2, width), before = s_re;
    s_re = re * s_re - im * s_im + unsqueeze(u, 2);
    s_im = re * s_im + im * before;
    const Tensor y = sum(m.c_re * s_re - m.c_im * s_im, {2}) * exp(m.log_dt) * 2.0 + u * m.skip;
    results.push_back(times(part(qkv, 0, width) * y, m.proj));
  }
  return stack(results, 1);
}

Tensor rwkv4(const nn::Rwkv4Mixer& m, const Tensors& x) {
  const Tensor w = exp(m.log_decay);
  Tensors k, v, results;
  Tensor before = zeros_like(x[0]);
  for (const Tensor& token : x) {
    const auto mixed = [&](std::int64_t i) { return token * select(m.mix, 0, i) + before * (1.0 - select(m.mix, 0, i)); };
    k.push_back(times(mixed(0), m.key)), v.push_back(times(mixed(1), m.value));
    Tensor weights = exp(k.back() + m.first), values = weights * v.back();
    for (std::size_t i = 0; i + 1 < k.size(); ++i) {
      const Tensor weight = exp(k[i] - w * double(k.size() - 2 - i));
      weights = weights + weight, values = values + weight * v[i];
    }
    results.push_back(times(sigmoid(times(mixed(2), m.receptance)) * values / weights, m.proj));
    before = token;
  }
  return stack(results, 1);
}

Tensor rwkv7(const nn::Rwkv7Mixer& m, const Tensors& x) {
  std::vector<Tensor> states(heads, zeros({batch, dim, dim}, DType::f64));
  Tensors results;
  Tensor before = zeros_like(x[0]);
  for (const Tensor& token : x) {
    const auto mixed = [&](std::int64_t i) { return token + (before - token) * select(m.mix, 0, i); };
    const Tensor r = times(mixed(0), m.receptance), v = times(mixed(3), m.value);
    const Tensor w = exp(sigmoid(times(tanh(times(mixed(1), m.decay_down)), m.decay_up) + m.decay) * -0.60653065971263342);
    const Tensor a = sigmoid(times(times(mixed(4), m.rate_down), m.rate_up) + m.rate),
                 g = times(sigmoid(times(mixed(5), m.gate_down)), m.gate_up);
    const Tensor key = times(mixed(2), m.key), k = key * (1.0 + (a - 1.0) * m.replacement), removal = key * m.removal;
    Tensors of_heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      const Tensor own = part(removal, h, dim), unit = own / sqrt(sum(own * own, {1}, true) + 1e-6);
      Tensor& state = states[std::size_t(h)];
      state = unsqueeze(part(w, h, dim), 2) * state - matmul(unsqueeze(part(a, h, dim) * unit, 2), matmul(unsqueeze(unit, 1), state)) +
              unsqueeze(part(k, h, dim), 2) * unsqueeze(part(v, h, dim), 1);
      const Tensor y = squeeze(matmul(unsqueeze(part(r, h, dim), 1), state), 1), centred = y - mean(y, {1}, true);
      const Tensor normalized = centred / sqrt(mean(centred * centred, {1}, true) + 1e-5 * double(dim));
      const auto of = [&](const Tensor& all) { return slice(all, 0, h * dim, (h + 1) * dim); };
      const Tensor bonus = sum(part(r, h, dim) * part(k, h, dim) * of(m.bonus), {1}, true);
      of_heads.push_back(normalized * of(m.norm.weight) + of(m.norm.bias) + bonus * part(v, h, dim));
    }
    results.push_back(times(cat(of_heads, 1) * g, m.proj));
    before = token;
  }
  return stack(results, 1);
}

}  // namespace

TEST_CASE("Mamba and its gradients are the paper's formula") {
  manual_seed(3);
  check_formula(shaken(nn::MambaMixer(width)), mamba);
}

TEST_CASE("H3 and its gradients are the paper's formula, as a recurrence") {
  manual_seed(3);
  check_formula(shaken(nn::H3Mixer(width)), h3);
}

TEST_CASE("RWKV-4 and its gradients are the paper's formula") {
  manual_seed(3);
  check_formula(shaken(nn::Rwkv4Mixer(width)), rwkv4);
}

TEST_CASE("RWKV-7 and its gradients are the paper's formula") {
  manual_seed(3);
  check_formula(shaken(nn::Rwkv7Mixer(width, heads)), rwkv7);
}

TEST_CASE("RWKV-4 takes keys whose exponentials no float holds") {
  manual_seed(3);
  const nn::Rwkv4Mixer mixer = shaken(nn::Rwkv4Mixer(width));
  const NoGrad unrecorded;
  mul_(mixer.key.weight, 1000.0);
  const Tensor x = cast(randn({batch, tokens, width}), DType::f64);
  CHECK(double(max(abs(mixer.key(x))).item()) > 1000);
  for (const bool forgets : {false, true}) {
    if (forgets) fill_(mixer.log_decay, 7.0);  // a token loses e^7 in its exponent
    const Tensor y = mixer(x);
    CHECK(all(isfinite(y)).item<bool>());
    CHECK(double(max(abs(y)).item()) > 1e-2);
  }
}

TEST_CASE("Mixers of scans compute in 16 bits, with decays and states in f32") {
  const NoGrad unrecorded;
  const auto check = [](auto mixer) {
    INFO(mixer.type_name());
    nn::to(mixer, DType::bf16);
    auto narrow = nn::clone(mixer);
    nn::to(mixer, DType::f32);  // of the parameters as 16 bits hold them
    const Tensor x = cast(randn({batch, tokens, width}), DType::bf16), y = narrow(x), expected = mixer(cast(x, DType::f32));
    CHECK(y.dtype() == DType::bf16);
    CHECK(distance(cast(y, DType::f32), expected) < 0.03 * double(max(abs(expected)).item()));
    nn::MixerState state;
    narrow.forward(x, &state);
    CHECK(state.kept[0].dtype() == DType::f32);
    CHECK(narrow.forward(x, &state).dtype() == DType::bf16);
  };
  manual_seed(3);
  check(shaken(nn::MambaMixer(width)));
  check(shaken(nn::H3Mixer(width)));
  check(shaken(nn::Rwkv4Mixer(width)));
  check(shaken(nn::Rwkv7Mixer(width, heads)));
}

TEST_CASE("GPT-2's initialization leaves the rates of mixers as they are") {
  nn::DecoderLMOptions options{.width = width, .layers = 1, .heads = heads, .mixers = {{.kind = nn::MixerKind::mamba}}};
  for (const auto initialization : {nn::Initialization::gpt2, nn::Initialization::xavier}) {
    options.initialization = initialization;
    const nn::DecoderLM model(options);
    const auto& mixer = dynamic_cast<const nn::MambaMixer&>(**model.blocks[0].mixer);
    CHECK(mixer.a_log.to_vector<float>()[1] == Approx(std::log(2)));
    CHECK(mixer.dt_bias.to_vector<float>()[0] == Approx(std::log(std::expm1(0.001))));
  }
}

TEST_CASE("Mixers of scans name the sizes that they refuse") {
  const auto says = [](auto make) {
    try {
      make();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(says([] { nn::MambaMixer(0); }).find("[MambaMixer] expected a width >= 1 but got 0") == 0);
  CHECK(says([] { nn::H3Mixer(0); }).find("[H3Mixer] expected a width >= 1 but got 0") == 0);
  CHECK(says([] { nn::Rwkv4Mixer(0); }).find("[Rwkv4Mixer] expected a width >= 1 but got 0") == 0);
  CHECK(says([] { nn::Rwkv7Mixer(8, 3); }).find("[Rwkv7Mixer] expected a width that the number of heads divides but got 8 and 3") == 0);
}
