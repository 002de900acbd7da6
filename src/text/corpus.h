#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tern::text {

struct CorpusReport;

/// Limits on what files may expand to. They are checked while a file streams in, so that neither a line without an
/// end nor a small .gz of a large size can exhaust the memory.
struct ReadOptions {
  std::size_t max_line_bytes = std::size_t{1} << 20;      ///< without the line end
  std::uint64_t max_file_bytes = std::uint64_t{4} << 30;  ///< after decompression
  std::size_t max_lines = 50'000'000;                     ///< of a file
  /// The memory that lines take: their bytes and 32 a line. Of all files that share a report.
  std::uint64_t max_memory_bytes = std::uint64_t{4} << 30;
  /// And of one .gz, as a multiple of the compressed bytes read so far; the first 16 MiB are free. Text comes to some 3, and zeros to 1030.
  std::uint64_t max_gzip_ratio = 64;
  /// And of one file whose lines are held, as a multiple of its text; the first 64 MiB are free. Sentences come to some 2, and empty lines
  /// to 32.
  std::uint64_t max_memory_ratio = 8;
  /// These limits, with the part of max_memory_bytes that is left when the files of this report are held.
  ReadOptions beside(const CorpusReport& held) const noexcept;
};

/// The first place of something that is allowed, but worth telling. `line` counts from 1; 0 means nowhere.
struct Occurrence {
  std::uint64_t count = 0;  ///< how often it occurred
  std::string file;         ///< name of the first one's
  std::uint64_t line = 0;   ///< and its line
  /// Counts one more, and keeps the place of the first.
  void note(const std::string& in_file, std::uint64_t at_line);
};

/// The findings of reading. Everything in it has a defined outcome and training goes on; what cannot go on is a DataError.
struct CorpusReport {
  std::uint64_t files = 0;  ///< read
  std::uint64_t lines = 0;  ///< of all of them
  std::uint64_t bytes = 0;  ///< text without line ends
  /// Bytes that the lines take when they are held, by the count of ReadOptions.
  std::uint64_t memory() const noexcept { return bytes + 32 * lines; }
  Occurrence crlf;              ///< lines that ended in CR LF: the CR was dropped
  Occurrence byte_order_marks;  ///< a mark at the start of a file: dropped
  Occurrence empty;             ///< lines with nothing but white space
  Occurrence skipped_pairs;     ///< pairs left out because a side was empty
  /// Adds another report's counts; places are those of the report that came first.
  void merge(const CorpusReport& other);
  /// One line, e.g. "2 files, 58000 lines, 3.9 MB; 2 CRLF (first train.de:7); 1 empty (first train.en:9)".
  std::string summary() const;
};

/// Reads a text file, plain or gzip (told by its first bytes), one sentence a line; lines end in LF or CR LF, the last
/// one may lack its end. Throws DataError for: a file that cannot be read, or is not a regular one; gzip data that is truncated or corrupt,
/// or a file called *.gz that is not gzip; a byte that is not UTF-8 (file:line and the byte's column from 1); a NUL; a limit of `options`
/// passed.
std::vector<std::string> read_lines(const std::filesystem::path& file, const ReadOptions& options = {}, CorpusReport* report = nullptr);

/// Sentence pairs: src[i] is a translation of tgt[i].
struct ParallelCorpus {
  std::vector<std::string> src;                             ///< a sentence each
  std::vector<std::string> tgt;                             ///< as many
  std::string src_file;                                     ///< path of the file, for messages
  std::string tgt_file;                                     ///< likewise
  CorpusReport report;                                      ///< of both files
  std::size_t size() const noexcept { return src.size(); }  ///< pairs
};

/// Reads the two sides of one split of a data directory: SPLIT.LANGUAGE or SPLIT.LANGUAGE.gz. The split "valid" may
/// also be called "val"; "test" stands for the only split whose name begins with "test". A pair with an empty side is
/// skipped and counted in the split "train" and kept in any other, so that test sets keep their line numbers.
/// Throws DataError as read_lines does, for a missing or an empty file (the message lists what the directory has), for
/// both plain and .gz present, and for line counts that differ (both files, both counts).
ParallelCorpus read_pairs(const std::filesystem::path& dir, std::string_view split, std::string_view src, std::string_view tgt,
                          const ReadOptions& options = {});

/// Names of the splits that have both sides in `dir`, sorted, e.g. {"test_2016_flickr", "train", "val"}.
std::vector<std::string> list_splits(const std::filesystem::path& dir, std::string_view src, std::string_view tgt);

/// Words of a line: runs without white space (as Python's str.split()).
std::size_t count_words(std::string_view line) noexcept;

/// Drops the pairs with words(src) + words(tgt) >= limit (the classic run: 40) and returns how many it dropped.
std::size_t filter_by_words(ParallelCorpus& corpus, std::size_t limit);

}  // namespace tern::text
