#pragma once
#include <cstdint>
#include <string>

#include "io/append_file.h"
#include "io/json_object.h"

namespace tern::io {

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
