// Data parallel training in a program of one's own. Each process has a copy of the model and a part of each batch:
//
//   ./data_parallel                        one process
//   tern-launch -n 4 ./data_parallel       four, with the same losses to rounding; or torchrun --no-python, mpirun, srun
#include <tern/tern.h>

#include <cstdio>
#include <exception>

using namespace tern;

namespace {

struct Model final : nn::Module {
  nn::Linear in{2, 32}, out{32, 1};
  nn::FeedForward hidden{32, 64};
  void visit(nn::Visitor& v) override {
    v("in", in);
    v("hidden", hidden);
    v("out", out);
  }
  Tensor forward(const Tensor& x) const { return out.forward(hidden.forward(tanh(in.forward(x)))); }
};

struct Batch {
  Tensor x, y;
};

/// Points of a ring and a wave over it. Every process draws the same, and takes its part.
Batch draw(std::uint64_t step) {
  constexpr std::int64_t rows = 240;
  manual_seed(step);
  const Tensor angle = rand({rows, 1}, 0, 6.2831853), radius = rand({rows, 1}, 0.5, 1);
  return {cat({radius * cos(angle), radius * sin(angle)}, 1), sin(angle * 2.0 + radius * 3.0)};
}

void run() {
  // On GPUs: make_process_group(cuda(parallel::launch_environment()->local_rank)).
  const auto group = parallel::make_process_group(cpu);
  manual_seed(1);
  Model model;
  parallel::DataParallel parallel(model, *group);
  train::AdamW optimizer(nn::parameters(model), {.lr = 0.01});
  for (std::uint64_t step = 0; step < 60; ++step) {
    const Batch batch = draw(100 + step);
    const std::int64_t part = batch.x.size(0) / group->size(), first = part * group->rank();
    const Tensor x = slice(batch.x, 0, first, first + part), y = slice(batch.y, 0, first, first + part);
    const Tensor loss = mean(square(model.forward(x) - y));
    train::update(loss, optimizer, {.synchronize = [&] { parallel.finish_gradient_synchronization(); }});
    const Tensor of_all = clone(loss.detach());
    group->all_reduce(of_all, parallel::ReduceOp::mean).wait();
    if (group->rank() == 0 && (step + 1) % 20 == 0) std::printf("step %d  loss %.3f\n", static_cast<int>(step + 1), of_all.item<double>());
  }
}

}  // namespace

int main() {
  try {
    run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "data_parallel: %s\n", error.what());
    return 1;
  }
}
