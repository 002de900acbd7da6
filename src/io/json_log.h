#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "io/json_object.h"

namespace tern::io {

/// A log of JSON objects, one a line. Every line is handed to the system at once and whole, so that a reader sees whole lines and a
/// killed process loses none; sync() keeps them from a loss of power.
class JsonLog {
 public:
  /// Opens the file for appending, and makes it if need be. One process at a time writes it. Throws FileError, for a FIFO without a reader
  /// as well.
  explicit JsonLog(std::filesystem::path path);
  ~JsonLog();
  JsonLog(JsonLog&& other) noexcept;
  JsonLog& operator=(JsonLog&&) = delete;

  /// Appends a line. Throws FileError, as a DiskError on a full disk: the file then ends with the line before, and the line is
  /// kept and written before the next one, as far as a megabyte of such lines goes.
  void write(const JsonObject& line);
  /// Writes lines that were kept, and waits until the disk has all. Throws FileError.
  void sync();
  /// The bytes of the file with all lines so far, those that are kept included.
  std::int64_t size() const { return end_ + static_cast<std::int64_t>(pending_.size()); }

 private:
  void write_pending();

  std::filesystem::path path_;
  std::string pending_;       ///< whole lines that are not in the file
  std::int64_t end_ = 0;      ///< of the last whole line in the file
  bool may_be_torn_ = false;  ///< bytes may stand past that end
  int descriptor_ = -1;
};

}  // namespace tern::io
