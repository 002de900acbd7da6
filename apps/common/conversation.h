#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/program.h"
#include "nn/generate.h"

namespace tern::apps {

/// Options of samples.
struct Sampling {
  double temperature = 1, top_p = 1;
  std::int64_t top_k = 0;
  std::uint64_t seed = 1;
};
/// Adds --temperature, --top-k, --top-p and --seed.
void add_sampling_options(CLI::App& command, Sampling& sampling);
/// Makes a generation one of samples.
void set_sampling(nn::GenerateOptions& options, const Sampling& sampling);

/// The standard input up to its end, without a last line break. Throws DataError.
std::string standard_input();
/// Writes a model's text to stdout at once, and to a terminal without control characters. False if nobody reads it.
bool show_text(std::string_view text);

/// A conversation with the person or the program at the standard input.
struct Conversation {
  std::string greeting;                             ///< first words on a terminal, before `help`
  std::string help;                                 ///< printed too for a command that is not known
  std::string prompt;                               ///< before each line, on a terminal
  std::function<void(const std::string&)> on_line;  ///< gets a line that shows something, without spaces at its ends
  /// Gets a line that begins with a colon as a command, ":attention", and its argument or "". Returns false if it does not know the
  /// command.
  std::function<bool(const std::string&, const std::string&)> on_command;
};
/// Reads lines until the end of the input or ":quit". Throws DataError as text::LineReader does.
void converse(const Conversation& conversation);

}  // namespace tern::apps
