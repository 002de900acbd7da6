#pragma once
#include <filesystem>

#include "profile/profile.h"

namespace tern::profile {

/// Writes the profile for ui.perfetto.dev, chrome://tracing or speedscope, in the Trace Event Format (Google's document of that name): a
/// track for each thread, for each stream of a GPU, for communication, and for the memory in live tensors; arrows lead from the launch
/// to its kernel. Throws io::FileError, and an earlier file stays.
void write_chrome_trace(const Profile& profile, const std::filesystem::path& path);

}  // namespace tern::profile
