#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace tern::text {

// Every file that a user names as input is read through this class. Opening takes regular files alone: a FIFO would make
// the program wait for a writer, and a device may have no end.
class InputFile {
 public:
  // Throws DataError, which begins with the path, for a file that cannot be opened or is not a regular one.
  explicit InputFile(const std::filesystem::path& path);
  // A stream that is open already, of any kind, such as the standard input. It is left open.
  InputFile(int descriptor, std::string name);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& name() const noexcept { return name_; }
  // In bytes, as it was when the file was opened; 0 for an open stream.
  std::uint64_t size() const noexcept { return size_; }
  // At most so many bytes, and as few as there are; 0 at the end. Throws DataError.
  std::size_t read(void* to, std::size_t bytes);
  // For a mapping, which outlives the file's being open.
  int descriptor() const noexcept { return descriptor_; }
  // The same from `offset` on, whatever has been read before; of a regular file.
  std::size_t read_at(std::uint64_t offset, void* to, std::size_t bytes) const;
  // True if read() would not wait.
  bool is_ready() const noexcept;

 private:
  std::string name_;
  int descriptor_ = -1;
  bool is_owned_ = false;
  std::uint64_t size_ = 0;
};

// The whole of a regular file. Throws DataError, also for one of more than `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace tern::text
