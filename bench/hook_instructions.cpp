// Counts the instructions of a training step, one by one under ptrace: what a look for an observer costs where nobody watches, on a machine
// too busy for clocks and without counters of its own. Not part of the build:
//
//   g++ -O3 -DNDEBUG -march=native -std=c++20 -Isrc bench/hook_instructions.cpp
//   build/ci/libtern_{train,nn,ops,autodiff,cpu,tensor,backend}.a -lfmt -lpthread -o with setarch -R ./with plain 3; setarch -R ./with
//   fused 3
//
// and the same in a copy of the tree whose backend/observer.h has `inline constexpr Observer* observer = nullptr;`, so that the compiler
// leaves every look out (watch() and unwatch() are empty there). The model is as narrow as can be: the looks do not depend on its width,
// and a step has a million instructions and not a hundred million. A line for each step: instructions; first, what an observer would be
// told.
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "autodiff/engine.h"
#include "nn/nn.h"
#include "train/train.h"

using namespace tern;

namespace {

struct Counter final : backend::Observer {
  using Observer::unwatch;
  using Observer::watch;
  void begin_kernel() override { ++kernels; }
  void end_op(const OpCall&) override { ++ops; }
  void begin_module(const void*, const char*) override { ++modules; }
  void begin_backward(const Node&) override { ++nodes; }
  void on_gradient(const Tensor&) override { ++gradients; }
  int kernels = 0, ops = 0, modules = 0, nodes = 0, gradients = 0;
};

void mark() { asm volatile("int3; nop" ::: "memory"); }

int train_steps(bool fused, int count) {
  set_num_threads(1);
  manual_seed(0);
  const FusedKernels kernels(fused);
  nn::DecoderLM model({.vocab = 50, .length = 4, .width = 16, .layers = fused ? 2 : 4, .heads = 2, .ff = 16, .dropout = 0.1});
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{3, 1, 4, 1}, {1, 4});
  train::AdamW optimizer(nn::parameters(model), train::AdamWOptions{.lr = 1e-3});
  const auto step = [&] { train::update(model.loss(ids, ids), optimizer); };
  for (int i = 0; i < 3; ++i) step();
  Counter counter;
  counter.watch();
  step();
  counter.unwatch();
  std::printf("%d kernels, %d ops, %d modules, %d nodes, %d gradients\n", counter.kernels, counter.ops, counter.modules, counter.nodes,
              counter.gradients);
  std::fflush(stdout);
  for (int i = 0; i < count; ++i) {
    mark();
    step();
    mark();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: hook_instructions fused|plain STEPS\n");
    return 2;
  }
  const pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    return train_steps(std::string(argv[1]) == "fused", std::atoi(argv[2]));
  }
  int status = 0;
  while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    if (WSTOPSIG(status) == SIGTRAP) {  // at the first mark: to the next one, which is an int3 (0xcc) that is followed by a nop (0x90)
      long instructions = 0;
      for (;; ++instructions) {
        ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
        if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return 1;
        const long at = ptrace(PTRACE_PEEKUSER, child, 16 * sizeof(long), nullptr);  // rip
        if (instructions > 2 && (ptrace(PTRACE_PEEKTEXT, child, at - 1, nullptr) & 0xffff) == 0x90cc) break;
      }
      std::printf("%ld instructions\n", instructions);
      std::fflush(stdout);
    }
    ptrace(PTRACE_CONT, child, nullptr, nullptr);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
