#include "translate/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "common/output.h"
#include "common/program.h"
#include "text/corpus.h"
#include "text/data_error.h"
#include "text/unicode.h"
#include "translate/translator.h"

namespace tern::translate {

/// The lines of the standard input, held to what text::read_lines() asks of a file.
static std::vector<std::string> read_input() {
  const text::ReadOptions limits;
  std::vector<std::string> lines;
  std::string line;
  std::uint64_t bytes = 0;
  const auto refuse = [&](const std::string& what) { throw text::DataError(fmt::format("standard input:{}: {}", lines.size() + 1, what)); };
  const auto finish = [&] {
    if (line.ends_with('\r')) line.pop_back();
    if (const auto nul = line.find('\0'); nul != line.npos) refuse(fmt::format("expected text but got a NUL at byte {}", nul + 1));
    if (const auto bad = text::find_invalid_utf8(line); bad != line.npos)
      refuse(fmt::format("expected UTF-8 but got byte 0x{:02X} at byte {}", static_cast<unsigned char>(line[bad]), bad + 1));
    lines.push_back(std::exchange(line, {}));
  };
  for (int c = std::getc(stdin); c != EOF; c = std::getc(stdin)) {
    if (c == '\n') finish();
    else line += static_cast<char>(c);
    if (line.size() > limits.max_line_bytes)
      refuse(fmt::format("expected a line of at most {} bytes but got a longer one", limits.max_line_bytes));
    if (++bytes > limits.max_file_bytes) refuse(fmt::format("expected at most {} bytes but got more", limits.max_file_bytes));
  }
  if (std::ferror(stdin)) throw text::DataError(fmt::format("standard input: could not be read: {}", std::strerror(errno)));
  if (!line.empty()) finish();
  return lines;
}

void decode(const DecodeOptions& options) {
  const Device device = apps::resolve_device(options.device);
  if (options.threads > 0) set_num_threads(options.threads);
  const Translator translator = Translator::load(options.model, device);
  if (!translator.is_finished)
    apps::write_message(
        fmt::format("tern-translate: {}: the training of this model goes on, or was cut short: it has no summary.json\n", options.model));
  const std::vector<std::string> lines = read_input();
  std::size_t truncated = 0;
  // Blocks of several batches let the decoder put sentences of similar length together.
  const auto batch = static_cast<std::size_t>(options.batch_size);
  for (std::size_t first = 0; first < lines.size(); first += 16 * batch) {
    const auto block = std::span(lines).subspan(first, std::min(16 * batch, lines.size() - first));
    std::string text;
    for (const std::string& line : translator.translate(block, batch, &truncated)) text += line + "\n";
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      throw std::runtime_error(fmt::format("the output could not be written: {}", std::strerror(errno)));
  }
  if (truncated > 0)
    apps::write_message(fmt::format("tern-translate: {} of {} lines were cut to the {} tokens that the model has room for\n", truncated,
                                    lines.size(), translator.source_room()));
}

}  // namespace tern::translate
