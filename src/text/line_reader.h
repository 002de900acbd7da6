#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "text/corpus.h"

namespace tern::text {

// Streams the lines of one file, plain or gzip, within the limits of ReadOptions; read_lines() in corpus.h says what is
// an error. Holds one line and two buffers, whatever the file's size.
class LineReader {
 public:
  LineReader(const std::filesystem::path& file, const ReadOptions& options);
  // An open stream of any kind, such as the standard input, as plain text. It is left open.
  LineReader(int descriptor, std::string name, const ReadOptions& options);
  ~LineReader();

  // The next line without its end; false after the last one. Fills in `report` as it goes.
  bool next(std::string& line, CorpusReport& report);
  // False if next() may wait for more to come.
  bool is_ready() const noexcept;
  std::uint64_t line_number() const noexcept { return line_number_; }  // of the last line, from 1

 private:
  class Bytes;
  [[noreturn]] void too_long() const;
  void check_ratio() const;
  void check(std::string& line, bool ended, CorpusReport& report);

  std::string name_;
  ReadOptions options_;
  std::unique_ptr<Bytes> bytes_;
  std::string_view text_;    // of the last run of bytes, what no line has taken yet
  std::uint64_t total_ = 0;  // bytes of text so far
  std::uint64_t line_number_ = 0;
};

}  // namespace tern::text
