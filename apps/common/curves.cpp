#include "common/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "io/atomic_file.h"
#include "io/file_error.h"
#include "tensor/ceil_div.h"

namespace tern::apps {

namespace {

constexpr std::size_t max_log_bytes = std::size_t(1) << 30;
constexpr std::size_t max_points = 400;  // more points are not visible, and enlarge the file

/// Reduces a line to max_points, by means of neighbours, which its name then says.
Series series_of(const std::string& name, const std::map<std::int64_t, double>& line, bool is_right, Mark mark) {
  Series series{.name = name, .points = {}, .is_right = is_right, .mark = mark};
  const std::size_t together = ceil_div(line.size(), max_points);
  if (together > 1) series.name += fmt::format(", means of {} values", together);
  for (auto at = line.begin(); at != line.end();) {
    double x = 0, y = 0, count = 0;
    for (; at != line.end() && count < static_cast<double>(together); ++at, ++count) {
      x += static_cast<double>(at->first);
      y += at->second;
    }
    series.points.push_back({x / count, y / count, 0, 0});
  }
  return series;
}

}  // namespace

void Curves::add(const io::JsonObject& line) {
  if (!line.contains("update")) return;
  const std::int64_t update = line.get_int("update");
  for (const auto& [key, value] : line.numbers()) {
    Line* const curve = key == "loss"                  ? &loss_
                        : key == "valid_loss"          ? &valid_loss_
                        : key == "valid_smoothed_loss" ? &smoothed_
                        : key == "valid_bleu"          ? &bleu_
                        : key == "valid_accuracy"      ? &accuracy_
                                                       : nullptr;
    if (curve && std::isfinite(value)) (*curve)[update] = value;
  }
}

void Curves::read(const std::filesystem::path& log, std::int64_t last_update) {
  if (std::error_code error; !std::filesystem::exists(log, error)) return;
  std::istringstream text(io::read_file(log, max_log_bytes));
  for (std::string line; std::getline(text, line);) {
    try {
      const io::JsonObject object = io::JsonObject::parse(line, log.string());
      if (object.contains("update") && object.get_int("update") <= last_update) add(object);
    } catch (const io::FileError&) {  // this line is skipped
    }
  }
}

Chart Curves::chart(const std::string& title) const {
  Chart chart{.title = title, .x_label = "update", .left = {.label = "loss"}, .series = {}};
  const auto add_series = [&](const std::string& name, const Line& line, bool is_right, Mark mark) {
    if (!line.empty()) chart.series.push_back(series_of(name, line, is_right, mark));
  };
  add_series(training_loss_, loss_, false, Mark::none);
  add_series("validation loss", valid_loss_, false, Mark::disc);
  add_series("validation loss (label smoothing)", smoothed_, false, Mark::ring);
  add_series("validation BLEU", bleu_, true, Mark::disc);
  add_series("validation accuracy", accuracy_, true, Mark::disc);
  if (!accuracy_.empty()) chart.right = {.label = "accuracy", .is_percent = true, .low = 0, .high = 1};
  else if (!bleu_.empty()) chart.right = {.label = "BLEU", .low = 0};
  return chart;
}

}  // namespace tern::apps
