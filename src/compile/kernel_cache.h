#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "backend/file.h"

namespace tern::compiler {

/// Format of these files, and of their keys.
inline constexpr const char* cache_format = "tern kernel 1";
/// The bytes of a file of a KernelCache: what it is for, and how long and which its code is.
std::string cache_file(const std::string& key, std::string_view code);
/// The code of such a file; nothing unless it is whole, and of that key.
std::optional<std::string> code_in(std::string_view file, const std::string& key);

/// Machine code of kernels on disk, for later processes. A file's name is the SHA-256 of all that the code depends on, its key; its content
/// has checksums, and one that is not as written is not there. Processes need no lock: files of a name are equal, and replaced whole. What
/// cannot be read or written is no error: the kernel is compiled then.
class KernelCache {
 public:
  /// The directory `compile` in that one. Both are made where they are missing. Without effect for "", and if `compile` is not a directory
  /// of this user's to which nobody else can write.
  explicit KernelCache(const std::string& directory);

  /// Code that was kept.
  std::optional<std::string> find(const std::string& key) const;
  void keep(const std::string& key, std::string_view code) const;
  /// Removes files, least recently used first, until the rest has at most so many bytes, and what writers that were killed left behind.
  void trim(std::uint64_t max_bytes = std::uint64_t{256} << 20) const;

 private:
  backend::FileDescriptor directory_;
};

}  // namespace tern::compiler
