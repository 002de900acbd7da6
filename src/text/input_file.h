#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tern::text {

// A file that a user names as input. The path has to name a regular file: a FIFO would make the program wait for a writer, and a device
// may have no end. Every function that reads throws DataError, which begins with the file's name.
class InputFile {
 public:
  // Opens a file. Throws DataError if it cannot be opened, is not a regular one, or is a pointer of git-lfs to the file that is wanted.
  explicit InputFile(const std::filesystem::path& path);
  // An open stream of any kind, such as the standard input. The destructor leaves it open.
  InputFile(int descriptor, std::string name);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& name() const noexcept { return name_; }
  // Bytes of the file at the time of opening; 0 for an open stream.
  std::uint64_t size() const noexcept { return size_; }
  // Reads up to `bytes` bytes and returns how many came, which may be fewer; 0 at the end.
  std::size_t read(void* to, std::size_t bytes);
  // Reads `bytes` bytes. Throws DataError also if the file ends before.
  void read_exactly(void* to, std::size_t bytes);
  // As read() and read_exactly(), but from byte `offset` of a regular file, and without moving the position of read().
  std::size_t read_at(std::uint64_t offset, void* to, std::size_t bytes) const;
  void read_exactly_at(std::uint64_t offset, void* to, std::size_t bytes) const;
  // The open descriptor, for mmap: a mapping stays valid when the file is closed.
  int descriptor() const noexcept { return descriptor_; }
  // True if read() would not wait.
  bool is_ready() const noexcept;

 private:
  [[noreturn]] void fail_short() const;

  std::string name_;
  int descriptor_ = -1;
  bool is_owned_ = false;
  std::uint64_t size_ = 0;
};

// Kind of a file that begins with these bytes, if a download often leaves it in place of the one that is wanted: "an HTML page" ("a zip
// archive", "gzip data"), or "".
std::string_view foreign_kind(std::string_view begin) noexcept;

// Content of a regular file. Throws DataError, also for a file of more than `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace tern::text
