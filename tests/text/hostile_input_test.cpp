// Files of a stranger's that are meant to cost time, memory or the reader's terminal.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "catch.h"
#include "support.h"
#include "text/bpe.h"
#include "text/corpus.h"
#include "text/data_error.h"
#include "text/input_file.h"
#include "text/json_reader.h"
#include "text/unicode.h"

using namespace tern::text;
using namespace tern::text::test;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string json_error(const std::string& text, const JsonLimits& limits = {}) {
  return message_of<DataError>([&] {
    JsonSource source(text, "t.json", limits.max_string_bytes);
    JsonReader(source, limits).read();
  });
}

Json tokenizer_of_bytes() {
  TrainOptions options;
  options.vocab_size = 257;
  options.special_tokens = {"<pad>"};
  return Json::parse(Tokenizer::train({}, options).to_json());
}

std::string tokenizer_error(const std::string& text) {
  return message_of<DataError>([&] { Tokenizer::from_json(text, "t.json"); });
}

}  // namespace

TEST_CASE("text is shown without control characters, on one line, and not at length", "[text]") {
  CHECK(printable("gr\xC3\xBC\xC3\x9F a\\b") == "gr\xC3\xBC\xC3\x9F a\\b");
  CHECK(printable("a\nb\r\tc\x1b[31m\x7f") == "a\\nb\\r\\tc\\x1b[31m\\x7f");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\xC2\x9B"
                  "31m \xC2\x80\xC2\xA0") == "\\u009b31m \\u0080\xC2\xA0");
  CHECK(printable("\xE2\x80\xAE\xE2\x80\xA8\xE2\x81\xA6x") == "\\u202e\\u2028\\u2066x");
  CHECK(printable("\xFF\x9Bx\xE2\x82") == "\\xff\\x9bx\\xe2\\x82");
  CHECK(printable(std::string(100'000, 'x') + "end", 90) == std::string(60, 'x') + " ... " + std::string(27, 'x') + "end");
  // The cut falls between characters.
  std::string umlauts;
  for (int i = 0; i < 300; ++i) umlauts += "\xC3\xBC";
  for (std::size_t limit = 3; limit < 40; ++limit) CHECK_FALSE(has(printable(umlauts, limit), "\\"));
  CHECK(without_controls("a\nb\x1b\xC2\x9B\xE2\x80\xAE\x7f.\xFFgr\xC3\xBC") == "a b    .\xEF\xBF\xBDgr\xC3\xBC");
}

TEST_CASE("a git-lfs pointer is called one, whatever was to be read", "[text]") {
  const TempDirectory dir;
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 548105171\n",
                    path = spill(dir / "file", pointer);
  const std::string wanted = path + ": expected the file itself but got a git-lfs pointer to it: run `git lfs pull` in its repository";
  CHECK(message_of<DataError>([&] { InputFile{path}; }) == wanted);
  CHECK(message_of<DataError>([&] { read_file(path, 1000); }) == wanted);
  CHECK(message_of<DataError>([&] { read_lines(path); }) == wanted);
  CHECK(message_of<DataError>([&] { Tokenizer::load(path); }) == wanted);
  // A text that speaks of one, or is cut.
  CHECK(read_lines(spill(dir / "text", "A " + pointer)).size() == 3);
  CHECK(read_lines(spill(dir / "cut", pointer.substr(0, 38))).size() == 1);
  CHECK(read_lines(spill(dir / "long", pointer + std::string(1000, 'x'))).size() == 4);
}

TEST_CASE("files of other kinds are called what they are", "[text]") {
  const TempDirectory dir;
  CHECK(json_error("<!doctype HTML>") == "t.json: expected JSON but got an HTML page");
  CHECK(json_error("\n<html>") == "t.json: expected JSON but got an HTML page");
  CHECK(json_error("PK\x03\x04 x") == "t.json: expected JSON but got a zip archive");
  CHECK(json_error("\x1F\x8B\x08") == "t.json: expected JSON but got gzip data");
  CHECK(json_error("<htm") == "t.json: expected valid JSON but got an error at byte 1");
  CHECK(json_error("{\"a\": <html>") == "t.json: expected valid JSON but got an error at byte 7");
  CHECK(message_of<DataError>([&] { Tokenizer::load(spill(dir / "t.json", gzip("{}"))); }) ==
        (dir / "t.json").string() + ": expected JSON but got gzip data");
  CHECK(message_of<DataError>([&] { read_lines(spill(dir / "a.de", "PK\x03\x04 x")); }) ==
        (dir / "a.de").string() + ": expected text or gzip data but got a zip archive: unpack it");
  CHECK(read_lines(spill(dir / "b.de", "<html>\n")).size() == 1);  // a corpus may have any text
}

TEST_CASE("the message of a fault in a file is one line without control characters", "[text]") {
  const TempDirectory dir;
  const std::string message = message_of<DataError>([&] { read_lines(dir / "a\x1B[31m\nb\x9B"); });
  CHECK(has(message, R"(a\x1b[31m\nb\x9b: could not be read)"));
  CHECK(std::string(DataError("a\tb\x7F").what()) == R"(a\tb\x7f)");
}

TEST_CASE("only regular files are opened", "[text]") {
  const TempDirectory dir;
  REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  for (const std::filesystem::path& path : {dir / "fifo", dir.path(), std::filesystem::path("/dev/zero")}) {
    const std::string expected = path.string() + ": could not be read: it is not a regular file";
    CHECK(message_of<DataError>([&] { read_lines(path); }) == expected);
    CHECK(message_of<DataError>([&] { Tokenizer::load(path); }) == expected);
    CHECK(message_of<DataError>([&] { read_file(path, 100); }) == expected);
  }
  for (const char* side : {"train.de", "train.en"}) REQUIRE(::mkfifo((dir / side).c_str(), 0600) == 0);
  CHECK(
      has(message_of<DataError>([&] { read_pairs(dir.path(), "train", "de", "en"); }), "train.de: could not be read: it is not a regular"));
}

TEST_CASE("gzip data that unpacks to far more than text does is refused early", "[text]") {
  const TempDirectory dir;
  for (const char* unit : {"\n", "a long line of the same text over and over\n"}) {
    std::string much;
    while (much.size() < (std::size_t{40} << 20)) much += unit;
    spill(dir / "f.gz", gzip(much));
    CHECK(has(message_of<DataError>([&] { read_lines(dir / "f.gz"); }),
              "expected compressed data of at most 64 times its size (max_gzip_ratio)"));
    ReadOptions trusting;
    trusting.max_gzip_ratio = trusting.max_memory_ratio = 1'000'000;
    CHECK(read_lines(dir / "f.gz", trusting).back() == std::string(unit).substr(0, std::string(unit).size() - 1));
  }
}

TEST_CASE("a file of empty lines takes no more memory than one of text", "[text]") {
  const TempDirectory dir;
  const std::string file = (dir / "f").string();
  spill(file, std::string(4'000'000, '\n'));
  // 32 bytes a line and 8 for its text: (64 << 20) / 24 lines.
  CHECK(message_of<DataError>([&] { read_lines(file); }) ==
        file +
            ":2796203: expected lines that take at most 8 times the memory of their text "
            "(max_memory_ratio) but got more; leave empty lines out");
  std::string short_lines;
  while (short_lines.size() < 16'000'000) short_lines += "abc\n";
  spill(file, short_lines);
  CHECK(read_lines(file).size() == 4'000'000);
}

TEST_CASE("all files of a corpus share a limit of memory", "[text]") {
  const TempDirectory dir;
  spill(dir / "train.de", "abcd\nefgh\n");
  spill(dir / "train.en", "ijkl\nmnop\n");
  ReadOptions options;
  options.max_memory_bytes = 4 * (4 + 32);
  CHECK(read_pairs(dir.path(), "train", "de", "en", options).size() == 2);
  --options.max_memory_bytes;
  CHECK(message_of<DataError>([&] { read_pairs(dir.path(), "train", "de", "en", options); }) ==
        (dir / "train.en").string() +
            ":2: expected lines that fit in the 71 bytes of memory left for them (max_memory_bytes) but got more");
  CorpusReport held;
  held.bytes = 100;
  held.lines = 1;
  CHECK(options.beside(held).max_memory_bytes == 143 - 132);
  held.bytes = 1000;
  CHECK(options.beside(held).max_memory_bytes == 0);
}

TEST_CASE("JSON is read within its limits", "[text]") {
  CHECK(json_error(R"({"a":[1,-2,3.5,"x",null,true,{"b":{}}]})").empty());
  CHECK(json_error("[1,2").find("t.json: expected valid JSON but got an error at byte ") == 0);
  CHECK(json_error(std::string("{}\0", 3)) == "t.json: expected valid JSON but got a NUL byte");
  CHECK(has(json_error("[1e999]"), "t.json: expected numbers that fit in a float64"));
  CHECK(has(json_error("[-1e999]"), "t.json: expected numbers that fit in a float64"));
  CHECK(json_error(R"([{"k":1,"j":2,"k":3}])") == "t.json: expected each key once but got \"k\" twice");
  JsonLimits limits{.max_string_bytes = 10, .max_values = 5, .max_depth = 2};
  CHECK(json_error("[[1,2,3]]", limits).empty());
  CHECK(has(json_error("[[1,2,3,4]]", limits), "at most 5 JSON values"));
  CHECK(has(json_error("[[[1]]]", limits), "at most 2 levels"));
  CHECK(has(json_error("[\"01234567890\"]", limits), "at most 10 bytes"));
  CHECK(has(json_error("[" + std::string(20, ' ') + "]", limits), "at most 10 bytes"));
  // These took hours: many keys, many empty objects.
  std::string keys = "{", objects = "[";
  for (int i = 0; i < 1'000'000; ++i) {
    keys += "\"k" + std::to_string(i) + "\":1,";
    objects += "{},";
  }
  CHECK(has(json_error(keys + "\"z\":1}"), "at most 100000 JSON values"));
  CHECK(has(json_error(objects + "{}]"), "at most 100000 JSON values"));
}

TEST_CASE("a tokenizer's tokens are bounded, one by one and together", "[text]") {
  const Json good = tokenizer_of_bytes();
  REQUIRE(tokenizer_error(good.dump()).empty());
  Json one = good;
  one["model"]["vocab"][std::string(1025, 'x')] = 257;
  CHECK(has(tokenizer_error(one.dump()), "expected tokens of at most 1024 bytes"));
  Json merge = good;
  merge["model"]["merges"].push_back({std::string(1025, 'x'), "a"});
  CHECK(has(tokenizer_error(merge.dump()), "expected merge 0 to name tokens of the vocabulary"));
  Json all = good;
  for (int i = 0; i < 40'000; ++i) all["model"]["vocab"][std::to_string(i) + std::string(1000, 'x')] = 257 + i;
  CHECK(has(tokenizer_error(all.dump()), "expected tokens of at most 33554432 bytes in all"));
  Json added = good;
  for (int i = 0; i < 600; ++i) {
    Json token = good["added_tokens"][0];
    token["content"] = std::to_string(i) + std::string(1000, 'x');
    token["id"] = 257 + i;
    added["added_tokens"].push_back(token);
  }
  CHECK(has(tokenizer_error(added.dump()), "expected added tokens of at most 524288 bytes in all"));
  Json far = good;
  far["model"]["vocab"]["zz"] = 499'999;
  CHECK(has(tokenizer_error(far.dump()), "expected the ids 0 to 257, each once, but got 499999 for 'zz'"));
}

TEST_CASE("a trainer makes no token that would not be read again", "[text]") {
  TrainOptions options;
  options.vocab_size = 400;
  const std::vector<std::string> lines(2, std::string(40'000, 'a'));
  const Tokenizer tokenizer = Tokenizer::train(lines, options);
  std::size_t longest = 0;
  for (std::size_t id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.id_to_token(static_cast<int>(id)).size());
  CHECK(longest == 1024);
  CHECK(Tokenizer::from_json(tokenizer.to_json(), "t.json").encode(lines[0]) == tokenizer.encode(lines[0]));
}

// Many added tokens that may begin at each byte: a search that starts anew at each byte takes minutes here.
TEST_CASE("many added tokens cost no more than one", "[text]") {
  Json file = tokenizer_of_bytes();
  for (int i = 1; i <= 900; ++i) {
    Json token = file["added_tokens"][0];
    token["content"] = std::string(static_cast<std::size_t>(i), 'q') + "\x01";
    token["id"] = 256 + i;
    token["normalized"] = i % 2 == 0;
    file["added_tokens"].push_back(token);
  }
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "t.json");
  const std::string line(1'000'000, 'q');
  CHECK(tokenizer.encode(line, {.special_tokens = true}).size() == line.size());
  const std::vector<std::int32_t> ids = tokenizer.encode(line + "\x01" + line, {.special_tokens = true});
  CHECK(ids.size() == 2 * line.size() - 899 + 1);  // 899: the longest of the first pass
  CHECK(ids[line.size() - 899] == 256 + 899);
  CHECK(tokenizer.decode(ids, false) == line + "\x01" + line);
}

TEST_CASE("added tokens are found as by trying each at each place", "[text]") {
  SplitMix64 random{5};
  for (int round = 0; round < 60; ++round) {
    Json file = tokenizer_of_bytes();
    file["added_tokens"][0]["content"] = "<pad>";
    std::vector<std::string> tokens;
    for (std::uint64_t n = 1 + random(8); n > 0; --n) {
      std::string token;
      for (std::uint64_t size = 1 + random(5); size > 0; --size) token += "ab"[random(2)];
      if (token.size() < 2 || std::find(tokens.begin(), tokens.end(), token) != tokens.end()) continue;
      Json entry = file["added_tokens"][0];
      entry["content"] = token;
      entry["id"] = 257 + tokens.size();
      tokens.push_back(token);
      file["added_tokens"].push_back(entry);
    }
    const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "t.json");
    // Past the matcher's piece of 64 KiB, too.
    std::string text(round == 0 ? 70'000 : 0, 'a');
    for (int i = 0; i < 200; ++i) text += "ab"[random(2)];
    std::vector<std::int32_t> expected;
    for (std::size_t i = 0; i < text.size();) {
      std::size_t best = tokens.size();
      for (std::size_t t = 0; t < tokens.size(); ++t)
        if (text.compare(i, tokens[t].size(), tokens[t]) == 0 && (best == tokens.size() || tokens[t].size() > tokens[best].size()))
          best = t;
      expected.push_back(best < tokens.size() ? static_cast<std::int32_t>(257 + best) : *tokenizer.token_to_id(text.substr(i, 1)));
      i += best < tokens.size() ? tokens[best].size() : 1;
    }
    CHECK((tokenizer.encode(text, {.special_tokens = true}) == expected));
  }
}

TEST_CASE("what Hugging Face's library refuses is refused", "[text]") {
  const Json good = tokenizer_of_bytes();
  const auto edited = [&](const std::function<void(Json&)>& edit) {
    Json file = good;
    edit(file);
    return tokenizer_error(file.dump());
  };
  CHECK(has(edited([](Json& j) { j["model"]["fuse_unk"] = 7; }), "'fuse_unk' to be a boolean"));
  CHECK(has(edited([](Json& j) { j["added_tokens"] = nullptr; }), "'added_tokens' to be an array but got null"));
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
    CHECK(has(edited([&](Json& j) { j["added_tokens"][0][flag] = nullptr; }), flag));
    CHECK(has(edited([&](Json& j) { j["added_tokens"][0].erase(flag); }), flag));
  }
  for (const char* part : {"pre_tokenizer", "post_processor", "decoder"}) {
    for (const char* flag : {"add_prefix_space", "trim_offsets"}) CHECK(has(edited([&](Json& j) { j[part].erase(flag); }), flag));
    CHECK(has(edited([&](Json& j) { j[part]["use_regex"] = nullptr; }), "use_regex"));
    CHECK(edited([&](Json& j) { j[part].erase("use_regex"); }).empty());
  }
  CHECK(edited([](Json& j) { j["model"]["fuse_unk"] = true; }).empty());
  CHECK(edited([](Json& j) { j["model"]["fuse_unk"] = nullptr; }).empty());
}
