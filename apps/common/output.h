#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace tern::apps {

/// Writes to stdout. Text that a closed, full or stalled stream does not accept within a second is dropped, so that output cannot end a
/// training; output_fault() reports the loss.
void write_output(std::string_view text);
template <class... Values>
void say(fmt::format_string<Values...> format, Values&&... values) {
  write_output(fmt::format(format, std::forward<Values>(values)...));
}

/// Writes a message to stderr in the same way.
void write_message(std::string_view text);
/// Writes progress to stderr, without waiting for a reader.
void write_progress(std::string_view text);

/// Makes write_output() and write_progress() do nothing, in all processes of a training but the first.
void mute_output();
bool is_muted();

/// Tells output_fault() that a write to stdout by another way failed with this errno.
void lose_output(int error);
/// Flushes stdout. Returns the reason why output was lost; "" if none was.
std::string output_fault();

/// Ignores SIGPIPE and SIGXFSZ, so that a write to a pipe without a reader or past the file size limit fails with an error instead.
void ignore_write_signals();

}  // namespace tern::apps
