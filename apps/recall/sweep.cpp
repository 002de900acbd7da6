#include "recall/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "io/atomic_file.h"
#include "recall/plot.h"
#include "recall/runs.h"
#include "recall/score.h"
#include "recall/train.h"
#include "recall/trainer.h"
#include "text/printable.h"

namespace tern::recall {

std::int64_t pairs_of(std::int64_t length) { return length == 512 ? 64 : std::max<std::int64_t>(length / 16, 1); }

namespace {

/// The options of each run, the quickest lengths and seeds together.
std::vector<Options> expand(const Options& options, const Grid& grid) {
  const auto or_own = [](const std::vector<std::int64_t>& list, std::int64_t own) {
    return list.empty() ? std::vector<std::int64_t>{own} : list;
  };
  std::vector<Options> runs;
  for (std::int64_t length : or_own(grid.lengths, 0))
    for (std::int64_t layers : or_own(grid.layers, options.layers))
      for (std::int64_t width : or_own(grid.widths, options.width))
        for (std::int64_t seed : or_own(grid.seeds, options.seed)) {
          Options& run = runs.emplace_back(options);
          run.layers = layers;
          run.width = width;
          run.seed = seed;
          if (length == 0) continue;
          run.length = length;
          run.pairs = pairs_of(length);
        }
  return runs;
}

Run measure(const Options& options, Device device, apps::ProgressLine& progress) {
  manual_seed(static_cast<std::uint64_t>(options.seed));
  const Task shape = task(options);
  Trainer trainer(
      options,
      make_data_set(shape, static_cast<std::uint64_t>(options.seed), options.train_examples, options.valid_examples, options.test_examples),
      device);
  trainer.run(progress);
  const Score score = trainer.test();
  const Interval interval = wilson(score);
  return {.task = options.task,
          .layers = options.layers,
          .width = options.width,
          .mlp = options.mlp,
          .length = shape.columns(),
          .pairs = options.pairs,
          .seed = options.seed,
          .params = nn::count_parameters(trainer.model()),
          .accuracy = score.accuracy(),
          .low = interval.low,
          .high = interval.high,
          .answers = score.answers,
          .train_loss = trainer.train_loss(),
          .test_loss = score.loss,
          .epochs = trainer.epoch(),
          .updates = trainer.updates(),
          .seconds = trainer.seconds(),
          .epoch_90 = trainer.passed() ? trainer.passed()->epoch : 0,
          .seconds_90 = trainer.passed() ? trainer.passed()->seconds : 0};
}

/// Runs that differ in their seed alone become one point, whose bar goes from the least to the greatest accuracy; a run without
/// such others shows its confidence interval.
Point joined(double x, const std::vector<Run>& runs) {
  if (runs.size() == 1) return {x, runs[0].accuracy, runs[0].low, runs[0].high};
  Point point{.x = x, .y = 0, .low = 1, .high = 0};
  for (const Run& run : runs) {
    point.y += run.accuracy / static_cast<double>(runs.size());
    point.low = std::min(point.low, run.accuracy);
    point.high = std::max(point.high, run.accuracy);
  }
  return point;
}

/// A chart of the runs of one task: a series for each name, a point for each x.
template <class Name, class X>
std::vector<Series> series_of(const std::vector<Run>& runs, const std::string& task, const Name& name, const X& x) {
  std::vector<std::string> order;
  std::map<std::string, std::map<double, std::vector<Run>>> groups;
  for (const Run& run : runs) {
    if (run.task != task) continue;
    if (std::find(order.begin(), order.end(), name(run)) == order.end()) order.push_back(name(run));
    groups[name(run)][x(run)].push_back(run);
  }
  std::vector<Series> result;
  for (const std::string& key : order) {
    Series& series = result.emplace_back(Series{key, {}});
    for (const auto& [place, same] : groups[key]) series.points.push_back(joined(place, same));
  }
  return result;
}

/// A line for each series, and for layers the answer to the question how many it takes.
void print_summary(const Chart& chart) {
  for (const Series& series : chart.series) {
    fmt::print("{}, by {}:", series.name, chart.x_label);
    for (const Point& point : series.points)
      fmt::print("  {:g}: {:.2f}% ({:.2f} to {:.2f})", point.x, 100 * point.y, 100 * point.low, 100 * point.high);
    fmt::print("\n");
    if (chart.x_label != "layers") continue;
    // From where on every seed of every larger number passes, too: one that fails in between is not skipped.
    double fewest = 0;
    for (const Point& point : series.points)
      if (point.low < 0.9) fewest = 0;
      else if (fewest == 0) fewest = point.x;
    if (fewest > 0) fmt::print("the fewest layers that reach 90% with every seed: {:g}\n", fewest);
    else fmt::print("no number of layers reaches 90% with every seed\n");
  }
}

}  // namespace

void sweep(const Options& options, const Grid& grid) {
  if (options.out.empty()) throw apps::UsageError("--out: expected a directory but got \"\"");
  const std::vector<Options> runs = expand(options, grid);
  Device device = cpu;
  for (const Options& run : runs) device = require_trainable(run);
  if (options.threads > 0) set_num_threads(options.threads);
  const std::filesystem::path directory = options.out, csv = directory / "sweep.csv";
  apps::make_directory("--out", directory);
  std::string table = csv_header() + "\n";
  io::write_file_atomically(csv, table);  // a directory that cannot be written is found before an hour of training

  fmt::print("{} runs on {}, {}, {}\n", runs.size(), apps::describe(device), options.precision,
             apps::describe_step(options.use_fused_kernel, device));
  std::fflush(stdout);
  apps::ProgressLine progress;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run run = measure(runs[i], device, progress);
    table += to_csv(run) + "\n";
    io::write_file_atomically(csv, table);  // whole after each run: a sweep that is stopped has the rows that are done
    progress.print(fmt::format("{:>3}/{}  {}  width {:>3}  N {:>3}, {}  seed {}: accuracy {:.2f}%  loss {:.3f}  {}, {}", i + 1, runs.size(),
                               apps::counted(run.layers, "layer"), run.width, run.length, apps::counted(run.pairs, "pair"), run.seed,
                               100 * run.accuracy, run.test_loss, apps::counted(run.epochs, "epoch"), apps::duration(run.seconds)));
  }
  plot({csv.string()}, directory);
}

void plot(const std::vector<std::string>& tables, const std::filesystem::path& directory) {
  std::vector<Run> runs;
  for (const std::string& table : tables)
    for (Run& run : read_csv(table)) runs.push_back(std::move(run));
  const Chart charts[] = {{"Associative recall: accuracy over layers", "layers", "accuracy of the answer",
                           series_of(
                               runs, "recall",
                               [](const Run& run) {
                                 const std::string mlp = run.mlp > 0 ? fmt::format("MLP of {}", run.mlp * run.width) : "no MLP";
                                 return fmt::format("width {}, {}, {}", run.width, mlp, apps::counted(run.pairs, "pair"));
                               },
                               [](const Run& run) { return static_cast<double>(run.layers); })},
                          {"Multi-query recall: accuracy over width", "width", "accuracy of the answers",
                           series_of(
                               runs, "mqar",
                               [](const Run& run) {
                                 return fmt::format("N {}, {}, {}", run.length, apps::counted(run.pairs, "pair"),
                                                    apps::counted(run.layers, "layer"));
                               },
                               [](const Run& run) { return static_cast<double>(run.width); })}};
  if (!directory.empty()) apps::make_directory("--out", directory);
  for (const Chart& chart : charts) {
    if (chart.series.empty()) continue;
    print_summary(chart);
    const std::filesystem::path file = directory / (&chart == &charts[0] ? "recall.svg" : "mqar.svg");
    io::write_file_atomically(file, to_svg(chart));
    fmt::print("wrote {}\n", text::printable(file.string()));
  }
}

}  // namespace tern::recall
