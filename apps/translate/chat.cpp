#include <fmt/format.h>
#include <unistd.h>

#include "common/program.h"
#include "io/files.h"
#include "text/corpus.h"
#include "text/unicode.h"
#include "trainer/terminal.h"
#include "translate/attention_picture.h"
#include "translate/commands.h"

namespace tern::translate {

namespace {

const std::string help =
    "a sentence to translate, or\n"
    "  :attention [FILE]  draws which words of the last sentence its translation looked at, into attention.svg unless you say\n"
    "  :quit              ends this\n";

}  // namespace

void chat(const ChatOptions& options) {
  const std::vector<Translator> models = load_models(options);
  const Translator& first = models.front();
  const bool is_terminal = ::isatty(STDIN_FILENO) != 0;
  if (options.layer > first.options.layers)
    throw apps::UsageError(
        fmt::format("--layer {}: expected at most the model's {}", options.layer, apps::counted(first.options.layers, "layer")));
  nn::GenerateOptions search = beam_search(options.beam, options.length_penalty);
  search.has_scores = false;

  std::string last;
  const auto draw = [&](const std::string& file) {
    io::write_file_atomically(file, attention_picture(first, last, options.layer));
    apps::say("{}: the attention of \"{}\"\n", text::printable(file), text::printable(last));
  };
  if (is_terminal) apps::say("{} to {}. Write {}", first.options.src, first.options.tgt, help);
  text::LineReader reader(STDIN_FILENO, "standard input", {});
  text::CorpusReport report;
  std::string line;
  while (true) {
    if (is_terminal) apps::say("{}> ", first.options.src);
    if (!reader.next(line, report)) break;
    if (text::is_blank(line)) continue;
    const std::size_t begin = line.find_first_not_of(' ');
    line = line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
    if (line.front() != ':') {
      last = line;
      const std::string lines[] = {line};
      apps::say("{}\n", translate(models, lines, search, 1).front().front().text);
      if (!options.attention.empty()) draw(options.attention);
      continue;
    }
    const std::size_t space = line.find(' ');
    const std::string command = line.substr(0, space),
                      argument = space == std::string::npos ? "" : line.substr(line.find_first_not_of(' ', space));
    if (command == ":quit") break;
    if (command != ":attention") {
      apps::say("{}", help);
    } else if (last.empty()) {
      apps::say("There is no sentence yet.\n");
    } else {
      try {
        draw(argument.empty() ? "attention.svg" : argument);
      } catch (const std::exception& fault) {  // such as a file that cannot be written, which does not end the chat
        apps::say("{}\n", text::printable(fault.what()));
      }
    }
  }
}

}  // namespace tern::translate
