#pragma once
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files.h"

namespace tern::io {

/// A string as JSON text, in quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

/// A JSON object for configurations, summaries and log lines: keys in the order in which they were set.
class JsonObject {
 public:
  JsonObject() = default;
  /// Parses an object; `where` begins the messages. Throws FileError for anything but one JSON object without duplicate keys, and for more
  /// than 100,000 values, 64 levels, or a string of more than 1 MiB.
  static JsonObject parse(std::string_view text, std::string where);

  /// Sets a key, or replaces its value. Bytes that are not UTF-8 become U+FFFD.
  JsonObject& set(std::string_view key, std::string_view value);
  /// Sets a string literal, which overload resolution would otherwise make a bool.
  JsonObject& set(std::string_view key, const char* value) { return set(key, std::string_view(value)); }
  /// Sets true or false.
  JsonObject& set(std::string_view key, bool value);
  /// Sets a number, as the shortest text that reads back as the same; NaN and infinities, which JSON lacks, become null.
  JsonObject& set(std::string_view key, double value);
  /// Sets an integer of any type but bool; a value above 2^63 - 1 wraps.
  JsonObject& set(std::string_view key, std::integral auto value) { return set_integer(key, static_cast<std::int64_t>(value)); }
  /// Sets a nested object.
  JsonObject& set(std::string_view key, const JsonObject& value);
  /// @{
  /// Sets an array.
  JsonObject& set(std::string_view key, const std::vector<std::string>& values);
  JsonObject& set(std::string_view key, const std::vector<std::int64_t>& values);
  /// @}

  /// Sets every key that the other object has.
  JsonObject& update(const JsonObject& other);

  /// True if the key is there, also with the value null.
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// @{
  /// The value of a key. Throws FileError, which names the key, if it is missing or of another type.
  std::string get_string(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::int64_t get_int(std::string_view key) const;
  double get_double(std::string_view key) const;
  JsonObject get_object(std::string_view key) const;
  std::vector<std::int64_t> get_ints(std::string_view key) const;
  /// @}
  /// All keys in their order.
  std::vector<std::string> keys() const;
  /// The keys whose values are numbers, in their order.
  std::vector<std::pair<std::string, double>> numbers() const;

  /// One line, without a line break at its end.
  std::string dump() const;
  /// One key a line, with a line break at the end.
  std::string pretty() const;

 private:
  JsonObject& set_integer(std::string_view key, std::int64_t value);
  JsonObject& set_text(std::string_view key, std::string json);
  const std::string* find(std::string_view key) const;
  [[noreturn]] void fail(std::string_view key, const char* expected) const;

  std::vector<std::pair<std::string, std::string>> members_;  ///< each key with its value's JSON text
  std::string where_;
};

/// Reads and parses a file that holds one JSON object. Throws FileError.
JsonObject read_json(const std::string& path);
/// Replaces a file by an object, one key a line. Throws FileError.
void write_json(const std::string& path, const JsonObject& object);

/// A log of JSON objects, one a line: an AppendFile.
class JsonLog {
 public:
  /// Opens the file for appending, and makes it if need be. Throws FileError.
  explicit JsonLog(std::string path) : file_(std::move(path)) {}

  /// Appends a line. Throws FileError, as a DiskError on a full disk: the file then ends with the line before, and up to a megabyte of
  /// later lines is kept in memory for the next call.
  void write(const JsonObject& line) { file_.write(line.dump() + "\n"); }
  /// Writes the lines that are kept in memory, and waits until the disk has all. Throws FileError.
  void sync() { file_.sync(); }
  /// The size of the file in bytes, with the lines that are still in memory.
  std::int64_t size() const noexcept { return file_.size(); }

 private:
  AppendFile file_;
};

}  // namespace tern::io
