#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "text/corpus.h"

namespace tern::text {

// Streams the lines of one file, plain or gzip, within the limits of ReadOptions, in constant memory: one line and two buffers. Throws
// DataError as read_lines() in corpus.h does.
class LineReader {
 public:
  LineReader(const std::filesystem::path& file, const ReadOptions& options);
  // Plain text from an open stream of any kind, such as the standard input. The destructor leaves it open.
  LineReader(int descriptor, std::string name, const ReadOptions& options);
  ~LineReader();

  // Reads the next line, without its end, and adds it to `report`. False after the last line.
  bool next(std::string& line, CorpusReport& report);
  // False if next() may have to wait for input.
  bool is_ready() const noexcept;

 private:
  class Bytes;
  [[noreturn]] void too_long() const;
  void check_ratio() const;
  void check(std::string& line, bool ended, CorpusReport& report);

  std::string name_;
  ReadOptions options_;
  std::unique_ptr<Bytes> bytes_;
  std::string_view text_;          // the bytes that have been read and belong to no line yet
  std::uint64_t total_ = 0;        // bytes of text so far
  std::uint64_t line_number_ = 0;  // of the last line, from 1
};

}  // namespace tern::text
