// The body of a language model: what is added to its tokens, what it drops, and how it starts.
#include <utility>

#include "nn/fixture.h"
#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace tern;

namespace {

constexpr std::int64_t vocab = 11, length = 7, width = 9;

nn::TransformerOptions small_options() {
  return {.vocab = vocab, .length = length, .width = width, .layers = 2, .heads = 3, .ff = 5, .dropout = 0};
}

Tensor some_ids(std::int64_t rows = 2, std::int64_t columns = length, Device device = cpu) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < rows * columns; ++i) ids.push_back((i * i + 3 * i) % vocab);
  return Tensor::from(ids, {rows, columns}, device);
}

/// Gives a model's parameters to another.
void copy_parameters(const nn::Module& from, const nn::Module& into) {
  const NoGrad unrecorded;
  const Tensors sources = nn::parameters(from), targets = nn::parameters(into);
  REQUIRE(sources.size() == targets.size());
  for (std::size_t i = 0; i < sources.size(); ++i) copy_(targets[i], sources[i]);
}

double deviation(const Tensor& x) { return std::sqrt(var(cast(x.detach(), DType::f64)).item<double>()); }
double largest(const Tensor& x) { return max(abs(x.detach())).item<float>(); }

/// A model with sinusoidal positions is one whose learned table has the same rows: at once, at positions given, and with a cache.
void check_sinusoids(Device device) {
  const NoGrad unrecorded;
  nn::DecoderLMOptions o = small_options();
  o.positions = nn::Positions::sinusoidal;
  manual_seed(3);
  nn::DecoderLM model(o);
  nn::to(model, device);
  CHECK(model.sinusoids.device() == device);
  o.positions = nn::Positions::learned;
  o.device = device;
  nn::DecoderLM learned(o);
  for (const NamedTensor& from : nn::named_parameters(model)) {
    CHECK(from.name.find("sinus") == std::string::npos);
    for (const NamedTensor& into : nn::named_parameters(learned))
      if (from.name == into.name) copy_(into.tensor, from.tensor);
  }
  copy_(learned.positions->weight, model.sinusoids);
  const Tensor ids = some_ids(2, length, device),
               at = full({2, length}, 6, DType::i64, device) - broadcast_to(arange(length, DType::i64, device), {2, length});
  for (const bool is_fused : {false, true}) {
    const FusedKernels kernels(is_fused);
    const Tensor expected = learned.hidden(ids);
    CHECK(distance(model.hidden(ids), expected) == 0);
    CHECK(distance(model.hidden(ids, {.causal = true}, at), learned.hidden(ids, {.causal = true}, at)) == 0);
    CHECK(distance(model.hidden(ids, {.causal = true}, at), expected) > 1e-3);
    nn::KvCache cache = model.cache(2, length);
    model.hidden(slice(ids, 1, 0, 3), {.causal = true}, {}, &cache);
    for (std::int64_t t = 3; t < length; ++t)
      CHECK(distance(model.hidden(slice(ids, 1, t, t + 1), {.causal = true}, {}, &cache), slice(expected, 1, t, t + 1)) < 1e-5);
  }
}

}  // namespace

TEST_CASE("Sinusoidal positions are a table that is not learned") { check_sinusoids(cpu); }
TEST_CASE("Sinusoidal positions on a GPU are a table that is not learned", "[cuda]") { check_sinusoids(cuda()); }

TEST_CASE("sinusoid_table is the formula of Vaswani et al.") {
  for (const std::int64_t columns : {1, 2, 9, 16}) {
    const std::vector<float> table = nn::sinusoid_table(33, columns).to_vector<float>();
    REQUIRE(table.size() == std::size_t(33 * columns));
    for (std::int64_t t = 0; t < 33; ++t)
      for (std::int64_t i = 0; 2 * i < columns; ++i) {
        const double angle = double(t) * std::exp(-std::log(10000.0) * 2 * double(i) / double(columns));
        CHECK(double(table[std::size_t(t * columns + 2 * i)]) == Approx(std::sin(angle)).margin(1e-6));
        if (2 * i + 1 < columns) CHECK(double(table[std::size_t(t * columns + 2 * i + 1)]) == Approx(std::cos(angle)).margin(1e-6));
      }
  }
}

TEST_CASE("Rotary positions have the base, the scaling and the size of heads that the options say") {
  const RopeScaling scaling{.factor = 3, .original_length = 9};
  const nn::TransformerModel model({.vocab = 3,
                                    .length = 5,
                                    .width = 12,
                                    .layers = 1,
                                    .heads = 2,
                                    .head_dim = 8,
                                    .positions = nn::Positions::rotary,
                                    .rope_base = 500,
                                    .rope_scaling = scaling});
  CHECK(floats(model.blocks[0].attn.options.rope) == floats(rope_table(5, 8, 500, cpu, scaling)));
  CHECK(floats(rope_table(5, 8, 500, cpu, scaling)) != floats(rope_table(5, 8, 500)));
  CHECK(floats(rope_table(5, 8, 500)) != floats(rope_table(5, 8)));
}

TEST_CASE("A body without layers shows what its tokens are, scaled and with positions") {
  const NoGrad unrecorded;
  nn::TransformerOptions o = small_options();
  o.layers = 0, o.final_norm = false;
  for (const bool is_fused : {false, true})
    for (const bool scales : {false, true}) {
      const FusedKernels kernels(is_fused);
      o.scales_embeddings = scales;
      manual_seed(4);
      nn::TransformerModel body(o);
      const Tensor tokens = embedding(body.tokens.weight, some_ids()) * (scales ? 3.0 : 1.0), expected = tokens + body.positions->weight;
      CHECK(distance(body.hidden(some_ids()), expected) < 1e-5);
      const Tensor at = full({2, length}, 4, DType::i64);
      CHECK(distance(body.hidden(some_ids(), {.causal = true}, at), tokens + select(body.positions->weight, 0, 4)) < 1e-5);
    }
}

TEST_CASE("A table of sinusoids serves weights of every dtype") {
  const NoGrad unrecorded;
  nn::TransformerOptions o = small_options();
  o.positions = nn::Positions::sinusoidal, o.scales_embeddings = true;
  manual_seed(15);
  nn::TransformerModel body(o);
  const Tensor expected = body.hidden(some_ids());
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-5}, {DType::bf16, 0.1}})
    for (const bool is_fused : {false, true}) {
      const FusedKernels kernels(is_fused);
      nn::to(body, dtype);
      CHECK(body.sinusoids.dtype() == DType::f32);
      const Tensor states = body.hidden(some_ids());
      CHECK(states.dtype() == dtype);
      CHECK(distance(states, expected) < tolerance);
    }
}

TEST_CASE("A body alone is named as in a decoder LM, and gives its head's input") {
  manual_seed(5);
  nn::TransformerOptions o = small_options();
  const nn::DecoderLM model(o);
  const nn::TransformerModel body(o);
  const std::vector<NamedTensor> own = nn::named_parameters(body), all = nn::named_parameters(model);
  REQUIRE(own.size() + 2 == all.size());
  for (std::size_t i = 0; i < own.size(); ++i) CHECK(own[i].name == all[i].name);
  {
    const NoGrad unrecorded;
    for (std::size_t i = 0; i < own.size(); ++i) copy_(own[i].tensor, all[i].tensor);
  }
  CHECK(distance(body.hidden(some_ids()), model.hidden(some_ids())) == 0);
  CHECK(distance(model.head.forward(body.hidden(some_ids())), model.forward(some_ids())) == 0);
  o.vocab = 0;
  CHECK_THROWS_WITH(nn::TransformerModel(o), "[TransformerModel] expected sizes >= 1 but got vocab 0, length 7, width 9, layers 2, ff 5");
}

TEST_CASE("Xavier's initialization has the bounds and deviations of its source") {
  manual_seed(6);
  constexpr double d = 64, ff = 200;
  nn::EncoderDecoderOptions o{{.vocab = 500,
                               .length = 100,
                               .width = std::int64_t(d),
                               .layers = 2,
                               .heads = 4,
                               .ff = std::int64_t(ff),
                               .initialization = nn::Initialization::xavier},
                              2};
  const nn::EncoderDecoder model(o);
  const auto check_uniform = [](const Tensor& x, double bound) {
    CHECK(largest(x) <= bound);
    CHECK(largest(x) > 0.98 * bound);
    CHECK(deviation(x) == Approx(bound / std::sqrt(3.0)).epsilon(0.03));
  };
  const nn::TransformerLayer& below = model.encoder.blocks[1];
  const nn::TransformerLayer& above = model.decoder.blocks[1];
  const double joint = std::sqrt(6 / (4 * d));  // queries, keys and values as one matrix (3 width, width)
  check_uniform(below.attn.qkv->weight, joint);
  check_uniform(above.cross_attn->query->weight, joint);
  check_uniform(above.cross_attn->key_value->weight, joint);
  check_uniform(above.cross_attn->proj.weight, std::sqrt(6 / (2 * d)));
  check_uniform(below.ff.fc.weight, std::sqrt(6 / (d + ff)));
  check_uniform(above.ff.proj.weight, std::sqrt(6 / (d + ff)));
  for (const Tensor& table :
       {model.encoder.tokens.weight, model.encoder.positions->weight, model.decoder.positions->weight, model.head.weight}) {
    CHECK(deviation(table) == Approx(1 / std::sqrt(d)).epsilon(0.03));
    CHECK(largest(table) > 3 / std::sqrt(d));  // normal, not uniform
  }
  for (const NamedTensor& entry : nn::named_parameters(model)) {
    CAPTURE(entry.name);
    if (entry.name.ends_with("bias")) CHECK(largest(entry.tensor) == 0);
    if (entry.name.find("norm") != std::string::npos && entry.name.ends_with("weight"))
      CHECK(distance(entry.tensor, ones({std::int64_t(d)})) == 0);
  }
  // A tied head has the table's values, and GPT-2's residual projections count the branches of their own side.
  o.tied_head = true;
  CHECK(deviation(nn::EncoderDecoder(o).head.weight) == Approx(1 / std::sqrt(d)).epsilon(0.03));
  o.initialization = nn::Initialization::gpt2;
  const nn::EncoderDecoder gpt(o);
  CHECK(deviation(gpt.encoder.blocks[0].ff.proj.weight) == Approx(0.02 / 2).epsilon(0.03));
  CHECK(deviation(gpt.decoder.blocks[0].ff.proj.weight) == Approx(0.02 / std::sqrt(6.0)).epsilon(0.03));
  o.initialization = nn::Initialization::layer_defaults;
  CHECK(deviation(nn::EncoderDecoder(o).decoder.tokens.weight) == Approx(1 / std::sqrt(d)).epsilon(0.03));
}

TEST_CASE("Each dropout drops its own in training, and nothing in evaluation") {
  nn::TransformerOptions o = small_options();
  o.layers = 1;
  manual_seed(7);
  const nn::TransformerModel without(o);
  const Tensor expected = without.hidden(some_ids());
  const auto states = [&](double dropout, double attention, double activation, bool is_fused, bool is_training = true) {
    const FusedKernels kernels(is_fused);
    nn::TransformerOptions own = o;
    own.dropout = dropout, own.attention_dropout = attention, own.activation_dropout = activation;
    nn::TransformerModel model(own);
    copy_parameters(without, model);
    model.train(is_training);
    manual_seed(8);
    return model.hidden(some_ids());
  };
  for (const nn::Activation activation : {nn::Activation::gelu, nn::Activation::gelu_tanh}) {
    o.activation = activation;
    const Tensor quiet = states(0, 0, 0, false);
    for (const bool is_fused : {false, true}) {
      CAPTURE(int(activation), is_fused);
      CHECK(distance(states(0, 0, 0, is_fused), quiet) < 5e-6);
      CHECK(distance(states(0, -1, -1, is_fused), quiet) < 5e-6);
      CHECK(distance(states(0.3, 0.4, 0.5, is_fused, false), quiet) < 5e-6);
      // Each changes something, and both paths drop the same.
      for (const auto& [own, attention, hidden] : {std::tuple{0.3, 0.0, 0.0}, {0.0, 0.3, 0.0}, {0.0, 0.0, 0.3}}) {
        CHECK(distance(states(own, attention, hidden, is_fused), quiet) > 1e-2);
        CHECK(distance(states(own, attention, hidden, is_fused), states(own, attention, hidden, !is_fused)) < 5e-6);
      }
      // -1 stands for the first.
      CHECK(distance(states(0.3, -1, -1, is_fused), states(0.3, 0.3, 0.3, is_fused)) == 0);
      CHECK(distance(states(0.3, -1, 0, is_fused), states(0.3, 0.3, 0, is_fused)) == 0);
      CHECK(distance(states(0.3, -1, -1, is_fused), states(0.3, 0.3, 0, is_fused)) > 1e-2);
      CHECK(distance(states(0.3, -1, -1, is_fused), states(0.3, 0, 0.3, is_fused)) > 1e-2);
    }
  }
  CHECK(distance(expected, states(0, 0, 0, false)) > 0);  // the activation is another
  CHECK_THROWS_WITH(states(0, -0.5, 0, false), "[Dropout] expected 0 <= p < 1 but got -0.5");
  CHECK_THROWS_WITH(states(0, 0, 1, false), "[Dropout] expected 0 <= p < 1 but got 1");
}

TEST_CASE("A feed-forward part drops its hidden units, and attention its probabilities") {
  manual_seed(12);
  const Tensor x = randn({4, 6});
  for (const bool gated : {false, true})
    for (const bool is_fused : {false, true})
      for (const nn::Activation activation : {nn::Activation::gelu_tanh, nn::Activation::silu}) {
        CAPTURE(gated, is_fused, int(activation));
        nn::FeedForward ff(6, 50, {.activation = activation, .gated = gated, .dropout = 0.4});
        const FusedKernels kernels(is_fused);
        Tensor hidden =
            gated ? nn::activate(activation, ff.gate->forward(x)) * ff.fc.forward(x) : nn::activate(activation, ff.fc.forward(x));
        for (const bool adds_bias : {true, false}) {
          const auto out = [&](const Tensor& h) { return adds_bias ? ff.proj.forward(h) : ff.proj.forward(h, {}); };
          manual_seed(13);
          const Tensor dropped = ff.forward(x, adds_bias);
          manual_seed(13);
          CHECK(distance(dropped, out(dropout(hidden, 0.4))) < 1e-5);
          CHECK(distance(dropped, out(hidden)) > 1e-2);
          ff.eval();
          CHECK(distance(ff.forward(x, adds_bias), out(hidden)) < 1e-5);
          ff.train();
        }
      }
  const nn::TransformerLayer layer({.width = 6, .heads = 2, .ff = 5, .dropout = 0.1, .attention_dropout = 0.6}, true);
  CHECK(layer.attn.options.dropout == 0.6);
  CHECK(layer.cross_attn->options.dropout == 0.6);
  CHECK(layer.drop.p == 0.1);
  CHECK(layer.ff.drop.p == 0);
}
