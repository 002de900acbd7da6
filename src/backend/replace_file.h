#pragma once
#include <filesystem>
#include <string_view>
#include <system_error>

namespace tern::backend {

/// Replaces a file's content atomically: readers see the old file or the new one, and of two writers the last one wins. It need not survive
/// a power failure (for that see io/files.h). Returns the error if it could not be written.
std::error_code replace_file(const std::filesystem::path& path, std::string_view content);

}  // namespace tern::backend
