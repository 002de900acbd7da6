#include "backend/replace_file.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace tern::backend {

std::error_code replace_file(const std::filesystem::path& path, std::string_view content) {
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

}  // namespace tern::backend
