#pragma once
#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace tern::apps {

/// A directory in the system's temporary directory. The destructor removes it with its content.
class TemporaryDirectory {
 public:
  /// Makes a directory whose name begins with `program`. Throws std::runtime_error.
  explicit TemporaryDirectory(const std::string& program) {
    std::string name = (std::filesystem::temp_directory_path() / (program + "-XXXXXX")).string();
    if (!::mkdtemp(name.data())) throw std::runtime_error(name + " cannot be made: " + std::strerror(errno));
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tern::apps
