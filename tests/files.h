#pragma once
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>

/// Files of tests, for programs without Catch2 too.
namespace tern::test {

namespace fs = std::filesystem;

/// A directory of its own for one test, removed at the end.
class TempDirectory {
 public:
  TempDirectory() {
    static std::atomic<int> serial{0};
    path_ = fs::temp_directory_path() / ("tern-test-" + std::to_string(::getpid()) + "-" + std::to_string(serial++));
    fs::create_directories(path_);
  }
  ~TempDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  fs::path operator/(std::string_view name) const { return path_ / name; }
  const fs::path& path() const { return path_; }
  /// The number of entries, hidden ones included.
  std::ptrdiff_t count() const { return std::distance(fs::directory_iterator(path_), {}); }

 private:
  fs::path path_;
};

inline std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline fs::path spill(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

/// Every file below a directory, by its place there, with its content.
inline std::map<std::string, std::string> contents(const fs::path& directory) {
  std::map<std::string, std::string> result;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) result[fs::relative(entry.path(), directory).string()] = slurp(entry.path());
  return result;
}

}  // namespace tern::test
