// Preloaded into a program, this sends it a signal 2000 times a second, whose handler uses much of the stack that it finds.
#include <csignal>
#include <ctime>

namespace {

[[gnu::constructor]] void begin() {
  struct sigaction action{};
  action.sa_handler = [](int) {
    volatile char used[1 << 14];
    for (std::size_t i = 0; i < sizeof used; i += 64) used[i] = 1;
  };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGUSR1;
  timer_t timer{};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return;
  const itimerspec twice_a_millisecond{{0, 500'000}, {0, 500'000}};
  ::timer_settime(timer, 0, &twice_a_millisecond, nullptr);
}

}  // namespace
