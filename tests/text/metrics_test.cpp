#include "text/metrics.h"

#include <tern/version.h>

#include <cmath>
#include <vector>

#include "catch.h"
#include "support.h"

using namespace tern::text;
using namespace tern::text::test;

namespace {

using Lines = std::vector<std::string>;

// The reference line has no version; ours ends its signature with one.
std::string without_version(std::string line) {
  const std::string version = "|version:tern-" TERN_VERSION_STRING;
  const std::size_t at = line.find(version);
  return at == std::string::npos ? line : line.erase(at, version.size());
}

}  // namespace

TEST_CASE("the 13a tokeniser gives sacreBLEU's tokens", "[text]") {
  const Json file = fixture("metrics.json");
  for (const Json& item : file["tokens"]) {
    CHECK(tokenize_13a(item[0].get<std::string>()) == item[1].get<std::string>());
  }
}

TEST_CASE("BLEU and chrF equal sacreBLEU's", "[text]") {
  const Json file = fixture("metrics.json");
  for (const Json& item : file["cases"]) {
    const Lines hyps = item["hyps"].get<Lines>(), refs = item["refs"].get<Lines>();
    MetricOptions options;
    options.lowercase = item["lowercase"].get<bool>();
    INFO(item.dump());
    const Bleu b = bleu(hyps, refs, options);
    CHECK(std::abs(b.score - item["bleu"].get<double>()) < 1e-9);
    CHECK(std::abs(b.brevity_penalty - item["bp"].get<double>()) < 1e-12);
    CHECK(b.hyp_length == item["lengths"][0].get<std::int64_t>());
    CHECK(b.ref_length == item["lengths"][1].get<std::int64_t>());
    for (std::size_t n = 0; n < 4; ++n) {
      CHECK(b.correct[n] == item["correct"][n].get<std::int64_t>());
      CHECK(b.total[n] == item["total"][n].get<std::int64_t>());
      CHECK(std::abs(b.precisions[n] - item["precisions"][n].get<double>()) < 1e-9);
    }
    CHECK(without_version(format(b)) == item["bleu_line"].get<std::string>());
    const Chrf c = chrf(hyps, refs, options);
    CHECK(std::abs(c.score - item["chrf"].get<double>()) < 1e-9);
    CHECK(without_version(format(c)) == item["chrf_line"].get<std::string>());
  }
}

TEST_CASE("signatures say what was measured", "[text]") {
  const Lines one = {"The cat sat on the mat."};
  CHECK(bleu(one, one).signature() == "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:tern-" TERN_VERSION_STRING);
  CHECK(bleu(one, one, {.lowercase = true}).signature() == "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:tern-" TERN_VERSION_STRING);
  CHECK(chrf(one, one).signature() == "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:tern-" TERN_VERSION_STRING);
  CHECK(format(bleu(one, one), 1) == "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:tern-" TERN_VERSION_STRING
                                     " = 100.0 100.0/100.0/100.0/100.0 "
                                     "(BP = 1.000 ratio = 1.000 hyp_len = 7 ref_len = 7)");
}

TEST_CASE("segments must pair up", "[text]") {
  const Lines one = {"a"}, two = {"a", "b"}, none;
  CHECK(message_of<std::invalid_argument>([&] { bleu(one, two); }) ==
        "[bleu] expected as many hypotheses as references, at least one, but got 1 and 2");
  CHECK_THROWS_AS(chrf(two, one), std::invalid_argument);
  CHECK_THROWS_AS(bleu(none, none), std::invalid_argument);
  CHECK_THROWS_AS(chrf(none, none), std::invalid_argument);
}

TEST_CASE("metrics take bytes that are not UTF-8", "[text]") {
  const Lines bad =
                  {"a\xFF"
                   "b \xC3",
                   "\xF0\x9F"},
              other = {
                  "a\xFE"
                  "b \xC3",
                  "\xF0\x9F"};
  CHECK(chrf(bad, bad).score == Approx(100));
  CHECK(chrf(bad, other).score < 100);
  CHECK(bleu(bad, bad, {.lowercase = true}).correct[0] == 3);
}
