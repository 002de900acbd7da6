#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/input_file.h"

namespace tern::text {

// Streams the bytes of a file in constant memory, decompressed if it begins with the magic bytes of gzip or Zstandard. zlib's gz* functions
// would read a file with a damaged header as plain text, and would ignore garbage after the last member.
class ByteReader {
 public:
  // Opens a file. Throws DataError as InputFile does, for a file called *.gz or *.zst that is of another kind, for a zip archive, and for
  // Zstandard in a build without libzstd.
  explicit ByteReader(const std::filesystem::path& file);
  // Plain bytes of an open stream, which the destructor leaves open.
  ByteReader(int descriptor, const std::string& name);
  ~ByteReader();
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  // The next run of bytes, valid until the next call; empty at the end of the file. Throws DataError for data that is truncated or corrupt,
  // and for Zstandard frames with a window of more than 128 MiB, which its decoder would keep in memory.
  std::string_view next();
  // True if next() would not wait for the file.
  bool is_ready() const noexcept { return !in_.empty() || file_.is_ready(); }
  // Compressed bytes that have been decoded; none for plain text.
  std::optional<std::uint64_t> compressed() const noexcept { return is_plain() ? std::nullopt : std::optional(read_ - in_.size()); }
  // Bytes of the file that have been read.
  std::uint64_t read() const noexcept { return read_; }

 private:
  struct Zstd;
  bool is_plain() const noexcept { return !is_gzip_ && !zstd_; }
  void fill();
  void start_member();
  bool next_member();
  std::string_view next_of_gzip();
  std::string_view next_of_zstd();

  std::string name_;
  InputFile file_;
  std::uint64_t read_ = 0;
  std::vector<char> file_buffer_, out_;
  std::string_view in_;  // bytes of the file that have been read and not decoded
  bool is_gzip_ = false, is_in_member_ = false;
  z_stream zlib_{};
  std::unique_ptr<Zstd> zstd_;
};

}  // namespace tern::text
