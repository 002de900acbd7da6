#pragma once
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "io/files.h"

namespace tern::apps {

/// A directory in the system's temporary directory. The destructor removes it with its content.
class TemporaryDirectory {
 public:
  /// Makes a directory whose name begins with `program`. Throws FileError.
  explicit TemporaryDirectory(const std::string& program) {
    const char* const use = "used for temporary files (set TMPDIR to another directory)";
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    const char* const named = ::getenv("TMPDIR");
    if (error) io::fail_file(named ? named : "/tmp", use, error.value());
    std::string name = (parent / (program + "-XXXXXX")).string();
    if (!::mkdtemp(name.data())) io::fail_file(parent, use, errno);
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
