// The step of a small LSTM that is made of ops, for busy_neighbours.py: many small kernels, the worst case of threads that wait. Not part
// of the build:
//
//   g++ -std=c++20 -O3 -march=native bench/lstm_step.cpp -Isrc -o lstm_step BUILD/libtern_{train,nn,ops,autodiff,cpu,tensor,backend}.a
//   -lfmt -pthread
//   ./lstm_step THREADS STEPS
//
// It prints the ms of each step: B 16, T 32, width 96, fp32.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "nn/layers.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/optimizer.h"
#include "train/step.h"

using namespace tern;

struct Lstm final : nn::Module {
  explicit Lstm(std::int64_t width) : input(width, 4 * width), state(width, 4 * width), head(width, width) {}
  void visit(nn::Visitor& v) override {
    v("input", input);
    v("state", state);
    v("head", head);
  }

  // (B, T, width) -> (B, T, width): for each step, a guess at the next.
  Tensor forward(const Tensor& x) const {
    Tensor h = zeros({x.size(0), x.size(2)}), c = h;
    std::vector<Tensor> outputs;
    for (std::int64_t t = 0; t < x.size(1); ++t) {
      const Tensors gates = split(input.forward(select(x, 1, t)) + state.forward(h), x.size(2), 1);
      c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * tanh(gates[2]);
      h = sigmoid(gates[3]) * tanh(c);
      outputs.push_back(head.forward(h));
    }
    return stack(outputs, 1);
  }

  nn::Linear input, state, head;
};

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1, steps = argc > 2 ? std::atoi(argv[2]) : 50;
  set_num_threads(threads);
  manual_seed(1);
  Lstm model(96);
  train::Adam optimizer(nn::parameters(model));
  const Tensor x = randn({16, 32, 96}), next = randn({16, 32, 96});
  for (int step = 0; step < steps + 3; ++step) {
    const auto start = std::chrono::steady_clock::now();
    const Tensor distance = model.forward(x) - next;
    train::update(mean(distance * distance), optimizer);
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    if (step >= 3) std::printf("%.4f\n", taken.count());
  }
}
