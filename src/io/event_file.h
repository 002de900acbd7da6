#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files.h"

namespace tern::io {

/// A file of events that TensorBoard shows: scalars and texts over steps. TensorBoard finds the file if its name contains "tfevents".
///
/// Note [Event files]
/// A file is a sequence of TFRecords: length (u64), masked CRC-32C of the length, payload, masked CRC-32C of the payload, all
/// little-endian. A payload is a protocol buffer Event: wall_time (1, double), step (2, varint), and one of file_version (3), summary (5),
/// session_log (7). The first event is the file version "brain.Event:2". A scalar is a value with tag (1) and simple_value (2, float); a
/// text one with tag, a string tensor (8) and metadata (9) that name the plugin "text". A session log with status START at a step tells
/// readers that what was written for that step and later ones is void. Sources: tensorflow/core/lib/io/record_writer.h and
/// tsl/lib/hash/crc32c.h; tensorflow/core/util/event.proto, framework/summary.proto, framework/tensor.proto;
/// tensorboard/plugins/text/metadata.py.
class EventFile {
 public:
  /// The time of events, in seconds since 1970.
  using Clock = std::function<double()>;

  /// Opens a file of the whole records of an earlier one, which it replaces at once, or makes a new one. A torn record at the end, which a
  /// killed process has left, is left out: readers would stop there. Throws FileError, also for a file that holds no events. Tests give a
  /// clock.
  explicit EventFile(const std::filesystem::path& path, Clock clock = {});
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// True if the file had events when it was opened.
  bool goes_on() const noexcept { return goes_on_; }
  /// Makes readers drop earlier events of `step` and later steps: a training resumes from there.
  void begin_session(std::int64_t step);
  /// Adds one event with a float32 value for each tag.
  void scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& values);
  /// Adds a text, which TensorBoard shows as Markdown.
  void text(std::int64_t step, std::string_view tag, std::string_view markdown);

  /// Writes buffered events to the file. Functions that add events do so by themselves when 64 KiB or ten seconds have gathered, so that a
  /// training makes few system calls. Throws FileError, as a DiskError on a full disk: the file then ends with a whole record, and up to a
  /// megabyte of later ones is kept in memory for the next call.
  void flush();

 private:
  void add(std::string_view fields);

  AppendFile file_;
  Clock clock_;
  std::string buffer_;  ///< records that are not handed to `file_` yet
  double flushed_ = 0;  ///< time of the last flush
  bool goes_on_ = true;
};

}  // namespace tern::io
