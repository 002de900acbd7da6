#include "translate/distill.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "common/program.h"
#include "text/printable.h"
#include "translate/translator.h"

namespace tern::translate {

namespace {

constexpr std::size_t batch_rows = 128, block_lines = 16 * batch_rows;

std::vector<Translator> load_teachers(const Options& options, Device device) {
  std::vector<Translator> teachers;
  for (const std::string& run : apps::words(options.teacher)) {
    teachers.push_back(Translator::load(run, device));
    const Translator& teacher = teachers.back();
    if (teacher.options.src != options.src || teacher.options.tgt != options.tgt)
      throw apps::UsageError(fmt::format("--teacher {}: expected a translator from {} to {} but got one from {} to {}",
                                         text::printable(run), options.src, options.tgt, teacher.options.src, teacher.options.tgt));
    if (teacher.tokenizer.to_json() != teachers.front().tokenizer.to_json())
      throw apps::UsageError(fmt::format("--teacher {}: expected the tokenizer of the first teacher, as an ensemble has one vocabulary",
                                         text::printable(run)));
  }
  return teachers;
}

}  // namespace

std::size_t add_distilled(text::ParallelCorpus& corpus, const Options& options, Device device, const std::function<void()>& on_step) {
  const std::vector<Translator> teachers = load_teachers(options, device);
  if (teachers.empty()) return 0;
  std::vector<std::string> sources, targets;
  for (std::size_t first = 0; first < corpus.size(); first += block_lines) {
    on_step();
    const auto block = std::span(corpus.src).subspan(first, std::min(block_lines, corpus.size() - first));
    const auto found = translate(teachers, block, beam_search(options.beam, options.length_penalty), batch_rows);
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (found[i].front().text.empty()) continue;
      sources.push_back(block[i]);
      targets.push_back(found[i].front().text);
    }
  }
  corpus.src.insert(corpus.src.end(), sources.begin(), sources.end());
  corpus.tgt.insert(corpus.tgt.end(), targets.begin(), targets.end());
  return sources.size();
}

}  // namespace tern::translate
