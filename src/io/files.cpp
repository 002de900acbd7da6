#include "io/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <regex>
#include <utility>
#include <vector>

#include "text/input_file.h"

namespace tern::io {

namespace fs = std::filesystem;

namespace {

fs::path directory_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

/// Not open, and errno is set, if that fails.
backend::FileDescriptor open_file(const std::string& path, int flags) {
  return backend::FileDescriptor(uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }));
}

[[noreturn]] void throw_fault(const std::string& message, int error) {
  for (const int disk : {ENOSPC, EDQUOT, EFBIG, EIO})
    if (error == disk) throw DiskError(message);
  throw FileError(message);
}

}  // namespace

void fail_file(const std::string& path, const std::string& what, int error) {
  throw_fault(fmt::format("{}: could not be {}: {}", path, what, std::strerror(error)), error);
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  std::error_code ignored;
  if (fs::is_directory(path_, ignored)) throw FileError(fmt::format("{}: could not be written: it is a directory", path_));
  // The rename would replace /dev/null by a file, for everyone on the machine.
  if (fs::is_other(fs::symlink_status(path_, ignored)))
    throw FileError(fmt::format("{}: could not be written: it is a device or a pipe, and no file to be replaced", path_));
  // A killed process whose pid is used again may have left a file of the same name.
  static std::atomic<unsigned> serial{0};
  const std::string name = fs::path(path_).filename();
  do {
    temporary_ = directory_of(path_) / fmt::format(".{}.{}.{}.tmp", name, ::getpid(), serial++);
    descriptor_ = open_file(temporary_, O_WRONLY | O_CREAT | O_EXCL);
  } while (!descriptor_.is_open() && errno == EEXIST);
  if (!descriptor_.is_open()) {
    temporary_.clear();
    fail("created");
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  descriptor_.close();
  if (!temporary_.empty()) uninterrupted([&] { return ::unlink(temporary_.c_str()); });
  temporary_.clear();
}

void AtomicFile::fail(const char* what) {
  const int error = errno;
  discard();
  fail_file(path_, what, error);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = uninterrupted([&] { return ::write(descriptor_.get(), from, bytes); });
    if (written < 0) fail("written");
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::overwrite(std::size_t offset, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written =
        uninterrupted([&] { return ::pwrite(descriptor_.get(), text.data(), text.size(), static_cast<off_t>(offset)); });
    if (written < 0) fail("written");
    offset += static_cast<std::size_t>(written);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  // Without the first fsync a loss of power can leave an empty file under the new name; without the last, the old file.
  if (uninterrupted([&] { return ::fsync(descriptor_.get()); }) != 0) fail("written");
  // A close that a signal interrupts has closed all the same, and the bytes are on the disk.
  if (::close(descriptor_.release()) != 0 && errno != EINTR) fail("written");
  if (uninterrupted([&] { return ::rename(temporary_.c_str(), path_.c_str()); }) != 0) fail("replaced");
  temporary_.clear();
  sync_directory(directory_of(path_));
}

void write_file_atomically(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

std::string temporary_target(const std::string& name) {
  static const std::regex temporary(R"(\.(.+)\.[0-9]+\.[0-9]+\.tmp)");
  std::smatch found;
  return std::regex_match(name, found, temporary) ? found[1].str() : "";
}

void remove_temporaries(const std::string& directory, bool (*is_target)(const std::string& name)) {
  std::vector<fs::path> left;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored))
    if (const std::string target = temporary_target(entry.path().filename().string()); !target.empty() && is_target(target))
      left.push_back(entry.path());
  for (const auto& file : left) fs::remove(file, ignored);
}

void sync_directory(const std::string& path) {
  const backend::FileDescriptor directory = open_file(path, O_RDONLY | O_DIRECTORY);
  // Some file systems cannot sync a directory, and a directory without read permission cannot be opened: both are ignored.
  if (!directory.is_open() || uninterrupted([&] { return ::fsync(directory.get()); }) == 0) return;
  if (errno == EIO || errno == ENOSPC || errno == EDQUOT) fail_file(path, "synced", errno);
}

std::string read_file(const std::string& path, std::size_t max_bytes) { return text::read_file(path, max_bytes); }

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: a FIFO that no one reads is refused at once (ENXIO). Later writes may block, as for any file.
  constexpr int flags = O_WRONLY | O_CREAT | O_APPEND;
  descriptor_ = open_file(path_, flags | O_NONBLOCK);
  if (!descriptor_.is_open()) fail_file(path_, "opened", errno);
  ::fcntl(descriptor_.get(), F_SETFL, flags);
  end_ = ::lseek(descriptor_.get(), 0, SEEK_END);
}

AppendFile::~AppendFile() {
  if (!descriptor_.is_open()) return;
  try {
    write_pending();
  } catch (const FileError&) {  // write() has reported it
  }
}

AppendFile::AppendFile(AppendFile&& other) noexcept = default;

void AppendFile::write(std::string_view records) {
  constexpr std::size_t max_pending = std::size_t(1) << 20;
  if (pending_.size() < max_pending) pending_ += records;
  write_pending();
}

void AppendFile::write_pending() {
  const auto truncate = [&] { return uninterrupted([&] { return ::ftruncate(descriptor_.get(), end_); }); };
  // Half a record at the end would spoil the next one as well.
  if (may_be_torn_ && truncate() != 0) fail_file(path_, "written", errno);
  may_be_torn_ = false;
  std::size_t done = 0;
  while (done < pending_.size()) {
    const ssize_t written = uninterrupted([&] { return ::write(descriptor_.get(), pending_.data() + done, pending_.size() - done); });
    if (written < 0) {
      const int error = errno;
      may_be_torn_ = done > 0 && truncate() != 0;
      fail_file(path_, "written", error);
    }
    done += static_cast<std::size_t>(written);
  }
  end_ += static_cast<std::int64_t>(done);
  pending_.clear();
}

void AppendFile::sync() {
  write_pending();
  if (uninterrupted([&] { return ::fsync(descriptor_.get()); }) != 0) fail_file(path_, "synced", errno);
}

DirectoryLock::DirectoryLock(std::string path) : path_(std::move(path)) {
  try {
    // Another process that ends its run may remove the directory, or a parent, between any two calls here.
    for (int attempt = 1;; ++attempt) {
      make();
      if (lock()) return;
      if (attempt == 100) fail_file(path_, "opened", ENOENT);  // a dangling symbolic link
      release();
    }
  } catch (...) {
    release();
    throw;
  }
}

DirectoryLock::~DirectoryLock() { release(); }

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept
    : path_(std::move(other.path_)), made_(std::exchange(other.made_, {})), descriptor_(std::move(other.descriptor_)) {}

void DirectoryLock::make() {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (fs::path at = fs::absolute(path_).lexically_normal(); !at.empty() && !fs::exists(at, ignored); at = at.parent_path())
    missing.push_back(at);
  for (; !missing.empty(); missing.pop_back()) {
    const fs::path& directory = missing.back();
    // A path that ends in a slash stands twice in the list.
    if (uninterrupted([&] { return ::mkdir(directory.c_str(), 0777); }) == 0) {
      made_.push_back(directory);
      sync_directory(directory.parent_path());
    } else if (errno == ENOENT && !made_.empty()) {
      return;  // a parent was removed: lock() will fail, and the constructor tries again
    } else if (errno != EEXIST) {
      const int error = errno;
      release();
      throw_fault(fmt::format("{}: the directory could not be made: {}", path_, std::strerror(error)), error);
    }
  }
}

/// Opens and locks the directory; false if another process has removed it meanwhile.
bool DirectoryLock::lock() {
  descriptor_ = open_file(path_, O_RDONLY | O_DIRECTORY);
  if (!descriptor_.is_open() && errno == ENOENT) return false;
  if (!descriptor_.is_open()) fail_file(path_, "opened", errno);
  if (uninterrupted([&] { return ::flock(descriptor_.get(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno == EWOULDBLOCK)
      throw FileError(fmt::format("{}: another process writes a run there: wait until it ends, or name another directory", path_));
    return true;  // no locks on this file system
  }
  struct stat locked, named;
  return ::fstat(descriptor_.get(), &locked) == 0 && ::stat(path_.c_str(), &named) == 0 && locked.st_dev == named.st_dev &&
         locked.st_ino == named.st_ino;
}

void DirectoryLock::release() noexcept {
  for (; !made_.empty() && ::rmdir(made_.back().c_str()) == 0; made_.pop_back()) continue;
  made_.clear();
  descriptor_.close();
}

namespace {

/// CRC-32C remainders of each byte by the polynomial 0x1EDC6F41, in reflected bit order.
constexpr std::array<std::uint32_t, 256> castagnoli = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82F63B78U : 0U);
    table[byte] = remainder;
  }
  return table;
}();

}  // namespace

void Checksum::add(const void* data, std::size_t bytes) {
  value_ = static_cast<std::uint32_t>(::crc32_z(value_, static_cast<const Bytef*>(data), bytes));
}

std::string Checksum::hex() const { return fmt::format("{:08x}", value_); }

std::string checksum(std::string_view text) {
  Checksum sum;
  sum.add(text);
  return sum.hex();
}

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t remainder = ~0U;
  for (const char byte : bytes) remainder = (remainder >> 8) ^ castagnoli[(remainder ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~remainder;
}

}  // namespace tern::io
