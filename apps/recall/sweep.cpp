#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <type_traits>

#include "backend/parse.h"
#include "common/program.h"
#include "io/files.h"
#include "io/run_directory.h"
#include "io/svg.h"
#include "recall/commands.h"
#include "recall/training.h"
#include "text/input_file.h"
#include "text/unicode.h"
#include "trainer/terminal.h"

namespace tern::recall {

using io::svg::Chart, io::svg::Point, io::svg::Series;

namespace {

/// A row of sweep.csv: a training and its results.
struct Run {
  std::string task;
  std::int64_t layers = 0, width = 0, mlp = 0, length = 0, pairs = 0, seed = 0;
  std::int64_t params = 0;
  double accuracy = 0, low = 0, high = 0;  ///< test accuracy, with its 95% confidence interval
  std::int64_t answers = 0;
  double train_loss = 0, test_loss = 0;
  std::int64_t epochs = 0, updates = 0;
  double seconds = 0;
  std::int64_t epoch_90 = 0;  ///< first epoch with a validation accuracy of 90%; 0: none
  double seconds_90 = 0;
};

/// Calls f(name, value) for each column of the table, for writing and for reading.
template <class Row, class F>
void for_each_column(Row& run, F&& f) {
  f("task", run.task), f("layers", run.layers), f("width", run.width), f("mlp", run.mlp), f("length", run.length), f("pairs", run.pairs);
  f("seed", run.seed), f("params", run.params), f("accuracy", run.accuracy), f("low", run.low), f("high", run.high);
  f("answers", run.answers), f("train_loss", run.train_loss), f("test_loss", run.test_loss), f("epochs", run.epochs);
  f("updates", run.updates), f("seconds", run.seconds), f("epoch_90", run.epoch_90), f("seconds_90", run.seconds_90);
}

/// Parses a value. False unless it is the whole text.
template <class T>
bool parse(const std::string& text, T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    value = text;
    return text == "recall" || text == "mqar";
  } else {
    const std::optional<T> number = backend::parse_number<T>(text);
    value = number.value_or(value);
    if constexpr (std::is_same_v<T, double>) return number && std::isfinite(value);
    else return number.has_value();
  }
}

std::vector<std::string> cells(std::string line) {
  std::erase(line, '\r');  // spreadsheets write CR LF
  return apps::words(line);
}

/// The names of the columns; with `of`, the row of a run.
std::string csv_line(const Run* of = nullptr) {
  std::vector<std::string> words;
  for_each_column(of ? *of : Run{}, [&]<class T>(const char* name, const T& value) {
    if constexpr (std::is_same_v<T, double>) words.push_back(of ? fmt::format("{:.6g}", value) : name);
    else words.push_back(of ? fmt::format("{}", value) : name);
  });
  return fmt::format("{}", fmt::join(words, ","));
}

/// Reads the runs of a table. Throws FileError, which names the line, for another file. `drops_cut_line`: without a last line that has no
/// end, which was cut off.
std::vector<Run> read(const std::filesystem::path& path, bool drops_cut_line) {
  std::string content = text::read_file(path, std::size_t{1} << 28);
  if (drops_cut_line) content.resize(content.rfind('\n') + 1);  // npos + 1 is 0: no complete line
  std::istringstream lines(content);
  const std::vector<std::string> columns = cells(csv_line());
  std::vector<Run> runs;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::vector<std::string> values = cells(line);
    if (number == 1 && values != columns)
      throw io::FileError(fmt::format("{}: expected the columns of tern-recall sweep: task,layers,width,...", path.string()));
    if (number == 1) continue;
    if (values.size() != columns.size())
      throw io::FileError(fmt::format("{}:{}: expected {} columns but got {}", path.string(), number, columns.size(), values.size()));
    std::size_t column = 0;
    for_each_column(runs.emplace_back(), [&](const char* name, auto& value) {
      if (const std::string& text = values[column++]; !parse(text, value))
        throw io::FileError(
            fmt::format("{}:{}: expected a value of the column {} but got {}", path.string(), number, name, text::printable(text, 60)));
    });
  }
  return runs;
}

/// The pairs of an mqar example by its length: those of zoology's figure (4 for 64, 8 for 128, 16 for 256, 64 for 512), else length / 16.
std::int64_t pairs_of(std::int64_t length) { return length == 512 ? 64 : std::max<std::int64_t>(length / 16, 1); }

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

/// The entries that are not columns of the table.
std::vector<Entry> shared_entries() {
  std::vector<Entry> shared = entries();
  std::erase_if(shared, [](const Entry& entry) {
    const char* const columns[] = {"layers", "width", "mlp", "length", "pairs", "seed"};
    return std::find(std::begin(columns), std::end(columns), entry.key) != std::end(columns);
  });
  return shared;
}

/// Throws FileError, which names the option, unless the table has these settings.
void require_same(const std::filesystem::path& file, const Options& options) {
  const std::vector<Entry> shared = shared_entries();
  const Options there = apps::from_json(shared, io::read_json(file), file);
  for (const Entry& entry : shared)
    if (entry.text(there) != entry.text(options))
      throw io::FileError(fmt::format("{}: the sweep there has {} {} and this one {}: name another directory", file.string(), entry.flag(),
                                      entry.text(there), entry.text(options)));
}

/// The table of a sweep, which is written to the disk after each run.
class Table {
 public:
  /// Continues the table in a directory if there is one.
  Table(const std::filesystem::path& directory, const Options& options) : lock_(directory), file_(directory / "sweep.csv") {
    const std::filesystem::path settings = directory / "sweep.json";
    if (std::filesystem::exists(file_)) runs_ = read(file_, true);
    if (!runs_.empty() && !std::filesystem::exists(settings))
      throw io::FileError(
          fmt::format("{}: sweep.json, which says with what settings it was made, is missing: name another directory", file_.string()));
    if (!runs_.empty()) require_same(settings, options);
    io::remove_temporaries(directory, [](const std::string& name) {
      return name == "sweep.csv" || name == "sweep.json" || name == "recall.svg" || name == "mqar.svg";
    });
    // Written before an hour of training, to detect a directory that cannot be written.
    if (runs_.empty()) io::write_json(settings, apps::to_json(shared_entries(), options));
    write();
  }

  const std::filesystem::path& file() const { return file_; }
  bool has(const Options& options) const {
    return std::any_of(runs_.begin(), runs_.end(), [&](const Run& run) {
      return run.task == options.task && run.layers == options.layers && run.width == options.width && run.mlp == options.mlp &&
             run.length == task(options).columns() && run.pairs == options.pairs && run.seed == options.seed;
    });
  }
  /// Adds a row. If the disk is full or fails, the sweep continues, and the row is written with the next one.
  void add(const Run& run) {
    runs_.push_back(run);
    try {
      write();
      fault_.clear();
    } catch (const io::FileError& error) {
      fault_ = error.what();
      train::write_message(fmt::format("tern-recall: {}: the sweep goes on\n", fault_));
    }
  }
  void require_written() const {
    if (!fault_.empty()) throw std::runtime_error("the last row was not written: " + fault_);
  }

 private:
  void write() const {
    std::string text = csv_line() + "\n";
    for (const Run& run : runs_) text += csv_line(&run) + "\n";
    io::write_file_atomically(file_, text);
  }

  const io::DirectoryLock lock_;
  const std::filesystem::path file_;
  std::vector<Run> runs_;
  std::string fault_;  ///< of the last attempt
};

Run measure(const Options& options, Device device, const std::function<std::string(bool)>& remains) {
  manual_seed(static_cast<std::uint64_t>(options.seed));
  const Task shape = task(options);
  train::Run shown("tern-recall", remains);
  Training training(
      options,
      make_data_set(shape, static_cast<std::uint64_t>(options.seed), options.train_examples, options.valid_examples, options.test_examples),
      device, shown);
  train::Trainer& trainer = training.trainer();
  trainer.run();
  const Score score = training.test();
  const Interval interval = wilson(score);
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
          .seconds_90 = training.passed() ? training.passed()->seconds : 0};
}

/// Combines runs that differ in their seed only into one point, with a bar from the least to the greatest accuracy; the bar of a single run
/// is its confidence interval.
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

/// Prints a line for each series, and for layers the least number that suffices.
void print_summary(const Chart& chart) {
  for (const Series& series : chart.series) {
    apps::say("{}, by {}:", series.name, chart.x_label);
    for (const Point& point : series.points)
      apps::say("  {:g}: {:.2f}% ({:.2f} to {:.2f})", point.x, 100 * point.y, 100 * point.low, 100 * point.high);
    apps::say("\n");
    if (chart.x_label != "layers") continue;
    // The least number from which on all seeds of all larger numbers pass.
    double fewest = 0;
    for (const Point& point : series.points)
      if (point.low < 0.9) fewest = 0;
      else if (fewest == 0) fewest = point.x;
    if (fewest > 0) apps::say("the fewest layers that reach 90% with every seed: {:g}\n", fewest);
    else apps::say("no number of layers reaches 90% with every seed\n");
  }
}

}  // namespace

void sweep(const Options& options, const Grid& grid) {
  apps::require_named("--out", options.out);
  const std::vector<Options> runs = expand(options, grid);
  Device device = cpu;
  for (const Options& run : runs) device = require_trainable(run);
  const train::StopSignals signals;
  const std::filesystem::path directory = options.out;
  Table table(directory, options);
  const auto is_done = [&](const Options& run) { return table.has(run); };
  auto done = std::count_if(runs.begin(), runs.end(), is_done);
  const auto remains = [&](bool can_resume) {
    return fmt::format("; {} has {} of {} runs{}", table.file().string(), done, runs.size(),
                       can_resume ? ", and the same command goes on from there" : "");
  };

  apps::say("{} runs on {}, {}, {}{}\n", runs.size(), apps::describe(device), options.precision,
            apps::describe_step(options.use_fused_kernel, device), done > 0 ? fmt::format("; {} are done", done) : "");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (is_done(runs[i])) continue;
    const Run run = measure(runs[i], device, remains);
    table.add(run);
    ++done;
    apps::say("{:>3}/{}  {}  width {:>3}  N {:>3}, {}  seed {}: accuracy {:.2f}%  loss {:.3f}  {}, {}\n", i + 1, runs.size(),
              apps::counted(run.layers, "layer"), run.width, run.length, apps::counted(run.pairs, "pair"), run.seed, 100 * run.accuracy,
              run.test_loss, apps::counted(run.epochs, "epoch"), apps::duration(run.seconds));
  }
  table.require_written();
  plot({table.file().string()}, directory);
}

void plot(const std::vector<std::string>& tables, const std::filesystem::path& directory) {
  std::vector<Run> runs;
  for (const std::string& table : tables) {
    const std::vector<Run> more = read(table, false);
    if (more.empty()) throw io::FileError(fmt::format("{}: expected at least one run but got none", table));
    runs.insert(runs.end(), more.begin(), more.end());
  }
  const auto accuracy = [](const char* label) { return io::svg::Axis{.label = label, .is_percent = true, .low = 0, .high = 1}; };
  const Chart charts[] = {{.title = "Associative recall: accuracy over layers",
                           .x_label = "layers",
                           .left = accuracy("accuracy of the answer"),
                           .series = series_of(
                               runs, "recall",
                               [](const Run& run) {
                                 const std::string mlp = run.mlp > 0 ? fmt::format("MLP of {}", run.mlp * run.width) : "no MLP";
                                 return fmt::format("width {}, {}, {}", run.width, mlp, apps::counted(run.pairs, "pair"));
                               },
                               [](const Run& run) { return static_cast<double>(run.layers); }),
                           .is_even = true},
                          {.title = "Multi-query recall: accuracy over width",
                           .x_label = "width",
                           .left = accuracy("accuracy of the answers"),
                           .series = series_of(
                               runs, "mqar",
                               [](const Run& run) {
                                 return fmt::format("N {}, {}, {}", run.length, apps::counted(run.pairs, "pair"),
                                                    apps::counted(run.layers, "layer"));
                               },
                               [](const Run& run) { return static_cast<double>(run.width); }),
                           .is_even = true}};
  if (!directory.empty()) apps::make_directory("--out", directory);
  for (const Chart& chart : charts) {
    if (chart.series.empty()) continue;
    print_summary(chart);
    const std::filesystem::path file = directory / (&chart == &charts[0] ? "recall.svg" : "mqar.svg");
    io::write_file_atomically(file, to_svg(chart));
    apps::say("wrote {}\n", text::printable(file.string()));
  }
}

}  // namespace tern::recall
