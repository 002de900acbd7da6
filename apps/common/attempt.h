#pragma once
#include <functional>
#include <string>

namespace tern::apps {

/// Writes to an optional file of a training, which continues if a write fails. Only the first failure is reported on stderr, as a full disk
/// makes every write fail; later calls try again.
class Attempt {
 public:
  /// `program` is the prefix of the message.
  explicit Attempt(std::string program) : program_(std::move(program)) {}
  /// Calls `write`. False if it threw a FileError.
  bool operator()(const std::function<void()>& write);

 private:
  std::string program_;
  bool has_failed_ = false;
};

}  // namespace tern::apps
