#pragma once

#include <filesystem>
#include <string_view>

namespace tern::text {

// Replaces `path` by `content`, or leaves it as it was: writes a file beside it, syncs that to the disk and renames it.
// Throws DataError with the path and the reason.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace tern::text
