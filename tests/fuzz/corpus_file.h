#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz.h"
#include "text/corpus.h"
#include "text/data_error.h"
#include "text/metrics.h"
#include "text/unicode.h"

namespace tern::fuzz {

/// Reads a file of these bytes, which lies in memory, and checks what comes of it.
inline void read_corpus(std::string_view bytes) {
  static const int file = ::memfd_create("f", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  require(::ftruncate(file, 0) == 0 && ::pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
          "the file is written");
  text::ReadOptions options;
  options.max_line_bytes = 1000;
  options.max_file_bytes = 100'000;
  options.max_lines = 1000;
  text::CorpusReport report;
  std::vector<std::string> lines;
  try {
    lines = text::read_lines(path, options, &report);
  } catch (const text::DataError& error) {
    require_message(error.what());
    return;
  }
  require(lines.size() == report.lines && lines.size() <= options.max_lines, "lines are counted");
  std::size_t size = 0;
  for (const std::string& line : lines) {
    require(line.size() <= options.max_line_bytes, "lines are of bounded length");
    require(line.find('\0') == line.npos && line.find('\n') == line.npos && text::find_invalid_utf8(line) == line.npos, "lines are text");
    require(text::find_invalid_utf8(text::lower(line)) == line.npos, "lower-case text is text");
    text::count_words(line);
    size += line.size();
  }
  require(size == report.bytes, "bytes are counted");
  const std::size_t half = lines.size() / 2;
  if (half == 0 || size > 2000) return;
  const std::span<const std::string> all(lines);
  const double bleu = text::bleu(all.first(half), all.subspan(half, half)).score,
               chrf = text::chrf(all.first(half), all.subspan(half, half)).score;
  require(bleu >= 0 && bleu <= 100.0001 && chrf >= 0 && chrf <= 100.0001, "scores lie from 0 to 100");
}

}  // namespace tern::fuzz
