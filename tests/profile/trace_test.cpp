// The trace, read again: what a viewer is told nests, and its arrows have two ends.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "files.h"
#include "io/files.h"
#include "profile/profiler.h"
#include "support.h"

using namespace tern;
using namespace tern::profile;
using namespace tern::profile::test;
using Json = nlohmann::json;

namespace {

Json trace_of(const Profile& profile) {
  const tern::test::TempDirectory directory;
  write_chrome_trace(profile, directory / "trace.json");
  CHECK(directory.count() == 1);
  return Json::parse(tern::test::slurp(directory / "trace.json"));
}

/// An op on the host that launches two kernels, and a graph's kernel.
Profile with_gpu() {
  Profile profile;
  profile.device = cuda();
  profile.end = 9000;
  profile.names = {"", "linear", "forward", "a \"quoted\"\n\\name"};
  profile.modules = {{}, {"blocks.0", "Linear"}};
  const auto add = [&](Kind kind, std::int64_t begin, std::int64_t end, std::uint32_t parent, std::uint32_t name) {
    Span span;
    span.kind = kind, span.begin = begin, span.end = end, span.parent = parent, span.name = name, span.pass = 2, span.module = 1;
    profile.spans.push_back(span);
  };
  add(Kind::pass, 0, 5000, none, 2);
  add(Kind::op, 1000, 4000, 0, 3);
  add(Kind::kernel, 1000, 2000, 1, 1);
  add(Kind::kernel, 2500, 3500, 1, 1);
  const auto work = [&](std::int64_t begin, std::uint32_t span, bool is_in_graph) {
    DeviceRecord record;
    record.begin = begin, record.end = begin + 700, record.stream = 7, record.name = "gemm", record.span = span;
    record.op = 1, record.pass = 2, record.module = 1, record.is_in_graph = is_in_graph;
    profile.device_records.push_back(record);
  };
  work(1500, 2, false);
  work(3000, 3, false);
  work(6000, none, true);
  profile.memory = {{0, 100}, {4000, 260}};
  return profile;
}

}  // namespace

TEST_CASE("A trace of a training nests on each track and has all that the profile has") {
  Training training;
  Profiler profiler({.names = nn::module_names(training.model)});
  profiler.begin_step();
  training.step({training.ids});
  profiler.end_step();
  const Profile profile = profiler.finish();
  const Json trace = trace_of(profile);
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> open;
  std::size_t spans = 0, samples = 0;
  std::set<std::string> named;
  struct Event {
    double begin, end;
    std::pair<int, int> track;
  };
  std::vector<Event> events;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      ++spans;
      const double begin = event["ts"], duration = event["dur"];
      CHECK(duration > 0);
      events.push_back({begin, begin + duration, {event["pid"], event["tid"]}});
      if (event["cat"] == "op") named.insert(event["name"].get<std::string>() + " " + event["args"]["pass"].get<std::string>());
    }
    samples += event["ph"] == "C";
  }
  // Outer spans first, so that each has to end before what is open ends.
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end); });
  for (const Event& event : events) {
    auto& stack = open[event.track];
    while (!stack.empty() && stack.back().second <= event.begin + 1e-4) stack.pop_back();
    if (!stack.empty()) CHECK(event.end <= stack.back().second + 1e-3);  // a nanosecond, of rounding
    stack.emplace_back(event.begin, event.end);
  }
  CHECK(spans == static_cast<std::size_t>(
                     std::count_if(profile.spans.begin(), profile.spans.end(), [](const Span& span) { return span.duration() > 0; })));
  CHECK(samples == profile.memory.size());
  CHECK(samples > 3);
  CHECK(named.count("linear forward") == 1);
  CHECK(named.count("linear backward") == 1);
  CHECK(named.count("adam optimizer") == 1);
}

TEST_CASE("Arrows of a trace lead from a launch to its kernel on the GPU's track") {
  const Json trace = trace_of(with_gpu());
  std::map<int, std::vector<Json>> flows;
  std::size_t kernels = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "s" || event["ph"] == "f") flows[event["id"].get<int>()].push_back(event);
    if (event["ph"] == "X" && event["pid"] == 2) {
      ++kernels;
      CHECK(event["args"]["op"] == "linear");
      CHECK(event["args"]["module"] == "blocks.0");
      CHECK(event["dur"] == 0.7);
    }
    if (event["ph"] == "X" && event["cat"] == "op") CHECK(event["name"] == "a \"quoted\"\n\\name");
  }
  CHECK(kernels == 3);
  REQUIRE(flows.size() == 2);  // a graph's kernel has no launch of its own
  for (const auto& [id, ends] : flows) {
    REQUIRE(ends.size() == 2);
    CHECK(ends[0]["ph"] == "s");
    CHECK(ends[0]["pid"] == 1);
    CHECK(ends[1]["ph"] == "f");
    CHECK(ends[1]["pid"] == 2);
    CHECK(ends[0]["ts"].get<double>() <= ends[1]["ts"].get<double>());
  }
}

TEST_CASE("A trace that cannot be written leaves the file before") {
  const tern::test::TempDirectory directory;
  CHECK_THROWS_AS(write_chrome_trace(with_gpu(), directory / "nowhere" / "trace.json"), io::FileError);
  CHECK(directory.count() == 0);
}

TEST_CASE("Communication has a track of its own") {
  Profiler profiler;
  {
    const Pass pass("communication");
    Training training;
  }
  const Json trace = trace_of(profiler.finish());
  std::set<int> tracks;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == "X") tracks.insert(event["tid"].get<int>());
  CHECK(tracks == std::set<int>{1});
}
