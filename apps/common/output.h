#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace tern::apps {

/// Output that cannot end a training: what a closed, full or stalled stream does not take within a second is dropped, and output_fault()
/// tells so at the end.
void write_output(std::string_view text);
template <class... Values>
void say(fmt::format_string<Values...> format, Values&&... values) {
  write_output(fmt::format(format, std::forward<Values>(values)...));
}

/// A message on stderr, in the same way.
void write_message(std::string_view text);
/// Progress on stderr, which does not wait for a reader at all.
void write_progress(std::string_view text);

/// From now on write_output() and write_progress() do nothing: of several processes one tells.
void mute_output();
bool is_muted();

/// Notes for output_fault() that something else could not write to stdout, for the reason of this errno.
void lose_output(int error);
/// Flushes stdout. "" or the reason why something that was written to it is lost.
std::string output_fault();

/// Lets a write to a pipe without a reader, or past a limit of file size, fail as any other write, in place of a signal that ends the
/// program.
void ignore_write_signals();

}  // namespace tern::apps
