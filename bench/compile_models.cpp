// Functions written in plain ops, as written and compiled (tern::compile), in one run; on a GPU also as a CapturedStep. Not part of the
// build:
//
//   g++ -std=c++20 -O3 -march=native bench/compile_models.cpp -Isrc -IBUILD/include -DFMT_SHARED -o compile_models
//   -Wl,--start-group BUILD/libtern_{compile,train,nn,ops,autodiff,cpu,tensor,backend}.a -Wl,--end-group -ldnnl -lfmt -pthread -fopenmp
//   ./compile_models DEVICE THREADS [NAME...]
//
// For a GPU add -DTERN_CUDA=1 and libtern_cuda.a with the toolkit's libraries. Prints a line of JSON for each: the least of 7 times that
// alternate, in ms. Sizes are those of peer_compile_cpu.py; seed6 is a decoder of 6 layers of width 512.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>

#include "autodiff/engine.h"
#include "compile/compile.h"
#include "nn/layers.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"
#include "train/train.h"

using namespace tern;

static Device place = cpu;

template <class F>
static double milliseconds(const F& f, int count) {
  synchronize(place);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) f();
  synchronize(place);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / count;
}

using Timed = std::function<Tensor(const Tensors&)>;

/// Times the function in all forms. Each has its own, with a model and an optimizer of its own.
static void compare(const std::string& name, const std::function<Timed()>& make, const Tensors& arguments, int count) {
  const Timed plain = make(), traced = make();
  auto compiled = tern::compile([&](const Tensor& a, const Tensor& b) { return traced({a, b}); }, place);
  CapturedStep captured(make(), place);
  const auto as_written = [&] { plain(arguments); };
  const auto by_program = [&] { compiled(arguments[0], arguments[1]); };
  const auto by_graph = [&] { captured(arguments); };
  for (int i = 0; i < 12; ++i) by_program(), as_written(), by_graph();
  double least[3] = {1e9, 1e9, 1e9};
  for (int i = 0; i < 7; ++i) {
    least[0] = std::min(least[0], milliseconds(as_written, count));
    least[1] = std::min(least[1], milliseconds(by_program, count));
    if (place != cpu) least[2] = std::min(least[2], milliseconds(by_graph, count));
  }
  std::string report = compiled.report();
  report = report.substr(report.find('\n') + 1, report.rfind(", ") - report.find('\n') - 1);
  std::printf(
      "{\"bench\": \"compile\", \"impl\": \"tern\", \"model\": \"%s\", \"device\": \"%s\", \"as_written_ms\": %.4f, \"compiled_ms\": %.4f",
      name.c_str(), to_string(place).c_str(), least[0], least[1]);
  if (place != cpu) std::printf(", \"captured_ms\": %.4f", least[2]);
  std::printf(", \"report\": \"%s\"}\n", report.c_str());
  std::fflush(stdout);
}

static Tensor written_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  const Tensor centered = x - mean(x, -1, true);
  return centered * rsqrt(mean(centered * centered, -1, true) + 1e-5) * gamma + beta;
}
static Tensor written_softmax(const Tensor& x) {
  const Tensor e = exp(x - max(x, -1, true));
  return e / sum(e, -1, true);
}
static Tensor written_gelu(const Tensor& x) { return x * 0.5 * (tanh((x + x * x * x * 0.044715) * 0.7978845608) + 1); }

/// A decoder-only transformer with nothing but products, elementwise ops and sums.
struct LM final : nn::Module {
  struct Layer final : nn::Module {
    Layer(std::int64_t d, std::int64_t ff)
        : qkv(d, 3 * d), proj(d, d), up(d, ff), down(ff, d), g1(ones({d})), b1(zeros({d})), g2(ones({d})), b2(zeros({d})) {
      for (Tensor* x : {&g1, &b1, &g2, &b2}) x->set_requires_grad();
    }
    void visit(nn::Visitor& v) override {
      v("qkv", qkv), v("proj", proj), v("up", up), v("down", down);
      v("g1", g1), v("b1", b1), v("g2", g2), v("b2", b2);
    }
    nn::Linear qkv, proj, up, down;
    Tensor g1, b1, g2, b2;
  };
  LM(std::int64_t vocab, std::int64_t length, std::int64_t d, std::int64_t ff, int count, std::int64_t heads_)
      : tokens(vocab, d), positions(length, d), head(d, vocab), gamma(ones({d})), beta(zeros({d})), heads(heads_) {
    for (int i = 0; i < count; ++i) layers.push_back(std::make_unique<Layer>(d, ff));
    gamma.set_requires_grad(), beta.set_requires_grad();
    mask = triu(full({length, length}, -INFINITY), 1);
  }
  void visit(nn::Visitor& v) override {
    v("tokens", tokens), v("positions", positions), v("head", head), v("gamma", gamma), v("beta", beta);
    for (std::size_t i = 0; i < layers.size(); ++i) v("layers." + std::to_string(i), *layers[i]);
  }
  Tensor loss(const Tensor& ids, const Tensor& targets) const {
    const std::int64_t batch = ids.size(0), length = ids.size(1), d = gamma.size(0);
    Tensor x = tokens.forward(ids) + slice(positions.weight, 0, 0, length);
    for (const auto& layer : layers) {
      const Tensor all =
          transpose(reshape(layer->qkv.forward(written_norm(x, layer->g1, layer->b1)), {batch, length, 3 * heads, d / heads}), 1, 2);
      const Tensors qkv = split(all, heads, 1);
      const Tensor scores =
          cast(matmul(qkv[0], transpose(qkv[1], -2, -1)), DType::f32) * (1 / std::sqrt(static_cast<double>(d / heads))) + mask;
      const Tensor mixed = matmul(cast(written_softmax(scores), x.dtype()), qkv[2]);
      x = x + layer->proj.forward(reshape(transpose(mixed, 1, 2), {batch, length, d}));
      x = x + layer->down.forward(written_gelu(layer->up.forward(written_norm(x, layer->g2, layer->b2))));
    }
    const Tensor logits = cast(reshape(head.forward(written_norm(x, gamma, beta)), {batch * length, -1}), DType::f32);
    const Tensor at_target = gather(logits, 1, reshape(targets, {batch * length, 1}));
    return mean(logsumexp(logits, 1) - reshape(at_target, {batch * length}));
  }
  nn::Embedding tokens, positions;
  nn::Linear head;
  Tensor gamma, beta, mask;
  std::vector<std::unique_ptr<Layer>> layers;
  std::int64_t heads;
};

struct Training {
  Training(train::Precision precision, int layers, std::int64_t d, std::int64_t length) : model(10000, length, d, 4 * d, layers, d / 64) {
    train::set_precision(model, precision);
    optimizer = std::make_unique<train::AdamW>(nn::parameters(model));
  }
  LM model;
  std::unique_ptr<train::AdamW> optimizer;
};

static void train_lm(const std::string& name, train::Precision precision, int layers, std::int64_t d, std::int64_t batch,
                     std::int64_t length) {
  manual_seed(1);
  const train::PrecisionScope scope(precision);
  const Tensor ids = randint(0, 10000, {batch, length}), targets = randint(0, 10000, {batch, length});
  const int count = place == cpu ? 1 : 10;
  const auto make = [=] { return std::make_shared<Training>(precision, layers, d, length); };
  compare(
      name + " " + train::name(precision) + " step",
      [&]() -> Timed {
        return [own = make()](const Tensors& in) {
          const Tensor loss = own->model.loss(in[0], in[1]);
          train::update(loss, *own->optimizer);
          return loss;
        };
      },
      {ids, targets}, count);
  const NoGrad unrecorded;
  compare(
      name + " " + train::name(precision) + " forward",
      [&]() -> Timed { return [own = make()](const Tensors& in) { return own->model.loss(in[0], in[1]); }; }, {ids, targets}, count);
}

/// An LSTM of ops, which guesses the next input.
struct Lstm {
  Lstm() : input(96, 4 * 96), state(96, 4 * 96), head(96, 96) {
    Tensors parameters;
    for (const nn::Linear* part : {&input, &state, &head})
      for (const Tensor& x : nn::parameters(*part)) parameters.push_back(x);
    optimizer = std::make_unique<train::Adam>(parameters);
  }
  Tensor step(const Tensors& in) {
    Tensor h = zeros({16, 96}), c = h;
    Tensors outputs;
    for (std::int64_t t = 0; t < 32; ++t) {
      const Tensors gates = split(input.forward(select(in[0], 1, t)) + state.forward(h), 96, 1);
      c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * tanh(gates[2]);
      h = sigmoid(gates[3]) * tanh(c);
      outputs.push_back(head.forward(h));
    }
    const Tensor distance = stack(outputs, 1) - in[1], loss = mean(distance * distance);
    train::update(loss, *optimizer);
    return loss;
  }
  nn::Linear input, state, head;
  std::unique_ptr<train::Adam> optimizer;
};

/// Rows written out, forward and with their gradients, beside the fused kernels of the same functions ("by hand").
static void rows() {
  const std::int64_t count = place == cpu ? 2048 : 32768, width = 1024;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = cast(randn({count, width}), dtype), g = cast(randn({count, width}), dtype), gamma = cast(rand({width}), dtype),
                 beta = cast(randn({width}), dtype);
    using RowFunction = std::function<Tensor(const Tensor&)>;
    const std::tuple<const char*, RowFunction, RowFunction> all[] = {
        {"softmax", written_softmax, [](const Tensor& a) { return softmax(a, -1); }},
        {"layer norm", [=](const Tensor& a) { return written_norm(a, gamma, beta); },
         [=](const Tensor& a) { return layer_norm(a, gamma, beta); }},
        {"rms norm", [=](const Tensor& a) { return a * rsqrt(mean(a * a, -1, true) + 1e-5) * gamma; },
         [=](const Tensor& a) { return rms_norm(a, gamma); }},
        {"gelu", written_gelu, [](const Tensor& a) { return gelu_tanh(a); }}};
    for (const auto& [name, written, by_hand] : all)
      for (const bool is_step : {false, true}) {
        const auto step = [=, f = written, h = by_hand](bool hand) -> Timed {
          return [=](const Tensors& in) {
            const auto& function = hand ? h : f;
            if (!is_step) {
              const NoGrad unrecorded;
              return function(in[0]);
            }
            Tensor leaf = in[0].detach();
            leaf.set_requires_grad();
            const Tensor y = function(leaf);
            return grad({y}, Tensors{leaf}, {in[1]})[0];
          };
        };
        const std::string label = std::string(name) + (is_step ? " with gradient " : " ") + tern::name(dtype);
        compare(label, [&] { return step(false); }, {x, g}, 5);
        compare(label + " by hand", [&] { return step(true); }, {x, g}, 5);
      }
  }
}

/// AdamW of ops for 100 parameters of 768 x 768.
static void own_adamw() {
  struct Parameter {
    Tensor x, gradient, m, v;
  };
  const auto make = [] {
    std::vector<Parameter> all;
    for (int i = 0; i < 100; ++i) all.push_back({randn({768, 768}), randn({768, 768}), zeros({768, 768}), zeros({768, 768})});
    return all;
  };
  compare(
      "own AdamW, 100 x 768 x 768",
      [&]() -> Timed {
        return [all = make(), count = full({}, 1.0)](const Tensors&) {
          const NoGrad unrecorded;
          for (const Parameter& p : all) {
            copy_(p.m, p.m * 0.9 + p.gradient * 0.1);
            copy_(p.v, p.v * 0.999 + p.gradient * p.gradient * 0.001);
            copy_(p.x, p.x * (1 - 1e-5) - p.m / (sqrt(p.v) + 1e-8) * 1e-3);
          }
          return count;
        };
      },
      {zeros({1}), zeros({1})}, 3);
}

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: compile_models DEVICE THREADS [chains lstm char rows adamw seed6]\n"), 2;
  place = std::strcmp(argv[1], "cpu") == 0 ? cpu : cuda();
  set_num_threads(std::atoi(argv[2]));
  const auto wants = [&](const char* name) {
    for (int i = 3; i < argc; ++i)
      if (std::strcmp(argv[i], name) == 0) return true;
    return argc == 3;
  };
  const DeviceScope here(place);
  if (wants("chains")) {
    const NoGrad unrecorded;
    const Tensor a = rand({8 << 20}), b = rand({8 << 20});
    const auto cheap = [](const Tensors& in) { return relu((((in[0] * in[1] + 0.5) * in[0] - in[1]) * 0.25 + in[0]) * in[1] - 0.125); };
    const auto with_tanh = [](const Tensors& in) {
      return tanh((((in[0] * in[1] + 0.5) * in[0] - in[1]) * 0.25 + in[0]) * in[1] - 0.125) * in[0];
    };
    compare("9 cheap ops, 8M f32", [&]() -> Timed { return cheap; }, {a, b}, 3);
    compare("10 ops with tanh, 8M f32", [&]() -> Timed { return with_tanh; }, {a, b}, 3);
  }
  if (wants("lstm")) {
    compare(
        "LSTM of ops, B 16 T 32 width 96, step",
        []() -> Timed { return [own = std::make_shared<Lstm>()](const Tensors& in) { return own->step(in); }; },
        {randn({16, 32, 96}), randn({16, 32, 96})}, 10);
  }
  if (wants("char")) train_lm("char model, 4 x 128, B 8 T 64", train::Precision::fp32, 4, 128, 8, 64);
  if (wants("rows")) rows();
  if (wants("adamw")) own_adamw();
  if (wants("seed6"))
    for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16})
      train_lm("seed6, 6 x 512, B 4 T 512", precision, 6, 512, 4, 512);
}
