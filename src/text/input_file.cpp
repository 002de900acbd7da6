#include "text/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "text/data_error.h"

namespace tern::text {

InputFile::InputFile(const std::filesystem::path& path) : name_(path.string()), is_owned_(true) {
  // Non-blocking, so that opening a FIFO returns, and the check below can refuse it.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat status;
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    const std::string reason = std::strerror(errno);
    if (descriptor_ >= 0) ::close(descriptor_);
    throw DataError(fmt::format("{}: could not be read: {}", name_, reason));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw DataError(fmt::format("{}: could not be read: it is not a regular file", name_));
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
  // https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: a pointer begins with this and has less than 1024 bytes.
  constexpr std::string_view pointer = "version https://git-lfs.github.com/spec/";
  char begin[pointer.size()];
  if (size_ < pointer.size() || size_ >= 1024 || ::pread(descriptor_, begin, sizeof begin, 0) != static_cast<ssize_t>(sizeof begin)) return;
  if (std::string_view(begin, sizeof begin) != pointer) return;
  ::close(descriptor_);
  throw DataError(fmt::format("{}: expected the file itself but got a git-lfs pointer to it: run `git lfs pull` in its repository", name_));
}

InputFile::InputFile(int descriptor, std::string name) : name_(std::move(name)), descriptor_(descriptor) {}

InputFile::~InputFile() {
  if (is_owned_) ::close(descriptor_);
}

std::size_t InputFile::read(void* to, std::size_t bytes) {
  while (true) {
    const ssize_t got = ::read(descriptor_, to, bytes);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EAGAIN) {  // an open stream that another program has made non-blocking
      struct pollfd wanted{descriptor_, POLLIN, 0};
      ::poll(&wanted, 1, -1);
    } else if (errno != EINTR) {
      throw DataError(fmt::format("{}: could not be read: {}", name_, std::strerror(errno)));
    }
  }
}

std::size_t InputFile::read_at(std::uint64_t offset, void* to, std::size_t bytes) const {
  while (true) {
    const ssize_t got = ::pread(descriptor_, to, bytes, static_cast<off_t>(offset));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) throw DataError(fmt::format("{}: could not be read: {}", name_, std::strerror(errno)));
  }
}

// Calls read(at, left, done) until `bytes` bytes have come or the file ends, and returns how many came.
template <class Read>
static std::size_t read_all(void* to, std::size_t bytes, const Read& read) {
  std::size_t done = 0;
  while (done < bytes) {
    const std::size_t got = read(static_cast<char*>(to) + done, bytes - done, done);
    if (got == 0) break;
    done += got;
  }
  return done;
}

void InputFile::read_exactly(void* to, std::size_t bytes) {
  if (read_all(to, bytes, [&](char* at, std::size_t left, std::size_t) { return read(at, left); }) < bytes) fail_short();
}

void InputFile::read_exactly_at(std::uint64_t offset, void* to, std::size_t bytes) const {
  const auto read = [&](char* at, std::size_t left, std::size_t done) { return read_at(offset + done, at, left); };
  if (read_all(to, bytes, read) < bytes) fail_short();
}

void InputFile::fail_short() const { throw DataError(name_ + ": ended early: it was changed while it was read"); }

bool InputFile::is_ready() const noexcept {
  struct pollfd wanted{descriptor_, POLLIN, 0};
  return ::poll(&wanted, 1, 0) != 0;
}

std::string_view foreign_kind(std::string_view begin) noexcept {
  if (begin.starts_with("PK\x03\x04")) return "a zip archive";
  if (begin.starts_with("\x1F\x8B")) return "gzip data";
  const std::size_t first = begin.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  const auto begins_with = [rest = begin.substr(first)](std::string_view word) {
    return rest.size() >= word.size() && std::equal(word.begin(), word.end(), rest.begin(),
                                                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
  };
  return begins_with("<!doctype html") || begins_with("<html") ? "an HTML page" : "";
}

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  InputFile file(path);
  if (file.size() > max_bytes) {
    throw DataError(fmt::format("{}: could not be read: it has {} bytes, the limit is {}", file.name(), file.size(), max_bytes));
  }
  std::string content(static_cast<std::size_t>(file.size()), '\0');
  content.resize(read_all(content.data(), content.size(), [&](char* at, std::size_t left, std::size_t) { return file.read(at, left); }));
  return content;
}

}  // namespace tern::text
