// tern-lm prepare: what is in the data set, and what does not depend on threads, kills and how the text is stored.
#include "data/prepare.h"

#include "bytes.h"
#include "support.h"

using namespace tern;
using namespace tern::programs::test;
using tern::test::gzip, tern::test::zstd;

namespace {

/// Text with sentences of its own on each line.
std::string text_of(std::size_t bytes, std::uint64_t seed) {
  tern::test::SplitMix64 random{seed};
  constexpr const char* words[] = {"the", "dog", "sees", "a", "k\xC3\xB6nig", "in", "1998", "trees", "it's", "\xE5\xAD\x97"};
  std::string text;
  for (int line = 0; text.size() < bytes; ++line) {
    text += fmt::format("{} ", line);
    for (std::uint64_t n = 3 + random(12); n > 0; --n) text += std::string(words[random(std::size(words))]) + (n > 1 ? " " : ".\n");
  }
  return text;
}

/// Files of text, and the directory `data` that prepare writes.
struct Prepared {
  TempDirectory directory;
  std::string text = text_of(200'000, 1), more = text_of(60'000, 2);
  fs::path a = spill(directory / "a.txt", text), b = spill(directory / "b.txt", more);

  std::string out(const std::string& name = "data") const { return directory / name; }
  Result prepare(const Arguments& words, const std::string& name = "data") const {
    return run(lm_program, with({"prepare", "--out", out(name)}, words));
  }
  data::PreparedData made(const Arguments& words, const std::string& name = "data") const {
    done(prepare(words, name));
    return data::PreparedData::open(out(name));
  }
};

std::string decoded(const data::PreparedData& data, const data::TokenList& shards) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(shards.size()));
  shards.read(0, tokens);
  const std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
  std::string text = data.tokenizer.decode(ids, false);
  const std::string end = "<|endoftext|>";
  for (std::size_t at = text.find(end); at != text.npos; at = text.find(end, at)) text.replace(at, end.size(), "|");
  return text;
}

}  // namespace

TEST_CASE("tern-lm prepare --out --vocab: the tokens are the text's", "[programs]") {
  const Prepared files;
  const data::PreparedData data = files.made({files.a, files.b, "--vocab", "300", "--valid-share", "0"});
  CHECK(data.tokenizer.vocab_size() == 300);
  CHECK(data.end_of_text == 0);
  CHECK(data.tokenizer.id_to_token(0) == "<|endoftext|>");
  CHECK((decoded(data, data.train) == files.text + "|" + files.more + "|"));
  CHECK(data.valid.size() == 0);
  CHECK(data.train_bytes == static_cast<std::int64_t>(files.text.size() + files.more.size()));
  REQUIRE(data.train.files().size() == 1);
  CHECK(data.train.files()[0].token_bytes() == 2);
  CHECK_FALSE(fs::exists(fs::path(files.out()) / "progress.json"));
  // A document is encoded as a whole, whatever the pieces.
  const std::vector<std::int32_t> ids = data.tokenizer.encode(files.text);
  std::vector<std::int64_t> tokens(ids.size() + 1);
  data.train.read(0, tokens);
  CHECK(tokens.back() == data.end_of_text);
  CHECK(std::equal(ids.begin(), ids.end(), tokens.begin()));
}

TEST_CASE("tern-lm prepare --threads: their number changes no byte, nor does how the text is stored", "[programs]") {
  const Prepared files;
  const Arguments options = {"--vocab", "300", "--shard-tokens", "20000", "--valid-share", "0.1"};
  done(files.prepare(with({files.a, files.b, "--threads", "1"}, options), "one"));
  done(files.prepare(with({files.a, files.b, "--threads", "5"}, options), "five"));
  const auto one = contents(files.out("one"));
  CHECK(one.size() > 8);
  CHECK((one == contents(files.out("five"))));
}

TEST_CASE("tern-lm prepare --tokenizer: one of another's, with more tokens than 16 bits count", "[programs]") {
  const Prepared files;
  Json tokenizer = Json::parse(files.made({files.a, "--vocab", "260"}, "small").tokenizer.to_json());
  for (int i = 0; i < 66'000; ++i) tokenizer["model"]["vocab"]["added" + std::to_string(i)] = 260 + i;
  spill(files.directory / "wide.json", tokenizer.dump());
  const data::PreparedData data = files.made({files.a, "--tokenizer", files.directory / "wide.json", "--valid-share", "0"});
  CHECK(data.tokenizer.vocab_size() == 66'260);
  CHECK(data.train.files()[0].token_bytes() == 4);
  CHECK((decoded(data, data.train) == files.text + "|"));
  CHECK((slurp(fs::path(files.out()) / "tokenizer.json") == slurp(files.directory / "wide.json")));
  // Without a token for the end of text documents are joined.
  tokenizer["added_tokens"] = Json::array();
  tokenizer["model"]["vocab"].erase("<|endoftext|>");
  tokenizer["model"]["vocab"]["other"] = 0;
  spill(files.directory / "none.json", tokenizer.dump());
  const data::PreparedData joined =
      files.made({files.a, files.b, "--tokenizer", files.directory / "none.json", "--valid-share", "0"}, "none");
  CHECK(joined.end_of_text == -1);
  CHECK((decoded(joined, joined.train) == files.text + files.more));
  // Llama 3's name for it.
  tokenizer["model"]["vocab"].erase("other");
  tokenizer["model"]["vocab"]["<|end_of_text|>"] = 0;
  spill(files.directory / "llama.json", tokenizer.dump());
  CHECK(files.made({files.a, "--tokenizer", files.directory / "llama.json", "--valid-share", "0"}, "llama").end_of_text == 0);
}

TEST_CASE("tern-lm prepare --field --separator: compressed text, JSON lines and several documents", "[programs]") {
  const Prepared files;
  done(files.prepare({files.a, files.b, "--vocab", "270"}, "plain"));
  const std::string tokenizer = fs::path(files.out("plain")) / "tokenizer.json";
  const Arguments options = {"--tokenizer", tokenizer, "--valid-share", "0"};
  const auto text = [&](const std::string& name, std::string_view content, const Arguments& more = {}) {
    const data::PreparedData data = files.made(with(with({spill(files.directory / name, content)}, options), more), name + ".data");
    return decoded(data, data.train);
  };
  CHECK((text("a.gz", gzip(files.text)) == files.text + "|"));
  if (files.prepare(with({spill(files.directory / "b.zst", zstd("a"))}, options), "zstd").code == 0)
    CHECK((text("a.txt.zst", zstd(files.text)) == files.text + "|"));
  const std::string lines = "{\"text\": \"one\"}\n\n{\"text\": \"\", \"n\": 1}\r\n{\"text\": \"two\\n\"}";
  CHECK(text("a.jsonl", lines) == "one||two\n|");
  CHECK(text("b.ndjson.gz", gzip(lines)) == "one||two\n|");
  CHECK(text("c.txt", lines) == lines + "|");
  CHECK(text("d.txt", lines, {"--field", "text"}) == "one||two\n|");
  CHECK(text("e.jsonl", "{\"body\": \"one\"}", {"--field", "body"}) == "one|");
  const std::string three = "<>one two<>\n\nthree<> \n<>";
  CHECK(text("f.txt", three) == three + "|");
  CHECK(text("g.txt", three, {"--separator", "<>"}) == "|one two|\n\nthree|");
  CHECK(text("h.txt", files.text + "<>" + files.text + "<>b", {"--separator", "<>"}) == files.text + "|" + files.text + "|b|");
  CHECK(text("i.jsonl", "{\"text\": \"a<>b\"}", {"--separator", "<>"}) == "a<>b|");
}

TEST_CASE("tern-lm prepare --valid-share: parts from all over the text", "[programs]") {
  const Prepared files;
  const data::PreparedData data = files.made({files.a, "--vocab", "300", "--valid-share", "0.1"});
  const double share = static_cast<double>(data.valid_bytes) / static_cast<double>(files.text.size());
  CHECK(share > 0.08);
  CHECK(share < 0.12);
  CHECK(data.train_bytes + data.valid_bytes == static_cast<std::int64_t>(files.text.size()));
  const std::string train = decoded(data, data.train), valid = decoded(data, data.valid);
  // Lines begin with their numbers: each is in one of the two, in the order of the text.
  std::vector<int> parts;
  std::istringstream in(valid);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("|")) line.erase(0, 1), parts.push_back(0);
    if (line.empty()) continue;
    CHECK(contains(files.text, "\n" + line + "\n"));
    CHECK_FALSE(contains(train, "\n" + line + "\n"));
  }
  CHECK(parts.size() >= 5);
  CHECK(std::count(valid.begin(), valid.end(), '|') == static_cast<std::ptrdiff_t>(parts.size()));
  const std::int64_t first = std::stoll(valid), last = std::stoll(valid.substr(valid.rfind('\n', valid.size() - 3) + 1)),
                     lines = std::count(files.text.begin(), files.text.end(), '\n');
  CHECK(first < lines / 4);
  CHECK(last > 3 * lines / 4);
}

TEST_CASE("tern-lm prepare --valid: files to validate on", "[programs]") {
  const Prepared files;
  const data::PreparedData data = files.made({files.a, "--valid", files.b, "--vocab", "300"});
  CHECK((decoded(data, data.train) == files.text + "|"));
  CHECK((decoded(data, data.valid) == files.more + "|"));
  CHECK(data.valid_bytes == static_cast<std::int64_t>(files.more.size()));
}

TEST_CASE("tern-lm prepare --shard-tokens: shards are one list of tokens", "[programs]") {
  const Prepared files;
  const data::PreparedData one = files.made({files.a, files.b, "--vocab", "300"}, "one"),
                           many = files.made({files.a, files.b, "--vocab", "300", "--shard-tokens", "9000"}, "many");
  CHECK(one.train.files().size() == 1);
  CHECK(many.train.files().size() > 5);
  for (std::size_t i = 0; i + 1 < many.train.files().size(); ++i) CHECK(many.train.files()[i].size() >= 9000);
  CHECK((decoded(one, one.train) == decoded(many, many.train)));
  CHECK((decoded(one, one.valid) == decoded(many, many.valid)));
}

TEST_CASE("A preparation that is killed goes on, and its bytes are those of one that was not", "[programs]") {
  const Prepared files;
  const Arguments options = {files.a,     files.b, "--valid",        spill(files.directory / "v.txt", text_of(30'000, 3)),
                             "--vocab",   "400",   "--shard-tokens", "4000",
                             "--threads", "2"};
  done(files.prepare(options, "whole"));
  const auto whole = contents(files.out("whole"));
  REQUIRE(whole.size() > 20);
  const Arguments words = with({"prepare", "--out", files.out()}, options);
  tern::test::SplitMix64 random{7};
  int kills = 0, went_on = 0;
  for (int turn = 0; turn < 100; ++turn) {
    const std::string out = files.directory / "says", err = files.directory / "err";
    const pid_t child = start(lm_program, words, "/dev/null", out, err);
    // From shards that are there, a few more; the next kill comes at any time after.
    const std::size_t before = files.directory.count() > 0 && fs::exists(files.out()) ? contents(files.out()).size() : 0;
    for (int i = 0; i < 2000 && (!fs::exists(files.out()) ||
                                 static_cast<std::size_t>(std::distance(fs::directory_iterator(files.out()), {})) <= before);
         ++i)
      ::usleep(500);
    ::usleep(static_cast<useconds_t>(random(4000)));
    ::kill(child, SIGKILL);
    const int code = finish(child);
    went_on += contains(slurp(out), "goes on behind");
    if (fs::exists(fs::path(files.out()) / "data.json")) break;  // the kill may have come behind it
    REQUIRE(code == 128 + SIGKILL);
    ++kills;
    CHECK(contains(message_of<io::FileError>([&] { data::PreparedData::open(files.out()); }), "data.json"));
  }
  INFO(kills << " kills");
  CHECK(kills > 3);
  CHECK(went_on > 1);
  if (!fs::exists(fs::path(files.out()) / "data.json")) done(run(lm_program, words));
  fs::remove(fs::path(files.out()) / "progress.json");
  CHECK((contents(files.out()) == whole));
}

TEST_CASE("A signal ends a preparation in one line, and other text or options start over", "[programs]") {
  const Prepared files;
  const Arguments words = {"prepare", "--out", files.out(), files.a, files.b, "--vocab", "400", "--shard-tokens", "2000", "--threads", "1"};
  const std::string err = files.directory / "err";
  const pid_t child = start(lm_program, words, "/dev/null", "/dev/null", err);
  CHECK(wait_until([&] { return fs::exists(fs::path(files.out()) / "train-00001.bin"); }));
  ::kill(child, SIGINT);
  REQUIRE(finish(child) == 128 + SIGINT);
  CHECK(slurp(err) == "tern-lm: stopped by SIGINT while it prepared data; the same command goes on\n");
  CHECK(message_of<io::FileError>([&] { data::PreparedData::open(files.out()); }) ==
        files.out() + ": expected data that tern-lm prepare wrote but there is no data.json: it was cut short; the same command goes on");
  CHECK_FALSE(contains(done(files.prepare({files.a, "--vocab", "300"})).out, "goes on"));
  const auto over = contents(files.out());
  fs::remove_all(files.out());
  done(files.prepare({files.a, "--vocab", "300"}));
  CHECK((over == contents(files.out())));
}

TEST_CASE("What prepare refuses is said in one line", "[programs]") {
  const Prepared files;
  const std::string other = files.directory / "other", a = files.a;
  fs::create_directory(other);
  spill(fs::path(other) / "notes.txt", "mine");
  const auto refused = [&](const Arguments& words, const std::string& part) {
    check_refused(run(lm_program, with({"prepare"}, words)), part, "tern-lm");
    CHECK_FALSE(fs::exists(fs::path(files.out()) / "data.json"));
    fs::remove_all(files.out());
  };
  const std::string out = files.out();
  const auto file = [&](const std::string& name, std::string_view content) -> std::string {
    return spill(files.directory / name, content);
  };
  refused({a, "--out", other}, other + ": expected no directory, or one of prepare, but it holds other files");
  fs::remove(fs::path(other) / "notes.txt");
  spill(fs::path(other) / "tokenizer.json", "mine");
  refused({a, "--out", other}, "but it holds other files");
  CHECK(slurp(fs::path(other) / "tokenizer.json") == "mine");
  refused({a, "--out", a}, "a.txt");
  refused({a, "--out", ""}, "--out");
  refused({"--out", out}, "text is required");
  refused({files.directory / "none.txt", "--out", out}, "none.txt: could not be read");
  refused({files.directory.path(), "--out", out}, "it is not a regular file");
  refused({file("empty.txt", ""), "--out", out}, "empty.txt: expected text to train on but got none");
  refused({file("little.txt", "a few words"), "--out", out}, "little.txt: expected enough text for a part to validate on but got 11 bytes");
  refused({file("cut.gz", gzip(files.text).substr(0, 5000)), "--out", out}, "cut.gz: the gzip data is truncated");
  refused({file("none.gz", "text"), "--out", out}, "none.gz: expected gzip data but got none");
  refused({file("a.zip", "PK\x03\x04"), "--out", out}, "a.zip: expected text or gzip data but got a zip archive");
  refused({file("a.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n"), "--out", out}, "a.jsonl:2: expected an object with the string \"text\"");
  refused({file("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\n"), "--out", out}, "a.jsonl:2: expected valid JSON");
  refused({a, "--field", "body", "--out", out}, "a.txt:1: expected valid JSON");
  refused({a, "--tokenizer", files.directory / "none.json", "--out", out}, "none.json: could not be read");
  refused({a, "--tokenizer", file("bad.json", "{}"), "--out", out}, "bad.json: expected");
  refused({a, "--tokenizer", "x", "--vocab", "300", "--out", out}, "--tokenizer");
  refused({a, "--valid", a, "--valid-share", "0.1", "--out", out}, "--valid");
  refused({a, "--vocab", "256", "--out", out}, "--vocab: expected a whole number from 257 to 500000 but got 256");
  refused({a, "--separator", "a\nb", "--out", out}, "--separator: expected some text without a line break");
  refused({a, "--valid-share", "0.6", "--out", out}, "--valid-share: expected a number from 0 to 0.5 but got 0.6");
  refused({a, "--shard-tokens", "0", "--out", out}, "--shard-tokens: expected a whole number from 1");
  refused({a, "--threads", "0", "--out", out}, "--threads: expected a whole number from 1");
  done(files.prepare({a, "--vocab", "300"}));
  check_refused(files.prepare({a, "--vocab", "300"}), "data: holds a prepared data set: remove it, or name another directory", "tern-lm");
}

TEST_CASE("A full disk ends a preparation with code 1, and it goes on afterwards", "[programs]") {
  const Prepared files;
  const Arguments words = {"prepare", "--out", files.out(), files.a, "--vocab", "300"};
  const Result full = shell("ulimit -f 40; exec \"$0\" \"$@\"", lm_program, words);
  INFO(full.err);
  CHECK(full.code == 1);
  CHECK(contains(full.err, "train-00000.bin: could not be written: File too large"));
  CHECK(contains(message_of<io::FileError>([&] { data::PreparedData::open(files.out()); }), "it was cut short"));
  done(run(lm_program, words));
  CHECK(data::PreparedData::open(files.out()).train.size() > 0);
}

TEST_CASE("A data set that was changed is refused in one line", "[programs]") {
  const Prepared files;
  files.made({files.a, "--vocab", "300", "--valid-share", "0.1"});
  const auto whole = contents(files.out());
  const auto with_file = [&](const std::string& name, const std::string& content) {
    for (const auto& [each, text] : whole) spill(fs::path(files.out()) / each, text);
    spill(fs::path(files.out()) / name, content);
    return message_of<io::FileError>([&] { data::PreparedData::open(files.out()); });
  };
  const auto edited = [&](const char* key, const Json& value) {
    Json json = Json::parse(whole.at("data.json"));
    json[key] = value;
    return with_file("data.json", json.dump());
  };
  const std::string prefix = files.out() + "/";
  CHECK(with_file("unrelated.txt", "").empty());
  for (const char* name : {"train-00000.bin", "valid-00000.bin", "tokenizer.json"}) {
    std::string bad = whole.at(name);
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
    CHECK(contains(with_file(name, bad), prefix + name + ": expected the checksum "));
  }
  CHECK(edited("tern_data", 2) == prefix + "data.json: expected version 1 of \"tern_data\" but got 2");
  for (const char* key : {"train_tokens", "valid_tokens", "vocab", "end_of_text"})
    CHECK(edited(key, 301) == prefix + "data.json: the files beside it are not those that it describes: prepare the data again");
  CHECK(contains(edited("shards", {{"../data/train-00000.bin", "0"}}), "expected names of files but got ../data"));
  CHECK(contains(edited("vocab", "many"), prefix + "data.json: "));
  CHECK(contains(with_file("data.json", "{"), prefix + "data.json: expected valid JSON"));
  fs::remove(fs::path(files.out()) / "valid-00000.bin");
  spill(fs::path(files.out()) / "data.json", whole.at("data.json"));
  CHECK(contains(message_of<io::FileError>([&] { data::PreparedData::open(files.out()); }), "valid-00000.bin: could not be read"));
  CHECK(message_of<io::FileError>([&] { data::PreparedData::open(files.directory.path()); }) ==
        files.directory.path().string() + ": expected data that tern-lm prepare wrote but there is no data.json");
}
