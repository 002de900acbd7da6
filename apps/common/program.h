#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "tensor/tensor.h"

namespace tern::apps {

/// Parses the arguments, runs the subcommand's callback, and returns the exit code: 0, 2 for a mistake of the user's (an
/// unknown option, a bad file, an impossible size) and 1 for a fault of ours. An error is one line on stderr that starts
/// with the program's name.
int run(CLI::App& app, int argc, char** argv);

/// A fault in what the user asked for, found before any work is done.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// `--device cpu|cuda|auto`: adds the option, and later gives the device. Throws UsageError for cuda without a GPU.
void add_device_option(CLI::App& command, std::string& device);
Device resolve_device(const std::string& device);
/// "NVIDIA H200" or "2 CPU threads".
std::string describe(Device device);

/// `--name`, `--name True`, `--name=false`: a switch that takes a value as well.
void add_switch(CLI::App& command, const std::string& name, bool& value, const std::string& help);

/// A status line that is rewritten in place on a terminal. Elsewhere, as in a log file, a line is printed now and then.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// True when enough time has passed for another update, so that its text need not be made in vain.
  bool is_due() const;
  void update(const std::string& text);
  /// Ends the line, so that other output starts on a new one.
  void finish();
  /// Prints a line that stays, above the status.
  void print(const std::string& line);

 private:
  bool is_terminal_;
  double last_ = -1e9;
  std::size_t shown_ = 0;
};

/// Seconds of a clock that never goes back.
double seconds_now();
/// "1 h 05 min", "3 min 20 s", "45 s".
std::string duration(double seconds);

}  // namespace tern::apps
