#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tern::text {

class ByteReader;
struct CorpusReport;

/// Limits on the text that is read from a file. They are checked while the file streams in, so that neither a line without an end nor a
/// small .gz of much text can exhaust the memory.
struct ReadOptions {
  std::size_t max_line_bytes = std::size_t{1} << 20;      ///< without the line end
  std::uint64_t max_file_bytes = std::uint64_t{4} << 30;  ///< after decompression
  std::size_t max_lines = 50'000'000;                     ///< of a file
  /// Memory of the lines of all files that share a report: their bytes, and 32 bytes a line.
  std::uint64_t max_memory_bytes = std::uint64_t{4} << 30;
  /// Memory of the lines of one .gz, as a multiple of the compressed bytes read so far, likewise of a .zst; the first 16 MiB are free. Text
  /// comes to some 3, zeros to 1030.
  std::uint64_t max_gzip_ratio = 64;
  /// Memory of the lines of one file, as a multiple of its text; the first 64 MiB are free. Sentences come to some 2, empty lines to 32.
  std::uint64_t max_memory_ratio = 8;
  /// Returns these limits, with max_memory_bytes less the memory of the files of this report.
  ReadOptions beside(const CorpusReport& held) const noexcept;
};

/// A count of lines of one kind that are accepted but worth a note, and the first of them.
struct Occurrence {
  std::uint64_t count = 0;  ///< lines of the kind
  std::string file;         ///< path of the first one's file
  std::uint64_t line = 0;   ///< number of the first one, from 1; 0 if there is none
  /// Counts one more line.
  void note(const std::string& in_file, std::uint64_t at_line);
};

/// Counts of a reading, with the lines that were repaired or skipped. A fault that cannot be repaired is a DataError instead.
struct CorpusReport {
  std::uint64_t files = 0;  ///< files read
  std::uint64_t lines = 0;  ///< lines of all files
  std::uint64_t bytes = 0;  ///< bytes of text, without line ends
  /// Memory of the lines in bytes, as ReadOptions counts it.
  std::uint64_t memory() const noexcept { return bytes + 32 * lines; }
  Occurrence crlf;              ///< lines that ended in CR LF: the CR was dropped
  Occurrence byte_order_marks;  ///< a mark at the start of a file: dropped
  Occurrence empty;             ///< lines that show nothing: without characters, or with white space and characters without width alone
  Occurrence skipped_pairs;     ///< pairs left out because a side showed nothing
  /// Adds the counts of another report, whose files were read later.
  void merge(const CorpusReport& other);
  /// One line, e.g. "2 files, 58000 lines, 3.9 MB; 2 CRLF (first train.de:7); 1 empty (first train.en:9)".
  std::string summary() const;
};

/// Reads a text file, plain, gzip or Zstandard (known by its first bytes), one sentence a line; lines end in LF or CR LF, the last one may
/// lack its end. Adds to `report`. Throws DataError for a file that cannot be read or is not a regular one, for compressed data that are
/// truncated or corrupt, for a file called *.gz or *.zst that is not, for a byte that is not UTF-8 (with file:line and the byte's column
/// from 1), for a NUL, and past a limit of `options`.
std::vector<std::string> read_lines(const std::string& file, const ReadOptions& options = {}, CorpusReport* report = nullptr);

/// Sentence pairs: src[i] is a translation of tgt[i].
struct ParallelCorpus {
  std::vector<std::string> src;                             ///< a sentence each
  std::vector<std::string> tgt;                             ///< as many
  std::string src_file;                                     ///< path of the file, for messages; that of a table is the same for both
  std::string tgt_file;                                     ///< path of the file, for messages
  CorpusReport report;                                      ///< of both files
  std::size_t size() const noexcept { return src.size(); }  ///< pairs
};

/// Reads the two sides of one split of a data directory: SPLIT.LANGUAGE or SPLIT.LANGUAGE.gz, or the first two columns of a table,
/// SPLIT.en-de.tsv or SPLIT.en-de.tsv.gz, whose name has the languages in the order of the columns. The split "valid" may
/// also be called "val"; "test" stands for the only split whose name begins with "test". A pair with a side that shows nothing is
/// skipped and counted in the split "train" and kept in any other, so that test sets keep their line numbers.
/// Throws DataError as read_lines does, for a missing or an empty file (the message lists what the directory has), for
/// both plain and .gz present, for a line of a table without a tab, and for line counts that differ (both files, both counts).
ParallelCorpus read_pairs(const std::string& dir, std::string_view split, std::string_view src, std::string_view tgt,
                          const ReadOptions& options = {});

/// Names of the splits that have both sides in `dir`, sorted, e.g. {"test_2016_flickr", "train", "val"}.
std::vector<std::string> list_splits(const std::string& dir, std::string_view src, std::string_view tgt);

/// Number of words of a line: runs without white space, as of Python's str.split().
std::size_t count_words(std::string_view line) noexcept;

/// Drops the pairs with words(src) + words(tgt) >= limit (the classic run: 40) and returns how many it dropped.
std::size_t filter_by_words(ParallelCorpus& corpus, std::size_t limit);

/// Streams the lines of one file, plain or compressed, within the limits of ReadOptions, in constant memory: one line and two buffers.
/// Throws DataError as read_lines() does.
class LineReader {
 public:
  /// Opens a file.
  LineReader(const std::string& file, const ReadOptions& options);
  /// Plain text from an open stream of any kind, such as the standard input. The destructor leaves it open.
  LineReader(int descriptor, std::string name, const ReadOptions& options);
  ~LineReader();

  /// Reads the next line, without its end, and adds it to `report`. False after the last line.
  bool next(std::string& line, CorpusReport& report);
  /// False if next() may have to wait for input.
  bool is_ready() const noexcept;

 private:
  [[noreturn]] void too_long() const;
  void check_ratio() const;
  void check(std::string& line, bool ended, CorpusReport& report);

  std::string name_;
  ReadOptions options_;
  std::unique_ptr<ByteReader> bytes_;
  std::string_view text_;          ///< the bytes that have been read and belong to no line yet
  std::uint64_t total_ = 0;        ///< bytes of text so far
  std::uint64_t line_number_ = 0;  ///< of the last line, from 1
};

}  // namespace tern::text
