// Steps of decoding with a KvCache as compiled functions: the logits and tokens of those as written, from the first token to a full cache.
#include <fmt/format.h>

#include "catch.h"
#include "compile/compile.h"
#include "nn/nn.h"
#include "nn/small_decoder.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"

using namespace tern;

namespace {

constexpr std::int64_t vocab = test::small_vocab, length = 22;

/// Tokens (N, T) of a text, which begins with prompts of `prompt` tokens, row i without its last i, and logits of all steps. The rows are
/// reordered, as by beam search, in the middle.
struct Text {
  std::vector<std::int64_t> tokens;
  std::vector<float> logits;
};
Text decoded(const nn::DecoderLM& model, nn::KvCache& cache, std::int64_t rows, std::int64_t prompt,
             const std::function<Tensor(const Tensor&)>& next) {
  const NoGrad unrecorded;
  const Device device = cache.lengths.device();
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < rows; ++i) lengths.push_back(prompt - i);
  manual_seed(static_cast<std::uint64_t>(prompt));
  Text text;
  cache.restart(rows);
  const Tensor ids = to(cast(tern::rand({rows, prompt}, 0, static_cast<double>(vocab)), DType::i64), device);
  static_cast<void>(model.hidden(ids, {.causal = true}, {}, &cache));
  copy_(cache.lengths, to(Tensor::from(lengths, {rows}, cpu), device));
  Tensor id = to(Tensor::from(std::vector<std::int64_t>(static_cast<std::size_t>(rows), 3), {rows, 1}, cpu), device);
  for (std::int64_t t = prompt; t < length; ++t) {
    const Tensor logits = next(id);
    id = reshape(argmax(logits, 1), {rows, 1});
    const std::vector<std::int64_t> tokens = to(id, cpu).to_vector<std::int64_t>();
    const std::vector<float> numbers = to(logits, cpu).to_vector<float>();
    text.tokens.insert(text.tokens.end(), tokens.begin(), tokens.end());
    text.logits.insert(text.logits.end(), numbers.begin(), numbers.end());
    if (t != length / 2) continue;
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < rows; ++i) order.push_back((i + 1) % rows);
    cache.select(to(Tensor::from(order, {rows}, cpu), device));
  }
  return text;
}

void check(Device device) {
  const nn::DecoderLMOptions forms[] = {
      {}, {.kv_heads = 3, .gated = true, .bias = false, .norm = nn::NormKind::rms, .positions = nn::Positions::rotary}};
  for (const nn::DecoderLMOptions& form : forms)
    for (const bool fuse : {false, true}) {
      const nn::DecoderLM model = test::small_decoder(form, length, device);
      const auto step_in = [&](nn::KvCache& cache) {
        cache.stay();
        return [&](const Tensor& id) {
          const NoGrad unrecorded;
          return model.head.forward(squeeze(model.hidden(id, {.causal = true}, {}, &cache), 1));
        };
      };
      nn::KvCache own = model.cache(3, length), kept = model.cache(3, length);
      const auto written = step_in(own);
      auto compiled = compile(step_in(kept), device, {.fuse = fuse});
      std::int64_t prompt = 3;
      for (const std::int64_t rows : {3, 2, 3, 2, 2, 3, 4}) {  // the last ones need another cache
        ++prompt;
        CAPTURE(prompt, rows, fuse);
        const Text want = decoded(model, own, rows, prompt, written);
        const Text got = decoded(model, kept, rows, prompt, [&](const Tensor& id) { return compiled(id); });
        CHECK(got.tokens == want.tokens);
        REQUIRE(got.logits.size() == want.logits.size());
        if (!fuse || device == cpu) CHECK(got.logits == want.logits);
        bool is_close = true;
        for (std::size_t i = 0; i < got.logits.size(); ++i) is_close &= got.logits[i] == Approx(want.logits[i]).margin(1e-4);
        CHECK(is_close);
      }
      CHECK(compiled.programs() == 3);
      CHECK(compiled.runs() > 80);
    }
}

}  // namespace

TEST_CASE("A compiled step of decoding with a cache gives the tokens of the step as written") { check(cpu); }
TEST_CASE("A compiled step of decoding on a GPU gives the tokens of the step as written", "[cuda]") { check(cuda()); }
