#pragma once
#include <cstdint>
#include <string>

namespace tern::apps {

/// Progress of a training.
struct Progress {
  std::int64_t epoch = 1, epochs = 1;
  std::int64_t update = 0, updates = 1;  ///< done, and in all
  std::int64_t first_update = 0;         ///< done before this session began
  double seconds = 0;                    ///< of this session
  double loss = 0, items_per_second = 0;
  const char* unit = "tokens";  ///< of the items
  bool may_end_early = false;   ///< the time that is left is a bound
};

/// "epoch 3/20  45%|####    | 540/1200 [00:32<00:40, 16.9 updates/s] loss 2.345  12,345 tokens/s" in fewer than `columns` columns; where
/// they are few, the bar is left out first. 0 columns: a line of a file, without a bar. The time left follows from this session's updates.
std::string progress_text(const Progress& progress, std::size_t columns);

/// "1:02:05", "02:05".
std::string clock_time(double seconds);
/// "12,345".
std::string grouped(double value);

/// A status line that is rewritten in place on a terminal, at most four times a second. Elsewhere, as in a log file, a line is printed
/// every fifteen seconds. What cannot be written is dropped.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// True when enough time has passed for another update, so that it need not be made in vain.
  bool is_due() const;
  void update(const Progress& progress);
  /// Ends the line, so that other output starts on a new one.
  void finish();
  /// Prints a line that stays, above the status.
  void print(const std::string& line);

 private:
  bool is_terminal_;
  double last_;
  std::size_t shown_ = 0;
};

}  // namespace tern::apps
