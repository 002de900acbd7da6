#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "backend/stream.h"
#include "common/program.h"
#include "ops/factory.h"
#include "recall/commands.h"
#include "recall/sweep_table.h"
#include "recall/training.h"
#include "tensor/context.h"
#include "trainer/terminal.h"

namespace tern::recall {

namespace {

/// The pairs of an mqar example by its length: those of zoology's figure (4 for 64, 8 for 128, 16 for 256, 64 for 512), else length / 16.
std::int64_t pairs_of(std::int64_t length) { return length == 512 ? 64 : std::max<std::int64_t>(length / 16, 1); }

/// The options of each run: the quickest lengths first, and seeds and rates together, so that those of one model follow one another.
std::vector<Options> expand(const Options& options, const Grid& grid) {
  std::vector<Options> runs{options};
  // Each run so far with each value; with its own if there are none.
  const auto times = [&]<class T>(const std::vector<T>& values, void (*set)(Options&, const T&)) {
    if (values.empty()) return;
    std::vector<Options> all;
    for (const Options& run : runs)
      for (const T& value : values) set(all.emplace_back(run), value);
    runs = std::move(all);
  };
  using Number = std::int64_t;
  using Size = std::pair<Number, Number>;
  std::vector<Size> sizes;
  for (std::size_t i = 0; i < grid.lengths.size(); ++i)
    sizes.emplace_back(grid.lengths[i], grid.pairs.empty() ? pairs_of(grid.lengths[i]) : grid.pairs[grid.pairs.size() == 1 ? 0 : i]);
  if (sizes.empty()) times(grid.pairs, +[](Options& run, const Number& pairs) { run.pairs = pairs; });
  times(sizes, +[](Options& run, const Size& size) { run.length = size.first, run.pairs = size.second; });
  times(grid.mixers, +[](Options& run, const std::string& mixer) { run.mixer = mixer; });
  times(grid.layers, +[](Options& run, const Number& layers) { run.layers = layers; });
  times(grid.widths, +[](Options& run, const Number& width) { run.width = width; });
  times(grid.seeds, +[](Options& run, const Number& seed) { run.seed = seed; });
  times(grid.lrs, +[](Options& run, const double& lr) { run.lr = lr; });
  return runs;
}

/// Bytes that the model keeps of one text of its length: keys and values, or its mixers' states.
std::int64_t state_bytes(const nn::DecoderLM& model) {
  const NoGrad unrecorded;
  const std::int64_t width = model.options.width, length = model.options.length;
  std::int64_t bytes = 0;
  for (const nn::TransformerLayer& block : model.blocks) {
    if (!block.mixer) {
      const nn::AttentionOptions& attention = block.attn.options;
      const std::int64_t tokens = attention.window > 0 ? std::min(attention.window, length) : length;
      bytes += tokens * 2 * attention.kv_heads * attention.head_dim * static_cast<std::int64_t>(size_of(model.dtype()));
      continue;
    }
    nn::MixerState state;
    (*block.mixer)->forward(zeros({1, 1, width}, model.dtype(), model.tokens.device()), &state);
    for (const Tensor& kept : state.kept) bytes += kept.numel() * static_cast<std::int64_t>(size_of(kept.dtype()));
  }
  return bytes;
}

/// Data sets of a sweep: runs that ask the same share one, as long as one of them is trained.
class DataSets {
 public:
  std::shared_ptr<const DataSet> get(const Options& options) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const DataSet>& found = all_[{options.length, options.pairs, options.seed}];
    if (!found) {
      std::erase_if(all_, [](const auto& entry) { return entry.second.use_count() == 1; });
      found = std::make_shared<const DataSet>(make_data_set(task(options), static_cast<std::uint64_t>(options.seed), options.train_examples,
                                                            options.valid_examples, options.test_examples));
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::shared_ptr<const DataSet>> all_;
};

Run measure(const Options& options, const DataSet& data, Device device, bool shows_progress,
            const std::function<std::string(bool)>& remains) {
  manual_seed(static_cast<std::uint64_t>(options.seed));
  const Task shape = task(options);
  train::Run shown("tern-recall", remains);
  Training training(options, data, device, shown, shows_progress);
  train::Trainer& trainer = training.trainer();
  trainer.run();
  const Score score = training.test();
  const apps::Interval interval = apps::wilson(score.correct, score.answers);
  const std::vector<Score> longer = training.test_longer();
  const auto accuracy = [&](std::size_t i) { return i < longer.size() ? std::optional(longer[i].accuracy()) : std::nullopt; };
  return {.task = options.task,
          .layers = options.layers,
          .width = options.width,
          .mlp = options.mlp,
          .length = shape.columns(),
          .pairs = options.pairs,
          .seed = options.seed,
          .params = nn::count_parameters(training.model()),
          .accuracy = score.accuracy(),
          .low = interval.low,
          .high = interval.high,
          .answers = score.answers,
          .train_loss = trainer.train_loss(),
          .test_loss = score.loss,
          .epochs = trainer.epochs(),
          .updates = trainer.updates(),
          .seconds = training.seconds(),
          .epoch_90 = training.passed() ? training.passed()->epoch : 0,
          .seconds_90 = training.passed() ? training.passed()->seconds : 0,
          .mixer = mixer_cell(options.mixer),
          .lr = options.lr,
          .state = state_bytes(training.model()),
          .twice = accuracy(0),
          .four_times = accuracy(1)};
}

/// Calls f(i) for each i below `count`, in this thread, or by several jobs: threads that compute on one CPU thread each, or on a GPU each
/// in a stream of its own. After an exception no further i begins, and the first one is thrown when all jobs have ended.
void for_each_by(std::int64_t jobs, std::size_t count, Device device, const std::function<void(std::size_t)>& f) {
  if (jobs == 1) {
    for (std::size_t i = 0; i < count; ++i) f(i);
    return;
  }
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      set_num_threads(1);
      const auto stream = with_backend(device, [&](auto dev) { return backend::graph_stream(dev, device); });
      std::optional<StreamScope> scope;
      if (stream) scope.emplace(stream->get());
      for (std::size_t i = next++; i < count; i = next++) f(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (std::int64_t job = 0; job < jobs; ++job) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void sweep(const Options& options, const Grid& grid, std::int64_t jobs) {
  apps::require_named("--out", options.out);
  const std::vector<Options> runs = expand(options, grid);
  Device device = cpu;
  for (const Options& run : runs) device = require_trainable(run);
  const train::StopSignals signals;
  const std::filesystem::path directory = options.out;
  Table table(directory, options, runs);
  std::mutex mutex;  // of the table and the terminal
  const auto is_done = [&](const Options& run) {
    const std::lock_guard lock(mutex);
    return table.has(run);
  };
  const auto done = [&] { return std::count_if(runs.begin(), runs.end(), is_done); };
  const auto remains = [&](bool can_resume) {
    return fmt::format("; {} has {} of {} runs{}", table.file().string(), done(), runs.size(),
                       can_resume ? ", and the same command goes on from there" : "");
  };

  const std::string at_once = jobs > 1 ? fmt::format("{} jobs, each on ", jobs) : "";
  apps::say("{} runs on {}{}, {}, {}{}\n", runs.size(), at_once, jobs > 1 && device == cpu ? "1 CPU thread" : apps::describe(device),
            options.precision, apps::describe_step(options.use_fused_kernel, device, options.compile),
            done() > 0 ? fmt::format("; {} are done", done()) : "");
  // The rates of a model are tried in turn.
  const std::size_t rates = std::max<std::size_t>(grid.lrs.size(), 1);
  DataSets data;
  for_each_by(jobs, runs.size() / rates, device, [&](std::size_t model) {
    for (std::size_t i = model * rates; i < (model + 1) * rates; ++i) {
      if (is_done(runs[i])) continue;
      const Run run = measure(runs[i], *data.get(runs[i]), device, jobs == 1, remains);
      const std::lock_guard lock(mutex);
      table.add(run);
      apps::say("{:>3}/{}  {} of {}  width {:>3}  N {:>3}, {}  lr {:g}  seed {}: accuracy {:.2f}%  loss {:.3f}  {}, {}\n", i + 1,
                runs.size(), apps::counted(run.layers, "layer"), run.mixer, run.width, run.length, apps::counted(run.pairs, "pair"), run.lr,
                run.seed, 100 * run.accuracy, run.test_loss, apps::counted(run.epochs, "epoch"), apps::duration(run.seconds));
    }
  });
  table.require_written();
  plot({table.file().string()}, directory);
}

}  // namespace tern::recall
