// Faults in the training data: named with file and line, before the run directory is made. The readers' own tests are text/corpus_test.cpp.
#include <cmath>

#include "bytes.h"
#include "paths.h"
#include "support.h"

using namespace tern::programs::test;
using tern::test::gzip;

namespace {

using Edit = std::function<std::string(std::string)>;

Edit holds(const std::string& text) {
  return [=](const std::string&) { return text; };
}
Edit ends_with(const std::string& text) {
  return [=](const std::string& before) { return before + text; };
}
Edit repeats(const std::string& line, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += line;
  return holds(text);
}

/// More tokens than the tests' models have room for, whatever a tokenizer learns of it.
std::string long_line() {
  std::string result;
  for (int i = 1; i < 60; ++i) result += std::to_string(i * i) + " ";
  return result + "\n";
}

struct Fault {
  std::vector<std::pair<std::string, Edit>> files;  ///< edits of a good corpus' files; none of one that is removed
  std::string said;
  std::string words = "";
};

}  // namespace

TEST_CASE("A corpus that cannot be trained on is refused by file and line, before a run is made") {
  const std::vector<Fault> faults = {
      {{{"valid.en", {}}}, "data: expected valid.en or valid.en.gz but got test.de, test.en, train.de, train.en, valid.de"},
      {{}, "train.fr", "--src fr"},
      {{}, "No such file or directory", "--data /nonexistent"},
      {{}, "Not a directory", "--data /dev/null"},
      {{{"test.de", holds("")}}, "test.de: expected at least one line but got an empty file"},
      {{{"train.de", repeats("\n", 48)}}, "train.de: expected at least one pair without an empty side"},
      {{{"train.en", ends_with("One more.\n")}}, "train.en has but got 48 against 49"},
      {{{"train.de", ends_with("gr\xFC\xDF\n")}}, "train.de:49: expected UTF-8 but got byte 0xFC at byte 3"},
      {{{"train.de", ends_with(std::string("a\0b\n", 4))}}, "train.de:49: expected text but got a NUL at byte 2"},
      {{{"train.de", ends_with(std::string((1 << 20) + 1, 'x') + "\n")}}, "train.de:49: expected a line of at most 1048576 bytes"},
      {{{"train.de.gz", holds(gzip("x\n"))}}, "expected either train.de or train.de.gz but got both"},
      {{{"train.de", {}}, {"train.de.gz", holds(gzip(long_line()).substr(0, 60))}}, "train.de.gz: the gzip data is truncated"},
      {{{"train.de", {}}, {"train.de.gz", holds("text\n")}}, "train.de.gz: expected gzip data"},
      {{}, "--word-limit 3: no training pair", "--word-limit 3"},
      {{}, "--length 4: every training source", "--length 4"},
      {{{"valid.de", repeats(long_line(), 8)}}, "every validation source"},
  };
  for (const auto& [files, said, words] : faults) {
    INFO(said);
    const TempDirectory directory;
    const fs::path data = directory / "data";
    write_corpus(data);
    for (const auto& [name, edit] : files) {
      const std::string before = slurp(data / name);
      fs::remove(data / name);
      if (edit) spill(data / name, edit(before));
    }
    check_refused(run(translate, train(data, directory / "run", words_of(words))), said);
    CHECK_FALSE(fs::exists(directory / "run"));
  }
}

TEST_CASE("What can be mended in a corpus is mended, and told") {
  const TempDirectory directory;
  const fs::path data = directory / "data";
  write_corpus(data);
  std::string crlf;
  for (const std::string& line : split_lines(slurp(data / "train.de"))) crlf += line + "\r\n";
  spill(data / "train.de", crlf + "\n" + long_line());
  spill(data / "train.en", slurp(data / "train.en") + "Nothing.\nA word.\n");
  const std::string out = done(run(translate, train(data, directory / "run"))).out;
  CHECK(contains(out, "48 CRLF (first " + (data / "train.de").string() + ":1)"));
  CHECK(contains(out, "1 pairs skipped"));
  CHECK(contains(out, "49 train, 8 valid, 12 test"));
  CHECK(contains(out, "cut      1 training pairs to 40 tokens"));
}

TEST_CASE("A run directory that cannot be written is refused, and left as it is") {
  const TempDirectory directory;
  const fs::path data = directory / "data", earlier = directory / "run";
  write_corpus(data);
  spill(directory / "file", "mine");
  const auto refused = [&](const fs::path& out, const char* message) {
    const auto before = contents(directory.path());
    check_refused(run(translate, train(data, out)), message);
    CHECK(contents(directory.path()) == before);
  };
  refused(directory / "file", "is not a directory");
  refused(directory / "file/run", "Not a directory");
  refused(data, "holds files that are not an earlier run");
  refused("/proc/self/run", "/proc/self/run: ");
  done(run(translate, train(data, earlier)));
  spill(data / "train.en", slurp(data / "train.en") + "One more.\n");
  refused(earlier, "48 against 49");
}

TEST_CASE("The split of a corpus that docs/data.md shows keeps each pair once, shuffled") {
  const std::string page = slurp(fs::path(tern::test::source_directory) / "docs" / "data.md");
  const std::size_t begin = page.find("paste all.de all.en");
  REQUIRE(begin != std::string::npos);
  const std::string script = page.substr(begin, page.find("```", begin) - begin);
  const TempDirectory directory;
  constexpr int pairs = 30000;  // more than pipes hold
  std::string de, en;
  for (int i = 0; i < pairs; ++i) {
    de += fmt::format("Satz {} über, mit \"Zeichen\" %s \\n\n", i);
    en += fmt::format("sentence {}\n", i);
  }
  spill(directory / "all.de", de);
  spill(directory / "all.en", en);
  REQUIRE(shell("cd \"$1\" && " + script, "sh", {directory.path().string()}).code == 0);
  std::vector<int> numbers;
  const std::vector<std::pair<std::string, std::size_t>> parts = {{"valid", 2000}, {"test", 2000}, {"train", pairs - 4000}};
  for (const auto& [name, count] : parts) {
    INFO(name);
    std::istringstream src(slurp(directory / (name + ".de"))), tgt(slurp(directory / (name + ".en")));
    const std::size_t before = numbers.size();
    bool is_aligned = true;
    for (std::string a, b; std::getline(src, a) && std::getline(tgt, b);) {
      numbers.push_back(std::stoi(b.substr(9)));
      is_aligned = is_aligned && a == fmt::format("Satz {} über, mit \"Zeichen\" %s \\n", numbers.back());
    }
    CHECK(is_aligned);
    CHECK(numbers.size() - before == count);
  }
  // Of a shuffle's neighbours next to none follow each other, and a part's mean is that of all, within four standard deviations.
  int neighbours = 0;
  double sum = 0;
  for (std::size_t i = 1; i < numbers.size(); ++i) neighbours += numbers[i] == numbers[i - 1] + 1;
  CHECK(neighbours < 20);
  for (std::size_t i = 0; i < 2000; ++i) sum += numbers[i];
  CHECK(std::abs(sum / 2000 - pairs / 2.) < 4 * pairs / std::sqrt(12. * 2000));
  std::sort(numbers.begin(), numbers.end());
  CHECK(std::unique(numbers.begin(), numbers.end()) - numbers.begin() == pairs);
}
