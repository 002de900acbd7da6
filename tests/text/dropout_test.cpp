// BPE-dropout: the segmentations that Provilkov et al. (2020), algorithm 1, gives, and as often.
#include <cmath>
#include <map>
#include <stdexcept>

#include "catch.h"
#include "text/bpe.h"

using namespace tern::text;

namespace {

using Ids = std::vector<std::int32_t>;

std::vector<std::string> sentences() {
  return {"ein Hund läuft im Park und der Hund bellt",
          "zwei Hunde laufen im Regen",
          "",
          "der Park ist grün <end>Hunde<end> 🙂 und\tneu",
          "Regenwetter und Hundewetter im Regenpark \xff\xfe laufend",
          "a dog runs through the park , and the dog barks .",
          "\"two dogs are running in the rain\" 1234567890"};
}

Tokenizer trained() {
  TrainOptions options;
  options.vocab_size = 330;
  options.special_tokens = {"<end>"};
  return Tokenizer::train(sentences(), options);
}

/// How likely each segmentation is: all choices of what is left out are tried, at each step.
void enumerate(const Tokenizer& tokenizer, double dropout, const Ids& ids, double chance, std::map<Ids, double>& out) {
  const auto merges = tokenizer.merges();
  const std::int32_t first_merged = static_cast<std::int32_t>(tokenizer.vocab_size() - merges.size());
  std::vector<std::pair<std::size_t, std::size_t>> candidates;  // rank, place
  for (std::size_t at = 0; at + 1 < ids.size(); ++at)
    for (std::size_t rank = 0; rank < merges.size(); ++rank)
      if (merges[rank] == std::pair(ids[at], ids[at + 1])) candidates.emplace_back(rank, at);
  for (std::size_t kept = 0; kept < std::size_t{1} << candidates.size(); ++kept) {
    double share = chance;
    std::pair<std::size_t, std::size_t> best{merges.size(), 0};
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const bool stays = (kept >> i & 1) != 0;
      share *= stays ? 1 - dropout : dropout;
      if (stays) best = std::min(best, candidates[i]);
    }
    if (best.first == merges.size()) {
      out[ids] += share;
      continue;
    }
    Ids merged = ids;
    merged[best.second] = first_merged + static_cast<std::int32_t>(best.first);
    merged.erase(merged.begin() + static_cast<std::ptrdiff_t>(best.second) + 1);
    enumerate(tokenizer, dropout, merged, share, out);
  }
}

}  // namespace

TEST_CASE("Without dropout an encoding is the plain one, and with all of it one of bytes") {
  const Tokenizer tokenizer = trained();
  for (const std::string& line : sentences()) {
    INFO(line);
    CHECK(tokenizer.encode(line, {.seed = 3, .epoch = 1}) == tokenizer.encode(line));
    CHECK(tokenizer.encode(line, {.dropout = 1, .seed = 3}).size() == line.size());
    const Ids bytes = tokenizer.encode(line, {.special_tokens = true, .dropout = 1, .seed = 3});
    std::size_t ends = 0;
    for (std::size_t at = line.find("<end>"); at != std::string::npos; at = line.find("<end>", at + 1)) ++ends;
    CHECK(bytes.size() == line.size() - 4 * ends);
    CHECK(tokenizer.decode(bytes, false) == tokenizer.decode(tokenizer.encode(line), false));
  }
  CHECK_THROWS_AS(tokenizer.encode("a", {.dropout = -0.1}), std::invalid_argument);
  CHECK_THROWS_AS(tokenizer.encode("a", {.dropout = 1.1}), std::invalid_argument);
  CHECK_THROWS_AS(tokenizer.encode("a", {.dropout = std::nan("")}), std::invalid_argument);
}

TEST_CASE("Dropout gives each segmentation as often as the algorithm does") {
  const Tokenizer tokenizer = trained();
  for (const auto& [word, dropout] : std::vector<std::pair<std::string, double>>{{" Hund", 0.1}, {" Hunde", 0.5}, {" Park", 0.3}}) {
    INFO(word << " " << dropout);
    std::map<Ids, double> wanted;
    enumerate(tokenizer, dropout, tokenizer.encode(word, {.dropout = 1}), 1, wanted);
    REQUIRE(wanted.size() > 4);
    REQUIRE(tokenizer.encode(word).size() < word.size() - 2);
    constexpr int draws = 20000;
    std::map<Ids, int> found;
    for (int i = 0; i < draws; ++i) ++found[tokenizer.encode(word, {.dropout = dropout, .seed = 5, .line = static_cast<std::uint64_t>(i)})];
    for (const auto& [ids, count] : found) CHECK(wanted.count(ids) == 1);
    for (const auto& [ids, chance] : wanted) {
      const double deviation = std::sqrt(draws * chance * (1 - chance));
      CHECK(std::abs(found[ids] - draws * chance) < 5 * deviation + 1);
    }
  }
}

TEST_CASE("Dropout is drawn from seed, epoch and line, and from nothing else") {
  const Tokenizer tokenizer = trained();
  const std::string line = sentences()[4];
  const EncodeOptions options{.dropout = 0.4, .seed = 7, .epoch = 2, .line = 9};
  const Ids ids = tokenizer.encode(line, options);
  tokenizer.encode("something else");
  CHECK(tokenizer.encode(line, options) == ids);
  CHECK(tokenizer.decode(ids) == tokenizer.decode(tokenizer.encode(line)));
  CHECK(tokenizer.encode(line, {.dropout = 0.4, .seed = 8, .epoch = 2, .line = 9}) != ids);
  CHECK(tokenizer.encode(line, {.dropout = 0.4, .seed = 7, .epoch = 3, .line = 9}) != ids);
  CHECK(tokenizer.encode(line, {.dropout = 0.4, .seed = 7, .epoch = 2, .line = 10}) != ids);
}

TEST_CASE("An epoch's encoder gives each line as the tokenizer does, by any number of threads") {
  const Tokenizer tokenizer = trained();
  std::vector<std::string> lines;
  for (int i = 0; i < 40; ++i)
    for (const std::string& line : sentences()) lines.push_back(line);
  for (const double dropout : {0.0, 0.1, 0.5, 1.0}) {
    const EpochEncoder encoder(tokenizer, lines, dropout, 11, 1000);
    for (const std::uint64_t epoch : {0, 3}) {
      const auto found = encoder.encode(epoch);
      REQUIRE(found.size() == lines.size());
      for (std::size_t i = 0; i < lines.size(); ++i)
        REQUIRE(found[i] == tokenizer.encode(lines[i], {.dropout = dropout, .seed = 11, .epoch = epoch, .line = 1000 + i}));
      for (const int threads : {2, 5, 1000}) REQUIRE(encoder.encode(epoch, threads) == found);
    }
  }
  CHECK(EpochEncoder(tokenizer, {}, 0.1, 0).encode(0, 4).empty());
  CHECK_THROWS_AS(EpochEncoder(tokenizer, lines, 2, 0), std::invalid_argument);
}
