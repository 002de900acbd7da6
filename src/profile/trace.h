#pragma once
#include <string>

#include "profile/profile.h"

namespace tern::profile {

/// Writes a profile in the Trace Event Format (Google's document of that name), for ui.perfetto.dev, chrome://tracing or speedscope: a
/// track for each thread, for each stream of a GPU, for communication, and for the memory in live tensors, with arrows from launches to
/// kernels. Throws io::FileError, and then leaves an earlier file as it was.
void write_chrome_trace(const Profile& profile, const std::string& path);

}  // namespace tern::profile
