// Files of the system: who closes a descriptor, and files that are replaced whole.
#include "backend/file.h"

#include <fcntl.h>

#include <cstdlib>
#include <optional>

#include "catch.h"
#include "files.h"

namespace tern {

using backend::FileDescriptor;

namespace {
int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
}  // namespace

TEST_CASE("A file descriptor is closed at the end of its owner") {
  int fd = -1;
  {
    const FileDescriptor owner(fd = open_null());
    CHECK(owner.is_open());
    CHECK(is_open(fd));
  }
  CHECK_FALSE(is_open(fd));
  CHECK_FALSE(FileDescriptor().is_open());
}

TEST_CASE("A file descriptor has one owner at a time") {
  const int fd = open_null();
  FileDescriptor first(fd), second(std::move(first));
  CHECK_FALSE(first.is_open());
  CHECK(second.get() == fd);
  first = std::move(second);
  CHECK(first.get() == fd);
  CHECK(first.release() == fd);
  first.close();
  CHECK(is_open(fd));
  ::close(fd);
}

using test::slurp;

TEST_CASE("A file is replaced, and nothing else is left beside it") {
  const test::TempDirectory directory;
  const auto path = directory / "choices.txt";
  CHECK_FALSE(backend::replace_file(path, "a longer first text"));
  CHECK_FALSE(backend::replace_file(path, "second"));
  CHECK(slurp(path) == "second");
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("A file that cannot be replaced stays as it was") {
  const test::TempDirectory directory;
  CHECK(backend::replace_file(directory / "missing" / "file", "text"));
  const auto path = directory / "taken";
  std::filesystem::create_directories(path / "full");
  CHECK(backend::replace_file(path, "text"));
  CHECK(std::filesystem::is_directory(path / "full"));
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("The directory of caches is where the environment says") {
  const char* const names[] = {"XDG_CACHE_HOME", "HOME"};
  std::optional<std::string> before[2];
  for (int i = 0; i < 2; ++i)
    if (const char* const value = std::getenv(names[i])) before[i] = value;
  const auto directory = [&](const char* cache, const char* home) {
    ::setenv(names[0], cache, 1), ::setenv(names[1], home, 1);
    return backend::cache_directory();
  };
  CHECK(directory("/a/b", "/home/c") == "/a/b/tern");
  CHECK(directory("a/b", "/home/c") == "/home/c/.cache/tern");
  CHECK(directory("", "/home/c") == "/home/c/.cache/tern");
  CHECK(directory("", "c").empty());
  for (int i = 0; i < 2; ++i) before[i] ? ::setenv(names[i], before[i]->c_str(), 1) : ::unsetenv(names[i]);
}

}  // namespace tern
