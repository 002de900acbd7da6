#include "text/corpus.h"

#include <filesystem>
#include <limits>

#include "catch.h"
#include "skip.h"
#include "support.h"
#include "text/data_error.h"

using namespace tern::text;
using namespace tern::text::test;

namespace {

using Lines = std::vector<std::string>;

std::string error_of(const std::filesystem::path& file, const ReadOptions& options = {}) {
  const std::string message = message_of<DataError>([&] { read_lines(file, options); });
  CHECK(message.find('\n') == std::string::npos);
  return message;
}

bool has(const std::string& text, std::string_view part) {
  UNSCOPED_INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("lines are what lies between line ends", "[text]") {
  const TempDirectory dir;
  const auto lines = [&](std::string_view content) { return read_lines(spill(dir / "f", content)); };
  CHECK(lines("").empty());
  CHECK(lines("\n") == Lines{""});
  CHECK(lines("a") == Lines{"a"});
  CHECK(lines("a\n") == Lines{"a"});
  CHECK(lines("a\n\nb") == Lines{"a", "", "b"});
  CHECK(lines("a\r\nb\rc\r") == Lines{"a", "b\rc\r"});  // only CR LF is a line end
  CHECK(lines("a\xE2\x80\xA8z\xC2\x85y\x0C\n") == Lines{"a\xE2\x80\xA8z\xC2\x85y\x0C"});
  CHECK(lines("\xEF\xBB\xBF"
              "a\n\xEF\xBB\xBF"
              "b\n") == Lines{"a",
                              "\xEF\xBB\xBF"
                              "b"});
}

TEST_CASE("a file of several buffers reads the same plain and as gzip", "[text]") {
  const TempDirectory dir;
  SplitMix64 random{5};
  std::string content;
  Lines expected;
  while (content.size() < 400'000) {
    expected.emplace_back(random(20) ? random(300) : 70'000, static_cast<char>('a' + random(26)));
    content += expected.back() + "\n";
  }
  CHECK((read_lines(spill(dir / "f", content)) == expected));
  CHECK((read_lines(spill(dir / "f.gz", gzip(content))) == expected));
  CHECK((read_lines(spill(dir / "no-suffix", gzip(content))) == expected));
  const std::size_t half = content.size() / 2;  // two members and a padded end
  CHECK((read_lines(spill(dir / "m.gz", gzip(content.substr(0, half)) + gzip(content.substr(half)) + std::string(99, '\0'))) == expected));
  CHECK(read_lines(spill(dir / "e.gz", gzip(""))).empty());
}

TEST_CASE("what is in a file is counted, with its first place", "[text]") {
  const TempDirectory dir;
  CorpusReport report;
  read_lines(spill(dir / "a", "\xEF\xBB\xBFone\n \t\ntwo\r\nthree\r\n\n"), {}, &report);
  CHECK(report.lines == 5);
  CHECK(report.files == 1);
  CHECK(report.bytes == 13);
  CHECK(report.crlf.count == 2);
  CHECK(report.crlf.line == 3);
  CHECK(report.empty.count == 2);
  CHECK(report.empty.line == 2);
  CHECK(report.byte_order_marks.count == 1);
  const std::string a = (dir / "a").string();
  CHECK(report.summary() ==
        "1 file, 5 lines, 13 B; 2 CRLF (first " + a + ":3); 1 byte order mark (first " + a + ":1); 2 empty (first " + a + ":2)");
  read_lines(spill(dir / "b", "x\n"), {}, &report);
  CHECK(report.lines == 6);
  CHECK(report.files == 2);
}

TEST_CASE("bytes that are not text are errors with file, line and byte", "[text]") {
  const TempDirectory dir;
  const std::string file = (dir / "f").string();
  CHECK(error_of(spill(file, "ok\nab\xFFz\n")) == file + ":2: expected UTF-8 but got byte 0xFF at byte 3");
  CHECK(error_of(spill(file, "\xEF\xBB\xBFq\xC3")) == file + ":1: expected UTF-8 but got byte 0xC3 at byte 5");
  CHECK(error_of(spill(file, std::string("ok\n\nx\0y\n", 9))) == file + ":3: expected text but got a NUL at byte 2");
  CHECK(has(error_of(spill(file, "a\n\xED\xA0\x80\n")), ":2: expected UTF-8"));
  CHECK(error_of(spill(dir / "g.gz", gzip("a\nb\xFE\n"))) == (dir / "g.gz").string() + ":2: expected UTF-8 but got byte 0xFE at byte 2");
}

TEST_CASE("limits hold while the file streams in", "[text]") {
  const TempDirectory dir;
  ReadOptions options;
  options.max_line_bytes = 10;
  CHECK(read_lines(spill(dir / "f", "0123456789\r\n0123456789\n0123456789"), options).size() == 3);
  CHECK(read_lines(spill(dir / "f",
                         "\xEF\xBB\xBF"
                         "0123456789\r\n"),
                   options)
            .size() == 1);
  const std::string file = (dir / "f").string();
  CHECK(error_of(spill(dir / "f", "x\n01234567890\n"), options) ==
        file + ":2: expected a line of at most 10 bytes (max_line_bytes) but got a longer one");
  CHECK(has(error_of(spill(dir / "f", "0123456789\r"), options), ":1: expected a line of at most 10"));

  // A hundred megabytes without a line end, from a file of a hundred kilobytes: neither is held.
  const std::string bomb = gzip(std::string(100'000'000, 'a'));
  CHECK(bomb.size() < 200'000);
  CHECK(has(error_of(spill(dir / "bomb.gz", bomb)), "bomb.gz:1: expected a line of at most 1048576 bytes"));
  options = {};
  options.max_file_bytes = 1'000'000;
  options.max_gzip_ratio = 100'000;
  const std::string empty_lines = gzip(std::string(20'000'000, '\n'));
  CHECK(has(error_of(spill(dir / "bomb.gz", empty_lines), options), "expected at most 1000000 bytes of text (max_file_bytes)"));
  options = {};
  options.max_lines = 1000;
  CHECK(has(error_of(spill(dir / "bomb.gz", empty_lines), options), "bomb.gz:1001: expected at most 1000 lines (max_lines)"));
  // Limits that do not limit must not wrap round.
  options.max_line_bytes = std::numeric_limits<std::size_t>::max();
  CHECK(read_lines(spill(dir / "f", "abcdefgh\n"), options).size() == 1);
}

namespace {

bool lacks_zstd() {
  const TempDirectory dir;
  if (!has(message_of<DataError>([&] { read_lines(spill(dir / "f.zst", zstd("a"))); }), "needs a build with libzstd-dev")) return false;
  tern::test::skip("a build without libzstd");
  return true;
}

}  // namespace

TEST_CASE("a file reads the same plain and as Zstandard", "[text]") {
  if (lacks_zstd()) return;
  const TempDirectory dir;
  std::string content;
  for (int i = 0; content.size() < 400'000; ++i) content += "line " + std::to_string(i * 7919) + "\n";
  content += std::string(300'000, 'a') + "\n";
  const Lines expected = read_lines(spill(dir / "f", content));
  CHECK((read_lines(spill(dir / "f.zst", zstd(content))) == expected));
  CHECK((read_lines(spill(dir / "no-suffix", zstd(content))) == expected));
  const std::size_t half = content.size() / 2;  // two frames, and between them one for other programs
  const std::string other("\x50\x2A\x4D\x18\x03\0\0\0abc", 11);
  CHECK((read_lines(spill(dir / "m.zst", zstd(content.substr(0, half)) + other + zstd(content.substr(half)))) == expected));
  CHECK(read_lines(spill(dir / "e.zst", zstd(""))).empty());
}

TEST_CASE("damaged Zstandard data is an error", "[text]") {
  if (lacks_zstd()) return;
  const TempDirectory dir;
  const std::string whole = zstd("hello\nworld\n");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string message = error_of(spill(dir / "f.zst", whole.substr(0, size)));
    if (size < 4 ? !has(message, "f.zst: expected Zstandard data") : !has(message, "f.zst: the Zstandard data is truncated")) {
      FAIL("cut at " << size << ": " << message);
    }
  }
  CHECK(has(error_of(spill(dir / "f.zst", whole + "rest of it")), "f.zst: the Zstandard data is corrupt"));
  std::string bad = whole;
  bad[9] = '\x07';  // a block of a kind that there is not
  CHECK(has(error_of(spill(dir / "f.zst", bad)), "f.zst: the Zstandard data is corrupt"));
  // A window of 256 MiB, which would be kept in memory.
  CHECK(has(error_of(spill(dir / "f.zst", std::string("\x28\xB5\x2F\xFD\x00\x90\x01\x00\x00", 9))),
            "corrupt: Frame requires too much memory"));
  CHECK(has(error_of(spill(dir / "f.zst", zstd(std::string(100'000'000, '\n')))),
            "expected compressed data of at most 64 times its size (max_gzip_ratio)"));
}

TEST_CASE("gzip data cut short anywhere is an error", "[text]") {
  const TempDirectory dir;
  std::string content;
  for (int i = 0; i < 40; ++i) content += "line " + std::to_string(i * 7919) + "\n";
  const std::string whole = gzip(content);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string message = error_of(spill(dir / "f.gz", whole.substr(0, size)));
    if (size < 2 ? !has(message, "f.gz: expected gzip data") : !has(message, "f.gz: the gzip data is truncated")) {
      FAIL("cut at " << size << ": " << message);
    }
  }
  CHECK(has(error_of(spill(dir / "f.gz", whole + "rest")), "followed by something else"));
  CHECK(has(error_of(spill(dir / "f.gz", whole + whole.substr(0, 1))), "truncated"));
}

TEST_CASE("no damaged byte of gzip data changes a line or crashes", "[text]") {
  const TempDirectory dir;
  const std::string content(2000, 'x');
  const std::string whole = gzip("hello\n" + content + "\n");
  const Lines expected = {"hello", content};
  int refused = 0;
  for (std::size_t at = 2; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      try {
        // Some bits carry no text, such as the time, and some say the same in another way.
        if (read_lines(spill(dir / "f.gz", bad)) != expected) FAIL("byte " << at << " bit " << bit);
      } catch (const DataError&) {
        ++refused;
      }
    }
  }
  CHECK(refused > int(whole.size()) * 4);  // all bits of the data and of its checksum, and some of the header
}

TEST_CASE("files that cannot be read are errors", "[text]") {
  const TempDirectory dir;
  CHECK(has(error_of(dir / "none"), "none: could not be read: No such file"));
  CHECK(has(error_of(dir.path()), "could not be read: it is not a regular file"));
}

TEST_CASE("pairs are read from a data directory", "[text]") {
  const TempDirectory dir;
  spill(dir / "train.de", "eins\n\nzwei drei\nvier\n");
  spill(dir / "train.en.gz", gzip("one\ntwo\n \nfour\n"));
  spill(dir / "val.de", "a\n\n");
  spill(dir / "val.en", "b\nc\n");
  spill(dir / "test_2016.de", "x\n");
  spill(dir / "test_2016.en", "y\n");
  CHECK(list_splits(dir.path(), "de", "en") == Lines{"test_2016", "train", "val"});

  const ParallelCorpus train = read_pairs(dir.path(), "train", "de", "en");
  CHECK(train.src == Lines{"eins", "vier"});
  CHECK(train.tgt == Lines{"one", "four"});
  CHECK(train.report.lines == 8);
  CHECK(train.report.skipped_pairs.count == 2);
  CHECK(train.report.skipped_pairs.line == 2);
  CHECK(has(train.report.summary(), "2 pairs skipped (first " + (dir / "train.de").string() + ":2)"));
  CHECK(read_pairs(dir.path(), "train", "en", "de").src == train.tgt);
  CHECK(read_pairs(dir.path(), "valid", "de", "en").src == Lines{"a", ""});
  CHECK(read_pairs(dir.path(), "test", "de", "en").tgt == Lines{"y"});
  CHECK(read_pairs(dir.path(), "test_2016", "de", "en").tgt == Lines{"y"});
  CHECK_THROWS_AS(read_pairs(dir.path(), "train", "de", "de"), std::invalid_argument);

  const auto error = [&](const char* split) { return message_of<DataError>([&] { read_pairs(dir.path(), split, "de", "en"); }); };
  spill(dir / "val.en", "b\nc\nd\n");
  CHECK(error("valid") ==
        (dir / "val.de").string() + ": expected as many lines as " + (dir / "val.en").string() + " has but got 2 against 3");
  spill(dir / "val.en", "");
  CHECK(error("valid") == (dir / "val.en").string() + ": expected at least one line but got an empty file");
  spill(dir / "valid.de", "a\n");
  CHECK(has(error("valid"), "expected one split for 'valid' but got val, valid"));
  spill(dir / "test_2017.en", "y\n");
  CHECK(has(error("test"), "expected one split for 'test' but got test_2016, test_2017"));
  CHECK(has(error("dev"), "expected dev.de or dev.de.gz but got test_2016.de, test_2016.en"));
  spill(dir / "train.de.gz", gzip("eins\n"));
  CHECK(has(error("train"), "expected either train.de or train.de.gz but got both"));
  CHECK(has(message_of<DataError>([&] { read_pairs(dir / "nowhere", "train", "de", "en"); }), "nowhere: could not be read"));
}

TEST_CASE("pairs with a side that shows nothing are left out of training alone", "[text]") {
  const TempDirectory dir;
  const std::string blanks = " \n\t\n\xC2\xA0\n\xE3\x80\x80\n\xE2\x80\x8B\n\xEF\xBB\xBF \xEF\xBB\xBF\n", words = "a\nb\nc\nd\ne\nf\n";
  for (const std::string split : {"train", "valid"}) {
    spill(dir / (split + ".de"), "x\n" + blanks + words);
    spill(dir / (split + ".en"), "y\n" + words + blanks);
  }
  const ParallelCorpus train = read_pairs(dir.path(), "train", "de", "en");
  CHECK(train.src == Lines{"x"});
  CHECK(train.tgt == Lines{"y"});
  CHECK(train.report.skipped_pairs.count == 12);
  CHECK(train.report.empty.count == 12);
  CHECK(read_pairs(dir.path(), "valid", "de", "en").size() == 13);
}

TEST_CASE("pairs are read from a table, whose name has the languages of its columns", "[text]") {
  const TempDirectory dir;
  spill(dir / "train.en-de.tsv",
        "\xEF\xBB\xBFGo.\tGeh.\tCC-BY 2.0 (France) #2877272\tmore\r\nHi.\tHallo!\n\n \tleer\nRun!\tLauf!\tCC\n\xC2\xA0\n");
  spill(dir / "val.de-en.tsv.gz", gzip("Ja.\tYes.\nNein.\t\n\tNo.\n"));
  spill(dir / "test_a.de", "a\n");
  spill(dir / "test_a.en", "b\n");
  CHECK(list_splits(dir.path(), "de", "en") == Lines{"test_a", "train", "val"});
  CHECK(list_splits(dir.path(), "de", "fr").empty());
  const ParallelCorpus train = read_pairs(dir.path(), "train", "de", "en");
  CHECK(train.src == Lines{"Geh.", "Hallo!", "Lauf!"});
  CHECK(train.tgt == Lines{"Go.", "Hi.", "Run!"});
  CHECK(train.report.skipped_pairs.count == 3);
  CHECK(train.report.skipped_pairs.line == 3);
  CHECK(train.report.files == 1);
  CHECK(read_pairs(dir.path(), "train", "en", "de").src == train.tgt);
  CHECK(read_pairs(dir.path(), "valid", "de", "en").src == Lines{"Ja.", "Nein.", ""});
  CHECK(read_pairs(dir.path(), "valid", "en", "de").src == Lines{"Yes.", "", "No."});
  CHECK(read_pairs(dir.path(), "test", "de", "en").src == Lines{"a"});

  const auto error = [&](const char* split) { return message_of<DataError>([&] { read_pairs(dir.path(), split, "de", "en"); }); };
  const std::string table = (dir / "bad.en-de.tsv").string();
  spill(table, "Go.\tGeh.\nHi. Hallo!\n");
  CHECK(error("bad") == table + ":2: expected two columns with a tab between them but got one");
  spill(table, "Go.\tGeh.\n\xFF\tx\n");
  CHECK(error("bad") == table + ":2: expected UTF-8 but got byte 0xFF at byte 1");
  spill(table, "");
  CHECK(error("bad") == table + ": expected at least one line but got an empty file");
  spill(dir / "bad.de", "a\n");
  CHECK(has(error("bad"), "expected either bad.en-de.tsv or bad.de but got both"));
  spill(dir / "train.de-en.tsv", "a\tb\n");
  CHECK(has(error("train"), "expected either train.de-en.tsv or train.en-de.tsv but got both"));
}

TEST_CASE("words are counted and long pairs dropped", "[text]") {
  CHECK(count_words("") == 0);
  CHECK(count_words(" \t\xE3\x80\x80") == 0);
  CHECK(count_words("ein Hund  l\xC3\xA4uft\xC2\xA0weg ") == 4);
  ParallelCorpus corpus;
  corpus.src = {"a b", "a b c", "a"};
  corpus.tgt = {"x", "x y", "x y z"};
  CHECK(filter_by_words(corpus, 5) == 1);
  CHECK(corpus.src == Lines{"a b", "a"});
  CHECK(corpus.tgt == Lines{"x", "x y z"});
  CHECK(filter_by_words(corpus, 4) == 1);
}
