#include "compile/kernel_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/sha256.h"

namespace tern::compiler {

namespace {

using backend::FileDescriptor;

constexpr std::uint64_t max_file_bytes = 64 << 20;
constexpr std::time_t max_writing_seconds = 3600;  ///< after which who writes a file has ended

/// True for an open file of the kind, S_IFREG or S_IFDIR, that belongs to this user and that nobody else can write to.
bool is_own(const FileDescriptor& file, mode_t kind, struct stat& status) {
  return ::fstat(file.get(), &status) == 0 && (status.st_mode & S_IFMT) == kind && status.st_uid == ::geteuid() &&
         (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool write_all(const FileDescriptor& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

std::string read_all(const FileDescriptor& file, std::uint64_t size) {
  std::string bytes(size, '\0');
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    at += static_cast<std::size_t>(count);
  }
  bytes.resize(at);
  return bytes;
}

}  // namespace

std::string cache_file(const std::string& key, std::string_view code) {
  return fmt::format("{}\n{}\n{:020}\n{}\n{}", cache_format, key, code.size(), backend::sha256(code), code);
}

std::optional<std::string> code_in(std::string_view file, const std::string& key) {
  static const std::size_t header_bytes = cache_file(std::string(64, '0'), "").size();
  if (file.size() <= header_bytes) return {};
  std::string code(file.substr(header_bytes));
  if (cache_file(key, code) != file) return {};
  return code;
}

KernelCache::KernelCache(const std::string& directory) {
  if (directory.empty()) return;
  const std::string own = directory + "/compile";
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  ::mkdir(own.c_str(), 0700);
  FileDescriptor opened(::open(own.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (struct stat status; is_own(opened, S_IFDIR, status)) directory_ = std::move(opened);
}

std::optional<std::string> KernelCache::find(const std::string& key) const {
  if (!directory_.is_open()) return {};
  const FileDescriptor file(::openat(directory_.get(), key.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status;
  if (!is_own(file, S_IFREG, status) || static_cast<std::uint64_t>(status.st_size) > max_file_bytes) return {};
  std::optional<std::string> code = code_in(read_all(file, static_cast<std::uint64_t>(status.st_size)), key);
  if (code) ::futimens(file.get(), nullptr);  // the time of its last use: file systems need not keep that of reading
  return code;
}

void KernelCache::keep(const std::string& key, std::string_view code) const {
  if (!directory_.is_open()) return;
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) return;
  const std::string written = fmt::format(".{:016x}", random);
  const FileDescriptor file(::openat(directory_.get(), written.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.is_open()) return;
  if (!write_all(file, cache_file(key, code)) || ::renameat(directory_.get(), written.c_str(), directory_.get(), key.c_str()) != 0)
    ::unlinkat(directory_.get(), written.c_str(), 0);
}

void KernelCache::trim(std::uint64_t max_bytes) const {
  if (!directory_.is_open()) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
                                                    ::closedir);
  if (!listing) return;
  std::vector<std::tuple<std::time_t, long, std::uint64_t, std::string>> files;  // seconds and nanoseconds of the last use, bytes, name
  std::uint64_t sum = 0;
  while (const dirent* const entry = ::readdir(listing.get())) {
    struct stat status;
    const std::string name = entry->d_name;
    if (::fstatat(directory_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) continue;
    if (name[0] == '.' && std::time(nullptr) - status.st_mtim.tv_sec > max_writing_seconds) {
      ::unlinkat(directory_.get(), name.c_str(), 0);
      continue;
    }
    files.emplace_back(status.st_mtim.tv_sec, status.st_mtim.tv_nsec, static_cast<std::uint64_t>(status.st_size), name);
    sum += static_cast<std::uint64_t>(status.st_size);
  }
  std::sort(files.begin(), files.end());
  for (const auto& [seconds, nanoseconds, bytes, name] : files) {
    if (sum <= max_bytes) break;
    if (::unlinkat(directory_.get(), name.c_str(), 0) == 0) sum -= bytes;
  }
}

}  // namespace tern::compiler
