#include "common/conversation.h"

#include <unistd.h>

#include <cstdio>

#include "text/corpus.h"
#include "text/input_file.h"
#include "text/unicode.h"

namespace tern::apps {

void add_sampling_options(CLI::App& command, Sampling& sampling) {
  add_value(command, "--temperature", sampling.temperature, "of samples: below 1 for the probable, 0 for greedy", real_number(0, 1e6), "X");
  add_value(command, "--top-k", sampling.top_k, "draw from the k most probable tokens, 0 for all", whole_number(0, 1'000'000), "N");
  add_value(command, "--top-p", sampling.top_p, "draw from the fewest tokens with this probability together", real_number(1e-9, 1), "X");
  add_value(command, "--seed", sampling.seed, "of samples", seed_value(), "N");
}

void set_sampling(nn::GenerateOptions& options, const Sampling& sampling) {
  options.search = nn::Search::sample;
  options.temperature = sampling.temperature;
  options.top_k = sampling.top_k;
  options.top_p = sampling.top_p;
  options.seed = sampling.seed;
}

std::string standard_input() {
  text::InputFile input(STDIN_FILENO, "standard input");
  std::string text;
  char part[1 << 16];
  while (const std::size_t size = input.read(part, sizeof part)) text.append(part, size);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool show_text(std::string_view text) {
  const bool is_terminal = ::isatty(STDOUT_FILENO) != 0;
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const text::Utf8Step step = text::decode_utf8(text.substr(at));
    const bool is_layout = step.code_point == '\n' || step.code_point == '\t';
    shown += is_terminal && !is_layout && text::is_control(step.code_point) ? " " : text.substr(at, step.size);
    at += step.size;
  }
  return std::fwrite(shown.data(), 1, shown.size(), stdout) == shown.size() && std::fflush(stdout) == 0;
}

void converse(const Conversation& conversation) {
  const bool is_terminal = ::isatty(STDIN_FILENO) != 0;
  if (is_terminal) say("{}{}", conversation.greeting, conversation.help);
  text::LineReader reader(STDIN_FILENO, "standard input", {});
  text::CorpusReport report;
  std::string line;
  while (true) {
    if (is_terminal) say("{}", conversation.prompt);
    if (!reader.next(line, report)) break;
    if (text::is_blank(line)) continue;
    const std::size_t begin = line.find_first_not_of(' ');
    line = line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
    if (line.front() != ':') {
      conversation.on_line(line);
      continue;
    }
    const std::size_t space = line.find(' ');
    const std::string command = line.substr(0, space),
                      argument = space == std::string::npos ? "" : line.substr(line.find_first_not_of(' ', space));
    if (command == ":quit") break;
    if (!conversation.on_command(command, argument)) say("{}", conversation.help);
  }
}

}  // namespace tern::apps
