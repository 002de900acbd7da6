// The encoder-decoder against a reference that computes each sentence alone, plain and fused, with and without a cache.
#include "nn/fixture.h"
#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/gradcheck.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace tern;

namespace {

constexpr std::int64_t vocab = 17, length = 9, batch = 3, sources = 7, targets = 5;
const std::vector<std::int64_t> source_lengths{7, 1, 4};

nn::EncoderDecoderOptions small_options() {
  return {{.vocab = vocab, .length = length, .width = 12, .layers = 2, .heads = 3, .ff = 10, .dropout = 0}, 3};
}

/// The forms that a translator offers.
std::vector<nn::EncoderDecoderOptions> forms() {
  std::vector<nn::EncoderDecoderOptions> result(4, small_options());
  result[1].positions = nn::Positions::sinusoidal;
  result[1].scales_embeddings = true;
  result[1].activation = nn::Activation::relu;
  result[1].initialization = nn::Initialization::xavier;
  result[1].tied_head = true;
  result[2].positions = nn::Positions::rotary;
  result[2].norm = nn::NormKind::rms;
  result[2].activation = nn::Activation::silu;
  result[2].gated = true;
  result[2].bias = false;
  result[3].activation = nn::Activation::gelu_tanh;
  result[3].scales_embeddings = true;
  result[3].kv_heads = 1;
  return result;
}

Tensor ids(unsigned seed, std::int64_t rows, std::int64_t columns, Device device = cpu) {
  return draw_ids(seed, {rows, columns}, vocab, device);
}

Tensor lengths_on(Device device) { return Tensor::from(source_lengths, {batch}, device); }

/// softmax(q k^T / sqrt(D)) v, head by head, for q (T, H D) and k, v (S, H D).
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t heads, bool causal) {
  const std::int64_t head = q.size(1) / heads, rows = q.size(0), columns = k.size(0);
  const Tensor future = full({rows, columns}, 0, DType::boolean);
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t s = t + 1; causal && s < columns; ++s) future.data<bool>()[t * columns + s] = true;
  Tensors joined;
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto of_head = [&](const Tensor& x) { return slice(x, 1, h * head, (h + 1) * head); };
    const Tensor scores = matmul(of_head(q), transpose(of_head(k), 0, 1)) / std::sqrt(double(head));
    joined.push_back(matmul(softmax(masked_fill(scores, future, -1e30)), of_head(v)));
  }
  return cat(joined, 1);
}

/// A body's states of one sentence x (T), in a form with LayerNorm and GELU, without dropout.
Tensor reference_states(const nn::TransformerModel& body, const Tensor& x, const Tensor& memory) {
  const std::int64_t width = body.options.width, heads = body.options.heads;
  const auto norm = [](const nn::Norm& o, const Tensor& y) { return layer_norm(y, o.weight, o.bias, o.eps); };
  const auto product = [](const nn::Linear& o, const Tensor& y) { return matmul(y, transpose(o.weight, 0, 1)) + o.bias; };
  Tensor y = embedding(body.tokens.weight, x) + slice(body.positions->weight, 0, 0, x.size(0));
  for (const nn::TransformerLayer& block : body.blocks) {
    const Tensors own = split(product(*block.attn.qkv, norm(block.norm1, y)), width, 1);
    y = y + product(block.attn.proj, attend(own[0], own[1], own[2], heads, memory.defined()));
    if (memory.defined()) {
      const Tensor q = product(*block.cross_attn->query, norm(*block.norm_cross, y));
      const Tensors seen = split(product(*block.cross_attn->key_value, memory), width, 1);
      y = y + product(block.cross_attn->proj, attend(q, seen[0], seen[1], heads, false));
    }
    y = y + product(block.ff.proj, gelu(product(block.ff.fc, norm(block.norm2, y))));
  }
  return norm(*body.norm, y);
}

void check_reference(Device device) {
  const NoGrad unrecorded;
  manual_seed(21);
  nn::EncoderDecoder model(small_options());
  nn::to(model, DType::f64);
  const Tensor src = ids(1, batch, sources), tgt = ids(2, batch, targets);
  Tensors rows;
  for (std::int64_t b = 0; b < batch; ++b) {
    const Tensor memory = reference_states(model.encoder, slice(select(src, 0, b), 0, 0, source_lengths[std::size_t(b)]), {});
    const Tensor states = reference_states(model.decoder, select(tgt, 0, b), memory);
    rows.push_back(unsqueeze(matmul(states, transpose(model.head.weight, 0, 1)) + model.head.bias, 0));
  }
  const Tensor expected = cat(rows, 0);
  for (const DType dtype : {DType::f64, DType::f32}) {
    nn::EncoderDecoder own = nn::clone(model);
    nn::to(own, dtype);
    nn::to(own, device);
    for (const bool is_fused : {false, true}) {
      const FusedKernels kernels(is_fused);
      const Tensor logits = own.forward(to(src, device), lengths_on(device), to(tgt, device));
      CHECK(logits.shape() == Shape{batch, targets, vocab});
      CHECK(distance(to(logits, cpu), expected) < (dtype == DType::f64 ? 1e-6 : 2e-5));
    }
  }
}

struct Pass {
  Tensor logits, loss;
  Tensors gradients;
};

Pass pass(const nn::EncoderDecoderOptions& options, bool is_fused, Device device) {
  const FusedKernels kernels(is_fused);
  manual_seed(3);
  nn::EncoderDecoder model(options);
  nn::to(model, device);
  const Tensor src = ids(1, batch, sources, device), tgt = ids(2, batch, targets, device), labels = ids(3, batch, targets, device);
  const CrossEntropyOptions smoothed{.ignore_index = 4, .label_smoothing = 0.1};
  Pass result;
  manual_seed(5);  // for dropout
  result.logits = model.forward(src, lengths_on(device), tgt);
  manual_seed(5);
  result.loss = model.loss(src, lengths_on(device), tgt, labels, smoothed);
  CHECK(distance(result.loss, cross_entropy(result.logits, labels, smoothed)) < 1e-6);
  result.loss.backward();
  for (const Tensor& x : nn::parameters(model)) result.gradients.push_back(x.grad());
  return result;
}

void check_agreement(Device device) {
  for (nn::EncoderDecoderOptions o : forms())
    for (const double dropout : {0.0, 0.3}) {
      o.dropout = dropout;
      o.attention_dropout = dropout / 2;
      o.activation_dropout = -1;
      const Pass plain = pass(o, false, device), fused = pass(o, true, device);
      CAPTURE(int(o.positions), dropout);
      CHECK(distance(plain.logits, fused.logits) < 1e-5);
      CHECK(distance(plain.loss, fused.loss) < 2e-6);
      REQUIRE(plain.gradients.size() == fused.gradients.size());
      for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
        REQUIRE(plain.gradients[i].defined());
        CHECK(distance(plain.gradients[i], fused.gradients[i]) < 1e-5);
      }
    }
}

void check_cache(Device device) {
  const NoGrad unrecorded;
  for (nn::EncoderDecoderOptions o : forms())
    for (const bool is_fused : {false, true}) {
      CAPTURE(int(o.positions), is_fused);
      const FusedKernels kernels(is_fused);
      manual_seed(6);
      nn::EncoderDecoder model(o);
      nn::to(model, device);
      model.eval();
      const Tensor src = ids(1, batch, sources, device), tgt = ids(2, batch, targets, device);
      const nn::Memory memory = model.encode(src, lengths_on(device));
      const Tensor expected = model.hidden(tgt, memory);
      for (const std::int64_t first : {1, 2}) {
        nn::KvCache cache = model.cache(batch, targets);
        CHECK(distance(model.hidden(slice(tgt, 1, 0, first), memory, &cache), slice(expected, 1, 0, first)) < 2e-5);
        for (std::int64_t t = first; t < targets; ++t)
          CHECK(distance(model.hidden(slice(tgt, 1, t, t + 1), memory, &cache), slice(expected, 1, t, t + 1)) < 2e-5);
      }
    }
}

}  // namespace

TEST_CASE("An encoder-decoder computes what each sentence gives alone") { check_reference(cpu); }
TEST_CASE("An encoder-decoder on a GPU computes what each sentence gives alone", "[cuda]") { check_reference(cuda()); }
TEST_CASE("Fused and plain encoder-decoders agree, with the same dropout") { check_agreement(cpu); }
TEST_CASE("Fused and plain encoder-decoders agree on a GPU, with the same dropout", "[cuda]") { check_agreement(cuda()); }
TEST_CASE("An encoder-decoder that reads its target with a cache gives what it gives at once") { check_cache(cpu); }
TEST_CASE("An encoder-decoder on a GPU that reads its target with a cache gives what it gives at once", "[cuda]") { check_cache(cuda()); }

TEST_CASE("An encoder-decoder's gradients are those of finite differences") {
  manual_seed(7);
  nn::EncoderDecoder model({{.vocab = 5, .length = 3, .width = 4, .layers = 1, .heads = 2, .ff = 3, .dropout = 0, .tied_head = true}, 1});
  nn::to(model, DType::f64);
  const Tensor src = Tensor::from(std::vector<std::int64_t>{1, 4, 2, 3, 0, 0}, {2, 3}),
               src_lengths = Tensor::from(std::vector<std::int64_t>{3, 1}, {2});
  const Tensor tgt = Tensor::from(std::vector<std::int64_t>{0, 2, 0, 3}, {2, 2}),
               labels = Tensor::from(std::vector<std::int64_t>{2, 1, 3, 4}, {2, 2});
  for (const bool is_fused : {false, true}) {
    const FusedKernels kernels(is_fused);
    const GradcheckResult result =
        gradcheck([&](const Tensors&) -> Tensors { return {model.loss(src, src_lengths, tgt, labels, {.label_smoothing = 0.1})}; },
                  nn::parameters(model));
    INFO(result.message);
    CHECK(result.ok);
  }
}

TEST_CASE("What fills a source up changes nothing") {
  const NoGrad unrecorded;
  for (nn::EncoderDecoderOptions o : forms())
    for (const bool is_fused : {false, true}) {
      CAPTURE(int(o.positions), is_fused);
      const FusedKernels kernels(is_fused);
      manual_seed(8);
      nn::EncoderDecoder model(o);
      model.eval();
      const Tensor src = ids(1, batch, sources), tgt = ids(2, batch, targets), logits = model.forward(src, lengths_on(cpu), tgt);
      const Tensor columns = reshape(arange(sources, DType::i64), {1, sources}), ends = unsqueeze(lengths_on(cpu), 1);
      CHECK(distance(model.forward(where(lt(columns, ends), src, ids(9, batch, sources)), lengths_on(cpu), tgt), logits) == 0);
      for (std::int64_t b = 0; b < batch; ++b) {
        const Tensor own = slice(slice(src, 0, b, b + 1), 1, 0, source_lengths[std::size_t(b)]);
        CHECK(distance(model.forward(own, {}, slice(tgt, 0, b, b + 1)), slice(logits, 0, b, b + 1)) < 1e-5);
        // And what is part of it changes something.
        const Tensor other = where(eq(own, 0.0), own + 1, own - 1);
        CHECK(distance(model.forward(other, {}, slice(tgt, 0, b, b + 1)), slice(logits, 0, b, b + 1)) > 1e-3);
      }
    }
}

TEST_CASE("An encoder-decoder has one table, counted and saved once") {
  nn::EncoderDecoderOptions o = small_options();
  o.layers = o.encoder_layers = 1;
  std::vector<std::string> names;
  const nn::EncoderDecoder model(o);
  for (const NamedTensor& entry : nn::named_parameters(model)) names.push_back(entry.name);
  const auto layer = [](const std::string& at, bool cross) {
    std::vector<std::string> parts{"norm1", "attn.qkv", "attn.proj"};
    if (cross) parts.insert(parts.end(), {"norm_cross", "cross_attn.query", "cross_attn.key_value", "cross_attn.proj"});
    parts.insert(parts.end(), {"norm2", "ff.fc", "ff.proj"});
    for (std::string& part : parts) part = at + ".blocks.0." + part;
    return parts;
  };
  std::vector<std::string> expected{"encoder.tokens.weight", "encoder.positions.weight"};
  const auto add = [&](const std::string& part) {
    expected.push_back(part + ".weight");
    expected.push_back(part + ".bias");
  };
  for (const std::string& part : layer("encoder", false)) add(part);
  add("encoder.norm");
  expected.emplace_back("decoder.positions.weight");
  for (const std::string& part : layer("decoder", true)) add(part);
  add("decoder.norm");
  add("head");
  CHECK(names == expected);

  o.tied_head = true;
  nn::EncoderDecoder tied(o);
  CHECK(nn::count_parameters(model) - nn::count_parameters(tied) == vocab * 12);
  const nn::EncoderDecoder copy = nn::clone(tied);
  for (const nn::EncoderDecoder* m : std::initializer_list<const nn::EncoderDecoder*>{&tied, &copy}) {
    CHECK(m->head.weight.is_same(m->encoder.tokens.weight));
    CHECK(m->decoder.tokens.weight.is_same(m->encoder.tokens.weight));
  }
  CHECK(!copy.head.weight.is_same(tied.head.weight));
  nn::to(tied, DType::f64);
  CHECK(tied.decoder.tokens.weight.dtype() == DType::f64);
  CHECK(tied.forward(ids(1, batch, sources), lengths_on(cpu), ids(2, batch, targets)).dtype() == DType::f64);
  // 0 layers of an encoder stand for the decoder's number.
  o.layers = 2;
  o.encoder_layers = 0;
  CHECK(nn::EncoderDecoder(o).encoder.blocks.size() == 2);
}

TEST_CASE("Rows of an encoder-decoder's cache can be selected, with and without their memories") {
  const NoGrad unrecorded;
  manual_seed(10);
  for (const bool is_fused : {false, true}) {
    const FusedKernels kernels(is_fused);
    const nn::EncoderDecoder model(small_options());
    const Tensor src = ids(1, batch, sources), tgt = ids(2, batch, targets);
    const nn::Memory memory = model.encode(src, lengths_on(cpu));
    const auto next_of = [&](nn::KvCache& cache, const Tensor& chosen) { return model.hidden(slice(chosen, 1, 3, 4), memory, &cache); };
    const auto last_of = [&](const Tensor& sources_of, const Tensor& ends, const Tensor& chosen) {
      return slice(model.hidden(slice(chosen, 1, 0, 4), model.encode(sources_of, ends)), 1, 3, 4);
    };
    for (const std::int64_t used : {0, 3, 4})
      for (const std::vector<std::int64_t>& picked : {std::vector<std::int64_t>{2, 0, 0}, {1}, {2, 2, 1, 0}}) {
        CAPTURE(used, picked.size());
        const Tensor rows = Tensor::from(picked, {static_cast<std::int64_t>(picked.size())});
        nn::KvCache cache = model.cache(batch, targets);
        model.hidden(slice(tgt, 1, 0, 3), memory, &cache);
        cache.select(rows, false, used);
        CHECK(cache.batch() == rows.size(0));
        const Tensor chosen = index_select(tgt, 0, rows);
        CHECK(distance(next_of(cache, chosen), last_of(index_select(src, 0, rows), index_select(lengths_on(cpu), 0, rows), chosen)) < 1e-5);
        // The tokens behind those that were copied find their place as well.
        CHECK(distance(model.hidden(slice(chosen, 1, 4, 5), memory, &cache),
                       slice(model.hidden(chosen, model.encode(index_select(src, 0, rows), index_select(lengths_on(cpu), 0, rows))), 1, 4,
                             5)) < 1e-5);
      }
    // Rows that stay with their memories. In a single layer the keys and values of a target's tokens know nothing of the source.
    nn::EncoderDecoderOptions o = small_options();
    o.layers = 1;
    const nn::EncoderDecoder shallow(o);
    const nn::Memory own = shallow.encode(src, lengths_on(cpu));
    const Tensor rows = Tensor::from(std::vector<std::int64_t>{1, 2, 0}, {3}), chosen = index_select(tgt, 0, rows);
    nn::KvCache cache = shallow.cache(batch, targets);
    shallow.hidden(slice(tgt, 1, 0, 3), own, &cache);
    cache.select(rows, true, 3);
    CHECK(distance(shallow.hidden(slice(chosen, 1, 3, 4), own, &cache), slice(shallow.hidden(slice(chosen, 1, 0, 4), own), 1, 3, 4)) <
          1e-5);
    CHECK(memory.mask.key_lengths.to_vector<std::int64_t>() == source_lengths);
    CHECK_THROWS_WITH(cache.select(slice(rows, 0, 0, 2), true),
                      "[KvCache] expected 3 rows, which keep the memories of those before them, but got 2");
    CHECK_THROWS_WITH(cache.select(rows, false, targets + 1), "[KvCache] expected used in [0, 5], the cache's capacity, but got 6");
    CHECK_THROWS_WITH(cache.select(rows, false, 3), "[KvCache] expected used to count the longest row's tokens but one has more than 3");
    CHECK_THROWS_WITH(cache.select(zeros({1, 1}, DType::i64)), "[KvCache] expected rows (N) to select but got (1, 1)");
  }
}

TEST_CASE("An encoder-decoder refuses what does not fit, in one line") {
  nn::EncoderDecoderOptions o = small_options();
  const nn::EncoderDecoder model(o);
  const Tensor src = ids(1, 2, 3), tgt = ids(2, 2, 2);
  CHECK_THROWS_WITH(model.encode(src, Tensor::from(std::vector<std::int64_t>{3}, {1})),
                    "[EncoderDecoder] expected src_lengths (B) of i64 or i32, one for each row of src_ids (2, 3), but got i64 (1,)");
  CHECK_THROWS_WITH(model.encode(ids(1, 1, 10)),
                    "[EncoderDecoder] expected at most 9 positions but got ids (1, 10), in module encoder (EncoderDecoder)");
  CHECK_THROWS_WITH(model.encode(zeros({1, 3})),
                    "[EncoderDecoder] expected ids (B, T) of i64 or i32 but got f32 (1, 3), in module encoder (EncoderDecoder)");
  CHECK_THROWS_WITH(model.hidden(tgt, {}), "[EncoderDecoder] expected a memory, which encode gives, but got none");
  CHECK_THROWS_WITH(model.cache(1, 10), "[EncoderDecoder] expected a cache of at most 9 tokens, the model's length, but got 10");
  CHECK_THROWS_AS(model.forward(tgt, model.encode(ids(1, 3, 3))), Error);
  o.encoder_layers = -1;
  CHECK_THROWS_WITH(nn::EncoderDecoder(o), "[EncoderDecoder] expected encoder_layers >= 0 but got -1");
}
