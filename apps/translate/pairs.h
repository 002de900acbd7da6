#pragma once
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "text/batching.h"
#include "text/corpus.h"
#include "text/epoch_encoder.h"
#include "translate/options.h"

namespace tern::translate {

/// All pairs of a corpus as ids; `on_step` is called between them, and what it throws ends it.
std::vector<text::Example> encode(const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus,
                                  const std::function<void()>& on_step);

/// The training pairs as ids, with BPE-dropout anew for each epoch: those of the next one are made while an epoch runs.
class TrainingPairs {
 public:
  TrainingPairs(const Options& options, const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus,
                const std::function<void()>& on_step);

  /// Without dropout.
  const std::vector<text::Example>& plain() const { return plain_; }
  /// Of an epoch, counted from 0, until the next call: a pure function of the options' seed and the epoch.
  const std::vector<text::Example>& of_epoch(std::uint64_t epoch);

 private:
  std::vector<text::Example> encoded(std::uint64_t epoch) const;

  std::vector<text::Example> plain_, now_;
  std::optional<text::EpochEncoder> src_, tgt_;  ///< where there is dropout
  std::uint64_t next_epoch_ = 0;
  std::future<std::vector<text::Example>> next_;  ///< last, so that what it reads outlives it
};

}  // namespace tern::translate
