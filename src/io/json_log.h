#pragma once
#include <cstdint>
#include <filesystem>

#include "io/append_file.h"
#include "io/json_object.h"

namespace tern::io {

/// A log of JSON objects, one a line, that a reader can follow and a killed process loses no line of: see AppendFile.
class JsonLog {
 public:
  /// Opens the file for appending, and makes it if need be. Throws FileError.
  explicit JsonLog(std::filesystem::path path);

  /// Appends a line. Throws FileError, as a DiskError on a full disk: the file then ends with the line before, and the line is
  /// kept and written before the next one, as far as a megabyte of such lines goes.
  void write(const JsonObject& line);
  /// Writes lines that were kept, and waits until the disk has all. Throws FileError.
  void sync() { file_.sync(); }
  /// The bytes of the file with all lines so far, those that are kept included.
  std::int64_t size() const noexcept { return file_.size(); }

 private:
  AppendFile file_;
};

}  // namespace tern::io
