// Quantised models: one door, ties, files, decoding; and no training.
#include "message.h"
#include "nn/fixture.h"
#include "nn/layers.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"

using namespace tern;

namespace {

nn::EncoderDecoder some_translator() {
  manual_seed(13);
  nn::EncoderDecoderOptions options;
  options.vocab = 53, options.length = 14, options.width = 48, options.layers = 2, options.heads = 4, options.ff = 40, options.dropout = 0;
  options.tied_head = true, options.activation = nn::Activation::gelu_tanh;
  nn::EncoderDecoder model(options);
  model.eval();
  return model;
}

nn::DecoderLM some_model() {
  manual_seed(12);
  nn::DecoderLM model({.vocab = 53, .length = 14, .width = 48, .layers = 2, .heads = 4, .ff = 40, .dropout = 0});
  model.eval();
  return model;
}

/// Each matrix becomes the values that its quantised form stands for.
void round_weights(nn::Module& model, QuantFormat format) {
  const NoGrad unrecorded;
  for (const NamedTensor& entry : nn::named_parameters(model))
    if (entry.tensor.dims() == 2) copy_(entry.tensor, dequantize(quantize(entry.tensor, format)));
}

Tensor ids(const std::vector<std::int64_t>& values) { return Tensor::from(values, {1, static_cast<std::int64_t>(values.size())}); }

const std::vector<nn::TokenIds> texts = {{3, 9, 4}, {7}, {50, 2, 31, 8, 8}};

}  // namespace

TEST_CASE("A quantised model gives what its rounded float32 weights give") {
  const NoGrad unrecorded;
  const Tensor src = ids({5, 6, 7, 1}), tgt = ids({2, 9, 9}), labels = ids({9, 9, 4});
  for (QuantFormat format : {QuantFormat::int8, QuantFormat::q8_0, QuantFormat::q4_0}) {
    INFO(name(format));
    // Activations have 16 bits, or 8 beside weights in blocks.
    const double error = has_blocks(format) ? 3e-2 : 2e-3, epsilon = has_blocks(format) ? 5e-3 : 1e-4;
    nn::EncoderDecoder model = some_translator(), rounded = some_translator();
    nn::quantize(model, format);
    round_weights(rounded, format);
    CHECK(distance(floats(model.forward(src, {}, tgt)), floats(rounded.forward(src, {}, tgt))) < error);
    CHECK(model.loss(src, {}, tgt, labels).item() == Approx(rounded.loss(src, {}, tgt, labels).item()).epsilon(epsilon));
    nn::DecoderLM lm = some_model(), rounded_lm = some_model();
    nn::quantize(lm, format);
    round_weights(rounded_lm, format);
    const Tensor places = ids({0, 1, 5});
    CHECK(distance(floats(lm.forward(tgt)), floats(rounded_lm.forward(tgt))) < error);
    CHECK(distance(floats(lm.forward(tgt, {.causal = true}, places)), floats(rounded_lm.forward(tgt, {.causal = true}, places))) < error);
  }
}

TEST_CASE("A quantised model decodes, with and without company, and in 16 bits") {
  const auto decode = [](const nn::EncoderDecoder& model, const std::vector<nn::TokenIds>& sources) {
    std::vector<nn::TokenIds> result;
    for (const auto& row : nn::generate(nn::read_sources(model, sources, {.start = 1}), {.eos = 2})) result.push_back(row.at(0).tokens);
    return result;
  };
  for (QuantFormat format : quant_formats) {
    INFO(name(format));
    nn::EncoderDecoder model = some_translator();
    nn::quantize(model, format);
    const auto together = decode(model, texts);
    for (std::size_t i = 0; i < texts.size(); ++i) CHECK(decode(model, {texts[i]}).at(0) == together.at(i));
    nn::to(model, DType::bf16);
    const NoGrad unrecorded;
    const Tensor logits = model.forward(ids({5, 6}), {}, ids({1, 2}));
    CHECK(logits.dtype() == DType::bf16);
    CHECK(std::isfinite(sum(cast(logits, DType::f32)).item()));
  }
}

TEST_CASE("Quantised weights are buffers, a tied one once, which another model takes") {
  nn::EncoderDecoder model = some_translator();
  // The table; qkv, proj, fc and proj of an encoder's layer; those and query, key_value and proj of a decoder's; two tables of positions.
  const std::size_t matrices = 1 + 2 * 4 + 2 * 7 + 2;
  std::size_t vectors = 0;
  for (const NamedTensor& entry : nn::named_parameters(model)) vectors += entry.tensor.dims() == 1;
  nn::quantize(model, QuantFormat::q4_0);
  CHECK(nn::named_parameters(model).size() == vectors);
  const auto buffers = nn::named_buffers(model);
  CHECK(buffers.size() == matrices);
  CHECK(model.head.quantized.rows.is_same(model.encoder.tokens.quantized.rows));
  CHECK(buffers.front().name == "encoder.tokens.weight");
  CHECK(buffers.front().tensor.shape() == Shape{53, 36});
  for (const NamedTensor& entry : nn::named_parameters(model)) CHECK(!entry.tensor.requires_grad());

  nn::EncoderDecoder read = some_translator();
  nn::make_quantized(read, QuantFormat::q4_0);
  const auto places = nn::named_buffers(read);
  REQUIRE(places.size() == buffers.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    CHECK(places[i].name == buffers[i].name);
    copy_(places[i].tensor, buffers[i].tensor);
  }
  CHECK(nn::find_bad_scale(read).empty());
  const NoGrad unrecorded;
  CHECK(floats(read.forward(ids({5, 6}), {}, ids({1}))) == floats(model.forward(ids({5, 6}), {}, ids({1}))));
  fill_(read.decoder.blocks[1].ff.fc.quantized.rows, 0xff);  // f16: NaN
  CHECK(nn::find_bad_scale(read) == "decoder.blocks.1.ff.fc.weight");
}

TEST_CASE("A quantised model refuses a gradient, and to be quantised again") {
  nn::DecoderLM model = some_model();
  nn::quantize(model, QuantFormat::int8);
  CHECK(message_of([&] { nn::quantize(model, QuantFormat::int8); }).find("quantised already") != std::string::npos);
  CHECK_NOTHROW(model.loss(ids({1, 2}), ids({2, 3})));
  nn::set_requires_grad(model, true);
  CHECK(message_of([&] { model.loss(ids({1, 2}), ids({2, 3})); }).find("a quantised weight is for inference") != std::string::npos);

  nn::DecoderLM spoilt = some_model();
  fill_(spoilt.head.weight.detach(), std::nan(""));
  const std::string refused = message_of([&] { nn::quantize(spoilt, QuantFormat::int8); });
  CHECK(refused.find("'head'") != std::string::npos);
  CHECK(refused.find("finite") != std::string::npos);
  CHECK(spoilt.tokens.weight.defined());  // as it was
}
