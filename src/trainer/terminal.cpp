#include "trainer/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "backend/observer.h"

namespace tern::train {

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

constexpr std::size_t longest_bar = 40, shortest_bar = 5;

/// The present width of stderr's terminal, which may be resized.
std::size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// A rate as text: "16.9 updates/s", and below one "2.50 s/update".
std::string speed(double updates_per_second) {
  if (updates_per_second <= 0) return "? updates/s";
  if (updates_per_second < 1) return fmt::format("{:.2f} s/update", 1 / updates_per_second);
  return fmt::format("{:.1f} updates/s", updates_per_second);
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

std::string clock_time(double seconds) {
  const auto whole = static_cast<long>(std::lround(std::clamp(seconds, 0.0, 1e9)));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
}

std::string grouped(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (std::size_t at = digits.size(); at > 3 && std::isdigit(static_cast<unsigned char>(digits[at - 4])) != 0; at -= 3)
    digits.insert(at - 3, ",");
  return digits;
}

namespace {

/// Two texts and a bar between them, as progress_text().
std::string with_bar(const std::string& before, double done, const std::string& after, std::size_t columns) {
  if (columns == 0) return before + after;
  const std::size_t room = columns - 1, taken = before.size() + after.size() + 2;  // the last column stays free: some terminals wrap there
  std::string bar;
  if (room >= taken + shortest_bar) {
    const std::size_t size = std::min(room - taken, longest_bar);
    const auto full = static_cast<std::size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(size));
    bar = "|" + std::string(full, '#') + std::string(size - full, ' ') + "|";
  }
  return (before + bar + after).substr(0, room);
}

}  // namespace

std::string progress_text(const Progress& progress, std::size_t columns) {
  const double done = static_cast<double>(progress.update) / static_cast<double>(std::max<std::int64_t>(progress.updates, 1));
  const auto of_session = static_cast<double>(progress.update - progress.first_update);
  const double rate = progress.seconds > 0 ? of_session / progress.seconds : 0;
  const std::string left = rate > 0 ? clock_time(static_cast<double>(progress.updates - progress.update) / rate) : "?";
  const std::string before = fmt::format("epoch {}/{} {:3.0f}%", progress.epoch, progress.epochs, std::floor(100 * done));
  const std::string after = fmt::format(" {}/{} [{}<{}{}, {}] loss {:.3f}  {} {}/s", progress.update, progress.updates,
                                        clock_time(progress.seconds), progress.may_end_early ? "at most " : "", left, speed(rate),
                                        progress.loss, grouped(progress.items_per_second), progress.unit);
  return with_bar(before, done, after, columns);
}

ProgressLine::ProgressLine() : is_terminal_(isatty(STDERR_FILENO) != 0), last_(seconds_now()) {}

bool ProgressLine::is_due() const { return seconds_now() - last_ >= (is_terminal_ ? 0.25 : 15); }

void ProgressLine::show(const std::string& text) {
  last_ = seconds_now();
  if (!is_terminal_) {
    write_progress(text + "\n");
    return;
  }
  // Spaces overwrite the rest of a longer previous line.
  write_progress(fmt::format("\r{:<{}}", text, std::min(shown_, columns() - 1)));
  shown_ = text.size();
}

std::size_t ProgressLine::columns() const { return is_terminal_ ? terminal_columns() : 0; }

void ProgressLine::update(const Progress& progress) { show(progress_text(progress, columns())); }

void ProgressLine::update(const std::string& before, double done, const std::string& after) {
  show(with_bar(before, done, after, columns()));
}

void ProgressLine::finish() {
  if (shown_ > 0) write_progress(fmt::format("\r{:<{}}\r", "", shown_));
  shown_ = 0;
}

void ProgressLine::print(const std::string& line) {
  finish();
  write_output(line + "\n");
}

double seconds_now() { return static_cast<double>(backend::steady_ns()) * 1e-9; }

namespace {

constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};

std::atomic<int> asked{0};
std::atomic<std::int64_t> asked_at{0};  // milliseconds
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free, "a signal handler uses them");

std::int64_t milliseconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{1000} * now.tv_sec + now.tv_nsec / 1'000'000;
}

}  // namespace

extern "C" {
static void ask_to_stop(int number) {
  const std::int64_t now = milliseconds_now();
  if (asked.load() == 0) {
    asked_at.store(now);
    asked.store(number);
  } else if (number == SIGINT && now - asked_at.load() >= 500) {
    // Earlier ones may be duplicates: timeout(1) signals its child, and then the child's process group.
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
}
}

/// The actions of the signals before.
struct StopSignals::Handlers {
  struct sigaction of[3];
};

StopSignals::StopSignals() {
  auto before = std::make_unique<Handlers>();
  for (int i = 0; i < 3; ++i) ::sigaction(signals[i], nullptr, &before->of[i]);
  // In a nested scope the outer one's request stays.
  if (std::none_of(before->of, before->of + 3, [](const auto& action) { return action.sa_handler == ask_to_stop; })) asked.store(0);
  for (int i = 0; i < 3; ++i) {
    if (before->of[i].sa_handler == SIG_IGN) continue;
    struct sigaction action{};
    action.sa_handler = ask_to_stop;
    action.sa_flags = SA_RESTART;
    ::sigaction(signals[i], &action, nullptr);
  }
  before_ = std::move(before);
}

StopSignals::~StopSignals() {
  for (int i = 0; i < 3; ++i) ::sigaction(signals[i], &before_->of[i], nullptr);
}

int stop_signal() noexcept { return asked.load(); }

std::string signal_name(int signal) { return signal == SIGINT ? "SIGINT" : signal == SIGTERM ? "SIGTERM" : "SIGHUP"; }

void stop(int signal, const std::string& when) { throw Stopped(signal, "stopped by " + signal_name(signal) + " " + when); }

void require_no_stop(const std::string& when) {
  if (const int signal = stop_signal(); signal != 0) stop(signal, when);
}

}  // namespace tern::train
