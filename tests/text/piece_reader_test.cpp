// Files in pieces: what a piece is, what the words at its ends are, and JSON lines.
#include "text/piece_reader.h"

#include "catch.h"
#include "support.h"
#include "text/bpe.h"
#include "text/data_error.h"
#include "text/pretokenize.h"

using namespace tern::text;
using namespace tern::text::test;

namespace {

std::vector<Piece> pieces_of(const std::filesystem::path& file, bool is_jsonl, std::size_t bytes) {
  PieceReader reader(file, is_jsonl, bytes);
  std::vector<Piece> pieces;
  for (Piece piece; reader.next(piece);) pieces.push_back(piece);
  return pieces;
}

std::string joined(const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& piece : pieces) text += piece.text;
  return text;
}

std::vector<std::string> documents_of(const std::string& lines, const std::string& field = "text") {
  std::vector<std::string> documents;
  for_each_document({.text = lines, .line = 7}, "f", field, [&](const std::string& text) { documents.push_back(text); });
  return documents;
}

std::vector<std::string> words_of(std::string_view text, std::size_t pattern) {
  std::vector<std::string> words;
  PreTokenizer(pattern).for_each(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

// Text in which much that ends a word stands beside line breaks.
std::string random_text(SplitMix64& random, std::size_t size) {
  constexpr const char* parts[] = {"a",
                                   "Z",
                                   "7",
                                   "\n",
                                   "\n",
                                   "\r\n",
                                   "\r",
                                   " ",
                                   "  ",
                                   "\t",
                                   ".",
                                   "!\n",
                                   "'s",
                                   "\xC3\xA9",
                                   "\xE3\x80\x82",
                                   "\xE3\x80\x80",
                                   "\xC2\xA0",
                                   "\xE5\xAD\x97",
                                   "\xE2\x80\xA8",
                                   "\xCC\x81",
                                   "12345",
                                   "\xFF",
                                   "\xE0\xA4\x95"};
  std::string text;
  while (text.size() < size) text += parts[random(std::size(parts))];
  return text;
}

}  // namespace

TEST_CASE("the words of two parts at a cut are those of the whole", "[text]") {
  SplitMix64 random{3};
  std::size_t cuts = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_text(random, 30 + random(60));
    const std::size_t limit = random(text.size() + 1), at = find_cut(text, limit);
    if (at == 0) continue;
    ++cuts;
    REQUIRE(at <= limit);
    for (std::size_t pattern = 0; pattern < std::size(word_patterns); ++pattern) {
      std::vector<std::string> both = words_of(text.substr(0, at), pattern);
      for (std::string& word : words_of(text.substr(at), pattern)) both.push_back(std::move(word));
      if (both != words_of(text, pattern))
        FAIL(word_patterns[pattern].name << " at " << at << " of " << Json(text).dump(-1, ' ', true, Json::error_handler_t::replace));
    }
  }
  CHECK(cuts > 1500);
  CHECK(find_cut("one\ntwo\nthree", 13) == 8);
  CHECK(find_cut("one\ntwo\nthree", 7) == 4);
  CHECK(find_cut("one\n\ntwo", 8) == 3);
  CHECK(find_cut("one\r\ntwo", 8) == 3);
  CHECK(find_cut("one\ntwo", 3) == 0);
  CHECK(find_cut(". \n.", 4) == 0);
  CHECK(find_cut("", 0) == 0);
}

TEST_CASE("pieces are the file, however it is stored", "[text]") {
  const TempDirectory dir;
  SplitMix64 random{4};
  const std::string text = random_text(random, 300'000);
  const std::vector<Piece> pieces = pieces_of(spill(dir / "f", text), false, 5000);
  CHECK((joined(pieces) == text));
  CHECK(pieces.size() >= 60);
  std::uint64_t line = 1;
  for (const Piece& piece : pieces) {
    CHECK(piece.text.size() <= 5004);
    CHECK(piece.line == line);
    CHECK(piece.ends_document == (&piece == &pieces.back()));
    line += static_cast<std::uint64_t>(std::count(piece.text.begin(), piece.text.end(), '\n'));
  }
  const std::vector<Piece> unpacked = pieces_of(spill(dir / "f.gz", gzip(text)), false, 5000);
  REQUIRE(unpacked.size() == pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) CHECK((unpacked[i].text == pieces[i].text));

  CHECK(pieces_of(spill(dir / "f", ""), false, 5000).empty());
  CHECK(joined(pieces_of(spill(dir / "f",
                               "\xEF\xBB\xBF"
                               "a\n"),
                         false, 5000)) == "a\n");
  CHECK(joined(pieces_of(spill(dir / "f", "\xEF\xBB\xBF"), false, 5000)).empty());
  // Without a line break, pieces are longer, and end between characters.
  std::string long_line;
  for (int i = 0; i < 100'000; ++i) long_line += "\xE5\xAD\x97";
  const std::vector<Piece> cut = pieces_of(spill(dir / "f", long_line), false, 1000);
  CHECK((joined(cut) == long_line));
  CHECK(cut.size() == 19);
  for (const Piece& piece : cut) CHECK(piece.text.size() % 3 == 0);
}

TEST_CASE("pieces of JSON lines are whole lines", "[text]") {
  const TempDirectory dir;
  std::string text, expected;
  SplitMix64 random{5};
  for (int i = 0; i < 400; ++i) {
    const std::string document(random(50) == 0 ? 9000 : random(100), static_cast<char>('a' + i % 26));
    expected += document + "|";
    text += Json{{"id", i}, {"text", document}, {"more", {1, {{"text", "inner"}}}}}.dump() + (i % 3 == 0 ? "\r\n" : "\n");
    if (i % 50 == 0) text += " \n";
  }
  text.pop_back();  // the last line lacks its end
  std::string got;
  const std::vector<Piece> pieces = pieces_of(spill(dir / "f", text), true, 2000);
  for (const Piece& piece : pieces) for_each_document(piece, "f", "text", [&](const std::string& document) { got += document + "|"; });
  CHECK((joined(pieces) == text));
  CHECK((got == expected));
  CHECK(pieces.size() > 10);

  const std::string much(PieceReader::max_line_bytes + 5, ' ');
  CHECK(message_of<DataError>([&] { pieces_of(spill(dir / "f", "{}\n" + much + "\n{}"), true, 2000); }) ==
        (dir / "f").string() + ":2: expected a line of at most 16777216 bytes but got a longer one");
}

TEST_CASE("JSON lines without the field are named", "[text]") {
  CHECK((documents_of("{\"text\": \"a\\u00e9\\n\"}\n\n{\"text\": \"\"}") == std::vector<std::string>{"a\xC3\xA9\n", ""}));
  CHECK((documents_of("{\"t\": {\"text\": \"no\"}, \"body\": \"yes\"}", "body") == std::vector<std::string>{"yes"}));
  const auto error = [](const std::string& lines) { return message_of<DataError>([&] { documents_of(lines); }); };
  CHECK(error("{\"text\": \"a\"}\n{\"txt\": \"b\"}") == "f:8: expected an object with the string \"text\" but got none");
  CHECK(error("{\"text\": 5}") == "f:7: expected an object with the string \"text\" but got number");
  CHECK(error("\n[\"text\"]") == "f:8: expected an object with the string \"text\" but got array");
  CHECK(error("{\"text\": \"a\"}\n{\"text\": \"b\"") == "f:8: expected valid JSON but got an error at byte 13");
  CHECK(error("{\"text\": \"\xFF\"}").starts_with("f:7: expected valid JSON"));
  CHECK(error("plain text").starts_with("f:7: expected valid JSON but got an error at byte"));
  CHECK(error("{\"text\": \"a\"} {\"text\": \"b\"}").starts_with("f:7: expected valid JSON"));
  CHECK(error("{\"text\": \"a\", \"text\": \"b\"}").starts_with("f:7: expected each key once"));
}
