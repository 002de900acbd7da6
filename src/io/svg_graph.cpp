#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "io/svg.h"
#include "io/svg_parts.h"

namespace tern::io::svg {

namespace {

constexpr double left = 16, top = 66, box_width = 176, box_height = 14, column_width = 208, row_height = 18;
constexpr std::size_t letters = 34;  ///< that fit into a box

/// A cubic curve between the sides of two boxes that face each other; in one column between their left sides.
std::string arrow(double x, double y, double to_x, double to_y) {
  const double from = x < to_x ? x + box_width : x, to = x > to_x ? to_x + box_width : to_x;
  const double middle = x == to_x ? x - 14 : (from + to) / 2;
  return fmt::format("M{:g} {:g}C{:g} {:g} {:g} {:g} {:g} {:g}", from, y, middle, y, middle, to_y, to, to_y);
}

}  // namespace

std::string to_svg(const Graph& graph) {
  std::vector<double> heights(graph.columns.size(), 0);
  std::vector<std::pair<double, double>> places;  // of the upper left corners
  for (const Graph::Node& node : graph.nodes) {
    double& height = heights.at(node.column);
    places.emplace_back(left + column_width * static_cast<double>(node.column), top + height);
    height += row_height;
  }
  std::string body = text_at(left, 24, graph.title, "start", " font-size=\"15\""), lines, far;
  for (std::size_t i = 0; i < graph.columns.size(); ++i)
    body += text_at(left + column_width * static_cast<double>(i), top - 10, graph.columns[i], "start", " font-weight=\"bold\"");
  for (const auto& [from, to] : graph.arrows) {
    const auto [x, y] = places.at(from);
    const auto [to_x, to_y] = places.at(to);
    if (x == to_x && to_y == y + row_height) lines += fmt::format("M{:g} {:g}v{:g}", x + 10, y + box_height, row_height - box_height);
    else (std::abs(x - to_x) > column_width ? far : lines) += arrow(x, y + box_height / 2, to_x, to_y + box_height / 2);
  }
  // Arrows that cross a column are fainter.
  for (const auto& [path, opacity] : {std::pair(far, 0.15), {lines, 0.5}})
    body += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-opacity=\"{:g}\"/>\n", path, grey, opacity);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Graph::Node& node = graph.nodes[i];
    const auto [x, y] = places[i];
    const std::string name = node.name.size() > letters ? node.name.substr(0, letters - 2) + ".." : node.name;
    body += fmt::format(
        "<g><title>{}</title><rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" rx=\"3\" fill=\"{}\" fill-opacity=\"0.25\" "
        "stroke=\"{}\"/>\n{}</g>\n",
        escape(node.note), x, y, box_width, box_height, colour(node.colour), colour(node.colour),
        text_at(x + 5, y + 10.5, name, "start", " font-size=\"9.5\""));
  }
  const double tallest = heights.empty() ? 0 : *std::max_element(heights.begin(), heights.end());
  return document(left + column_width * static_cast<double>(graph.columns.size()), top + tallest + 16, graph.title, body);
}

}  // namespace tern::io::svg
