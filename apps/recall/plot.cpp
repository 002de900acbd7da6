#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "common/program.h"
#include "io/files.h"
#include "io/svg.h"
#include "recall/commands.h"
#include "recall/sweep_table.h"
#include "text/unicode.h"

namespace tern::recall {

using io::svg::Chart, io::svg::Point, io::svg::Series;

namespace {

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

/// The runs, and those of harder mqar once more for each of the longer examples that they were tested on.
std::vector<Run> with_longer(const std::vector<Run>& runs) {
  std::vector<Run> all;
  for (const Run& run : runs) {
    all.push_back(run);
    std::int64_t times = 1;
    for (const std::optional<double>& accuracy : {run.twice, run.four_times}) {
      times *= 2;
      if (!accuracy) continue;
      Run& longer = all.emplace_back(run);
      longer.length *= times, longer.pairs *= times;
      longer.accuracy = longer.low = longer.high = *accuracy;
    }
  }
  return all;
}

/// Prints the accuracies of mixers, a row each, by size and width.
void print_table(const std::vector<Run>& runs) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::set<std::int64_t>> columns;
  std::map<std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>, std::vector<Run>> cells;
  std::vector<std::string> mixers;
  for (const Run& run : runs) {
    columns[{run.length, run.pairs}].insert(run.width);
    cells[{run.mixer, run.length, run.pairs, run.width}].push_back(run);
    if (std::find(mixers.begin(), mixers.end(), run.mixer) == mixers.end()) mixers.push_back(run.mixer);
  }
  const auto is_shorter = [](const std::string& a, const std::string& b) { return a.size() < b.size(); };
  const std::size_t name = std::max_element(mixers.begin(), mixers.end(), is_shorter)->size();
  // Each size's cells are as wide together as its label.
  std::string labels = fmt::format("{:<{}}", "", name);
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> cell_widths;
  for (const auto& [size, of] : columns) {
    const std::string label = fmt::format("N {}, {}", size.first, apps::counted(size.second, "pair"));
    const std::size_t cell = cell_widths[size] = std::max<std::size_t>(8, label.size() / of.size() + 3);
    labels += fmt::format("{:>{}}", label, cell * of.size());
  }
  const auto print = [&](const std::string& first, const auto& text) {
    std::string line = fmt::format("{:<{}}", first, name);
    for (const auto& [size, of] : columns)
      for (const std::int64_t width : of) line += fmt::format("{:>{}}", text(size, width), cell_widths[size]);
    apps::say("{}\n", line);
  };
  apps::say("accuracy in percent\n{}\n", labels);
  print("width", [](const auto&, std::int64_t width) { return fmt::to_string(width); });
  for (const std::string& mixer : mixers)
    print(mixer, [&](const auto& size, std::int64_t width) {
      const auto cell = cells.find({mixer, size.first, size.second, width});
      return cell == cells.end() ? std::string("-") : fmt::format("{:.2f}", 100 * joined(0, cell->second).y);
    });
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

void plot(const std::vector<std::string>& tables, const std::filesystem::path& directory) {
  std::vector<Run> all;
  for (const std::string& table : tables) {
    const std::vector<Run> more = read_runs(table, false);
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
    own = with_longer(own);
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
    if (is_mqar && has_mixers) print_table(own);
    else print_summary(chart);
    write(task + ".svg", is_mqar && has_mixers ? maps_of(own) : to_svg(chart));
    if (!has_mixers) continue;
    Chart by_state{
        .title = "Recall by state: accuracy over what is kept of a text",
        .x_label = "log2 of the state's bytes",
        .left = accuracy("accuracy"),
        .series = series_of(
            own, [](const Run& run) { return run.mixer; }, [](const Run& run) { return std::log2(static_cast<double>(run.state)); }),
        .is_cut = true,
        .height = 400};
    for (Series& series : by_state.series) series.has_line = series.name == "attention";
    write(task + "-states.svg", to_svg(by_state));
  }
}

}  // namespace tern::recall
