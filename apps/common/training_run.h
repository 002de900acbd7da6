#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "io/run_directory.h"
#include "nn/module.h"

namespace tern::apps {

/// The run directory of a training that goes on though its disk may fail: a line of the log or a model that cannot be written is said
/// once on stderr, what was written before stays, and the next epoch tries again.
class TrainingRun {
 public:
  /// As io::RunDirectory::create(); `program` begins the messages.
  TrainingRun(std::string program, const std::filesystem::path& out, const io::JsonObject& config);

  const io::RunDirectory& directory() const { return run_; }
  void write_tokenizer(const std::string& json) { run_.write_tokenizer(json); }
  void log(const io::JsonObject& line);
  /// Writes the model of an epoch, with the log up to there.
  void save(const nn::Module& model, std::int64_t epoch, std::int64_t update);
  /// Writes the log to its end, and the summary. Throws std::runtime_error if the last model could not be written, FileError for the
  /// summary.
  void finish(const io::JsonObject& summary);

  /// "; RUN keeps the model of epoch 3", or what else a training that ends now leaves there.
  std::string remains() const;

 private:
  void try_log(const std::function<void()>& write);

  const std::string program_;
  io::RunDirectory run_;
  std::optional<io::JsonLog> log_;
  std::int64_t saved_epoch_ = 0;
  bool has_log_fault_ = false;
  std::string model_fault_;  ///< of the last attempt; "" where it went well
};

}  // namespace tern::apps
