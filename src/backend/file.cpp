#include "backend/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "backend/error.h"

namespace tern::backend {

void FileDescriptor::close() noexcept {
  if (is_open()) ::close(release());
}

Pipe::Pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("no pipe could be made: ") + std::strerror(errno));
  from = FileDescriptor(ends[0]);
  to = FileDescriptor(ends[1]);
}

std::error_code replace_file(const std::string& name, std::string_view content) {
  const std::filesystem::path path = name;
  // The name contains the process id, so that two writers do not share a file.
  const std::filesystem::path written = path.parent_path() / ("." + path.filename().string() + "." + std::to_string(::getpid()));
  std::ofstream file(written, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(written, path, error);
  else error = std::make_error_code(std::errc::io_error);
  if (std::error_code ignored; error) std::filesystem::remove(written, ignored);
  return error;
}

std::string cache_directory() {
  for (const auto& [variable, below] : {std::pair("XDG_CACHE_HOME", "/tern"), {"HOME", "/.cache/tern"}})
    if (const char* const value = std::getenv(variable); value && value[0] == '/') return std::string(value) + below;
  return {};
}

}  // namespace tern::backend
