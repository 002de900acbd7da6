#pragma once
#include <sstream>

#include "support.h"

/// Runs of tern-translate on a corpus of a few sentences.
namespace tern::programs::test {

/// Pairs of 5 to 15 words a side.
inline void write_sentences(const fs::path& directory, std::size_t train = 40) {
  const std::vector<std::pair<std::string, std::string>> nouns = {{"Hund", "dog"},   {"Mann", "man"},   {"Baum", "tree"},
                                                                  {"Vogel", "bird"}, {"König", "king"}, {"Fluss", "river"}};
  fs::create_directories(directory);
  std::size_t next = 0;
  for (const auto& [split, pairs] : std::vector<std::pair<std::string, std::size_t>>{{"train", train}, {"valid", 8}, {"test", 6}}) {
    std::string src, tgt;
    for (std::size_t i = 0; i < pairs; ++i, next += 5) {
      const auto &subject = nouns[next % 6], &object = nouns[next / 6 % 6];
      src += fmt::format("Der {} sieht den {}", subject.first, object.first);
      tgt += fmt::format("The {} sees the {}", subject.second, object.second);
      for (std::size_t more = 0; more < next / 5 % 4; ++more) {
        src += fmt::format(" und den {}", nouns[(next + more) % 6].first);
        tgt += fmt::format(" and the {}", nouns[(next + more) % 6].second);
      }
      src += " .\n";
      tgt += " .\n";
    }
    spill(directory / (split + ".de"), src);
    spill(directory / (split + ".en"), tgt);
  }
}

/// Options of a small training of a decoder-only LM, and `more`, which wins.
inline Arguments arguments(const fs::path& data, const fs::path& out, const Arguments& more) {
  Arguments result{"train", "--data", data.string(), "--src", "de", "--tgt", "en", "--out", out.string()};
  std::istringstream words(
      plain_lm +
      "--device cpu --threads 1 --precision fp32 --use-fused-kernel False --vocab 320 --length 40 --width 16 --layers 1 --heads 2 --ff 24 "
      "--dropout 0 --batch-size 100 --updates 3 --warmup 0 --schedule constant --lr 0.5 --adam-eps 1 --beta2 0.98 --clip 0 --seed 3 "
      "--pad-to-length True");
  for (std::string word; words >> word;) result.push_back(word);
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

/// A run of the program, and what it said.
struct Run {
  TempDirectory directory;
  fs::path data = directory / "data", path = directory / "run";
  Result result;

  explicit Run(const Arguments& more = {}) {
    write_sentences(data);
    start(more);
  }
  void start(const Arguments& more) {
    result = run(translate, arguments(data, path, more));
    INFO(result.err);
    REQUIRE(result.code == 0);
  }
};

}  // namespace tern::programs::test
