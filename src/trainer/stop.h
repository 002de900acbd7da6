#pragma once
#include <memory>
#include <stdexcept>
#include <string>

namespace tern::train {

/// Makes SIGINT, SIGTERM and SIGHUP a request to stop, while it lives, instead of ending the program. Long computations poll stop_signal(),
/// or call require_no_stop(), in a consistent state. A second SIGINT, at least half a second later, ends the program at once. A signal that
/// was ignored before, as under nohup, stays ignored. Scopes may be nested: the inner one sees the outer one's request.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  struct Handlers;
  std::unique_ptr<const Handlers> before_;
};

/// The signal that asked for a stop; 0 if there is none.
int stop_signal() noexcept;
/// An orderly stop. The program prints what() and exits with 128 + signal, as shells report a death by that signal.
struct Stopped : std::runtime_error {
  /// By signal `number`.
  Stopped(int number, const std::string& message) : std::runtime_error(message), signal(number) {}
  int signal;  ///< its number
};
/// The name of a signal: "SIGINT".
std::string signal_name(int signal);
/// Throws Stopped with the message "stopped by SIGINT WHEN".
[[noreturn]] void stop(int signal, const std::string& when);
/// Throws Stopped if a signal has asked for a stop.
void require_no_stop(const std::string& when);

}  // namespace tern::train
