#pragma once
#include <functional>
#include <string>

namespace tern::apps {

/// A file that a training writes and can do without: what fails is said once on stderr, however often it fails, for a full disk says it
/// with each call. The training goes on, and the next call tries again.
class Attempt {
 public:
  /// `program` begins the message.
  explicit Attempt(std::string program) : program_(std::move(program)) {}
  /// False where the write threw a FileError.
  bool operator()(const std::function<void()>& write);

 private:
  std::string program_;
  bool has_failed_ = false;
};

}  // namespace tern::apps
