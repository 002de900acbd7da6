// tokenizer.json files that a stranger, a full disk or a bit error made.
#include <sys/stat.h>

#include <fstream>
#include <functional>

#include "catch.h"
#include "support.h"
#include "text/bpe.h"
#include "text/data_error.h"
#include "text/pretokenize.h"

using namespace tern::text;
using namespace tern::text::test;

namespace {

// A valid file as small as there is: the bytes, one special token, one merge.
Json smallest() {
  TrainOptions options;
  options.vocab_size = 259;
  options.special_tokens = {"<pad>"};
  const std::vector<std::string> lines = {"abab", "xabc abc"};
  return Json::parse(Tokenizer::train(lines, options).to_json());
}

std::string error_of(const std::string& text) {
  return message_of<DataError>([&] { Tokenizer::from_json(text, "t.json"); });
}

// A pre_tokenizer of Split and ByteLevel.
Json split(const std::string& expression) {
  const Json cut = {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {cut, bytes}}};
}

}  // namespace

TEST_CASE("a tokenizer survives the disk", "[text]") {
  const TempDirectory dir;
  const Tokenizer tokenizer = Tokenizer::from_json(smallest().dump(), "t.json");
  std::ofstream(dir / "t.json") << tokenizer.to_json();
  CHECK((Tokenizer::load(dir / "t.json").to_json() == tokenizer.to_json()));
}

TEST_CASE("loading reports what went wrong", "[text]") {
  const TempDirectory dir;
  CHECK(message_of<DataError>([&] { Tokenizer::load(dir / "none.json"); }).find("none.json: could not be read") != std::string::npos);
  CHECK_THROWS_AS(Tokenizer::load(dir.path()), DataError);
}

TEST_CASE("GPT-2's own file has no type of its model", "[text]") {
  Json file = fixture("tokenizer.json");
  for (const char* key : {"type", "fuse_unk", "byte_fallback", "ignore_merges"}) file["model"].erase(key);
  CHECK((Tokenizer::from_json(file.dump(), "t.json").to_json() == slurp(fixture_path("tokenizer.json"))));
}

TEST_CASE("a prefix space of transformers' own file is refused", "[text]") {
  const TempDirectory dir;
  const std::string path = spill(dir / "tokenizer.json", smallest().dump());
  const auto with = [&](const Json& config) {
    spill(dir / "tokenizer_config.json", config.dump());
    return message_of<DataError>([&] { Tokenizer::load(path); });
  };
  CHECK(with({{"tokenizer_class", "GPT2Tokenizer"}, {"add_bos_token", true}, {"add_prefix_space", false}}).empty());
  CHECK(with({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"add_prefix_space", true}}).empty());
  CHECK(with(Json::array()).empty());
  for (const char* name : {"GPT2Tokenizer", "GPT2TokenizerFast"})
    CHECK(with({{"tokenizer_class", name}, {"add_prefix_space", true}}).find("tokenizer_config.json: \"add_prefix_space\"") !=
          std::string::npos);
}

TEST_CASE("merges may be written as two words", "[text]") {
  Json file = fixture("tokenizer.json");
  for (Json& merge : file["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  CHECK((Tokenizer::from_json(file.dump(), "t.json").to_json() == slurp(fixture_path("tokenizer.json"))));
}

TEST_CASE("a file that would encode differently is refused in one line", "[text]") {
  const Json good = smallest();
  REQUIRE(error_of(good.dump()).empty());
  const std::vector<std::pair<const char*, std::function<void(Json&)>>> edits = {
      {"version", [](Json& j) { j["version"] = "2.0"; }},
      {"truncation", [](Json& j) { j["truncation"] = {{"max_length", 10}}; }},
      {"padding", [](Json& j) { j["padding"] = {{"pad_id", 2}}; }},
      {"no 'normalizer' or NFC but got type NFKC", [](Json& j) { j["normalizer"] = {{"type", "NFKC"}}; }},
      {"normalizer", [](Json& j) { j["normalizer"] = {{"type", "NFC"}, {"strip", true}}; }},
      {"pre_tokenizer", [](Json& j) { j["pre_tokenizer"] = nullptr; }},
      {"but got type Whitespace", [](Json& j) { j["pre_tokenizer"]["type"] = "Whitespace"; }},
      {"but got type Metaspace", [](Json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}}; }},
      {"but got Digits and ByteLevel",
       [](Json& j) { j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}}, j["pre_tokenizer"]}}}; }},
      {"as Oniguruma does but got an anchor in ^a", [](Json& j) { j["pre_tokenizer"] = split("^a"); }},
      {"at most 10000 bytes but got 20000", [](Json& j) { j["pre_tokenizer"] = split(std::string(20'000, 'a')); }},
      {"to be a \"Regex\" but got object",
       [](Json& j) {
         j["pre_tokenizer"] = split(word_patterns[1].expression);
         j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "a"}};
       }},
      {"behavior",
       [](Json& j) {
         j["pre_tokenizer"] = split(word_patterns[1].expression);
         j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
       }},
      {"invert",
       [](Json& j) {
         j["pre_tokenizer"] = split(word_patterns[1].expression);
         j["pre_tokenizer"]["pretokenizers"][0]["invert"] = true;
       }},
      {"use_regex",
       [](Json& j) {
         j["pre_tokenizer"] = split(word_patterns[1].expression);
         j["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true;
       }},
      {"add_prefix_space",
       [](Json& j) {
         j["pre_tokenizer"] = split(word_patterns[1].expression);
         j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true;
       }},
      {"add_prefix_space", [](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; }},
      {"use_regex", [](Json& j) { j["pre_tokenizer"]["use_regex"] = false; }},
      {"trim_offsets", [](Json& j) { j["pre_tokenizer"]["trim_offsets"] = 1; }},
      {"single", [](Json& j) { j["post_processor"] = {{"type", "TemplateProcessing"}}; }},
      {"RobertaProcessing", [](Json& j) { j["post_processor"] = {{"type", "RobertaProcessing"}}; }},
      {"decoder", [](Json& j) { j["decoder"] = nullptr; }},
      {"type", [](Json& j) { j["model"]["type"] = "Unigram"; }},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }},
      {"unk_token", [](Json& j) { j["model"]["unk_token"] = "<unk>"; }},
      {"continuing_subword_prefix", [](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; }},
      {"end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = true; }},
      {"ignore_merges", [](Json& j) { j["model"]["ignore_merges"] = 1; }},
      {"colour", [](Json& j) { j["model"]["colour"] = 1; }},
      {"extra", [](Json& j) { j["extra"] = 1; }},
      {"vocab", [](Json& j) { j["model"].erase("vocab"); }},
      {"vocab", [](Json& j) { j["model"]["vocab"] = Json::array(); }},
      {"byte",
       [](Json& j) {
         j["model"]["vocab"] = Json::object();
         j["model"]["merges"] = Json::array();
         j["added_tokens"] = Json::array();
       }},
      {"'a'", [](Json& j) { j["model"]["vocab"]["a"] = "3"; }},
      {"'a'", [](Json& j) { j["model"]["vocab"]["a"] = -3; }},
      {"'a'", [](Json& j) { j["model"]["vocab"]["a"] = 3.5; }},
      {"'a'", [](Json& j) { j["model"]["vocab"]["a"] = 4294967296; }},
      {"'a'", [](Json& j) { j["model"]["vocab"]["a"] = 259; }},
      {"each id once", [](Json& j) { j["model"]["vocab"]["a"] = 5; }},
      {"merges", [](Json& j) { j["model"]["merges"] = nullptr; }},
      {"merge 0", [](Json& j) { j["model"]["merges"][0] = {"a", "nowhere"}; }},
      {"merge 0", [](Json& j) { j["model"]["merges"][0] = {"a", "x"}; }},
      {"merge 0", [](Json& j) { j["model"]["merges"][0] = {"a", "b", "c"}; }},
      {"merge 0", [](Json& j) { j["model"]["merges"][0] = {"a", 1}; }},
      {"merge 0", [](Json& j) { j["model"]["merges"][0] = "a b c"; }},
      {"merge 0", [](Json& j) { j["model"]["merges"][0] = "ab"; }},
      {"merge 0", [](Json& j) { j["model"]["merges"][0] = 7; }},
      {"added_tokens", [](Json& j) { j["added_tokens"] = 1; }},
      {"added token", [](Json& j) { j["added_tokens"][0] = 1; }},
      {"single_word", [](Json& j) { j["added_tokens"][0]["single_word"] = true; }},
      {"lstrip", [](Json& j) { j["added_tokens"][0]["lstrip"] = true; }},
      {"special", [](Json& j) { j["added_tokens"][0].erase("special"); }},
      {"content", [](Json& j) { j["added_tokens"][0]["content"] = 1; }},
      {"1 to 1024 bytes", [](Json& j) { j["added_tokens"][0]["content"] = ""; }},
      {"1 to 1024 bytes", [](Json& j) { j["added_tokens"][0]["content"] = std::string(2000, 'x'); }},
      {"<pad>", [](Json& j) { j["added_tokens"][0]["id"] = 1; }},
      {"<pad>", [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }},
      {"<late>",
       [](Json& j) {
         j["added_tokens"].push_back(j["added_tokens"][0]);
         j["added_tokens"][1]["content"] = "<late>";
       }},
      {"'a\\nb\\x1b[31m'", [](Json& j) { j["model"]["merges"][0] = "a\nb\x1b[31m c"; }},
  };
  for (const auto& [word, edit] : edits) {
    Json bad = good;
    edit(bad);
    const std::string message = error_of(bad.dump());
    INFO(word << " / " << message);
    CHECK(message.rfind("t.json: expected ", 0) == 0);
    CHECK(message.find(word) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.size() < 500);
  }
}

TEST_CASE("a file that is not JSON, or too much of it, is refused", "[text]") {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("null"), std::string("[]"), std::string("\xFF\xFE"), std::string(1'000'000, '['),
        std::string("{\"model\":") + std::string(100'000, '['), std::string(130 << 20, ' '),
        "{\"version\":\"" + std::string(5'000'000, 'x'), std::string("{\"a\":1e999}"), std::string("{\"a\":\"\\ud800\"}")}) {
    const std::string message = error_of(text);
    INFO(message);
    CHECK(message.rfind("t.json: expected ", 0) == 0);
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.size() < 500);
  }
  std::string many = "[";
  for (int i = 0; i < 4'100'000; ++i) many += "0,";
  CHECK(error_of(many + "0]").find("at most 1000 JSON values") != std::string::npos);
  // A list of empty objects, which a parser may search anew after each of them.
  many = "{\"added_tokens\":[";
  for (int i = 0; i < 1'000'000; ++i) many += "{},";
  CHECK(error_of(many + "{}]}").find("'content'") != std::string::npos);
  CHECK(error_of("{\"version\":1,\"version\":1}") == "t.json: expected each key once but got \"version\" twice");
}

TEST_CASE("no change of a few bytes crashes the reader", "[text]") {
  const std::string good = smallest().dump();
  SplitMix64 random{17};
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bad = good;
    for (std::uint64_t n = 1 + random(3); n > 0; --n) {
      const std::size_t at = random(bad.size());
      switch (random(5)) {
        case 0: bad[at] = static_cast<char>(random(256)); break;
        case 1: bad.erase(at, 1 + random(40)); break;
        case 2: bad.insert(at, bad.substr(random(bad.size()), random(60))); break;
        case 3: bad.resize(at + 1); break;
        default: bad[at] = "{}[]\",:0-9e.\\"[random(13)];
      }
    }
    try {
      const Tokenizer tokenizer = Tokenizer::from_json(bad, "t.json");
      CHECK(tokenizer.decode(tokenizer.encode("abab <pad> \xF0\x9F\x98\x80"), false) == "abab <pad> \xF0\x9F\x98\x80");
    } catch (const DataError& error) {
      ++refused;
      CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
    }
  }
  CHECK(refused > 1000);
}
