#include "translate/decode.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>

#include "common/output.h"
#include "common/program.h"
#include "text/data_error.h"
#include "text/line_reader.h"
#include "text/printable.h"
#include "translate/translator.h"

namespace tern::translate {

/// Some lines of the standard input: no more than are there, so that a sentence that comes alone is not kept waiting, and no more than
/// keep the decoder busy. Empty at the end. A fault is kept in `fault` until the lines before it are translated.
static std::vector<std::string> read_block(text::LineReader& reader, std::size_t most, text::CorpusReport& report,
                                           std::exception_ptr& fault) {
  constexpr std::uint64_t most_bytes = std::uint64_t{4} << 20;
  std::vector<std::string> lines;
  const std::uint64_t before = report.memory();
  std::string line;
  try {
    while (reader.next(line, report)) {
      lines.push_back(line);
      if (lines.size() == most || report.memory() - before > most_bytes || !reader.is_ready()) break;
    }
  } catch (const text::DataError&) {
    fault = std::current_exception();
  }
  return lines;
}

void decode(const DecodeOptions& options) {
  const Device device = apps::resolve_device(options.device);
  if (options.threads > 0) set_num_threads(options.threads);
  const Translator translator = Translator::load(options.model, device);
  if (!translator.is_finished)
    apps::write_message(fmt::format("tern-translate: {}: the training of this model goes on, or was cut short: it has no summary.json\n",
                                    text::printable(options.model)));
  // Lines are forgotten as they are translated, so that no number of them is too large.
  text::ReadOptions limits;
  limits.max_file_bytes = limits.max_memory_bytes = std::numeric_limits<std::uint64_t>::max();
  limits.max_lines = std::numeric_limits<std::size_t>::max();
  text::LineReader reader(STDIN_FILENO, "standard input", limits);
  text::CorpusReport report;
  std::exception_ptr fault;
  std::size_t truncated = 0;
  // Blocks of several batches let the decoder put sentences of similar length together.
  const auto batch = static_cast<std::size_t>(options.batch_size);
  while (!fault) {
    const std::vector<std::string> lines = read_block(reader, 16 * batch, report, fault);
    if (lines.empty()) break;
    std::string text;
    for (const std::string& line : translator.translate(lines, batch, &truncated)) text += line + "\n";
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      throw std::runtime_error(fmt::format("the output could not be written: {}", std::strerror(errno)));
  }
  if (fault) std::rethrow_exception(fault);
  if (truncated > 0)
    apps::write_message(fmt::format("tern-translate: {} of {} lines were cut to the {} tokens that the model has room for\n", truncated,
                                    report.lines, translator.source_room()));
}

}  // namespace tern::translate
