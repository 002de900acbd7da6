#include "recall/runs.h"

#include <fmt/format.h>

#include <cmath>
#include <sstream>
#include <variant>

#include "backend/parse.h"
#include "common/lists.h"
#include "io/files.h"
#include "text/input_file.h"
#include "text/unicode.h"

namespace tern::recall {

namespace {

/// The columns of the table, for writing and for reading.
struct Column {
  const char* name;
  std::variant<std::string Run::*, std::int64_t Run::*, double Run::*> member;
};
constexpr Column columns[] = {
    {"task", &Run::task},
    {"layers", &Run::layers},
    {"width", &Run::width},
    {"mlp", &Run::mlp},
    {"length", &Run::length},
    {"pairs", &Run::pairs},
    {"seed", &Run::seed},
    {"params", &Run::params},
    {"accuracy", &Run::accuracy},
    {"low", &Run::low},
    {"high", &Run::high},
    {"answers", &Run::answers},
    {"train_loss", &Run::train_loss},
    {"test_loss", &Run::test_loss},
    {"epochs", &Run::epochs},
    {"updates", &Run::updates},
    {"seconds", &Run::seconds},
    {"epoch_90", &Run::epoch_90},
    {"seconds_90", &Run::seconds_90},
};

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

}  // namespace

std::string csv_header() {
  std::string line;
  for (const Column& column : columns) line += (line.empty() ? "" : ",") + std::string(column.name);
  return line;
}

std::string to_csv(const Run& run) {
  std::string line;
  for (const Column& column : columns) {
    if (!line.empty()) line += ',';
    std::visit(
        [&]<class T>(T Run::* at) {
          if constexpr (std::is_same_v<T, double>) line += fmt::format("{:.6g}", run.*at);
          else line += fmt::format("{}", run.*at);
        },
        column.member);
  }
  return line;
}

/// Reads a table. `drops_cut_line`: drop a last line without a line end.
static std::vector<Run> read(const std::filesystem::path& path, bool drops_cut_line) {
  std::string content = text::read_file(path, std::size_t{1} << 28);
  if (drops_cut_line) content.resize(content.rfind('\n') + 1);  // npos + 1 is 0: no complete line
  std::istringstream lines(content);
  std::vector<Run> runs;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::vector<std::string> values = cells(line);
    if (number == 1 && cells(line) != cells(csv_header()))
      throw io::FileError(fmt::format("{}: expected the columns of tern-recall sweep: task,layers,width,...", path.string()));
    if (number == 1) continue;
    if (values.size() != std::size(columns))
      throw io::FileError(fmt::format("{}:{}: expected {} columns but got {}", path.string(), number, std::size(columns), values.size()));
    Run& run = runs.emplace_back();
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!std::visit([&](auto at) { return parse(values[i], run.*at); }, columns[i].member))
        throw io::FileError(fmt::format("{}:{}: expected a value of the column {} but got {}", path.string(), number, columns[i].name,
                                        text::printable(values[i], 60)));
  }
  return runs;
}

std::vector<Run> read_csv(const std::filesystem::path& path) {
  std::vector<Run> runs = read(path, false);
  if (runs.empty()) throw io::FileError(fmt::format("{}: expected at least one run but got none", path.string()));
  return runs;
}

std::vector<Run> read_csv_to_continue(const std::filesystem::path& path) { return read(path, true); }

}  // namespace tern::recall
