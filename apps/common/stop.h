#pragma once
#include <csignal>
#include <stdexcept>
#include <string>

namespace tern::apps {

/// While it lives, SIGINT, SIGTERM and SIGHUP do not end the program but ask it to stop: what takes long looks at stop_signal(), or calls
/// require_no_stop(), where all is in order. A second SIGINT, half a second later or more, ends it at once. A signal that was ignored
/// before, as under nohup, stays so. One within another goes on with what the outer one has been asked.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  struct sigaction before_[3];
};

/// The signal that asked for a stop, or 0.
int stop_signal() noexcept;
/// A stop in good order. The program says what() and ends with 128 + signal, as a shell shows a death by it.
struct Stopped : std::runtime_error {
  Stopped(int number, const std::string& message) : std::runtime_error(message), signal(number) {}
  int signal;
};
/// "SIGINT".
std::string signal_name(int signal);
/// Throws Stopped, "stopped by SIGINT WHEN".
[[noreturn]] void stop(int signal, const std::string& when);
/// The same, if a signal asked for it.
void require_no_stop(const std::string& when);

}  // namespace tern::apps
