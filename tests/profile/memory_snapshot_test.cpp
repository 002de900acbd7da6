// The snapshot, read back by the rules of pickle, says what the history says.
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <variant>

#include "catch.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "profile/memory_history.h"

using namespace tern;
using profile::MemoryHistory;

namespace {

/// A value of a pickle.
struct Value {
  std::uint64_t number = 0;
  std::string text;
  std::vector<Value> list;
  std::map<std::string, Value> dict;
  bool is_mark = false;
  const Value& operator[](const std::string& key) const {
    INFO("key " << key);
    REQUIRE(dict.count(key) == 1);
    return dict.at(key);
  }
};

Value read_pickle(const std::string& bytes) {
  std::size_t at = 0;
  const auto number = [&](int count) {
    std::uint64_t value = 0;
    for (int i = 0; i < count; ++i) value |= std::uint64_t{static_cast<unsigned char>(bytes.at(at++))} << (8 * i);
    return value;
  };
  std::vector<Value> stack;
  const auto push = [&](std::uint64_t value) { stack.emplace_back().number = value; };
  const auto since_mark = [&] {
    std::vector<Value> values;
    while (!stack.back().is_mark) values.insert(values.begin(), std::move(stack.back())), stack.pop_back();
    stack.pop_back();
    return values;
  };
  while (true) {
    switch (static_cast<unsigned char>(bytes.at(at++))) {
      case 0x80: REQUIRE(number(1) == 4); break;
      case 'K': push(number(1)); break;
      case 'M': push(number(2)); break;
      case 'J': push(number(4)); break;
      case 0x8a:
        REQUIRE(number(1) == 8);
        push(number(8));
        break;
      case 'X': {
        const std::size_t size = number(4);
        stack.emplace_back().text = bytes.substr(at, size);
        at += size;
        break;
      }
      case ']':
      case '}': stack.emplace_back(); break;
      case '(': stack.emplace_back().is_mark = true; break;
      case 'e': {
        std::vector<Value> values = since_mark();
        for (Value& value : values) stack.back().list.push_back(std::move(value));
        break;
      }
      case 'u': {
        const std::vector<Value> values = since_mark();
        REQUIRE(values.size() % 2 == 0);
        for (std::size_t i = 0; i < values.size(); i += 2) stack.back().dict[values[i].text] = values[i + 1];
        break;
      }
      case '.':
        REQUIRE(at == bytes.size());
        REQUIRE(stack.size() == 1);
        return stack.back();
      default: FAIL("an opcode that the page does not know, at " << at - 1);
    }
  }
}

}  // namespace

TEST_CASE("A snapshot holds every event, and the segments and blocks of the end") {
  nn::Linear linear(31, 33);
  MemoryHistory history(cpu, nn::module_names(linear));
  const Tensor kept = linear.forward(zeros({1025, 31}));
  for (int i = 0; i < 1500; ++i) zeros({5});  // more entries than a batch of the list has
  CHECK_THROWS_AS(empty({std::int64_t{1} << 58}), OutOfMemory);
  history.name(linear);
  history.end();
  const Value snapshot = read_pickle(profile::memory_snapshot(history));
  REQUIRE(snapshot["device_traces"].list.size() == 1);

  std::map<std::uint64_t, std::uint64_t> live;
  std::map<std::string, int> actions;
  std::set<std::string> categories;
  for (const Value& event : snapshot["device_traces"].list[0].list) {
    const std::string& action = event["action"].text;
    ++actions[action];
    if (event.dict.count("category")) categories.insert(event["category"].text);
    if (action == "alloc") CHECK(live.emplace(event["addr"].number, event["size"].number).second);
    if (action == "free_completed") CHECK(live.erase(event["addr"].number) == 1);
    if (action == "oom") CHECK(event["size"].number >= std::uint64_t{1} << 60);
  }
  CHECK(actions["alloc"] >= 1502);
  CHECK(actions["free_requested"] == actions["free_completed"]);
  CHECK(actions["free_completed"] >= 1501);
  CHECK(actions["oom"] == 1);
  CHECK(actions["snapshot"] == 1);
  // The page fails at categories without this one.
  CHECK((categories.size() > 1 && categories.count("unknown") == 1));
  const auto address = reinterpret_cast<std::uint64_t>(kept.impl().storage->data());
  CHECK(live.count(address) == 1);

  std::uint64_t active = 0, in_trace = 0;
  bool has_parameter = false, has_activation = false;
  for (const Value& segment : snapshot["segments"].list) {
    std::uint64_t sum = 0;
    for (const Value& block : segment["blocks"].list) {
      sum += block["size"].number;
      if (block["state"].text != "active_allocated") continue;
      active += block["size"].number;
      if (live.count(block["address"].number)) in_trace += block["size"].number;
      REQUIRE(!block["frames"].list.empty());
      const std::string category = block["frames"].list.back()["name"].text;
      has_parameter = has_parameter || category == "parameters";
      has_activation = has_activation || (category == "activations" && block["address"].number == address);
    }
    CHECK(sum == segment["total_size"].number);
  }
  std::uint64_t known = 0;
  for (const auto& [at, size] : live) known += size;
  CHECK(in_trace == known);
  CHECK(active + history.unknown_before() == memory_statistics(cpu).allocated);
  CHECK(has_parameter);
  CHECK(has_activation);
}

TEST_CASE("A report has the peaks, the largest blocks and what failed") {
  nn::Linear linear(31, 33);
  MemoryHistory history(cpu, nn::module_names(linear), {.stacks = true});
  const Tensor kept = linear.forward(zeros({1025, 31}));
  history.name(linear);
  history.end();
  const std::string text = profile::memory_report(
      "Memory", {"a note"},
      {{"forward", &history, {{"blocks.0 (Block)", "gelu", std::size_t{3} << 20}}}, {"step", nullptr, {}, "out of memory"}});
  const auto contains = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  CHECK(contains("# Memory\n\na note\n"));
  CHECK(contains("| forward | " + profile::bytes_text(history.peak().bytes) + " | "));
  CHECK(contains("| step | out of memory | "));
  CHECK(contains("| activations | linear, forward | Linear |"));
  CHECK(contains("| parameters |  | weight |"));
  CHECK(contains("| 3.00 MiB | gelu | blocks.0 (Block) |"));
  CHECK(contains(" at "));  // a frame with a name or its library
  CHECK(profile::bytes_text(20 << 20) == "20.00 MiB");
}
