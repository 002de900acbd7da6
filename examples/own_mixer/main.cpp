// A token mixer of one's own in a language model: what it costs is the struct Writer. The model learns to go on with texts that repeat.
// expected.txt is what this prints.
#include <tern/tern.h>

#include <cmath>
#include <cstdio>

using namespace tern;

namespace {

// One head that writes by the delta rule, at a rate that each token chooses, in place of what its key had before.
struct Writer final : nn::MixerOf<Writer> {
  explicit Writer(std::int64_t width) : qkv(width, 3 * width), rate(width, 1), proj(width, width) {}
  void visit(nn::Visitor& v) override {
    v("qkv", qkv);
    v("rate", rate);
    v("proj", proj);
  }
  // x (B, T, width) -> (B, T, width). A state is there where a text is read in pieces: what one leaves for the next.
  Tensor forward(const Tensor& x, nn::MixerState* state) const override {
    const std::int64_t width = x.size(2);
    const Tensors parts = chunk(reshape(qkv.forward(x), {x.size(0), x.size(1), 3, width}), 3, 2);  // (B, T, 1, width) each
    const Tensor keys = rms_norm(parts[1], {}) * std::sqrt(1.0 / double(width));                   // of length 1
    const Tensor before = state && !state->kept.empty() ? state->kept[0] : Tensor();
    const Recurrence result =
        linear_recurrence(rms_norm(parts[0], {}), keys, parts[2], {.beta = sigmoid(rate.forward(x)), .initial_state = before});
    if (state) state->kept = {result.state};
    return proj.forward(squeeze(result.y, 2));
  }
  nn::Linear qkv, rate, proj;
};

// Texts (B, T) that repeat 8 random tokens of 16.
Tensor texts(std::int64_t rows, std::int64_t length) { return tile(randint(0, 16, {rows, 8}), {1, length / 8}); }

}  // namespace

int main() {
  manual_seed(1);
  const nn::MixerOptions conv{.kind = nn::MixerKind::conv},
      own{.kind = nn::MixerKind::own, .own = [](std::int64_t width) { return Writer(width); }};
  nn::DecoderLM model(nn::DecoderLMOptions{.vocab = 16,
                                           .length = 64,
                                           .width = 64,
                                           .layers = 2,
                                           .ff = 64,
                                           .mixers = {conv, own},
                                           .dropout = 0,
                                           .positions = nn::Positions::none});
  train::AdamW optimizer(nn::parameters(model), {.lr = 3e-3});
  for (int step = 0; step < 800; ++step) {
    const Tensor ids = texts(16, 32);
    train::update(model.loss(slice(ids, 1, 0, 31), slice(ids, 1, 1)), optimizer);
  }

  // Longer texts than those of the training, token by token: the states of the mixers take the place of keys and values.
  const NoGrad unrecorded;
  model.eval();
  const Tensor ids = texts(100, 64), at_once = model.hidden(ids);
  nn::KvCache cache = model.cache(100, 64);
  double right = 0, apart = 0;
  for (std::int64_t t = 0; t < 63; ++t) {
    const Tensor states = model.hidden(slice(ids, 1, t, t + 1), {.causal = true}, {}, &cache);
    apart = std::max(apart, max(abs(states - slice(at_once, 1, t, t + 1))).item<double>());
    const Tensor guesses = argmax(model.head.forward(squeeze(states, 1)));
    if (t >= 10) right += mean(cast(eq(guesses, select(ids, 1, t + 1)), DType::f32)).item<double>() / 53;
  }
  std::printf("right after the first period: %s\n", right > 0.9 ? "more than 90 %" : "less");
  std::printf("token by token as at once: %s\n", apart < 1e-3 ? "yes" : "no");
  if (right <= 0.9) std::printf("%.1f %%\n", 100 * right);
}
