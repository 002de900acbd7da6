// A model of one's own, trained by train::Trainer: epochs with a validation, the best model, checkpoints, learning curves. A signal ends
// the training, which then goes on from its checkpoint, bitwise as if it had not ended. expected.txt is what this prints.
#include <tern/tern.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

using namespace tern;

namespace {

struct Net final : nn::Module {
  nn::Linear in{2, 32}, out{32, 2};
  void visit(nn::Visitor& v) override {
    v("in", in);
    v("out", out);
  }
  Tensor forward(const Tensor& x) const { return out.forward(dropout(tanh(in.forward(x)), 0.1, training)); }
};

/// Points of a square, and whether they are in a disc of half its area.
struct Batch {
  Tensor points, labels;
};

/// A pure function of the seed, so that a training that goes on gets the batches that one without an end gets.
Batch draw(std::uint64_t seed, std::int64_t rows) {
  const ScopedValue<Generator> own(context().generator, Generator(seed));
  const Tensor points = rand({rows, 2}, -1, 1);
  return {points, cast(lt(sum(square(points), {1}), 0.6366), DType::i64)};
}

/// The weights of a training, which gets a signal before the update `end`.
std::vector<float> train_net(const std::string& directory, bool resume, std::int64_t end = -1) {
  const train::StopSignals signals;
  manual_seed(1);
  Net net;
  train::Run run("trainer", directory, io::JsonObject().set("hidden", 32), {.resume = resume});
  train::Task task{.loss = [&](const Batch& batch) { return cross_entropy(net.forward(batch.points), batch.labels); },
                   .batch = [&](std::int64_t update) -> train::UpdateBatch {
                     if (update == end) std::raise(SIGTERM);
                     return {.parts = {draw(static_cast<std::uint64_t>(update), 64)}, .items = 64};
                   },
                   .optimizer = [](const Tensors& x) { return std::make_unique<train::AdamW>(x, train::AdamWOptions{.lr = 0.02}); },
                   .validate = [&](const train::Trainer& trainer) -> train::Validation {
                     net.eval();
                     const NoGrad unrecorded;
                     const Batch test = draw(1'000'000, 1000);
                     const Tensor logits = net.forward(test.points);
                     const double loss = cross_entropy(logits, test.labels).item<double>();
                     const double right = sum(eq(argmax(logits), test.labels)).item<double>() / 1000;
                     const std::string shown = "epoch " + std::to_string(trainer.epochs()) + (right > 0.9 ? ": above 90%" : ": up to 90%");
                     const auto numbers = io::JsonObject().set("valid_loss", loss).set("valid_accuracy", right);
                     return {.rank = std::pair(right, -loss), .numbers = numbers, .shown = shown};
                   }};
  train::Trainer(net, task, {.updates = 400, .updates_per_epoch = 100, .lr = 0.02, .schedule = "cosine", .warmup = 20}, run).run();
  return net.out.weight.to_vector<float>();
}

}  // namespace

int main() {
  const auto place = std::filesystem::temp_directory_path() / ("trainer-" + std::to_string(::getpid()));
  std::filesystem::create_directory(place);
  std::filesystem::current_path(place);
  try {
    train_net("run", false, 250);
  } catch (const train::Stopped& stopped) {
    std::printf("signal %d\n", stopped.signal);
  }
  const auto resumed = train_net("run", true), whole = train_net("whole", false);
  const bool has_curves = std::filesystem::exists("run/curves.svg");
  std::printf("bitwise the training that was not ended: %s; curves: %s\n", resumed == whole ? "yes" : "no", has_curves ? "yes" : "no");
  std::filesystem::remove_all(place);
}
