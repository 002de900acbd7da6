#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "backend/file_descriptor.h"
#include "io/json_object.h"

namespace tern::io {

/// A file that grows by whole records, such as lines. Each record is handed to the system at once, so that a reader finds whole records
/// alone and a killed process loses none; after sync() they survive a loss of power.
class AppendFile {
 public:
  /// Opens the file for appending, and makes it if need be. One process at a time may write it. Throws FileError, also for a FIFO without
  /// a reader.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;  ///< the other one may only be destroyed
  AppendFile& operator=(AppendFile&&) = delete;

  /// Appends whole records. Throws FileError, as a DiskError on a full disk: the file then ends with the last record that fitted, and up to
  /// a megabyte of later ones is kept in memory for the next call.
  void write(std::string_view records);
  /// Writes the records that are kept in memory, and waits until the disk has all. Throws FileError.
  void sync();
  /// The size of the file in bytes, with the records that are still in memory.
  std::int64_t size() const noexcept { return end_ + static_cast<std::int64_t>(pending_.size()); }

 private:
  void write_pending();

  std::string path_;
  std::string pending_;       ///< whole records that are not in the file yet
  std::int64_t end_ = 0;      ///< offset behind the last whole record in the file
  bool may_be_torn_ = false;  ///< a part of a record may stand behind that offset
  backend::FileDescriptor descriptor_;
};

/// A log of JSON objects, one a line. A reader can follow it while it grows, and a killed process loses no line: see AppendFile.
class JsonLog {
 public:
  /// Opens the file for appending, and makes it if need be. Throws FileError.
  explicit JsonLog(std::string path);

  /// Appends a line. Throws FileError, as a DiskError on a full disk: the file then ends with the line before, and up to a megabyte of
  /// later lines is kept in memory for the next call.
  void write(const JsonObject& line);
  /// Writes the lines that are kept in memory, and waits until the disk has all. Throws FileError.
  void sync() { file_.sync(); }
  /// The size of the file in bytes, with the lines that are still in memory.
  std::int64_t size() const noexcept { return file_.size(); }

 private:
  AppendFile file_;
};

}  // namespace tern::io
