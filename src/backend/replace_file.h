#pragma once
#include <filesystem>
#include <string_view>
#include <system_error>

namespace tern::backend {

/// Makes the file hold the content, whole or not at all: readers see the old file or the new one, and of two writers the last one stays. It
/// need not survive a power failure (io/atomic_file.h has files that must). Says why where it could not be written.
std::error_code replace_file(const std::filesystem::path& path, std::string_view content);

}  // namespace tern::backend
