#include "recall/sweep_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <type_traits>

#include "backend/parse.h"
#include "common/program.h"
#include "io/files.h"
#include "text/input_file.h"
#include "text/unicode.h"
#include "trainer/terminal.h"

namespace tern::recall {

namespace {

constexpr std::size_t first_columns = 19;  ///< before the mixer

/// Calls f(name, value) for each column of the table, for writing and for reading.
template <class Row, class F>
void for_each_column(Row& run, F&& f) {
  f("task", run.task), f("layers", run.layers), f("width", run.width), f("mlp", run.mlp), f("length", run.length), f("pairs", run.pairs);
  f("seed", run.seed), f("params", run.params), f("accuracy", run.accuracy), f("low", run.low), f("high", run.high);
  f("answers", run.answers), f("train_loss", run.train_loss), f("test_loss", run.test_loss), f("epochs", run.epochs);
  f("updates", run.updates), f("seconds", run.seconds), f("epoch_90", run.epoch_90), f("seconds_90", run.seconds_90);
  f("mixer", run.mixer), f("lr", run.lr), f("state", run.state), f("twice", run.twice), f("four_times", run.four_times);
}

/// Parses a value. False unless it is the whole text.
template <class T>
bool parse(const std::string& text, T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    value = text;
    return !text.empty() && text == text::printable(text);
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    return text == "none" || parse(text, value.emplace());
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
    if constexpr (std::is_same_v<T, std::optional<double>>) words.push_back(!of ? name : value ? fmt::format("{:.6g}", *value) : "none");
    else if constexpr (std::is_same_v<T, double>) words.push_back(of ? fmt::format("{:.6g}", value) : name);
    else words.push_back(of ? fmt::format("{}", value) : name);
  });
  return fmt::format("{}", fmt::join(words, ","));
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

}  // namespace

std::string mixer_cell(std::string mixer) {
  std::replace(mixer.begin(), mixer.end(), ',', '+');
  return mixer;
}

std::vector<Run> read_runs(const std::filesystem::path& path, bool continues) {
  std::string content = text::read_file(path, std::size_t{1} << 28);
  if (continues) content.resize(content.rfind('\n') + 1);  // npos + 1 is 0: no complete line
  std::istringstream lines(content);
  std::vector<std::string> columns = cells(csv_line());
  std::vector<Run> runs;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::vector<std::string> values = cells(line);
    if (number == 1 && !continues && values.size() >= first_columns && values.size() < columns.size()) columns.resize(values.size());
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

Table::Table(const std::filesystem::path& directory, const Options& options, std::vector<Options> order)
    : lock_(directory), file_(directory / "sweep.csv"), order_(std::move(order)) {
  const std::filesystem::path settings = directory / "sweep.json";
  if (std::filesystem::exists(file_)) runs_ = read_runs(file_, true);
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

bool Table::has(const Options& options) const {
  return std::any_of(runs_.begin(), runs_.end(), [&](const Run& run) {
    return is_model(run, options) && (is_rate(run.lr, options.lr) || (options.target > 0 && run.accuracy >= options.target));
  });
}

/// 0 for a run that is none of this sweep's.
std::size_t Table::place(const Run& run) const {
  const auto at =
      std::find_if(order_.begin(), order_.end(), [&](const Options& other) { return is_model(run, other) && is_rate(run.lr, other.lr); });
  return at == order_.end() ? 0 : 1 + static_cast<std::size_t>(at - order_.begin());
}

void Table::add(const Run& run) {
  // Of several jobs, a later run may have ended first.
  runs_.insert(std::find_if(runs_.begin(), runs_.end(), [&](const Run& other) { return place(other) > place(run); }), run);
  try {
    write();
    fault_.clear();
  } catch (const io::FileError& error) {
    fault_ = error.what();
    train::write_message(fmt::format("tern-recall: {}: the sweep goes on\n", fault_));
  }
}

void Table::require_written() const {
  if (!fault_.empty()) throw std::runtime_error("the last row was not written: " + fault_);
}

void Table::write() const {
  std::string text = csv_line() + "\n";
  for (const Run& run : runs_) text += csv_line(&run) + "\n";
  io::write_file_atomically(file_, text);
}

}  // namespace tern::recall
