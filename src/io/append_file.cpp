#include "io/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "io/atomic_file.h"
#include "io/file_error.h"

namespace tern::io {

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: a FIFO that no one reads is refused at once (ENXIO). Later writes may block, as for any file.
  constexpr int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  descriptor_ = backend::FileDescriptor(uninterrupted([&] { return ::open(path_.c_str(), flags | O_NONBLOCK, 0666); }));
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

JsonLog::JsonLog(std::string path) : file_(std::move(path)) {}

void JsonLog::write(const JsonObject& line) { file_.write(line.dump() + "\n"); }

}  // namespace tern::io
