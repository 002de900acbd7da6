#include "common/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace tern::apps {

namespace {

constexpr int patience = 1000;  // milliseconds to wait for a reader

std::string lost;  // reason of the first loss of output
bool muted = false;

/// True if a write of up to 4 KB would not block: poll() reports a pipe as writable when it has room for that.
bool is_ready(int descriptor, int milliseconds) {
  pollfd stream{descriptor, POLLOUT, 0};
  int ready = ::poll(&stream, 1, milliseconds);
  while (ready < 0 && errno == EINTR) ready = ::poll(&stream, 1, milliseconds);
  return ready != 0;
}

void write_error(std::string_view text, int milliseconds) {
  if (!is_ready(STDERR_FILENO, milliseconds)) return;
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::clearerr(stderr);  // a disk that was full may have room for the next line
}

}  // namespace

void write_output(std::string_view text) {
  if (muted) return;
  if (!is_ready(STDOUT_FILENO, lost.empty() ? patience : 0)) {  // waits once, so that a stalled reader does not slow the training
    if (lost.empty()) lost = "its reader does not read";
    return;
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  lose_output(errno);
}

void write_message(std::string_view text) { write_error(text, patience); }
void write_progress(std::string_view text) {
  if (!muted) write_error(text, 0);
}
void mute_output() { muted = true; }
bool is_muted() { return muted; }

void lose_output(int error) {
  if (lost.empty()) lost = std::strerror(error);
}

std::string output_fault() {
  if (lost.empty() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) lost = errno != 0 ? std::strerror(errno) : "unknown error";
  return lost;
}

void ignore_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace tern::apps
