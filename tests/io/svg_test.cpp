// Charts and heat maps.
#include "io/svg.h"

#include <cmath>
#include <limits>
#include <regex>
#include <set>

#include "catch.h"
#include "message.h"

using tern::contains;
using namespace tern::io::svg;

TEST_CASE("Ticks of an axis are round numbers around its values") {
  using Ticks = std::vector<double>;
  CHECK(nice_ticks(0, 1, 5) == Ticks{0, 0.2, 0.4, 3 * 0.2, 0.8, 1});
  CHECK(nice_ticks(0, 1200, 6) == Ticks{0, 200, 400, 600, 800, 1000, 1200});
  CHECK(nice_ticks(1.31, 6.9, 5) == Ticks{0, 2, 4, 6, 8});
  CHECK(nice_ticks(-3, 3, 3) == Ticks{-4, -2, 0, 2, 4});
  CHECK(nice_ticks(0.0012, 0.0019, 4).size() <= 6);
  CHECK(nice_ticks(38.2, 39.5, 5).front() <= 38.2);
  CHECK(nice_ticks(38.2, 39.5, 5).back() >= 39.5);
}

TEST_CASE("Text in a picture is text of XML, whatever characters it has") {
  CHECK(escape("a<b>&\"c\"") == "a&lt;b&gt;&amp;&quot;c&quot;");
  const std::string mark = "\xEF\xBF\xBD";
  for (const std::string none : {"\x01", "\x0B", "\x1B", "\x1F", "\xEF\xBF\xBE", "\xEF\xBF\xBF", "\xED\xA0\x80", "\xFF", "\xC3"}) {
    const std::string escaped = escape("a" + none + "b");
    CHECK(contains(escaped, mark));
    CHECK_FALSE(contains(escaped, none));
  }
  CHECK(escape(std::string("a\0b", 3)) == "a" + mark + "b");
  for (const std::string whole :
       {"\t\n\r ~", "\xC2\x85", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBD", "\xF0\x9F\xBF\xBE", "\xF4\x8F\xBF\xBF"})
    CHECK(escape(whole) == whole);
  const std::string picture =
      to_svg(Chart{.title = "\xEF\xBF\xBE", .x_label = "\x1B", .series = {{.name = "\xEF\xBF\xBF", .points = {{0, 1}}}}});
  for (const std::string none : {"\xEF\xBF\xBE", "\x1B", "\xEF\xBF\xBF"}) CHECK_FALSE(contains(picture, none));
}

TEST_CASE("A chart has a line for each series, at the places of its values") {
  const Chart chart{.title = "A < B & C",
                    .x_label = "update",
                    .left = {.label = "loss", .low = 0, .high = 4},
                    .right = {.label = "accuracy", .is_percent = true, .low = 0, .high = 1},
                    .series = {{.name = "training", .points = {{0, 4}, {50, 2}, {100, 0}}, .mark = Mark::none},
                               {.name = "accuracy", .points = {{100, 0.5}}, .is_right = true}}};
  const std::string svg = to_svg(chart);
  CHECK(svg.rfind("<svg xmlns", 0) == 0);
  CHECK_FALSE(contains(svg, "<script"));
  CHECK(contains(svg, "A &lt; B &amp; C"));
  CHECK(contains(svg, ">40%</text>"));
  CHECK(contains(svg, ">update</text>"));
  // The area of 64 to 576 by 70 to 328: 4 is at its top, 0 at its bottom, and 50% half-way between.
  CHECK(contains(svg, "M64.0 70.0L320.0 199.0L576.0 328.0"));
  CHECK(contains(svg, "cx=\"576.0\" cy=\"199.0\""));
}

TEST_CASE("A chart leaves out what is not finite, and draws one without points") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const Chart chart{.title = "a", .x_label = "x", .left = {.label = "y"}, .series = {{.name = "b", .points = {{1, nan}, {2, infinity}}}}};
  for (const std::string& svg : {to_svg(chart), to_svg(Chart{.title = "none", .x_label = "x", .left = {.label = "y"}, .series = {}})}) {
    CHECK_FALSE(contains(svg, "nan"));
    CHECK_FALSE(contains(svg, "inf"));
    CHECK(contains(svg, "</svg>"));
  }
  // One value alone has a scale too.
  CHECK_FALSE(
      contains(to_svg({.title = "a", .x_label = "x", .left = {.label = "y"}, .series = {{.name = "b", .points = {{5, 5}}}}}), "nan"));
}

TEST_CASE("A logarithmic chart has a power of ten at each end, and equal steps between them") {
  const Chart chart{.title = "log",
                    .x_label = "x",
                    .left = {.label = "y"},
                    .series = {{.name = "line", .points = {{0.5, 3}, {5, 30}, {50, 300}, {-1, 1}, {1, 0}}}},
                    .is_log = true};
  const std::string svg = to_svg(chart);
  for (const char* tick : {">0.1<", ">1<", ">10<", ">100<", ">1000<"}) CHECK(svg.find(tick) != std::string::npos);
  std::vector<std::pair<double, double>> places;
  const std::regex circle("<circle cx=\"([0-9.]+)\" cy=\"([0-9.]+)\"");
  for (std::sregex_iterator match(svg.begin(), svg.end(), circle), end; match != end; ++match)
    places.emplace_back(std::stod((*match)[1]), std::stod((*match)[2]));
  REQUIRE(places.size() == 3);  // what is not above 0 has no place
  CHECK(places[1].first - places[0].first == Approx(places[2].first - places[1].first).margin(0.2));
  CHECK(places[0].second - places[1].second == Approx(places[1].second - places[2].second).margin(0.2));
  CHECK(places[0].second > places[1].second);
}

TEST_CASE("A stacked chart has each area on top of the one before, with its parts below and its level across") {
  const Chart chart{.title = "bytes",
                    .x_label = "ms",
                    .left = {.label = "MiB", .low = 0, .high = 4},
                    .series = {{.name = "weights", .points = {{0, 1}, {5, 1}, {10, 1}}},
                               {.name = "nothing", .points = {{0, 0}, {5, 0}, {10, 0}}},
                               {.name = "states", .points = {{0, 1}, {5, 3}, {10, 3}}, .colour = 5}},
                    .is_stacked = true,
                    .spans = {{"forward", 0, 5, 6}, {"x", 5, 10, 7}},
                    .level = Chart::Level{4, "peak 4 MiB"}};
  const std::string svg = to_svg(chart);
  // The area of 64 to 616 by 70 to 328, and a MiB is 64.5 high.
  CHECK(contains(svg, "M64.0 263.5H340.0L340.0 263.5H616.0"));                      // weights: 1
  CHECK(contains(svg, "M64.0 199.0H340.0L340.0 70.0H616.0"));                       // states: up to 2, then 4
  CHECK(contains(svg, "L616.0 263.5H340.0L340.0 263.5H64.0Z\" fill=\"#12a5b0\""));  // and down to weights
  CHECK(contains(svg, ">states</text>"));
  CHECK_FALSE(contains(svg, ">nothing</text>"));
  CHECK(contains(svg, "<rect x=\"64.0\" y=\"334\" width=\"276.0\""));
  CHECK(contains(svg, ">forward</text>"));
  CHECK(contains(svg, "y=\"65\" text-anchor=\"end\">peak 4 MiB</text>"));
}

TEST_CASE("A chart's marks tell series without a line apart, and say what they stand for") {
  std::vector<Series> series;
  for (const Mark mark : {Mark::disc, Mark::ring, Mark::square, Mark::diamond})
    series.push_back({.name = "s", .points = {{1, 1, 0, 0, "1 < 2"}, {2, 2, 0, 0, ""}}, .has_line = false, .mark = mark});
  const std::string svg = to_svg({.title = "marks", .x_label = "x", .left = {.label = "y"}, .series = series});
  CHECK_FALSE(contains(svg, "stroke-linejoin"));  // no line
  const auto count = [&](const char* of) {
    std::size_t n = 0;
    for (std::size_t at = svg.find(of); at != std::string::npos; at = svg.find(of, at + 1)) ++n;
    return n;
  };
  CHECK(count("<circle") == 6);  // two and one in the legend for discs, and for rings
  CHECK(count("fill=\"currentColor\"") == 3);
  CHECK(count("<title>1 &lt; 2</title></circle>") == 2);
  CHECK(count("<title>1 &lt; 2</title></path>") == 2);
}

TEST_CASE("Discs of several series at one place are all seen") {
  const auto series = [](const char* name, double y) { return Series{.name = name, .points = {{10, y}}, .has_line = false}; };
  const std::string svg = to_svg({.title = "roofs",
                                  .x_label = "x",
                                  .left = {.label = "y"},
                                  .series = {series("a", 100), series("b", 100.1), series("c", 100), series("d", 10)},
                                  .is_log = true});
  // In the legend all are of one size. In the chart the first is drawn below the others at its place, and looks out.
  std::vector<std::string> radii;
  const std::regex radius("<circle [^>]* r=\"([0-9.]+)\"");
  for (std::sregex_iterator at(svg.begin(), svg.end(), radius), end; at != end; ++at) radii.push_back((*at)[1]);
  CHECK(radii == std::vector<std::string>{"3.5", "8.5", "3.5", "6", "3.5", "3.5", "3.5", "3.5"});
}

TEST_CASE("A heat map of a sentence has the names of its tokens") {
  const auto map = [](std::int64_t rows, std::int64_t columns) {
    const auto names = [](const char* kind, std::int64_t count) {
      std::vector<std::string> result;
      for (std::int64_t i = 0; i < count; ++i) result.push_back(kind + std::to_string(i));
      return result;
    };
    return to_svg("title", {{"map",
                             rows,
                             columns,
                             std::vector<float>(static_cast<std::size_t>(rows * columns), 1.f),
                             names("r", rows),
                             names("c", columns),
                             {}}});
  };
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{4, 15}, {40, 32}, {20, 64}}) {
    INFO(rows << " x " << columns);
    const std::string svg = map(rows, columns);
    for (const std::string& name : {"r" + std::to_string(rows - 1), "c" + std::to_string(columns - 1)})
      CHECK(contains(svg, ">" + name + "<"));
  }
  CHECK(contains(map(40, 32), "scale(12)"));      // a name's room for each of 40
  CHECK(contains(map(4, 15), "scale(20)"));       // 300 for few
  CHECK_FALSE(contains(map(100, 100), ">r99<"));  // too many to be read: as small as a map without names
  CHECK(contains(map(100, 100), "scale(3)"));
}

TEST_CASE("A heat map of percents has them in its cells, and one colour for each value") {
  const float none = -std::numeric_limits<float>::infinity();
  const std::string svg =
      to_svg("title", {{"map", 1, 3, {0.5f, 0.074f, none}, {}, {}, {}, true}, {"map", 1, 3, {0.25f, 1, none}, {}, {}, {}, true}});
  for (const char* value : {">50<", ">7<", ">25<", ">100<"}) CHECK(contains(svg, value));
  CHECK_FALSE(contains(svg, "inf<"));
  const std::regex colour("height=\"1\" fill=\"(#[0-9a-f]+)\"");
  std::set<std::string> colours;
  for (std::sregex_iterator at(svg.begin(), svg.end(), colour), end; at != end; ++at) colours.insert((*at)[1]);
  CHECK(colours.size() == 4);
}

TEST_CASE("Names of narrow blocks of a heat map keep a distance") {
  const std::string svg = to_svg("title", {{"map", 1, 300, std::vector<float>(300, 1.f), {}, {}, {{"P", 0}, {"T", 290}, {"C", 295}}}});
  std::vector<double> places;
  const std::regex place("x=\"([0-9.]+)\"[^>]*>[PTC]<");
  for (std::sregex_iterator at(svg.begin(), svg.end(), place), end; at != end; ++at) places.push_back(std::stod((*at)[1]));
  REQUIRE(places.size() == 3);
  CHECK(places[0] == 36 + 145);
  CHECK(places[1] == 36 + 292.5);
  CHECK(places[2] == places[1] + 12);
}

TEST_CASE("A long title is written smaller, and not past the picture's edge") {
  const auto size = [](std::size_t letters) {
    const std::string svg = to_svg(Chart{.title = std::string(letters, 'n'), .x_label = "x", .left = {.label = "y"}, .series = {}});
    const std::size_t at = svg.find("font-size=\"", svg.find("<text"));
    return std::stod(svg.substr(at + 11));
  };
  CHECK(size(20) == 15);
  CHECK(size(100) < 11);
  CHECK(size(100) * 0.5 * 100 < 640);
}

TEST_CASE("Boxes of a chart stand at their places on both axes") {
  const Chart chart{
      .title = "memory",
      .x_label = "group",
      .left = {.label = "MiB", .low = 0},
      .series = {},
      .height = 400,
      .boxes = {{.from = 0, .to = 5, .low = 0, .high = 5, .note = "a < b"}, {.from = 5, .to = 10, .low = 5, .high = 10, .colour = 1}}};
  const std::string svg = to_svg(chart);
  // The area of 64 to 616 by 70 to 470, of 10 by 10.
  CHECK(contains(svg, "<rect x=\"64.0\" y=\"270.0\" width=\"276.0\" height=\"200.0\" fill=\"#3b82f6\""));
  CHECK(contains(svg, "<rect x=\"340.0\" y=\"70.0\" width=\"276.0\" height=\"200.0\" fill=\"#ea7317\""));
  CHECK(contains(svg, "<title>a &lt; b</title></rect>"));
}

TEST_CASE("Nodes of a graph stand below each other in their columns, and arrows between them") {
  const Graph graph{.title = "groups",
                    .columns = {"one", "two", "three"},
                    .nodes = {{0, "a & b"}, {0, "second"}, {1, std::string(60, 'n'), "a note"}, {2, "last", "", 1}},
                    .arrows = {{0, 1}, {0, 2}, {0, 3}, {3, 2}}};
  const std::string svg = to_svg(graph);
  for (const char* text : {">one<", ">two<", ">three<", ">a &amp; b<", ">second<", ">last<", "<title>a note</title>"})
    CHECK(contains(svg, text));
  CHECK_FALSE(contains(svg, std::string(40, 'n')));
  CHECK(contains(svg, "<rect x=\"16\" y=\"66\""));
  CHECK(contains(svg, "<rect x=\"16\" y=\"84\""));
  CHECK(contains(svg, "<rect x=\"224\" y=\"66\""));
  CHECK(contains(svg, "M26 80v4"));                      // to the next one of a column
  CHECK(contains(svg, "M192 73C208 73 208 73 224 73"));  // to the right, between the sides that face each other
  CHECK(contains(svg, "M432 73C416 73 416 73 400 73"));  // to the left
  CHECK(contains(svg, "M192 73C312 73 312 73 432 73\" fill=\"none\" stroke=\"#7d8590\" stroke-opacity=\"0.15\""));  // across a column
  CHECK(contains(to_svg(Graph{.title = "none", .columns = {}, .nodes = {}, .arrows = {}}), "</svg>"));
}
