#pragma once
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "text/batching.h"
#include "text/bpe.h"
#include "text/corpus.h"
#include "translate/options.h"

namespace tern::translate {

/// The tokens of a line; none for a line that shows nothing (text::is_blank), from which a model would make something up.
std::vector<std::int32_t> line_tokens(const text::Tokenizer& tokenizer, const std::string& line);

/// Encodes all pairs of a corpus. Calls `on_step` between them, and passes on its exceptions.
std::vector<text::Example> encode(const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus,
                                  const std::function<void()>& on_step);

/// The training pairs as ids, with new BPE-dropout for each epoch. The pairs of the next epoch are encoded while an epoch runs.
class TrainingPairs {
 public:
  TrainingPairs(const Options& options, const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus,
                const std::function<void()>& on_step);

  /// The pairs without dropout.
  const std::vector<text::Example>& plain() const { return plain_; }
  /// The pairs of an epoch, from 0, valid until the next call. A pure function of the options' seed and the epoch.
  const std::vector<text::Example>& of_epoch(std::uint64_t epoch);

 private:
  std::vector<text::Example> encoded(std::uint64_t epoch) const;

  std::vector<text::Example> plain_, now_;
  std::optional<text::EpochEncoder> src_, tgt_;  ///< set if there is dropout
  std::uint64_t next_epoch_ = 0;
  std::future<std::vector<text::Example>> next_;  ///< last, so that it is destroyed before the members that it uses
};

}  // namespace tern::translate
