// LSTM and GRU against their cells, step by step.
#include "ops/recurrent.h"

#include "nn/fixture.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace tern;

namespace {

struct Result {
  Tensor y, h, c;  ///< (B, T, D H), and the last states (L D, B, H)
};

/// Layers, directions and steps one after another, of x (B, T, in), with the cells that the op table tests.
Result recurrence(bool is_lstm, const nn::RecurrentLayers& layers, Tensor x, const Tensor& h0, const Tensor& c0) {
  const auto ways = static_cast<std::size_t>(layers.ways());
  const std::int64_t steps = x.size(1);
  Tensors last_h, last_c;
  for (std::size_t first = 0; first < layers.directions.size(); first += ways) {
    Tensors of_ways;
    for (std::size_t way = 0; way < ways; ++way) {
      const nn::RecurrentWeights& w = layers.directions[first + way];
      const auto state = [&](const Tensor& all) {
        return all.defined() ? select(all, 0, std::int64_t(first + way)) : zeros({x.size(0), layers.hidden});
      };
      Tensor h = state(h0), c = state(c0);
      Tensors outputs(static_cast<std::size_t>(steps));
      for (std::int64_t t = 0; t < steps; ++t) {
        const std::int64_t now = way == 0 ? t : steps - 1 - t;
        const Tensor a = linear(select(x, 1, now), w.weight_ih, w.bias_ih), b = linear(h, w.weight_hh, w.bias_hh);
        const LSTMState after = is_lstm ? lstm_cell(a, b, c) : LSTMState{gru_cell(a, b, h), c};
        h = after.h, c = after.c;
        outputs[static_cast<std::size_t>(now)] = h;
      }
      of_ways.push_back(stack(outputs, 1));
      last_h.push_back(h), last_c.push_back(c);
    }
    x = cat(of_ways, 2);
  }
  return {x, stack(last_h, 0), stack(last_c, 0)};
}

constexpr std::int64_t batch = 3, steps = 5, in = 4, hidden = 3;

void check(bool is_lstm, const nn::RecurrentOptions& o, bool has_state) {
  const std::int64_t states = o.layers * (o.bidirectional ? 2 : 1);
  const nn::LSTM lstm(in, hidden, o);
  const nn::GRU gru(in, hidden, o);
  const Tensor x = randn({batch, steps, in}), given = o.batch_first ? x : transpose(x, 0, 1);
  const Tensor h = has_state ? randn({states, batch, hidden}) : Tensor(),
               c = has_state && is_lstm ? randn({states, batch, hidden}) : Tensor();
  const Result want = recurrence(is_lstm, is_lstm ? lstm.layers : gru.layers, x, h, c);
  const Tensor y = o.batch_first ? want.y : transpose(want.y, 0, 1);
  if (is_lstm) {
    const nn::LSTMResult got = lstm(given, LSTMState{h, c});
    CHECK(got.y.shape() == y.shape());
    CHECK(distance(got.y, y) < 2e-6);
    CHECK(distance(got.state.h, want.h) < 2e-6);
    CHECK(distance(got.state.c, want.c) < 2e-6);
  } else {
    const nn::GRUResult got = gru(given, h);
    CHECK(got.y.shape() == y.shape());
    CHECK(distance(got.y, y) < 2e-6);
    CHECK(distance(got.h, want.h) < 2e-6);
  }
}

}  // namespace

TEST_CASE("LSTM and GRU are their cells step by step, with layers, directions, layouts and states", "[recurrent]") {
  manual_seed(11);
  for (const bool is_lstm : {true, false})
    for (const nn::RecurrentOptions& o : {nn::RecurrentOptions{},
                                          {.layers = 2, .bias = false},
                                          {.bidirectional = true},
                                          {.layers = 3, .bidirectional = true, .batch_first = false},
                                          {.batch_first = false}})
      for (const bool has_state : {false, true}) {
        INFO("lstm " << is_lstm << ", layers " << o.layers << ", bidirectional " << o.bidirectional << ", state " << has_state);
        check(is_lstm, o, has_state);
      }
}

TEST_CASE("a sequence in two parts with the state handed on is the whole one", "[recurrent]") {
  manual_seed(13);
  const nn::LSTM lstm(3, 4, {.layers = 2});
  const nn::GRU gru(3, 4, {.layers = 2});
  const Tensor x = randn({2, 7, 3}), a = slice(x, 1, 0, 3), b = slice(x, 1, 3, 7);
  CHECK(distance(lstm(b, lstm(a).state).y, slice(lstm(x).y, 1, 3, 7)) < 1e-6);
  CHECK(distance(gru(b, gru(a).h).y, slice(gru(x).y, 1, 3, 7)) < 1e-6);
}

TEST_CASE("dropout of recurrent layers acts between layers, while training", "[recurrent]") {
  nn::LSTM two(3, 4, {.layers = 2, .dropout = 0.5}), one(3, 4, {.dropout = 0.5});
  const Tensor x = randn({2, 4, 3});
  const auto run = [&](const nn::LSTM& lstm, std::uint64_t seed) {
    manual_seed(seed);
    return lstm(x).y;
  };
  CHECK(distance(run(two, 1), run(two, 2)) > 0);
  CHECK(distance(run(one, 1), run(one, 2)) == 0);  // nothing lies between
  two.eval();
  CHECK(distance(run(two, 1), run(two, 2)) == 0);
}

TEST_CASE("recurrent parameters have PyTorch's names and bounds, and print", "[recurrent]") {
  manual_seed(14);
  const nn::LSTM lstm(3, 16, {.layers = 2, .bidirectional = true});
  std::vector<std::string> names;
  for (const NamedTensor& entry : nn::named_parameters(lstm)) names.push_back(entry.name);
  CHECK(std::vector<std::string>(names.begin(), names.begin() + 9) ==
        std::vector<std::string>{"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_ih_l0_reverse", "weight_hh_l0_reverse",
                                 "bias_ih_l0_reverse", "bias_hh_l0_reverse", "weight_ih_l1"});
  CHECK(lstm.layers.directions[2].weight_ih.shape() == Shape{64, 32});
  for (const Tensor& x : nn::parameters(lstm))
    for (const float v : floats(x)) CHECK(std::abs(v) <= 0.25f);
  CHECK(nn::to_string(nn::GRU(3, 16)) == "GRU(3, 16)");
  CHECK(nn::to_string(nn::LSTM(3, 16, {.layers = 2, .bias = false, .bidirectional = true, .batch_first = false, .dropout = 0.25})) ==
        "LSTM(3, 16, layers=2, bias=false, bidirectional=true, batch_first=false, dropout=0.25)");
  CHECK(nn::parameters(nn::GRU(3, 5, {.bias = false}))[0].shape() == Shape{15, 3});
}

TEST_CASE("recurrent modules refuse wrong shapes in one line", "[recurrent]") {
  const nn::LSTM lstm(3, 4);
  CHECK_THROWS_WITH(lstm(zeros({2, 5, 4})), "[LSTM] expected x (B, T, 3) with one step or more but got (2, 5, 4)");
  CHECK_THROWS_AS(lstm(zeros({2, 3})), Error);
  CHECK_THROWS_AS(lstm(zeros({2, 0, 3})), Error);
  CHECK_THROWS_AS(lstm(zeros({2, 5, 3}), LSTMState{zeros({1, 2, 4}), {}}), Error);
  CHECK_THROWS_WITH(nn::GRU(3, 4)(zeros({2, 5, 3}), zeros({2, 2, 4})), "[GRU] expected states (1, 2, 4) for x (2, 5, 3) but got (2, 2, 4)");
  CHECK_THROWS_AS(nn::LSTM(0, 4), Error);
  CHECK_THROWS_AS(nn::GRU(3, 4, {.layers = 0}), Error);
  CHECK_THROWS_AS(nn::GRU(3, 4, {.dropout = 1}), Error);
}

TEST_CASE("LSTM under autocast computes its products in 16 bits and keeps its cell", "[recurrent]") {
  manual_seed(15);
  const nn::LSTM lstm(3, 4);
  const nn::GRU gru(3, 4);
  const Tensor x = randn({2, 6, 3});
  const Tensor exact = lstm(x).y, exact_gru = gru(x).y;
  const Autocast autocast(DType::bf16);
  CHECK(distance(lstm(x).y, exact) < 0.02);
  CHECK(lstm(x).state.c.dtype() == DType::f32);
  CHECK(distance(gru(x).y, exact_gru) < 0.02);
}

TEST_CASE("Recurrent modules and modules of images on a GPU give what the CPU gives", "[cuda]") {
  manual_seed(16);
  const Tensor sequence = randn({3, 5, 4}), images = randn({4, 2, 6, 6});
  const auto compare = [](const auto& module, const Tensor& x, auto output) {
    auto other = nn::clone(module);
    nn::to(other, cuda());
    const Tensor y = output(module, x), z = output(other, to(x, cuda()));
    CHECK(distance(y, to(z, cpu)) < 1e-5);
    sum(square(y)).backward();
    sum(square(z)).backward();
    const Tensors ours = nn::parameters(module), theirs = nn::parameters(other);
    for (std::size_t i = 0; i < ours.size(); ++i) CHECK(distance(ours[i].grad(), to(theirs[i].grad(), cpu)) < 1e-3);
    for (std::size_t i = 0; i < nn::named_buffers(module).size(); ++i)
      CHECK(distance(nn::named_buffers(module)[i].tensor, to(nn::named_buffers(other)[i].tensor, cpu)) < 1e-5);
  };
  const nn::RecurrentOptions o{.layers = 2, .bidirectional = true};
  compare(nn::LSTM(4, 3, o), sequence, [](const nn::LSTM& m, const Tensor& x) { return m(x).y; });
  compare(nn::GRU(4, 3, o), sequence, [](const nn::GRU& m, const Tensor& x) { return m(x).y; });
  compare(nn::Sequential(nn::Conv2d(2, 4, 3, {.padding = 1}), nn::BatchNorm2d(4), nn::ELU(), nn::MaxPool2d(2), nn::GroupNorm(2, 4)), images,
          [](const nn::Sequential& m, const Tensor& x) { return m(x); });
}
