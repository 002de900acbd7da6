// No option without a test: every one that a program's help shows has a row in a table (flags.h), or stands in the name of a case that
// fails where the option is ignored, as in TEST_CASE("tern-recall plot --out (where the picture goes)"), or below, with the reason why no
// result can show it.
#include <regex>

#include "flags.h"
#include "paths.h"

using namespace tern::programs::test;

namespace {

/// Options that change no result, and why.
const std::map<std::string, std::string> without_effect = {
    {"tern-translate decode --batch-size", "rows decoded together do not see each other; decode_test.cpp has its output the same for all"},
    {"tern-translate decode --threads", "results do not depend on the number of threads, and decode prints nothing but them"},
    {"tern-translate score-pairs --threads", "results do not depend on the number of threads, and it prints nothing but them"},
    {"tern-translate score-pairs --batch-size",
     "pairs read together do not see each other; decode_test.cpp has its output the same for all"},
    {"tern-translate chat --threads", "results do not depend on the number of threads, and it prints nothing but them"},
    {"tern-lm sample --threads", "results do not depend on the number of threads, and it prints nothing but them"},
    {"tern-lm chat --threads", "results do not depend on the number of threads, and it prints nothing but them"},
    {"tern-lm eval --threads", "results do not depend on the number of threads, and it prints nothing but them"},
    {"tern-recall hardcoded --threads", "results do not depend on the number of threads, and it prints nothing but them"},
    {"tern-recall sweep --activation-checkpointing", "its runs are those of train, whose weights it leaves as they are, bit for bit"},
    {"tern-bench step --capture", "a CUDA graph: without a GPU a captured step runs as written"},
    {"tern-bench compile --seconds", "how long is measured, and not what"},
    {"tern-bench rules --threads", "the rules do not depend on the number of threads"},
    {"tern-bench loops --seconds", "how long is measured, and not what"},
    {"tern-bench grade --seconds", "how long is measured, and not what"},
    {"tern-bench grade --threads", "of the reference alone, which does not depend on their number"},
    {"tern-bench ops --seconds", "how long is measured, and not what"},
    {"tern-bench attention --seconds", "how long is measured, and not what"},
    {"tern-bench attention --precision", "of products on a GPU alone; ops/attention_cuda_test"},
    {"tern-bench mixers --seconds", "how long is measured, and not what"},
    {"tern-bench conv1d --seconds", "how long is measured, and not what"},
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
  for (const std::string& program : {translate, recall, lm, bench}) {
    const std::string name = fs::path(program).filename().string(), help = run(program, {"--help"}).out;
    for (const std::string& command : matches(help.substr(help.find("Subcommands:")), std::regex("\n  ([a-z0-9-]+) ")))
      for (const std::string& option : matches(run(program, {command, "--help"}).out, std::regex("\n  (--[a-z0-9-]+)")))
        options.insert(name + " " + command + " " + option);
  }
  for (const std::string& option : matches(run(launch, {"--help"}).out, std::regex("\n  (?:-[a-z],)?(--[a-z0-9-]+)")))
    if (option != "--help" && option != "--version") options.insert("tern-launch " + option);
  return options;
}

/// Those that the tables have a row for, and those that the names of this program's cases begin with, which may go on over several lines.
std::set<std::string> tested_options() {
  std::set<std::string> options;
  std::vector<FlagTable> tables{translate_train(), recall_train(), lm_train(),    compile_table(),
                                loops_table(),     grade_table(),  mixers_table()};
  for (const auto& more : {recall_tables(), bench_tables(), comm_tables()}) tables.insert(tables.end(), more.begin(), more.end());
  const std::regex flag("(?:^| )(--[a-z0-9-]+)");
  for (const FlagTable& table : tables) {
    std::string words;
    for (const Flag& row : table.flags) words += " " + row.words;
    for (const Refusal& row : table.refusals)  // of no effect but where there is a GPU
      if (contains(row.words, "--device cuda")) words += " --device";
    for (const char* written : {"--json", "--out"})  // what rows see is read from there
      if (contains(table.command.words, std::string(written) + " OUT/")) words += std::string(" ") + written;
    for (const std::string& option : matches(words, flag)) options.insert(name_of(table.command) + " " + option);
  }
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

/// Options that pages name and that are other programs'.
const std::set<std::string> of_others = {
    "--lenpen",    "--normalize",                                         // fairseq, Marian
    "--no-python",                                                        // torchrun
    "--only",      "--list",      "--check", "--part",                    // scripts/mutate, scripts/*.py, tests/fixtures/*.py
    "--impls",     "--steps",     "--parts", "--off-alone", "--cpu-time"  // scripts of bench
};

/// What stands in code on a page, with its line: blocks, whose continued lines are one and whose comments are left out, and spans.
std::vector<std::pair<std::string, std::string>> code_of(const fs::path& page) {
  std::vector<std::pair<std::string, std::string>> result;
  std::istringstream text(slurp(page));
  bool is_block = false;
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    const std::string place = fmt::format("{}:{}", page.filename().string(), ++number);
    if (line.starts_with("```")) {
      is_block = !is_block;
      continue;
    }
    if (!is_block) {
      for (const std::string& span : matches(line, std::regex("`([^`]+)`"))) result.emplace_back(place, span);
      continue;
    }
    line = line.substr(0, line.find('#'));
    if (line.starts_with("  ") && !result.empty()) result.back().second += line;
    else result.emplace_back(place, line);
  }
  return result;
}

/// The options of a command's text up to what ends it in a shell.
std::set<std::string> options_of(const std::string& text) {
  return matches(text.substr(0, text.find_first_of("&;")), std::regex("(?:^|[^A-Za-z0-9-])(--[a-z][a-z0-9-]*)"));
}

}  // namespace

TEST_CASE("Every command that a page names is there, with the options that it is given") {
  const fs::path root = tern::test::source_directory;
  std::vector<fs::path> pages = {root / "README.md", root / "CONTRIBUTING.md", root / "data" / "README.md"};
  for (const char* directory : {"docs", "bench"})
    for (const auto& entry : fs::directory_iterator(root / directory))
      if (entry.path().extension() == ".md") pages.push_back(entry.path());
  std::map<std::string, std::set<std::string>> commands;  // the options of "tern-bench step", of "tern-bench", and of "" all
  for (const std::string& option : options_in_help()) {
    const std::size_t end = option.rfind(' ');
    const std::string command = option.substr(0, end), program = command.substr(0, command.find(' ')), name = option.substr(end + 1);
    for (const std::string& each : {command, program, std::string()}) commands[each].insert(name);
  }
  const std::regex command("(?:^|[^a-z-])(tern-(?:translate|recall|lm|bench|launch))((?: +[a-z][a-z0-9-]*)?)");
  std::size_t checked = 0;
  for (const fs::path& page : pages)
    for (const auto& [place, code] : code_of(page)) {
      INFO(place << ": " << code);
      if (contains(code, ".py ")) continue;  // a script, whose options are its own, and which may take a program's name
      std::vector<std::smatch> found;
      for (std::sregex_iterator at(code.begin(), code.end(), command), end; at != end; ++at) found.push_back(*at);
      for (std::size_t i = 0; i < found.size(); ++i) {
        const std::string program = found[i][1], word = found[i][2];
        std::string name = program;
        if (program != "tern-launch" && !word.empty()) name += " " + word.substr(word.find_first_not_of(' '));
        INFO(name);
        REQUIRE(commands.count(name) == 1);
        const auto first = static_cast<std::size_t>(found[i].position(1));
        const std::size_t end = i + 1 < found.size() ? static_cast<std::size_t>(found[i + 1].position(1)) : code.size();
        for (const std::string& option : options_of(code.substr(first, end - first))) {
          INFO(option);
          CHECK((commands[name].count(option) == 1 || option == "--help" || option == "--version"));
          ++checked;
        }
      }
      if (found.empty() && code.starts_with("--")) {
        for (const std::string& option : options_of(code)) {
          INFO(option);
          CHECK((commands[""].count(option) + of_others.count(option) > 0 || option == "--help" || option == "--version"));
          ++checked;
        }
      }
    }
  CHECK(checked > 300);
}

TEST_CASE("Every option of every program has a case that notices when it is ignored") {
  const std::set<std::string> shown = options_in_help(), tested = tested_options();
  CHECK(shown.size() > 100);
  for (const std::string& option : shown) {
    INFO(option);
    CHECK(tested.count(option) + without_effect.count(option) == 1);
  }
  for (const std::string& option : tested) {
    INFO("a row or case names it: " << option);
    CHECK(shown.count(option) == 1);
  }
  for (const auto& [option, reason] : without_effect) {
    INFO("listed without an effect: " << option);
    CHECK(shown.count(option) == 1);
  }
}
