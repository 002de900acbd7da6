#pragma once
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "files.h"
#include "io/files.h"
#include "paths.h"

namespace tern::io::test {

namespace fs = std::filesystem;
using tern::test::contents, tern::test::slurp, tern::test::spill, tern::test::TempDirectory;

inline fs::path fixture_path(const std::string& name) { return fs::path(tern::test::source_directory) / "tests/fixtures/io" / name; }

/// The files below a directory, with blanks between them.
inline std::string names_in(const fs::path& directory) {
  std::string result;
  for (const auto& [name, content] : contents(directory)) result += (result.empty() ? "" : " ") + name;
  return result;
}

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
