#include "text/bpe.h"

#include <algorithm>
#include <ctime>

#include "catch.h"
#include "support.h"
#include "text/unicode.h"

using namespace tern::text;
using namespace tern::text::test;

namespace {

using Ids = std::vector<std::int32_t>;

const Json& expected() {
  static const Json json = fixture("bpe.json");
  return json;
}

const Tokenizer& reference() {
  static const Tokenizer tokenizer = Tokenizer::load(fixture_path("tokenizer.json"));
  return tokenizer;
}

std::vector<std::string> strings(const Json& json) { return json.get<std::vector<std::string>>(); }

}  // namespace

TEST_CASE("training gives Hugging Face's ids and merges", "[text]") {
  for (const Json& run : expected()["trainings"]) {
    const std::string corpus = run["corpus"].get<std::string>();
    const std::vector<std::string> lines = corpus == "nothing" ? std::vector<std::string>{} : strings(expected()[corpus]);
    TrainOptions options;
    options.vocab_size = run["vocab_size"].get<std::size_t>();
    options.min_frequency = run["min_frequency"].get<std::uint64_t>();
    options.special_tokens = strings(run["specials"]);
    INFO(corpus << " " << options.vocab_size << " " << options.min_frequency);
    const Tokenizer tokenizer = Tokenizer::train(lines, options);
    REQUIRE(tokenizer.vocab_size() == run["size"].get<std::size_t>());
    for (std::size_t i = 0; i < options.special_tokens.size(); ++i) {
      CHECK(tokenizer.token_to_id(options.special_tokens[i]) == static_cast<std::int32_t>(i));
    }
    const std::vector<std::string> last = strings(run["last_tokens"]);
    for (std::size_t i = 0; i < last.size(); ++i) {
      const auto id = static_cast<std::int32_t>(tokenizer.vocab_size() - last.size() + i);
      CHECK(tokenizer.id_to_token(id) == last[i]);
      CHECK(tokenizer.token_to_id(last[i]) == id);
    }
    std::vector<std::string> merges;
    for (const auto& [left, right] : tokenizer.merges()) {
      merges.push_back(tokenizer.id_to_token(left) + " " + tokenizer.id_to_token(right));
    }
    CHECK(merges == strings(run["merges"]));
  }
}

TEST_CASE("the order of the lines does not matter", "[text]") {
  std::vector<std::string> lines = strings(expected()["lines"]);
  TrainOptions options;
  options.vocab_size = 600;
  const std::string forward = Tokenizer::train(lines, options).to_json();
  std::reverse(lines.begin(), lines.end());
  CHECK(Tokenizer::train(lines, options).to_json() == forward);
}

TEST_CASE("tokenizer.json is what Hugging Face writes, byte for byte", "[text]") {
  TrainOptions options;
  options.vocab_size = 700;
  options.special_tokens = {"<eos_de>", "<eos_en>", "<pad>"};
  const std::string theirs = slurp(fixture_path("tokenizer.json"));
  CHECK((Tokenizer::train(strings(expected()["lines"]), options).to_json() == theirs));
  CHECK((reference().to_json() == theirs));
}

TEST_CASE("encoding and decoding give Hugging Face's ids and text", "[text]") {
  for (int round = 0; round < 2; ++round) {  // the second time from the word cache
    for (const Json& item : expected()["encode"]) {
      const std::string text = item[0].get<std::string>();
      const Ids ids = reference().encode(text, {.special_tokens = true}), plain = reference().encode(text);
      INFO(item.dump());
      CHECK(ids == item[1].get<Ids>());
      CHECK(reference().decode(ids) == item[2].get<std::string>());
      CHECK(reference().decode(ids, false) == item[3].get<std::string>());
      CHECK(reference().decode(ids, false) == text);
      CHECK(plain == item[4].get<Ids>());
      CHECK(reference().decode(plain) == text);
    }
  }
}

TEST_CASE("lossy decoding gives Hugging Face's text", "[text]") {
  for (const Json& item : expected()["decode"]) {
    CHECK(reference().decode(item[0].get<Ids>(), false) == item[1].get<std::string>());
  }
}

TEST_CASE("lines of 10,000 characters encode as Hugging Face's do", "[text]") {
  for (const Json& item : expected()["long"]) {
    std::string text;
    for (std::size_t i = 0; i < item["count"].get<std::size_t>(); ++i) text += item["unit"].get<std::string>();
    const Ids ids = reference().encode(text, {.special_tokens = true});
    INFO(item.dump());
    CHECK(ids.size() == item["size"].get<std::size_t>());
    CHECK(std::to_string(id_hash(ids)) == item["hash"].get<std::string>());
    CHECK((reference().decode(ids, false) == text));
  }
}

TEST_CASE("a word of a megabyte costs no more than prose", "[text]") {
  for (const std::string unit : {"a", "ab", "\xC3\xBC", " ", "\xC2\xA0", ".", "\xF0\x9F\x98\x80", "\xFF", "a\xFF"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const std::clock_t start = std::clock();
    const Ids ids = reference().encode(text);
    const double seconds = double(std::clock() - start) / CLOCKS_PER_SEC;  // of this process, whoever else is busy
    INFO(unit);
    CHECK((reference().decode(ids, false) == utf8_lossy(text)));
    CHECK(seconds < 30);  // a quadratic way takes many minutes
  }
}

TEST_CASE("added tokens are found as Hugging Face finds them", "[text]") {
  Json file = fixture("tokenizer.json");
  file["added_tokens"] = expected()["added_tokens"];
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "added.json");
  CHECK(tokenizer.vocab_size() == reference().vocab_size() + 5);  // "The" is a token already
  const Tokenizer again = Tokenizer::from_json(tokenizer.to_json(), "again.json");
  CHECK((again.to_json() == tokenizer.to_json()));
  for (const Json& item : expected()["added"]) {
    INFO(item.dump());
    const Ids ids = tokenizer.encode(item[0].get<std::string>(), {.special_tokens = true});
    CHECK(ids == item[1].get<Ids>());
    CHECK(tokenizer.decode(ids) == item[2].get<std::string>());
    CHECK(again.encode(item[0].get<std::string>(), {.special_tokens = true}) == ids);
    CHECK(tokenizer.encode(item[3].get<std::string>()) == item[4].get<Ids>());
    for (const auto& text : {item[0].get<std::string>(), item[3].get<std::string>()}) {
      CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
      CHECK(tokenizer.decode(tokenizer.encode(text, {.dropout = 0.3})) == text);
    }
  }
}

TEST_CASE("words are split as Llama 3 and Qwen 2 split them", "[text]") {
  for (const Json& item : fixture("split.json")) {
    INFO(item["name"]);
    const Tokenizer read = Tokenizer::from_json(item["file"].dump(), "split.json");
    CHECK(Json::parse(read.to_json()) == item["file"]);
    for (const Tokenizer& tokenizer : {read, Tokenizer::from_json(read.to_json(), "again.json")}) {
      for (const Json& row : item["encode"]) {
        INFO(row.dump());
        const std::string text = row[0].get<std::string>();
        const Ids ids = tokenizer.encode(text, {.special_tokens = true}), plain = tokenizer.encode(text);
        CHECK(ids == row[1].get<Ids>());
        CHECK(tokenizer.decode(ids, false) == row[2].get<std::string>());
        CHECK(plain == row[3].get<Ids>());
        CHECK(tokenizer.decode(plain) == text);
        CHECK(EpochEncoder(tokenizer, std::vector{text}, 0, 3).encode(0)[0] == plain);
        for (const double dropout : {0.2, 1.0})
          CHECK(EpochEncoder(tokenizer, std::vector{text}, dropout, 3).encode(0)[0] ==
                tokenizer.encode(text, {.dropout = dropout, .seed = 3}));
      }
    }
  }
}

TEST_CASE("text that spells a special token is text", "[text]") {
  TrainOptions options;
  options.vocab_size = 400;
  // Merges and bytes spell the last four.
  options.special_tokens = {"<pad>", "<eos_de>", "ab", "the", "a", "\xC3\xA9"};
  const std::vector<std::string> lines = {"the ab the ab there abba the ab <pad> <pad> <eos_de> <eos_de> caf\xC3\xA9 caf\xC3\xA9"};
  const Tokenizer trained = Tokenizer::train(lines, options);
  for (const Tokenizer& tokenizer : {trained, Tokenizer::from_json(trained.to_json(), "t.json")}) {
    for (const std::string text :
         {"use <pad> here", "<pad>", "<eos_de>", "<pad><pad>", "the ab", "there abba", "a\xC3\xA9", lines[0].c_str()}) {
      INFO(text);
      const Ids ids = tokenizer.encode(text), dropped = tokenizer.encode(text, {.dropout = 0.5, .seed = 3});
      CHECK(tokenizer.decode(ids) == text);
      CHECK(tokenizer.decode(dropped) == text);
      CHECK(tokenizer.decode(EpochEncoder(tokenizer, std::vector{text}, 0.5, 3).encode(0)[0]) == text);
      for (const std::int32_t id : ids) CHECK(id > 3);
      for (const std::int32_t id : dropped) CHECK(id > 3);
    }
    CHECK(tokenizer.encode("<pad>the", {.special_tokens = true}) == Ids{0, 3});
    CHECK(tokenizer.encode("<pad>the", {.special_tokens = true, .dropout = 0.5}) == Ids{0, 3});
    CHECK(tokenizer.decode(Ids{0, 1, 2, 3}) == "");
  }
}

TEST_CASE("bytes that are not UTF-8 encode byte by byte", "[text]") {
  SplitMix64 random{3};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::uint64_t n = random(20); n > 0; --n) text += static_cast<char>(random(4) ? random(256) : 'a');
    const Ids ids = reference().encode(text);
    CHECK(reference().decode(ids, false) == utf8_lossy(text));
    std::string bytes;  // before the lossy step nothing is lost: one token at a time, but for multi-byte characters
    for (const std::int32_t id : ids) bytes += reference().id_to_token(id);
    CHECK(to_code_points(bytes).size() == text.size());
  }
}

TEST_CASE("arguments that make no sense are refused", "[text]") {
  CHECK_THROWS_AS(reference().decode(Ids{-1}), std::invalid_argument);
  CHECK_THROWS_AS(reference().decode(Ids{622}), std::invalid_argument);
  CHECK(message_of<std::invalid_argument>([] { reference().id_to_token(622); }) == "[id_to_token] expected an id in [0, 622) but got 622");
  CHECK(reference().token_to_id("no such token") == std::nullopt);
  for (const std::vector<std::string>& specials : {std::vector<std::string>{""}, {"<a>", "<a>"}, {"\xFF"}, {std::string(2000, 'x')}}) {
    TrainOptions options;
    options.special_tokens = specials;
    CHECK_THROWS_AS(Tokenizer::train({}, options), std::invalid_argument);
  }
  TrainOptions huge;
  huge.vocab_size = 1'000'000;
  CHECK_THROWS_AS(Tokenizer::train({}, huge), std::invalid_argument);
  CHECK(reference().encode("").empty());
  CHECK(reference().decode({}) == "");
}

TEST_CASE("tokens that come one by one are decoded as all at once, a character with its last byte", "[text]") {
  const std::vector<std::string> special = {"<eos>"};
  const Tokenizer tokenizer = Tokenizer::train({}, {.vocab_size = 257, .special_tokens = special});
  const auto pieces = [&](const Ids& ids) {
    IncrementalDecoder decoder(tokenizer);
    std::vector<std::string> result;
    for (const std::int32_t id : ids) result.push_back(decoder.add(id));
    result.push_back(decoder.end());
    CHECK(decoder.end().empty());
    return result;
  };
  const std::string euro = "\u20ac", face = "\U0001f600";
  const std::vector<std::string> got = pieces(tokenizer.encode("a" + euro + "\u00e9" + face));
  CHECK(got == std::vector<std::string>{"a", "", "", euro, "", "\u00e9", "", "", "", face, ""});
  CHECK(pieces(tokenizer.encode("a\xe2\x82")) == std::vector<std::string>{"a", "", "", "\ufffd"});
  CHECK(pieces(tokenizer.encode("\xed\xa0z")) == std::vector<std::string>{"", "\ufffd\ufffd", "z", ""});  // a surrogate
  CHECK(pieces({0, tokenizer.encode("b")[0], 0}) == std::vector<std::string>{"", "b", "", ""});

  const auto until = [&](const std::string& text, const std::string& stop) {
    IncrementalDecoder decoder(tokenizer, stop);
    std::vector<std::string> result;
    for (const std::int32_t id : tokenizer.encode(text)) result.push_back(decoder.add(id));
    result.push_back(decoder.end());
    CHECK(decoder.has_ended() == (text.find(stop) != std::string::npos));
    return result;
  };
  CHECK(until("xa" + euro + "bc", euro + "b") == std::vector<std::string>{"x", "a", "", "", "", "", "", ""});
  CHECK(until("aabx", "ab") == std::vector<std::string>{"", "a", "", "", ""});
  CHECK(until("aab", "abc") == std::vector<std::string>{"", "a", "", "ab"});
  CHECK(until("ac", "ab") == std::vector<std::string>{"", "ac", ""});

  SplitMix64 random{9};
  for (int round = 0; round < 2000; ++round) {
    Ids ids;
    // Bytes that begin and continue characters are as frequent as others.
    for (std::uint64_t n = random(12); n > 0; --n) {
      const std::string byte(1, static_cast<char>(random(2) ? 0x80 + random(0x80) : random(2) ? 0xE0 + random(0x18) : random(256)));
      ids.push_back(tokenizer.encode(byte)[0]);
    }
    std::string joined;
    for (const std::string& piece : pieces(ids)) joined += piece;
    CHECK(joined == tokenizer.decode(ids));
  }
  IncrementalDecoder decoder(tokenizer);
  CHECK_THROWS_AS(decoder.add(257), std::invalid_argument);
}
