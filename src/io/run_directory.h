#pragma once
#include <cstdint>
#include <filesystem>
#include <utility>

#include "io/atomic_file.h"
#include "io/file_error.h"
#include "io/json_object.h"

namespace tern::io {

/// Policy of create() for a directory that is not empty.
enum class Existing : std::uint8_t {
  replace_run,  ///< an earlier run is replaced; anything else is refused
  replace_any,  ///< other people's files are left alone, and ours are written beside them
};

/// The directory that a training run writes: config.json, tokenizer.json, model.safetensors, log.jsonl, summary.json.
/// It is known by its config.json, which is the first file written and carries a `tern_run` key.
class RunDirectory {
 public:
  /// Makes the directory, its parents included, removes what an earlier run left there, and writes config.json.
  /// Throws FileError if the directory holds something else or cannot be written; directories made on the way are
  /// removed again. Call it when the input has been checked, so that a bad input leaves no directory.
  static RunDirectory create(const std::filesystem::path& path, const JsonObject& config, Existing existing = Existing::replace_run);
  /// Throws as create() would for a directory that it would refuse, and changes nothing: a program can call it before it
  /// reads a large corpus.
  static void check(const std::filesystem::path& path, Existing existing = Existing::replace_run);
  /// An earlier run. Throws FileError unless `path` is a run directory.
  static RunDirectory open(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return path_; }
  std::filesystem::path config() const { return path_ / "config.json"; }
  std::filesystem::path tokenizer() const { return path_ / "tokenizer.json"; }
  std::filesystem::path model() const { return path_ / "model.safetensors"; }
  std::filesystem::path log() const { return path_ / "log.jsonl"; }
  std::filesystem::path summary() const { return path_ / "summary.json"; }

  JsonObject read_config() const;
  void write_summary(const JsonObject& summary) const;

 private:
  explicit RunDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

/// Reads and parses a file that holds one JSON object. Throws FileError.
JsonObject read_json(const std::filesystem::path& path);
/// Replaces a file by an object, one key a line. Throws FileError.
void write_json(const std::filesystem::path& path, const JsonObject& object);

/// A log of JSON objects, one a line. Every line is handed to the system at once, so that a reader sees whole lines and
/// a crash loses none.
class JsonLog {
 public:
  /// Opens the file for appending, and makes it if need be. Throws FileError.
  explicit JsonLog(std::filesystem::path path);
  ~JsonLog();
  JsonLog(JsonLog&& other) noexcept;
  JsonLog& operator=(JsonLog&&) = delete;

  /// Appends a line. Throws FileError, as on a full disk.
  void write(const JsonObject& line);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace tern::io
