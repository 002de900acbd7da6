// Faults in the training data: named with file and line, before the run directory is made.
#include <cmath>

#include "bytes.h"
#include "paths.h"
#include "support.h"

using namespace tern::programs::test;
using tern::test::gzip;

namespace {

/// A good corpus, an edit that spoils it, and the training on it.
struct Spoilt {
  TempDirectory directory;
  fs::path data = directory / "data", out = directory / "run";

  Spoilt() { write_corpus(data); }
  fs::path file(const char* name) const { return data / name; }
  void append(const char* name, const std::string& text) const { spill(file(name), slurp(file(name)) + text); }
  void refused(const std::string& message, const Arguments& more = {}) const {
    check_refused(run(translate, train(data, out, more)), message);
    CHECK_FALSE(fs::exists(out));
  }
  /// The training's output; the run is removed.
  std::string accepted(const Arguments& more = {}) const {
    const Result result = run(translate, train(data, out, more));
    INFO(result.err);
    CHECK(result.code == 0);
    CHECK(fs::exists(out / "summary.json"));
    fs::remove_all(out);
    return result.out;
  }
};

/// More tokens than the tests' models have room for, whatever a tokenizer learns of it.
std::string long_line() {
  std::string result;
  for (int i = 1; i < 60; ++i) result += std::to_string(i * i) + " ";
  return result + "\n";
}

}  // namespace

TEST_CASE("Files that are missing") {
  const Spoilt corpus;
  fs::remove(corpus.file("valid.en"));
  corpus.refused("data: expected valid.en or valid.en.gz but got test.de, test.en, train.de, train.en, valid.de");
  corpus.refused("train.fr", {"--src", "fr"});
  fs::remove_all(corpus.data);
  corpus.refused("No such file or directory");
  spill(corpus.data, "a file");
  corpus.refused("Not a directory");
}

TEST_CASE("Files that are empty") {
  const Spoilt corpus;
  spill(corpus.file("test.de"), "");
  corpus.refused("test.de: expected at least one line but got an empty file");
  spill(corpus.file("train.de"), std::string(48, '\n'));
  corpus.refused("train.de: expected at least one pair without an empty side");
}

TEST_CASE("Line counts that differ are both named") {
  const Spoilt corpus;
  corpus.append("train.en", "One more.\n");
  corpus.refused("train.en has but got 48 against 49");
}

TEST_CASE("Bytes that are not text are found by line and column") {
  const Spoilt corpus;
  const std::string before = slurp(corpus.file("train.de"));
  corpus.append("train.de", "gr\xFC\xDF\n");
  corpus.refused("train.de:49: expected UTF-8 but got byte 0xFC at byte 3");
  spill(corpus.file("train.de"), before + std::string("a\0b\n", 4));
  corpus.refused("train.de:49: expected text but got a NUL at byte 2");
  spill(corpus.file("train.de"), before + std::string((1 << 20) + 1, 'x') + "\n");
  corpus.refused("train.de:49: expected a line of at most 1048576 bytes");
}

TEST_CASE("Gzip data is read like text, and refused when it is damaged") {
  const Spoilt corpus;
  const std::string text = slurp(corpus.file("train.de"));
  spill(corpus.file("train.de.gz"), gzip(text));
  corpus.refused("expected either train.de or train.de.gz but got both");
  fs::remove(corpus.file("train.de"));
  spill(corpus.file("train.de.gz"), gzip(text).substr(0, 100));
  corpus.refused("train.de.gz: the gzip data is truncated");
  spill(corpus.file("train.de.gz"), text);
  corpus.refused("train.de.gz: expected gzip data");
}

TEST_CASE("What can be mended is mended, and told") {
  const Spoilt corpus;
  std::string crlf;
  for (char c : slurp(corpus.file("train.de"))) crlf += c == '\n' ? "\r\n" : std::string(1, c);
  spill(corpus.file("train.de"), crlf + "\n");
  corpus.append("train.en", "Nothing.\n");
  const std::string out = corpus.accepted();
  CHECK(contains(out, "48 CRLF (first " + corpus.file("train.de").string() + ":1)"));
  CHECK(contains(out, "1 pairs skipped"));
  CHECK(contains(out, "48 train, 8 valid, 12 test"));
}

TEST_CASE("Pairs that are too long") {
  const Spoilt corpus;
  corpus.refused("--word-limit 3: no training pair", {"--word-limit", "3"});
  corpus.refused("--length 4: every training source", {"--length", "4"});
  corpus.append("train.de", long_line());
  corpus.append("train.en", "A word.\n");
  CHECK(contains(corpus.accepted(), "cut      1 training pairs to 40 tokens"));
  std::string longs;
  for (int i = 0; i < 8; ++i) longs += long_line();
  spill(corpus.file("valid.de"), longs);
  corpus.refused("every validation source");
}

TEST_CASE("A run directory that cannot be written") {
  const Spoilt corpus;
  const TempDirectory& directory = corpus.directory;
  spill(directory / "file", "mine");
  const auto refused = [&](const fs::path& out, const char* message) {
    const auto before = contents(directory.path());
    check_refused(run(translate, train(corpus.data, out)), message);
    CHECK(contents(directory.path()) == before);
  };
  refused(directory / "file", "is not a directory");
  refused(directory / "file/run", "Not a directory");
  refused(corpus.data, "holds files that are not an earlier run");
  refused("/proc/self/run", "/proc/self/run: ");
  // A mistake leaves an earlier run as it was, too.
  REQUIRE(run(translate, train(corpus.data, corpus.out)).code == 0);
  corpus.append("train.en", "One more.\n");
  refused(corpus.out, "48 against 49");
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
