// Training steps of small models made of ready-made modules, for models.md: the same as in peer_models.py. Not part of the build:
//
//   g++ -std=c++20 -O3 -march=native bench/models.cpp -Isrc -o models BUILD/libtern_{train,nn,ops,autodiff,cpu,tensor,backend}.a -lfmt
//   -pthread
//   ./models [lstm,gru,cnn,gpt] [THREADS] [STEPS] [cpu] >> ROWS.jsonl
//
// A row for each model: the least and the median ms of a step, forward, backward and AdamW, in fp32; with "cpu" of the processor's time,
// which a neighbour's load does not stretch, and which says something of one thread alone.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>

#include "nn/nn.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/optimizer.h"
#include "train/step.h"

using namespace tern;

namespace {

struct Cnn final : nn::Callable<Cnn> {
  nn::Sequential features{nn::Conv2d(3, 16, 3, {.padding = 1}),
                          nn::BatchNorm2d(16),
                          nn::ReLU(),
                          nn::MaxPool2d(2),
                          nn::Conv2d(16, 32, 3, {.padding = 1}),
                          nn::BatchNorm2d(32),
                          nn::ReLU(),
                          nn::MaxPool2d(2),
                          nn::Flatten()};
  nn::Linear head{32 * 4 * 4, 10};
  void visit(nn::Visitor& v) override {
    v("features", features);
    v("head", head);
  }
  Tensor forward(const Tensor& x) const { return head(features(x)); }
};

/// LSTM or GRU, and a guess at the next vector after each step.
template <class R>
struct Recurrent final : nn::Callable<Recurrent<R>> {
  R cell{96, 96};
  nn::Linear head{96, 96};
  void visit(nn::Visitor& v) override {
    v("cell", cell);
    v("head", head);
  }
  Tensor forward(const Tensor& x) const { return head(cell(x).y); }
};

bool is_cpu_time = false;

double milliseconds() {
  timespec now{};
  clock_gettime(is_cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

void measure(const char* name, const nn::Module& model, int threads, int steps, const std::function<Tensor()>& loss) {
  train::AdamW optimizer(nn::parameters(model), {.lr = 1e-3});
  std::vector<double> times;
  for (int step = 0; step < steps + 5; ++step) {
    const double start = milliseconds();
    train::update(loss(), optimizer);
    if (step >= 5) times.push_back(milliseconds() - start);
  }
  std::sort(times.begin(), times.end());
  std::printf(
      "{\"impl\": \"tern\", \"model\": \"%s\", \"threads\": %d, \"clock\": \"%s\", \"parameters\": %lld, \"least_ms\": %.3f, "
      "\"median_ms\": "
      "%.3f}\n",
      name, threads, is_cpu_time ? "cpu" : "wall", static_cast<long long>(nn::count_parameters(model)), times.front(),
      times[times.size() / 2]);
  std::fflush(stdout);
}

template <class R>
void measure_recurrent(const char* name, int threads, int steps) {
  const Recurrent<R> model;
  const Tensor x = randn({16, 32, 96}), next = randn({16, 32, 96});
  measure(name, model, threads, steps, [&] { return mse_loss(model(x), next); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string models = std::string(",") + (argc > 1 ? argv[1] : "lstm,gru,cnn,gpt") + ",";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1, steps = argc > 3 ? std::atoi(argv[3]) : 50;
  is_cpu_time = argc > 4 && std::string(argv[4]) == "cpu";
  set_num_threads(threads);
  manual_seed(1);
  const auto wants = [&](const char* name) { return models.find("," + std::string(name) + ",") != std::string::npos; };
  if (wants("lstm")) measure_recurrent<nn::LSTM>("lstm", threads, steps);
  if (wants("gru")) measure_recurrent<nn::GRU>("gru", threads, steps);
  if (wants("cnn")) {
    const Cnn model;
    const Tensor x = randn({64, 3, 16, 16}), labels = remainder(arange(64), 10);
    measure("cnn", model, threads, steps, [&] { return cross_entropy(model(x), labels); });
  }
  if (wants("gpt")) {
    const nn::DecoderLM model({.vocab = 96,
                               .length = 48,
                               .width = 64,
                               .layers = 2,
                               .heads = 4,
                               .ff = 256,
                               .dropout = 0,
                               .activation = nn::Activation::gelu_tanh});
    const Tensor ids = reshape(remainder(arange(16 * 48) * 7, 96), {16, 48});
    measure("gpt", model, threads, steps, [&] { return model.loss(ids, ids); });
  }
}
