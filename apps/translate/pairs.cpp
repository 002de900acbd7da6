#include "translate/pairs.h"

#include <algorithm>
#include <utility>

#include "backend/device.h"
#include "text/unicode.h"

namespace tern::translate {

std::vector<std::int32_t> line_tokens(const text::Tokenizer& tokenizer, const std::string& line) {
  return text::is_blank(line) ? std::vector<std::int32_t>{} : tokenizer.encode(line);
}

std::vector<text::Example> encode(const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus,
                                  const std::function<void()>& on_step) {
  std::vector<text::Example> examples(corpus.size());
  for (std::size_t i = 0; i < corpus.size(); ++i) {
    on_step();
    examples[i] = {line_tokens(tokenizer, corpus.src[i]), line_tokens(tokenizer, corpus.tgt[i])};
  }
  return examples;
}

TrainingPairs::TrainingPairs(const Options& options, const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus,
                             const std::function<void()>& on_step)
    : plain_(encode(tokenizer, corpus, on_step)) {
  if (options.bpe_dropout == 0) return;
  const auto seed = static_cast<std::uint64_t>(options.seed);
  src_.emplace(tokenizer, corpus.src, options.bpe_dropout, seed);
  tgt_.emplace(tokenizer, corpus.tgt, options.bpe_dropout, seed, corpus.size());
}

std::vector<text::Example> TrainingPairs::encoded(std::uint64_t epoch) const {
  const int threads = std::max(num_threads() / 2, 1);  // the others are for the training
  auto src = src_->encode(epoch, threads), tgt = tgt_->encode(epoch, threads);
  std::vector<text::Example> examples(src.size());
  for (std::size_t i = 0; i < src.size(); ++i) examples[i] = {std::move(src[i]), std::move(tgt[i])};
  return examples;
}

const std::vector<text::Example>& TrainingPairs::of_epoch(std::uint64_t epoch) {
  if (!src_) return plain_;
  now_ = next_.valid() && next_epoch_ == epoch ? next_.get() : encoded(epoch);
  next_epoch_ = epoch + 1;
  next_ = std::async(std::launch::async, [this, next = epoch + 1] { return encoded(next); });
  return now_;
}

}  // namespace tern::translate
