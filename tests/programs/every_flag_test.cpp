// No option without a test: every one that a program's help shows stands in the name of a case that fails where the option is ignored, as
// in TEST_CASE("tern-recall train --clip: ..."), or below, with the reason why no result can show it.
#include <regex>
#include <set>

#include "paths.h"
#include "support.h"

using namespace tern::programs::test;

namespace {

/// Options that change no result, and why.
const std::map<std::string, std::string> without_effect = {
    {"tern-translate decode --batch-size", "rows decoded together do not see each other; run_test.cpp has its output the same for all"},
    {"tern-translate decode --threads", "results do not depend on the number of threads, and decode prints nothing but them"},
    {"tern-translate score-pairs --threads", "results do not depend on the number of threads, and it prints nothing but them"},
    {"tern-translate score-pairs --batch-size",
     "pairs read together do not see each other; decode_test.cpp has its output the same for all"},
    {"tern-translate chat --threads", "results do not depend on the number of threads, and it prints nothing but them"},
    {"tern-recall hardcoded --threads", "results do not depend on the number of threads, and it prints nothing but them"},
    {"tern-recall sweep --activation-checkpointing", "its runs are those of train, whose weights it leaves as they are, bit for bit"},
    {"tern-bench step --capture", "a CUDA graph: without a GPU a captured step runs as written"},
    {"tern-bench ops --seconds", "how long is measured, and not what"},
    {"tern-bench attention --seconds", "how long is measured, and not what"},
    {"tern-bench attention --precision", "of products on a GPU alone; ops/attention_cuda_test"},
    {"tern-bench conv1d --seconds", "how long is measured, and not what"},
    {"tern-bench comm --copy-engine-mb", "by which unit of a GPU bytes travel, and not which: test-dist runs all of both ways on GPUs"},
    {"tern-bench step --copy-engine-mb", "by which unit of a GPU bytes travel, and not which: test-dist runs all of both ways on GPUs"},
    {"tern-bench comm --seconds", "how long is measured, and not what"},
};

std::set<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) found.insert((*at)[1].str());
  return found;
}

/// "tern-recall train --clip" for each option of each subcommand, and "tern-launch --output" of a program without them.
std::set<std::string> options_in_help() {
  std::set<std::string> options;
  for (const std::string& program : {translate, recall, bench}) {
    const std::string name = fs::path(program).filename().string(), help = run(program, {"--help"}).out;
    for (const std::string& command : matches(help.substr(help.find("Subcommands:")), std::regex("\n  ([a-z0-9-]+) ")))
      for (const std::string& option : matches(run(program, {command, "--help"}).out, std::regex("\n  (--[a-z0-9-]+)")))
        options.insert(name + " " + command + " " + option);
  }
  for (const std::string& option : matches(run(launch, {"--help"}).out, std::regex("\n  (?:-[a-z],)?(--[a-z0-9-]+)")))
    if (option != "--help" && option != "--version") options.insert("tern-launch " + option);
  return options;
}

/// Those that the names of this program's cases begin with. A name may go on over several lines.
std::set<std::string> options_in_cases() {
  std::set<std::string> options;
  const std::regex name("TEST_CASE\\(\\s*\"(tern-[a-z]+(?: [a-z0-9][a-z0-9-]*)?)((\\s*\"?\\s*\"?--[a-z0-9-]+)+)");
  for (const auto& entry : fs::directory_iterator(fs::path(tern::test::source_directory) / "tests" / "programs")) {
    if (entry.path().extension() != ".cpp" || entry.path().filename() == "every_flag_test.cpp") continue;
    const std::string text = slurp(entry.path());
    for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at) {
      const std::string list = (*at)[2];
      for (const std::string& option : matches(list, std::regex("(--[a-z0-9-]+)"))) options.insert((*at)[1].str() + " " + option);
    }
  }
  return options;
}

}  // namespace

TEST_CASE("Every option of every program has a case that notices when it is ignored") {
  const std::set<std::string> shown = options_in_help(), tested = options_in_cases();
  CHECK(shown.size() > 100);
  for (const std::string& option : shown) {
    INFO(option);
    CHECK(tested.count(option) + without_effect.count(option) == 1);
  }
  for (const std::string& option : tested) {
    INFO("a case names it: " << option);
    CHECK(shown.count(option) == 1);
  }
  for (const auto& [option, reason] : without_effect) {
    INFO("listed without an effect: " << option);
    CHECK(shown.count(option) == 1);
  }
}
