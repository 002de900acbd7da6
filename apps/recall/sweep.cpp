#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <type_traits>

#include "backend/parse.h"
#include "common/program.h"
#include "io/files.h"
#include "io/run_directory.h"
#include "io/svg.h"
#include "ops/factory.h"
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
  // Tables without the columns from here on can be drawn.
  std::string mixer = "attention";  ///< with + for the commas of Options::mixer
  double lr = 0;
  std::int64_t state = 0;  ///< bytes that the model keeps of one text that it has read
};
constexpr std::size_t first_columns = 19;  ///< before the mixer

/// Calls f(name, value) for each column of the table, for writing and for reading.
template <class Row, class F>
void for_each_column(Row& run, F&& f) {
  f("task", run.task), f("layers", run.layers), f("width", run.width), f("mlp", run.mlp), f("length", run.length), f("pairs", run.pairs);
  f("seed", run.seed), f("params", run.params), f("accuracy", run.accuracy), f("low", run.low), f("high", run.high);
  f("answers", run.answers), f("train_loss", run.train_loss), f("test_loss", run.test_loss), f("epochs", run.epochs);
  f("updates", run.updates), f("seconds", run.seconds), f("epoch_90", run.epoch_90), f("seconds_90", run.seconds_90);
  f("mixer", run.mixer), f("lr", run.lr), f("state", run.state);
}

/// Parses a value. False unless it is the whole text.
template <class T>
bool parse(const std::string& text, T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    value = text;
    return !text.empty() && text == text::printable(text);
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

/// Reads the runs of a table. Throws FileError, which names the line, for another file. `continues`: to add runs, without a last line that
/// has no end, which was cut off; the table has to have all columns.
std::vector<Run> read(const std::filesystem::path& path, bool continues) {
  std::string content = text::read_file(path, std::size_t{1} << 28);
  if (continues) content.resize(content.rfind('\n') + 1);  // npos + 1 is 0: no complete line
  std::istringstream lines(content);
  std::vector<std::string> columns = cells(csv_line());
  std::vector<Run> runs;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::vector<std::string> values = cells(line);
    if (number == 1 && !continues && values.size() == first_columns) columns.resize(first_columns);
    if (number == 1 && values != columns)
      throw io::FileError(fmt::format("{}: expected the columns of tern-recall sweep: task,layers,width,...", path.string()));
    if (number == 1) continue;
    if (values.size() != columns.size())
      throw io::FileError(fmt::format("{}:{}: expected {} columns but got {}", path.string(), number, columns.size(), values.size()));
    std::size_t column = 0;
    for_each_column(runs.emplace_back(), [&](const char* name, auto& value) {
      if (column == columns.size()) return;
      if (const std::string& text = values[column++]; !parse(text, value))
        throw io::FileError(
            fmt::format("{}:{}: expected a value of the column {} but got {}", path.string(), number, name, text::printable(text, 60)));
    });
  }
  return runs;
}

/// The pairs of an mqar example by its length: those of zoology's figure (4 for 64, 8 for 128, 16 for 256, 64 for 512), else length / 16.
std::int64_t pairs_of(std::int64_t length) { return length == 512 ? 64 : std::max<std::int64_t>(length / 16, 1); }

/// The options of each run: the quickest lengths first, and seeds and rates together.
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
  times(grid.lengths, +[](Options& run, const Number& length) { run.length = length, run.pairs = pairs_of(length); });
  times(grid.mixers, +[](Options& run, const std::string& mixer) { run.mixer = mixer; });
  times(grid.layers, +[](Options& run, const Number& layers) { run.layers = layers; });
  times(grid.widths, +[](Options& run, const Number& width) { run.width = width; });
  times(grid.seeds, +[](Options& run, const Number& seed) { run.seed = seed; });
  times(grid.lrs, +[](Options& run, const double& lr) { run.lr = lr; });
  return runs;
}

/// Options::mixer as a cell of the table, whose cells end with commas.
std::string mixer_cell(std::string mixer) {
  std::replace(mixer.begin(), mixer.end(), ',', '+');
  return mixer;
}

/// The run's model, but for its rate.
bool is_model(const Run& run, const Options& options) {
  return run.task == options.task && run.mixer == mixer_cell(options.mixer) && run.layers == options.layers && run.width == options.width &&
         run.mlp == options.mlp && run.length == task(options).columns() && run.pairs == options.pairs && run.seed == options.seed;
}

/// The rate as the table has it.
bool is_rate(double in_table, double lr) { return fmt::format("{:.6g}", in_table) == fmt::format("{:.6g}", lr); }

/// The entries that are not columns of the table.
std::vector<Entry> shared_entries() {
  std::vector<Entry> shared = entries();
  std::erase_if(shared, [](const Entry& entry) {
    const char* const columns[] = {"mixer", "layers", "width", "mlp", "length", "pairs", "seed", "lr"};
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
    io::remove_temporaries(directory,
                           [](const std::string& name) { return name == "sweep.csv" || name == "sweep.json" || name.ends_with(".svg"); });
    // Written before an hour of training, to detect a directory that cannot be written.
    if (runs_.empty()) io::write_json(settings, apps::to_json(shared_entries(), options));
    write();
  }

  const std::filesystem::path& file() const { return file_; }
  /// True if the run is there, or its model with another rate that has reached the target.
  bool has(const Options& options) const {
    return std::any_of(runs_.begin(), runs_.end(), [&](const Run& run) {
      return is_model(run, options) && (is_rate(run.lr, options.lr) || (options.target > 0 && run.accuracy >= options.target));
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
          .seconds_90 = training.passed() ? training.passed()->seconds : 0,
          .mixer = mixer_cell(options.mixer),
          .lr = options.lr,
          .state = state_bytes(training.model())};
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

/// A series for each name of the runs, a point for each x.
template <class Name, class X>
std::vector<Series> series_of(const std::vector<Run>& runs, const Name& name, const X& x) {
  std::vector<std::string> order;
  std::map<std::string, std::map<double, std::vector<Run>>> groups;
  for (const Run& run : runs) {
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

/// Of runs that differ in their rate only, the one with the best accuracy.
std::vector<Run> of_best_rates(const std::vector<Run>& runs) {
  std::vector<Run> best;
  for (const Run& run : runs) {
    const auto key = [](const Run& of) { return std::tie(of.task, of.mixer, of.layers, of.width, of.mlp, of.length, of.pairs, of.seed); };
    const auto same =
        std::find_if(best.begin(), best.end(), [&](const Run& other) { return key(other) == key(run) && other.lr != run.lr; });
    if (same == best.end()) best.push_back(run);
    else if (run.accuracy > same->accuracy) *same = run;
  }
  return best;
}

/// Accuracies of multi-query recall by length, mixer and width: a map for each length.
std::string maps_of(const std::vector<Run>& runs) {
  std::vector<std::string> rows;
  std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::int64_t, std::map<std::string, std::vector<Run>>>> maps;
  for (const Run& run : runs) {
    if (std::find(rows.begin(), rows.end(), run.mixer) == rows.end()) rows.push_back(run.mixer);
    maps[{run.length, run.pairs}][run.width][run.mixer].push_back(run);
  }
  std::vector<io::svg::HeatMap> shown;
  for (const auto& [size, by_width] : maps) {
    io::svg::HeatMap& map = shown.emplace_back();
    map.title = fmt::format("N {}, {}", size.first, apps::counted(size.second, "pair"));
    map.rows = static_cast<std::int64_t>(rows.size());
    map.columns = static_cast<std::int64_t>(by_width.size());
    map.row_names = rows;
    map.is_percent = true;
    for (const auto& [width, of] : by_width) map.column_names.push_back(fmt::to_string(width));
    for (const std::string& row : rows)
      for (const auto& [width, of] : by_width) {
        const auto there = of.find(row);
        map.values.push_back(there == of.end() ? -std::numeric_limits<float>::infinity() : static_cast<float>(joined(0, there->second).y));
      }
  }
  return to_svg("Multi-query recall: accuracy of mixers over width, in percent", shown);
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
  const auto done = [&] { return std::count_if(runs.begin(), runs.end(), is_done); };
  const auto remains = [&](bool can_resume) {
    return fmt::format("; {} has {} of {} runs{}", table.file().string(), done(), runs.size(),
                       can_resume ? ", and the same command goes on from there" : "");
  };

  apps::say("{} runs on {}, {}, {}{}\n", runs.size(), apps::describe(device), options.precision,
            apps::describe_step(options.use_fused_kernel, device), done() > 0 ? fmt::format("; {} are done", done()) : "");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (is_done(runs[i])) continue;
    const Run run = measure(runs[i], device, remains);
    table.add(run);
    apps::say("{:>3}/{}  {} of {}  width {:>3}  N {:>3}, {}  lr {:g}  seed {}: accuracy {:.2f}%  loss {:.3f}  {}, {}\n", i + 1, runs.size(),
              apps::counted(run.layers, "layer"), run.mixer, run.width, run.length, apps::counted(run.pairs, "pair"), run.lr, run.seed,
              100 * run.accuracy, run.test_loss, apps::counted(run.epochs, "epoch"), apps::duration(run.seconds));
  }
  table.require_written();
  plot({table.file().string()}, directory);
}

void plot(const std::vector<std::string>& tables, const std::filesystem::path& directory) {
  std::vector<Run> all;
  for (const std::string& table : tables) {
    const std::vector<Run> more = read(table, false);
    if (more.empty()) throw io::FileError(fmt::format("{}: expected at least one run but got none", table));
    all.insert(all.end(), more.begin(), more.end());
  }
  const std::vector<Run> runs = of_best_rates(all);
  if (!directory.empty()) apps::make_directory("--out", directory);
  const auto accuracy = [](const char* label) { return io::svg::Axis{.label = label, .is_percent = true, .low = 0, .high = 1}; };
  const auto write = [&](const std::string& name, const std::string& picture) {
    const std::filesystem::path file = directory / name;
    io::write_file_atomically(file, picture);
    apps::say("wrote {}\n", text::printable(file.string()));
  };
  for (const std::string task : {"recall", "mqar"}) {
    std::vector<Run> own;
    std::set<std::string> mixers;
    for (const Run& run : runs)
      if (run.task == task) own.push_back(run), mixers.insert(run.mixer);
    if (own.empty()) continue;
    const bool is_mqar = task == "mqar", has_mixers = mixers.size() > 1;
    const auto name = [&](const Run& run) {
      const std::string mlp = run.mlp > 0 ? fmt::format("MLP of {}", run.mlp * run.width) : "no MLP",
                        pairs = apps::counted(run.pairs, "pair");
      return (has_mixers ? run.mixer + ", " : "") +
             (is_mqar ? fmt::format("N {}, {}, {}", run.length, pairs, apps::counted(run.layers, "layer"))
                      : fmt::format("width {}, {}, {}", run.width, mlp, pairs));
    };
    const Chart chart{.title = is_mqar ? "Multi-query recall: accuracy over width" : "Associative recall: accuracy over layers",
                      .x_label = is_mqar ? "width" : "layers",
                      .left = accuracy(is_mqar ? "accuracy of the answers" : "accuracy of the answer"),
                      .series = series_of(own, name, [&](const Run& run) { return static_cast<double>(is_mqar ? run.width : run.layers); }),
                      .is_even = true};
    print_summary(chart);
    write(task + ".svg", is_mqar && has_mixers ? maps_of(own) : to_svg(chart));
    if (!has_mixers) continue;
    Chart by_state{
        .title = "Recall by state: accuracy over what is kept of a text",
        .x_label = "log2 of the state's bytes",
        .left = accuracy("accuracy"),
        .series = series_of(
            own, [](const Run& run) { return run.mixer; }, [](const Run& run) { return std::log2(static_cast<double>(run.state)); }),
        .height = 400};
    for (Series& series : by_state.series) series.has_line = series.name == "attention";
    write(task + "-states.svg", to_svg(by_state));
  }
}

}  // namespace tern::recall
