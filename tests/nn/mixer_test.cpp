// Token mixers: each is what its paper says, reading in pieces is reading at once, and a model takes any of them.
#include "backend/memory.h"
#include "message.h"
#include "nn/fixture.h"
#include "ops/gradcheck.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/train.h"

using namespace tern;
using nn::MixerKind;

namespace {

constexpr MixerKind recurrent_kinds[] = {MixerKind::based,  MixerKind::linear,   MixerKind::retnet,        MixerKind::gla,
                                         MixerKind::mamba2, MixerKind::deltanet, MixerKind::gated_deltanet};
constexpr std::int64_t width = 12, heads = 2, dim = 6, longest = 90;

nn::RecurrentMixer mixer_of(MixerKind kind, DType dtype) {
  manual_seed(3);
  nn::RecurrentMixer mixer(kind, width, {.heads = heads, .rope = rope_table(longest, dim)});
  // Norms and the like begin at ones, which would hide a factor that is left out.
  for (const NamedTensor& parameter : nn::named_parameters(mixer))
    if (parameter.tensor.dims() == 1) add_(parameter.tensor.detach(), rand(parameter.tensor.shape()) * 0.5);
  nn::to(mixer, dtype);
  return mixer;
}

Tensor tokens_of(std::int64_t batch, std::int64_t tokens, DType dtype) { return cast(randn({batch, tokens, width}), dtype); }

// The papers' formulas for one token and one head after another, in ops that take rows.

Tensor head(const Tensor& x, std::int64_t h, std::int64_t size) { return slice(x, 1, h * size, (h + 1) * size); }
Tensor column(const Tensor& x, std::int64_t h) { return slice(x, 1, h, h + 1); }
Tensor unit(const Tensor& x) { return x / sqrt(sum(x * x, {1}, true) + 1e-6); }
Tensor positive(const Tensor& x) { return where(gt(x, 0.0), x + 1.0, exp(minimum(x, 0.0))); }
Tensor root_mean_square(const Tensor& x, const Tensor& weight) { return x / sqrt(mean(x * x, {1}, true) + 1e-5) * weight; }
/// Pairs of neighbours, turned by position times 10000^(-2 i / dim).
Tensor turned(const Tensor& x, std::int64_t position) {
  Tensors columns;
  for (std::int64_t i = 0; i < dim / 2; ++i) {
    const double angle = static_cast<double>(position) / std::pow(10000.0, 2.0 * static_cast<double>(i) / static_cast<double>(dim));
    const Tensor a = column(x, 2 * i), b = column(x, 2 * i + 1);
    columns.push_back(a * std::cos(angle) - b * std::sin(angle));
    columns.push_back(a * std::sin(angle) + b * std::cos(angle));
  }
  return cat(columns, 1);
}

/// 1, x and x x^T of rows, so that products are 1 + s + s^2 / 2 of s = q k / 4, for 16 elements.
Tensor taylor(const Tensor& x) {
  const Tensor half = x / 2.0;
  return cat({ones({x.size(0), 1}, x.dtype()), half, flatten(unsqueeze(half, 2) * unsqueeze(half, 1), 1, 2) / std::sqrt(2.0)}, 1);
}

Tensor reference(const nn::RecurrentMixer& m, const Tensor& x) {
  const bool is_delta = m.kind == MixerKind::deltanet || m.kind == MixerKind::gated_deltanet, is_mamba = m.kind == MixerKind::mamba2;
  const bool is_based = m.kind == MixerKind::based, is_divided = is_based || m.kind == MixerKind::linear;
  const std::int64_t key = is_based ? 16 : dim, features = is_based ? 273 : dim;
  const std::int64_t batch = x.size(0), values = is_mamba ? 2 * dim : dim, keys = is_mamba ? dim : heads * key;
  std::vector<Tensor> states(heads, zeros({batch, features, values}, DType::f64)), sums(heads, zeros({batch, features, 1}, DType::f64));
  Tensors inputs, results;
  for (std::int64_t t = 0; t < x.size(1); ++t) {
    const Tensor token = select(x, 1, t);
    inputs.push_back(matmul(token, transpose(m.qkv.weight, 0, 1)));
    Tensor qkv = inputs.back();
    if (m.conv) {
      Tensor z = m.conv->bias;
      for (std::int64_t k = 0; k < 4 && k <= t; ++k) z = z + inputs[std::size_t(t - k)] * select(select(m.conv->weight, 1, 0), 1, 3 - k);
      qkv = z * sigmoid(z);
    }
    const Tensor rates = m.rates ? matmul(token, transpose(m.rates->weight, 0, 1)) : Tensor();
    Tensors of_heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t shared = is_mamba ? 0 : h;
      Tensor q = head(qkv, shared, key), k = head(slice(qkv, 1, keys, 2 * keys), shared, key), v = head(slice(qkv, 1, 2 * keys), h, values);
      const Tensor direct = v;
      Tensor decay, beta;
      if (m.kind == MixerKind::linear) q = positive(q), k = positive(k);
      if (is_based) q = taylor(q), k = taylor(k);
      if (m.kind == MixerKind::retnet) {
        q = turned(q, t), k = turned(k, t) / std::sqrt(double(dim));
        decay = full({1, 1, 1}, 1 - std::pow(2.0, -5.0 - double(h)), DType::f64);
      }
      if (m.kind == MixerKind::gla) {
        const Tensor low = matmul(token, transpose(m.down->weight, 0, 1));
        decay = unsqueeze(head(pow(sigmoid(matmul(low, transpose(m.up->weight, 0, 1)) + m.up->bias), 1.0 / 16), h, dim), 2);
        k = k / std::sqrt(double(dim));
      }
      if (is_delta) q = unit(q), k = unit(k), beta = sigmoid(column(rates, h));
      if (m.a_log.defined()) {
        const Tensor dt = log1p(exp(column(rates, is_delta ? heads + h : h) + slice(m.dt_bias, 0, h, h + 1)));
        decay = unsqueeze(exp(-exp(slice(m.a_log, 0, h, h + 1)) * dt), 2);
        if (is_mamba) v = v * dt;
      }
      Tensor& state = states[std::size_t(h)];
      if (decay.defined()) state = state * decay;
      if (is_delta) v = (v - squeeze(matmul(unsqueeze(k, 1), state), 1)) * beta;
      state = state + unsqueeze(k, 2) * unsqueeze(v, 1);
      Tensor y = squeeze(matmul(unsqueeze(q, 1), state), 1);
      if (is_divided) {
        Tensor& total = sums[std::size_t(h)];
        total = total + unsqueeze(k, 2);
        y = y / (squeeze(matmul(unsqueeze(q, 1), total), 1) + 1e-6);
      } else if (is_mamba) {
        y = y + direct * slice(m.skip, 0, h, h + 1);
      } else {
        y = root_mean_square(y, m.norm->weight);
      }
      of_heads.push_back(y);
    }
    Tensor y = cat(of_heads, 1);
    if (m.gate) {
      const Tensor z = matmul(token, transpose(m.gate->weight, 0, 1));
      y = y * z * sigmoid(z);
    }
    if (is_mamba) y = root_mean_square(y, m.norm->weight);
    results.push_back(matmul(y, transpose(m.proj.weight, 0, 1)));
  }
  return stack(results, 1);
}

/// Its results for x (B, T, width), read in pieces of these sizes.
Tensor in_pieces(const nn::Mixer& mixer, const Tensor& x, const std::vector<std::int64_t>& sizes) {
  nn::MixerState state;
  Tensors results;
  for (const Tensor& piece : split(x, sizes, 1)) results.push_back(mixer.forward(piece, &state));
  return cat(results, 1);
}

/// A mixer of a user's own: the mean of the tokens so far.
struct Mean final : nn::MixerOf<Mean> {
  explicit Mean(std::int64_t size) : proj(size, size) {}
  void visit(nn::Visitor& v) override { v("proj", proj); }
  Tensor forward(const Tensor& x, nn::MixerState* state) const override {
    Tensor total = cumsum(x, 1), count = reshape(arange(x.size(1), DType::f32, x.device()) + 1.0, {x.size(1), 1});
    if (state && !state->kept.empty()) total = total + unsqueeze(state->kept[0], 1), count = count + unsqueeze(state->kept[1], 1);
    if (state)
      state->kept = {select(total, 1, x.size(1) - 1), reshape(broadcast_to(count, {x.size(0), x.size(1), 1}), {x.size(0), x.size(1), 1})};
    if (state) state->kept[1] = select(state->kept[1], 1, x.size(1) - 1);
    return proj.forward(total / count);
  }
  nn::Linear proj;
};

constexpr std::int64_t vocab = 29;

nn::DecoderLM model_of(std::vector<nn::MixerOptions> mixers, nn::Positions positions = nn::Positions::rotary,
                       CheckpointPolicy policy = CheckpointPolicy::none) {
  manual_seed(4);
  return nn::DecoderLM(nn::DecoderLMOptions{.vocab = vocab,
                                            .length = longest,
                                            .width = width,
                                            .layers = 2,
                                            .heads = heads,
                                            .ff = 16,
                                            .mixers = std::move(mixers),
                                            .dropout = 0,
                                            .positions = positions,
                                            .activation_checkpointing = policy});
}

Tensor some_ids(std::int64_t batch, std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < batch * count; ++i) ids.push_back((i * i * 5 + i * 3 + 1) % vocab);
  return Tensor::from(ids, {batch, count});
}

/// Mixers of two layers: each kind in both, hybrids, and one of a user's own.
std::vector<std::vector<nn::MixerOptions>> stacks() {
  std::vector<std::vector<nn::MixerOptions>> all = {
      {{.kind = MixerKind::window, .window = 5}},
      {{.kind = MixerKind::conv}},
      {{.kind = MixerKind::h3}},
      {{.kind = MixerKind::hyena}},
      {{.kind = MixerKind::mamba}},
      {{.kind = MixerKind::rwkv4}},
      {{.kind = MixerKind::rwkv7}},
      {{.kind = MixerKind::conv}, {}},
      {{}, {.kind = MixerKind::gla}},
      {{.kind = MixerKind::own, .own = [](std::int64_t size) { return Mean(size); }}},
  };
  for (const MixerKind kind : recurrent_kinds) all.push_back({{.kind = kind}});
  return all;
}

/// Calls check(mixer) for a mixer of each kind that keeps a state.
template <class F>
void for_each_mixer(F check) {
  for (const MixerKind kind : recurrent_kinds) {
    INFO(nn::name(kind));
    check(mixer_of(kind, DType::f32));
  }
  manual_seed(3);
  check(nn::ConvMixer(width));
  check(nn::HyenaMixer(width, longest));
  check(nn::H3Mixer(width));
  check(nn::MambaMixer(width));
  check(nn::Rwkv4Mixer(width));
  check(nn::Rwkv7Mixer(width, heads));
}

}  // namespace

TEST_CASE("Recurrent mixers and their gradients are those of the papers' formulas, token by token") {
  const auto check = [](MixerKind kind, std::int64_t length) {
    INFO(nn::name(kind) << ", " << length << " tokens");
    const nn::RecurrentMixer mixer = mixer_of(kind, DType::f64);
    const Tensor x = tokens_of(2, length, DType::f64);
    const Tensor y = mixer(x), expected = reference(mixer, x);
    CHECK(distance(y, expected) < 1e-6);  // the tables of rotations are f32
    const Tensor weights = tokens_of(2, length, DType::f64);
    const Tensors parameters = nn::parameters(mixer), got = grad({y}, parameters, {weights}),
                  want = grad({expected}, parameters, {weights});
    const std::vector<NamedTensor> names = nn::named_parameters(mixer);
    for (std::size_t i = 0; i < got.size(); ++i) {
      INFO(names[i].name);
      CHECK(double(max(abs(want[i])).item()) > 1e-6);
      CHECK(distance(got[i], want[i]) < 1e-5 * std::max(1.0, double(max(abs(want[i])).item())));
    }
  };
  for (const MixerKind kind : recurrent_kinds) check(kind, 70);
  check(MixerKind::based, 280);  // more than its features
}

TEST_CASE("The convolution mixer is a gate times four taps") {
  manual_seed(3);
  const nn::ConvMixer mixer(width);
  const Tensor x = tokens_of(2, 9, DType::f32), y = mixer(x);
  const Tensor padded = pad(x, 1, 3, 0);
  Tensor z = broadcast_to(mixer.conv.bias, x.shape());
  for (std::int64_t k = 0; k < 4; ++k) z = z + slice(padded, 1, k, k + 9) * select(select(mixer.conv.weight, 1, 0), 1, k);
  CHECK(distance(y, z * (matmul(x, transpose(mixer.gate.weight, 0, 1)) + mixer.gate.bias)) < 1e-5);
}

TEST_CASE("Hyena's filter and convolution are those of the paper's formulas") {
  manual_seed(3);
  constexpr std::int64_t length = 40, tokens = 30;
  nn::HyenaMixer mixer(width, length);
  nn::to(mixer, DType::f64);
  const Tensor x = tokens_of(2, tokens, DType::f64), y = mixer(x);
  // h of each number of tokens back, in rows (1, width).
  const auto times = [](const Tensor& z, const nn::Linear& layer) {
    const Tensor product = matmul(z, transpose(layer.weight, 0, 1));
    return layer.bias.defined() ? product + layer.bias : product;
  };
  Tensors filter;
  for (std::int64_t back = 0; back < tokens; ++back) {
    const double t = double(back) / (length - 1);
    std::vector<double> features{t};
    for (const bool is_sine : {false, true})
      for (int band = 0; band < 16; ++band) {
        const double angle = 2 * std::acos(-1.0) * t * (1e-4 + band * (15 - 1e-4) / 15);
        features.push_back(is_sine ? std::sin(angle) : std::cos(angle));
      }
    std::vector<double> window;
    for (std::int64_t c = 0; c < width; ++c) {
      const double slow = std::log(0.01) / 1.5, fast = std::log(0.01) / 0.3;
      window.push_back(std::exp(t * (slow + (fast - slow) * double(c) / (width - 1))) + 0.05);
    }
    const Tensor z = Tensor::from(features, {1, 33});
    filter.push_back(times(sin(times(sin(times(z, mixer.in) * 10.0), mixer.mid) * 10.0), mixer.out) * Tensor::from(window, {1, width}));
  }
  Tensors inputs, products, results;
  for (std::int64_t t = 0; t < tokens; ++t) {
    inputs.push_back(times(select(x, 1, t), mixer.qkv));
    Tensor z = mixer.conv.bias;
    for (std::int64_t k = 0; k < 3 && k <= t; ++k) z = z + inputs[std::size_t(t - k)] * select(select(mixer.conv.weight, 1, 0), 1, 2 - k);
    const Tensor q = slice(z, 1, 0, width), k = slice(z, 1, width, 2 * width), v = slice(z, 1, 2 * width);
    products.push_back(k * v);
    Tensor sum = products.back() * mixer.bias;
    for (std::int64_t back = 0; back <= t; ++back) sum = sum + products[std::size_t(t - back)] * filter[std::size_t(back)];
    results.push_back(times(q * sum, mixer.proj));
  }
  const Tensor expected = stack(results, 1), weights = tokens_of(2, tokens, DType::f64);
  CHECK(distance(y, expected) < 1e-5);  // the tables of features and windows are f32
  const Tensors parameters = nn::parameters(mixer), got = grad({y}, parameters, {weights}), want = grad({expected}, parameters, {weights});
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO(nn::named_parameters(mixer)[i].name);
    CHECK(distance(got[i], want[i]) < 1e-4 * std::max(1.0, double(max(abs(want[i])).item())));
  }
}

TEST_CASE("A mixer that reads in pieces gives what it gives at once") {
  const NoGrad unrecorded;
  const auto check = [](const nn::Mixer& mixer) {
    const Tensor x = tokens_of(2, 70, DType::f32), whole = mixer.forward(x);
    CHECK(distance(in_pieces(mixer, x, std::vector<std::int64_t>(70, 1)), whole) < 2e-5);
    CHECK(distance(in_pieces(mixer, x, {1, 2, 60, 7}), whole) < 2e-5);
  };
  for_each_mixer(check);
  check(Mean(width));
}

TEST_CASE("Padding after a row's own tokens is not in a mixer's state") {
  const NoGrad unrecorded;
  bool goes_on = false;
  const auto check = [&](const nn::Mixer& mixer) {
    const Tensor before = tokens_of(3, 4, DType::f32), x = tokens_of(3, 12, DType::f32);
    const std::vector<std::int64_t> lengths = {12, 5, 2};
    const auto begin = [&](const Tensor& text) {
      nn::MixerState state;
      if (goes_on) mixer.forward(text, &state);
      return state;
    };
    nn::MixerState padded = begin(before);
    padded.lengths = Tensor::from(lengths, {3});
    mixer.forward(x, &padded);
    padded.lengths = {};
    const Tensor more = tokens_of(3, 2, DType::f32), next = mixer.forward(more, &padded);
    for (std::int64_t b = 0; b < 3; ++b) {
      nn::MixerState own = begin(slice(before, 0, b, b + 1));
      mixer.forward(slice(slice(x, 0, b, b + 1), 1, 0, lengths[std::size_t(b)]), &own);
      CHECK(distance(slice(next, 0, b, b + 1), mixer.forward(slice(more, 0, b, b + 1), &own)) < 2e-5);
    }
  };
  for_each_mixer(check);
  goes_on = true;  // after text that all rows have
  for_each_mixer(check);
}

TEST_CASE("Models with mixers are causal, and read with a cache what they read at once") {
  const NoGrad unrecorded;
  for (const std::vector<nn::MixerOptions>& mixers : stacks()) {
    INFO(nn::name(mixers.front().kind) << ", " << mixers.size());
    nn::DecoderLM model = model_of(mixers);
    model.eval();
    const Tensor ids = some_ids(3, 40), expected = model.hidden(ids);
    // A token that changes shows in no earlier state, and in its own.
    const Tensor other = cat({slice(ids, 1, 0, 20), slice(ids, 1, 20, 21) * 0.0, slice(ids, 1, 21)}, 1), changed = model.hidden(other);
    // A transform rounds all of its numbers together.
    const MixerKind first = mixers.front().kind;
    const double rounding = first == MixerKind::hyena || first == MixerKind::h3 ? 5e-6 : 0;
    CHECK(distance(slice(changed, 1, 0, 20), slice(expected, 1, 0, 20)) <= rounding);
    CHECK(distance(slice(changed, 1, 20, 21), slice(expected, 1, 20, 21)) > 1e-3);

    nn::KvCache cache = model.cache(3, longest);
    for (int text = 0; text < 2; ++text) {
      CHECK(distance(model.hidden(slice(ids, 1, 0, 5), {.causal = true}, {}, &cache), slice(expected, 1, 0, 5)) < 2e-5);
      for (std::int64_t t = 5; t < 40; ++t)
        CHECK(distance(model.hidden(slice(ids, 1, t, t + 1), {.causal = true}, {}, &cache), slice(expected, 1, t, t + 1)) < 5e-5);
      cache.restart(3);
    }
    // Rows that are reordered take their states along.
    const Tensor rows = Tensor::from(std::vector<std::int64_t>{2, 0, 0, 1}, {4});
    model.hidden(slice(ids, 1, 0, 5), {.causal = true}, {}, &cache);
    cache.select(rows);
    const Tensor chosen = index_select(ids, 0, rows);
    CHECK(distance(model.hidden(slice(chosen, 1, 5, 6), {.causal = true}, {}, &cache), slice(model.hidden(chosen), 1, 5, 6)) < 2e-5);
  }
}

TEST_CASE("generate answers prompts of different lengths as each alone, whatever the mixer") {
  for (const std::vector<nn::MixerOptions>& mixers : stacks()) {
    if (mixers.front().kind == MixerKind::own) continue;  // Mean does not look at lengths
    INFO(nn::name(mixers.front().kind) << ", " << mixers.size());
    nn::DecoderLM model = model_of(mixers);
    model.eval();
    const std::vector<nn::TokenIds> prompts = {{3, 1, 4, 1, 5, 9, 2}, {6, 5}, {3, 5, 8, 9}};
    const nn::GenerateOptions options{.eos = 0, .max_new_tokens = 12};
    const auto together = nn::generate(nn::read_prompts(model, prompts), options);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      CHECK(nn::generate(nn::read_prompts(model, {prompts[i]}), options)[0][0].tokens == together[i][0].tokens);
      // By the model as it trains.
      nn::TokenIds text = prompts[i];
      for (const std::int64_t token : together[i][0].tokens) {
        const Tensor logits = model.forward(Tensor::from(text, {1, std::int64_t(text.size())}));
        REQUIRE(argmax(select(select(logits, 0, 0), 0, logits.size(1) - 1)).item<std::int64_t>() == token);
        text.push_back(token);
      }
    }
  }
}

TEST_CASE("A model of mixers alone decodes in memory that does not grow") {
  const NoGrad unrecorded;
  nn::DecoderLM model({.vocab = vocab,
                       .length = 100000,
                       .width = width,
                       .layers = 2,
                       .heads = heads,
                       .ff = 16,
                       .mixers = {{.kind = MixerKind::conv}, {.kind = MixerKind::gated_deltanet}},
                       .positions = nn::Positions::none});
  model.eval();
  nn::KvCache cache = model.cache(1, 100000);
  std::size_t early = 0;
  for (int t = 0; t < 500; ++t) {
    model.hidden(some_ids(1, 1), {.causal = true}, {}, &cache);
    if (t == 9) early = backend::memory_statistics(Cpu{}, cpu).allocated;
  }
  CHECK(backend::memory_statistics(Cpu{}, cpu).allocated == early);
}

TEST_CASE("Window attention is attention with a window in its mask") {
  const NoGrad unrecorded;
  const nn::DecoderLM plain = model_of({});
  nn::DecoderLM model = model_of({{.kind = MixerKind::window, .window = 4}});
  const Tensor ids = some_ids(2, 20);
  CHECK(distance(model.hidden(ids), plain.hidden(ids, {.causal = true, .window = 4})) < 1e-6);
  CHECK(distance(model.hidden(ids), plain.hidden(ids)) > 1e-3);
  // A window in the mask of later tokens means the same in a cache.
  nn::KvCache cache = plain.cache(2, longest);
  const AttentionMask mask{.causal = true, .window = 4};
  plain.hidden(slice(ids, 1, 0, 6), mask, {}, &cache);
  for (std::int64_t t = 6; t < 20; ++t)
    CHECK(distance(plain.hidden(slice(ids, 1, t, t + 1), mask, {}, &cache), slice(model.hidden(ids), 1, t, t + 1)) < 2e-5);
}

TEST_CASE("Models with mixers train alike with checkpoints, and save what they learn") {
  for (const std::vector<nn::MixerOptions>& mixers : stacks()) {
    INFO(nn::name(mixers.front().kind) << ", " << mixers.size());
    const auto gradients = [&](CheckpointPolicy policy) {
      nn::DecoderLM model = model_of(mixers, nn::Positions::rotary, policy);
      model.loss(some_ids(2, 20), some_ids(2, 20)).backward();
      Tensors all;
      for (const NamedTensor& x : nn::named_parameters(model)) {
        INFO(x.name);
        REQUIRE(x.tensor.grad().defined());
        CHECK(double(max(abs(x.tensor.grad())).item()) > 0);
        all.push_back(x.tensor.grad());
      }
      return all;
    };
    const Tensors plain = gradients(CheckpointPolicy::none), again = gradients(CheckpointPolicy::full);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(distance(plain[i], again[i]) == 0);
  }
}

TEST_CASE("Layers take the mixers of a list in turn") {
  const nn::DecoderLM model({.width = 8, .layers = 4, .heads = 2, .mixers = {{.kind = MixerKind::conv}, {}, {.kind = MixerKind::gla}}});
  const auto type_of = [&](std::size_t i) { return model.blocks[i].mixer ? (**model.blocks[i].mixer).type_name() : "none"; };
  CHECK(type_of(0) == "ConvMixer");
  CHECK(type_of(1) == "none");
  CHECK(model.blocks[1].attn.proj.defined());
  CHECK(type_of(2) == "RecurrentMixer");
  CHECK(type_of(3) == "ConvMixer");
  CHECK_FALSE(model.blocks[3].attn.proj.defined());
}

TEST_CASE("A copy of a model with mixers shares their parameters, and a clone does not") {
  const nn::DecoderLM model = model_of({{.kind = MixerKind::gla}});
  const nn::DecoderLM copy = model, clone = nn::clone(model);
  const auto data = [](const nn::DecoderLM& x) { return nn::named_parameters(x)[3].tensor.view().data; };
  CHECK(nn::named_parameters(model)[3].name == "blocks.0.mixer.qkv.weight");
  CHECK(data(copy) == data(model));
  CHECK(data(clone) != data(model));
  CHECK(to_string(model).find("(mixer): RecurrentMixer(gla, heads=2, head_dim=6\n") != std::string::npos);
}

TEST_CASE("Mixers compute in 16 bits with decays and states in f32") {
  const NoGrad unrecorded;
  for (const MixerKind kind : recurrent_kinds) {
    INFO(nn::name(kind));
    const nn::RecurrentMixer exact = mixer_of(kind, DType::f32), mixer = mixer_of(kind, DType::bf16);
    const Tensor x = tokens_of(2, 70, DType::bf16), y = mixer(x), expected = exact(cast(x, DType::f32));
    CHECK(y.dtype() == DType::bf16);
    CHECK(distance(cast(y, DType::f32), expected) < 0.06 * double(max(abs(expected)).item()));
    nn::MixerState state;
    mixer.forward(x, &state);
    CHECK(state.kept[0].dtype() == DType::f32);
  }
}

TEST_CASE("Mistakes with mixers get one line") {
  const auto says = [](const std::function<void()>& f, const std::string& text) {
    const std::string message = message_of(f);
    INFO(message);
    CHECK(message.find(text) != std::string::npos);
  };
  says([] { nn::RecurrentMixer(MixerKind::conv, 8); },
       "[RecurrentMixer] expected based, linear, retnet, gla, mamba2, deltanet or gated-deltanet but got conv");
  says([] { nn::RecurrentMixer(MixerKind::gla, 8, {.heads = 3}); }, "[RecurrentMixer] expected a width that the number of heads divides");
  says([] { nn::HyenaMixer(8, 0); }, "[HyenaMixer] expected sizes >= 1 but got width 8 and length 0");
  says([] { nn::HyenaMixer(8, 3).forward(zeros({1, 4, 8})); }, "[HyenaMixer] expected at most 3 tokens but got 4");
  says([] { nn::CausalConv(0, 4); }, "[CausalConv] expected sizes >= 1 but got 0 channels and 4 taps");
  says([] { model_of({{.kind = MixerKind::window, .window = 0}}); }, "[TransformerLayer] expected a window >= 1 but got 0");
  says([] { model_of({{.kind = MixerKind::own}}); }, "[TransformerLayer] expected a function that makes a mixer");
  says([] { nn::EncoderDecoder({{.mixers = {{.kind = MixerKind::gla}}}}); }, "[EncoderDecoder] expected no mixers");
  says([] { nn::MultiHeadAttention(8, {.heads = 2, .window = -1}); }, "[MultiHeadAttention] expected a window >= 0");
  const nn::DecoderLM model = model_of({{.kind = MixerKind::gla}});
  const Tensor ids = some_ids(2, 5), lengths = Tensor::from(std::vector<std::int64_t>{5, 3}, {2});
  for (const AttentionMask& mask :
       {AttentionMask{}, AttentionMask{.causal = true, .window = 3}, AttentionMask{.causal = true, .prefix = lengths},
        AttentionMask{.causal = true, .padding = zeros({2, 5})}})
    says([&] { model.hidden(ids, mask); }, "[TransformerLayer] expected a causal mask without window, padding and prefix");
  for (const MixerKind kind : recurrent_kinds) CHECK(nn::mixer_kind_of(nn::name(kind)) == kind);
  CHECK_FALSE(nn::mixer_kind_of("own").has_value());
  CHECK_FALSE(nn::mixer_kind_of("perceiver").has_value());
}
