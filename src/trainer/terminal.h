#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tern::train {

/// Writes to stdout. Text that a closed, full or stalled stream does not accept within a second is dropped, so that output cannot end a
/// training; output_fault() reports the loss.
void write_output(std::string_view text);
/// Writes a message to stderr in the same way.
void write_message(std::string_view text);
/// Writes progress to stderr, without waiting for a reader.
void write_progress(std::string_view text);

/// Makes write_output() and write_progress() do nothing, in all processes of a training but the first.
void mute_output();
bool is_muted();  ///< true after mute_output()

/// Tells output_fault() that a write to stdout by another way failed with this errno.
void lose_output(int error);
/// Flushes stdout. Returns the reason why output was lost; "" if none was.
std::string output_fault();

/// Ignores SIGPIPE and SIGXFSZ, so that a write to a pipe without a reader or past the file size limit fails with an error instead.
void ignore_write_signals();

/// Progress of a training.
struct Progress {
  std::int64_t epoch = 1;         ///< the present one, from 1
  std::int64_t epochs = 1;        ///< their total
  std::int64_t update = 0;        ///< completed updates
  std::int64_t updates = 1;       ///< their total
  std::int64_t first_update = 0;  ///< updates before this session
  double seconds = 0;             ///< time of this session
  double loss = 0;                ///< mean of the last updates
  double items_per_second = 0;    ///< tokens or examples
  const char* unit = "tokens";    ///< unit of the items
  bool may_end_early = false;     ///< the remaining time is an upper bound
};

/// Progress as text: "epoch 3/20  45%|####    | 540/1200 [00:32<00:40, 16.9 updates/s] loss 2.345  12,345 tokens/s" in fewer than `columns`
/// columns; if they do not suffice, first the bar is left out. 0 columns: a line of a file, without a bar.
std::string progress_text(const Progress& progress, std::size_t columns);

/// A time as text: "1:02:05", "02:05".
std::string clock_time(double seconds);
/// A rounded number with separators: "12,345".
std::string grouped(double value);

/// A status line. On a terminal it is rewritten in place, at most four times a second; elsewhere, as in a log file, a line is printed every
/// fifteen seconds. Text that cannot be written is dropped.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// True if enough time has passed for the next update to be shown.
  bool is_due() const;
  void update(const Progress& progress);  ///< shows it
  /// Shows work of another kind: `before`, a bar of the share `done` in [0, 1], `after`.
  void update(const std::string& before, double done, const std::string& after);
  /// Ends the line, so that other output starts on a new one.
  void finish();
  /// Prints a line that stays, above the status.
  void print(const std::string& line);

 private:
  void show(const std::string& text);
  std::size_t columns() const;

  bool is_terminal_;
  double last_;
  std::size_t shown_ = 0;
};

/// Seconds of a monotonic clock.
double seconds_now();

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
