#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "backend/file_descriptor.h"

namespace tern::io {

/// A file that grows by whole pieces: lines, records. Every piece is handed to the system at once and whole, so that a reader sees whole
/// pieces and a killed process loses none; sync() keeps them from a loss of power.
class AppendFile {
 public:
  /// Opens the file for appending, and makes it if need be. One process at a time writes it. Throws FileError, for a FIFO without a reader
  /// as well.
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;  ///< the other one may only be destroyed
  AppendFile& operator=(AppendFile&&) = delete;

  /// Appends pieces. Throws FileError, as a DiskError on a full disk: the file then ends with the pieces before, and these are kept and
  /// written before the next ones, as far as a megabyte of them goes.
  void write(std::string_view pieces);
  /// Writes pieces that were kept, and waits until the disk has all. Throws FileError.
  void sync();
  /// The bytes of the file with all pieces so far, those that are kept included.
  std::int64_t size() const noexcept { return end_ + static_cast<std::int64_t>(pending_.size()); }

 private:
  void write_pending();

  std::filesystem::path path_;
  std::string pending_;       ///< whole pieces that are not in the file
  std::int64_t end_ = 0;      ///< of the last whole piece in the file
  bool may_be_torn_ = false;  ///< bytes may stand past that end
  backend::FileDescriptor descriptor_;
};

}  // namespace tern::io
