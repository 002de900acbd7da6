// tern-bench rules: the funnel, its text of rules, and the judgement of a text.
#include <regex>

#include "paths.h"
#include "support.h"

using namespace tern::programs::test;

namespace {

const std::string source = tern::test::source_directory;

/// The number of a line of the funnel.
std::size_t stage(const std::string& out, const std::string& name) {
  std::smatch found;
  const std::regex line("(?:^|\n) *" + name + " +([0-9]+)");
  return std::regex_search(out, found, line) ? std::stoul(found[1]) : 0;
}
std::size_t lines(const std::string& text) { return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')); }

}  // namespace

TEST_CASE("tern-bench rules --ops --examples (the funnel)") {
  const std::string one = run(bench, {"rules", "--ops", "1", "--examples", "0"}).out,
                    two = run(bench, {"rules", "--ops", "2", "--examples", "3"}).out;
  CHECK(stage(one, "enumerate") > 50);
  CHECK(stage(two, "enumerate") > 20 * stage(one, "enumerate"));
  CHECK(stage(two, "judge") == stage(two, "exact") + stage(two, "sound") + stage(two, "rejected"));
  CHECK(stage(two, "prune") > stage(one, "prune"));
  CHECK(lines(one) == 7);
  CHECK(lines(two) == 7 + 1 + 2 * 3);
}

TEST_CASE("tern-bench rules --out --check (the text of rules)") {
  const TempDirectory directory;
  const std::string file = directory / "found.rules";
  const std::string out = run(bench, {"rules", "--ops", "2", "--out", file}).out;
  CHECK(lines(slurp(file)) == 1 + stage(out, "prune"));
  const Result right = run(bench, {"rules", "--check", file});
  CHECK(right.code == 0);
  CHECK(contains(right.out, "found.rules: " + std::to_string(stage(out, "prune")) + " rules hold"));
  // Rules that claim more than they are, and one whose text was changed.
  std::string text = slurp(file);
  for (const auto& [from, to] : std::map<std::string, std::string>{
           {"(neg (sub a b)) => (sub b a) ; sound", "(neg (sub a b)) => (sub b a) ; exact"}, {"(neg (neg a)) => a", "(neg (neg b)) => b"}})
    text.replace(text.find(from), from.size(), to);
  tern::test::spill(file, text + "(log (exp a)) => a ; sound\n");
  const Result wrong = run(bench, {"rules", "--check", file});
  CHECK(wrong.code == 1);
  CHECK(lines(wrong.out) == 3);
  CHECK(contains(wrong.out, ": (neg (sub a b)) => (sub b a): sound and not exact\n"));
  CHECK(contains(wrong.out, ": (neg (neg b)) => b: its fingerprints are others\n"));
  CHECK(contains(wrong.out, ": (log (exp a)) => a: rejected: f32, a = "));
  CHECK(contains(wrong.err, "tern-bench: 3 of "));
  tern::test::spill(file, "(neg a => a ; exact\n");
  const Result broken = run(bench, {"rules", "--check", file});
  CHECK(broken.code == 2);
  CHECK(lines(broken.err) == 1);
  CHECK(contains(broken.err, "found.rules:1: expected ) but got =>: write a rule as (neg (neg a)) => a ; exact"));
  tern::test::spill(directory / "a\x1b.rules", "(neg a) => a ; sound\n");
  CHECK(contains(run(bench, {"rules", "--check", directory / "a\x1b.rules"}).out, "a\\x1b.rules:1: (neg a) => a: rejected: "));
  tern::test::spill(file, "# nothing\n");
  CHECK(run(bench, {"rules", "--check", file}).code == 2);
}

TEST_CASE("The rules that were found hold") {
  const std::string file = source + "/study/substitutions/found.rules";
  const std::size_t count = lines(slurp(file)) - 1;  // the first is a comment
  CHECK(count >= 40);
  const Result found = run(bench, {"rules", "--check", file});
  CHECK(found.out + found.err == file + ": " + std::to_string(count) + " rules hold\n");
}

TEST_CASE("tern-bench rules --models (how often rules fit programs)") {
  const TempDirectory directory;
  const std::string file = directory / "some.rules";
  tern::test::spill(file, "(sum (neg a)) => (neg (sum a)) ; sound\n(neg (neg a)) => a ; exact\n");
  const std::string out = run(bench, {"rules", "--check", file, "--models", "rows,own-adamw"}).out;
  CHECK(contains(out, "rules with other kernels on the two sides, of which 1 fire in 30 programs of "));
  CHECK(contains(out, "  (sum (neg a)) => (neg (sum a)): layer norm step bf16 1, layer norm step fp32 1, "));
}
