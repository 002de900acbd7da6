#pragma once
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "io/file_error.h"

namespace tern::io::test {

namespace fs = std::filesystem;

/// A directory of its own for one test, removed at the end.
class TempDirectory {
 public:
  TempDirectory() {
    static std::atomic<int> serial{0};
    path_ = fs::temp_directory_path() / ("tern-io-" + std::to_string(::getpid()) + "-" + std::to_string(serial++));
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
  /// How many entries it holds, hidden ones too.
  std::ptrdiff_t count() const { return std::distance(fs::directory_iterator(path_), {}); }

 private:
  fs::path path_;
};

inline std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void spill(const fs::path& path, std::string_view content) { std::ofstream(path, std::ios::binary) << content; }

inline fs::path fixture_path(const std::string& name) { return fs::path(TERN_SOURCE_DIR) / "tests/fixtures/io" / name; }

/// The bytes of a safetensors file with this header and so many zero bytes of data.
inline std::string file_of(std::string_view header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes += header;
  return bytes + std::string(data_bytes, '\0');
}

/// The message of the FileError that a call throws; a note where it throws none. Another exception passes through, and
/// fails the test.
template <class F>
std::string file_error(F&& f) {
  try {
    f();
  } catch (const FileError& error) {
    return error.what();
  }
  return "(no FileError)";
}

}  // namespace tern::io::test
