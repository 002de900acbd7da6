#include "bench/compile_pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <unordered_map>

#include "io/svg.h"

namespace tern::bench {
namespace {

/// "layers.0 (Layer)" and what is within, "layers.0.first (Norm)", are of "layers.0"; a module without a path is of its type.
std::string column_of(const std::string& module) {
  const std::size_t end = module.find(" (");
  if (end == std::string::npos) return module.empty() ? "(no module)" : module;
  const std::string path = module.substr(0, end);
  const std::size_t first = path.find('.');
  return first == std::string::npos ? path : path.substr(0, path.find('.', first + 1));
}

std::string size_text(std::int64_t bytes) {
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
}

/// Its number, how many kernels it is, and the first of them.
std::string name_of(const ProgramOverview::Group& group, std::size_t index) {
  std::string names = group.kernels[0];
  for (std::size_t i = 1; i < group.kernels.size() && names.size() < 30; ++i) names += " " + group.kernels[i];
  if (group.kernels.size() == 1) return fmt::format("{} {}", index + 1, names);
  return fmt::format("{} [{}] {}", index + 1, group.kernels.size(), names);
}

}  // namespace

std::string groups_picture(const ProgramOverview& program, const std::string& title) {
  io::svg::Graph graph{.title = fmt::format("{}: {} kernels in {} groups", title, program.kernels, program.groups.size())};
  std::istringstream lines(program.groups_text());
  std::map<std::string, std::size_t> columns;  // in the order of their first groups, and what has no module last
  for (const bool has_module : {true, false})
    for (const ProgramOverview::Group& group : program.groups)
      if (group.module.empty() != has_module)
        if (const auto [column, is_new] = columns.try_emplace(column_of(group.module), columns.size()); is_new)
          graph.columns.push_back(column->first);
  std::unordered_map<std::size_t, std::size_t> writers;  // latest, of each block
  for (std::size_t i = 0; i < program.groups.size(); ++i) {
    const ProgramOverview::Group& group = program.groups[i];
    std::string note;
    std::getline(lines, note);
    // Groups of several kernels stand out from kernels alone.
    graph.nodes.push_back(
        {columns.at(column_of(group.module)), name_of(group, i), note, group.kernels.size() > 1 ? std::size_t{0} : std::size_t{1}});
    std::vector<std::size_t> from;
    for (const ProgramOverview::Operand& x : group.operands)
      if (const auto writer = writers.find(x.block); x.is_read && writer != writers.end()) from.push_back(writer->second);
    std::sort(from.begin(), from.end());
    from.erase(std::unique(from.begin(), from.end()), from.end());
    for (const std::size_t other : from) graph.arrows.emplace_back(other, i);
    for (const ProgramOverview::Operand& x : group.operands)
      if (x.is_written) writers[x.block] = i;
  }
  return to_svg(graph);
}

std::string memory_picture(const ProgramOverview& program, const std::string& title) {
  constexpr double mebibyte = 1 << 20;
  io::svg::Chart chart{.title = fmt::format("{}: arena of {}, at once in use {}, one by one {}", title, size_text(program.arena_bytes),
                                            size_text(program.alive_bytes()), size_text(program.separate_bytes())),
                       .x_label = "group",
                       .left = {.label = "address in the arena, MiB", .low = 0},
                       .series = {},
                       .width = 1200,
                       .height = 640};
  for (std::size_t i = 0; i < program.blocks.size(); ++i) {
    const ProgramOverview::Block& block = program.blocks[i];
    if (!block.kind.empty() || !block.is_used) continue;
    const std::string writer = program.groups[block.first].kernels.back();
    chart.boxes.push_back(
        {.from = static_cast<double>(block.first + 1),
         .to = static_cast<double>(block.last + 2),
         .low = static_cast<double>(block.offset) / mebibyte,
         .high = static_cast<double>(block.offset + block.bytes) / mebibyte,
         .note = fmt::format("%{}: {}, groups {} to {}, of {}", i, size_text(block.bytes), block.first + 1, block.last + 1, writer),
         .colour = chart.boxes.size()});
  }
  return to_svg(chart);
}

}  // namespace tern::bench
