// LSTM and GRU against their recurrences in plain loops, float64.
#include "nn/fixture.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "ops/gradcheck.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace tern;

namespace {

using Doubles = std::vector<double>;
using Rows = std::vector<Doubles>;  ///< rows of a matrix

Rows rows_of(const Tensor& x) {  // (..., N)
  const Doubles all = cast(contiguous(x.detach()), DType::f64).to_vector<double>();
  const auto width = static_cast<std::size_t>(x.size(-1));
  Rows rows;
  for (std::size_t i = 0; i < all.size(); i += width)
    rows.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(i), all.begin() + static_cast<std::ptrdiff_t>(i + width));
  return rows;
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

Doubles product(const Rows& w, const Doubles& x, const Doubles& bias) {
  Doubles y = bias.empty() ? Doubles(w.size()) : bias;
  for (std::size_t i = 0; i < w.size(); ++i)
    for (std::size_t j = 0; j < x.size(); ++j) y[i] += w[i][j] * x[j];
  return y;
}

struct Reference {
  bool is_lstm;
  const nn::RecurrentLayers& layers;

  /// One sequence: y (T, D H), and h and c after it, (layers D, H).
  struct Result {
    Rows y, h, c;
  };
  Result operator()(Rows x, const Rows& h0, const Rows& c0) const {
    Result result;
    const auto hidden = static_cast<std::size_t>(layers.hidden), ways = static_cast<std::size_t>(layers.ways());
    for (std::size_t layer = 0; layer < layers.directions.size() / ways; ++layer) {
      Rows y(x.size());
      for (std::size_t way = 0; way < ways; ++way) {
        const nn::RecurrentWeights& w = layers.directions[layer * ways + way];
        const Rows w_ih = rows_of(w.weight_ih), w_hh = rows_of(w.weight_hh);
        const Doubles b_ih = w.bias_ih.defined() ? rows_of(w.bias_ih)[0] : Doubles();
        const Doubles b_hh = w.bias_hh.defined() ? rows_of(w.bias_hh)[0] : Doubles();
        Doubles h = h0.empty() ? Doubles(hidden) : h0[layer * ways + way], c = c0.empty() ? Doubles(hidden) : c0[layer * ways + way];
        Rows outputs(x.size());
        for (std::size_t t = 0; t < x.size(); ++t) {
          const std::size_t now = way == 0 ? t : x.size() - 1 - t;
          const Doubles a = product(w_ih, x[now], b_ih), b = product(w_hh, h, b_hh);
          for (std::size_t i = 0; i < hidden; ++i) {
            const auto at = [&](const Doubles& v, std::size_t gate) { return v[gate * hidden + i]; };
            if (is_lstm) {
              c[i] = logistic(at(a, 1) + at(b, 1)) * c[i] + logistic(at(a, 0) + at(b, 0)) * std::tanh(at(a, 2) + at(b, 2));
              h[i] = logistic(at(a, 3) + at(b, 3)) * std::tanh(c[i]);
            } else {
              const double r = logistic(at(a, 0) + at(b, 0)), z = logistic(at(a, 1) + at(b, 1));
              h[i] = (1 - z) * std::tanh(at(a, 2) + r * at(b, 2)) + z * h[i];
            }
          }
          outputs[now] = h;
        }
        for (std::size_t t = 0; t < x.size(); ++t) y[t].insert(y[t].end(), outputs[t].begin(), outputs[t].end());
        result.h.push_back(h);
        result.c.push_back(c);
      }
      x = y;
    }
    result.y = x;
    return result;
  }
};

Doubles joined(const Rows& rows) {
  Doubles all;
  for (const Doubles& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

/// State (L, B, H) of one row of the batch.
Rows state_of(const Tensor& state, std::int64_t row) { return state.defined() ? rows_of(select(state, 1, row)) : Rows(); }

constexpr std::int64_t batch = 3, steps = 5, in = 4, hidden = 3;

void check(bool is_lstm, const nn::RecurrentOptions& o, bool has_state) {
  const std::int64_t states = o.layers * (o.bidirectional ? 2 : 1);
  const nn::LSTM lstm(in, hidden, o);
  const nn::GRU gru(in, hidden, o);
  const Reference reference{is_lstm, is_lstm ? lstm.layers : gru.layers};
  const Tensor x = o.batch_first ? randn({batch, steps, in}) : randn({steps, batch, in});
  const Tensor h = has_state ? randn({states, batch, hidden}) : Tensor();
  const Tensor c = has_state && is_lstm ? randn({states, batch, hidden}) : Tensor();
  Tensor y, h_last, c_last;
  if (is_lstm) {
    const nn::LSTMResult result = lstm(x, LSTMState{h, c});
    y = result.y, h_last = result.state.h, c_last = result.state.c;
  } else {
    const nn::GRUResult result = gru(x, h);
    y = result.y, h_last = result.h;
  }
  CHECK(y.shape() == (o.batch_first ? Shape{batch, steps, states / o.layers * hidden} : Shape{steps, batch, states / o.layers * hidden}));
  CHECK(h_last.shape() == Shape{states, batch, hidden});
  for (std::int64_t row = 0; row < batch; ++row) {
    const int batch_dim = o.batch_first ? 0 : 1;
    const Reference::Result want = reference(rows_of(select(x, batch_dim, row)), state_of(h, row), state_of(c, row));
    CHECK(distance(joined(rows_of(select(y, batch_dim, row))), joined(want.y)) < 2e-6);
    CHECK(distance(joined(state_of(h_last, row)), joined(want.h)) < 2e-6);
    if (is_lstm) CHECK(distance(joined(state_of(c_last, row)), joined(want.c)) < 2e-6);
  }
}

}  // namespace

TEST_CASE("LSTM and GRU are their recurrences, with layers, directions, layouts and states", "[recurrent]") {
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

namespace {

/// Puts tensors in the places of a module's parameters, in the order of visit.
struct Replace final : nn::Visitor {
  Replace(const Tensors& tensors, std::size_t first) : all(tensors), next(first) {}
  void on_parameter(const std::string&, Tensor& x) override { x = all[next++]; }
  const Tensors& all;
  std::size_t next;
};

template <class M, class F>
void check_gradients_of(M module, Tensors inputs, F outputs) {
  nn::to(module, DType::f64);
  const std::size_t first = inputs.size();
  for (const Tensor& x : nn::parameters(module)) inputs.push_back(x);
  const GradcheckResult result = gradcheck(
      [&](const Tensors& v) -> Tensors {
        Replace(v, first).walk(module);
        return outputs(module, v);
      },
      inputs);
  INFO(result.message);
  CHECK(result.ok);
}

}  // namespace

TEST_CASE("gradients of LSTM and GRU are those of their recurrences", "[recurrent]") {
  manual_seed(12);
  const nn::RecurrentOptions o{.layers = 2, .bidirectional = true};
  const auto leaf = [](const Shape& shape) { return randn(shape, 0, 1, DType::f64).set_requires_grad(); };
  const Tensor x = leaf({2, 3, 2}), h = leaf({4, 2, 2}), c = leaf({4, 2, 2});
  check_gradients_of(nn::LSTM(2, 2, o), {x, h, c}, [](const nn::LSTM& lstm, const Tensors& v) -> Tensors {
    const nn::LSTMResult r = lstm(v[0], LSTMState{v[1], v[2]});
    return {r.y, r.state.h, r.state.c};
  });
  check_gradients_of(nn::GRU(2, 2, o), {x, h}, [](const nn::GRU& gru, const Tensors& v) -> Tensors {
    const nn::GRUResult r = gru(v[0], v[1]);
    return {r.y, r.h};
  });
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
