#include "trainer/stop.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace tern::train {

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
