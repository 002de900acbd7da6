#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "text/byte_reader.h"

namespace tern::text {

// A part of a file that one thread encodes.
struct Piece {
  std::string text;
  std::uint64_t line = 1;      // number in its file of the line that it begins in
  bool ends_document = false;  // of plain text: the file ends here
};

// The largest cut of `text` at or before `limit`, behind which words are those of the whole: at a line break, where no word of
// word_patterns and no composed character (NFC) goes on. 0 if there is none.
std::size_t find_cut(std::string_view text, std::size_t limit);

// Reads a file of any size in pieces: documents of JSON lines, each line an object, or plain text, of which the whole file is one document.
// The pieces depend on the file's text and `piece_bytes` alone, and not on how it is compressed.
class PieceReader {
 public:
  // A line of JSON may have this many bytes, and so a document.
  static constexpr std::size_t max_line_bytes = std::size_t{16} << 20;

  // Throws DataError as ByteReader does.
  PieceReader(const std::filesystem::path& file, bool is_jsonl, std::size_t piece_bytes);
  // The next piece: about `piece_bytes` bytes, of whole lines if the file is of JSON lines, and else up to a find_cut(), or 16 times as
  // many bytes if there is no cut so far. A byte order mark is left out. False at the end. Throws DataError, also for a line past
  // max_line_bytes.
  bool next(Piece& piece);
  // Bytes of the file that have been read, of its size.
  std::uint64_t read() const noexcept { return bytes_.read(); }

 private:
  bool fill(std::size_t bytes);

  std::string name_;
  ByteReader bytes_;
  bool is_jsonl_, is_at_end_ = false, is_first_ = true;
  std::size_t piece_bytes_;
  std::string text_;  // that has been read and is in no piece yet
  std::uint64_t line_ = 1;
};

// Calls f(text) for each document of JSON lines: the string `field` of each line's object. Lines of white space are left out. Throws
// DataError with file and line for a line that is not a JSON object with such a string.
void for_each_document(const Piece& piece, const std::string& file, const std::string& field,
                       const std::function<void(const std::string&)>& f);

}  // namespace tern::text
