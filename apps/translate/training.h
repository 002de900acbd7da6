#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/corpus.h"
#include "trainer/trainer.h"
#include "translate/batches.h"
#include "translate/pairs.h"
#include "translate/translator.h"

namespace tern::translate {

/// Callbacks of train::Trainer for a translator's model: batches, loss, optimizer, validation.
///
/// Note [The number of an update]
/// All epochs have as many updates as the first one needs for its pairs. With batches of a number of tokens a later epoch, with other
/// samples or other tokens by BPE-dropout, may have more or fewer batches: surplus batches are left out, and missing ones are updates
/// without a batch. The number of an update so determines its epoch and its batches, which is all that a resumed training needs.
class Training {
 public:
  /// All arguments have to outlive it; `examples` are the pairs of `valid`. Throws UsageError if truncation leaves no pair a target.
  Training(Translator& translator, TrainingPairs& train, const text::ParallelCorpus& valid, std::vector<text::Example> examples,
           train::Run& run);

  train::Trainer& trainer() { return *trainer_; }
  /// Number of training pairs that `length` truncates.
  std::size_t cut() const;
  /// Translates in blocks, between which a signal ends the training.
  std::vector<std::string> translate(std::span<const std::string> lines, const nn::GenerateOptions& search = {.has_scores = false}) const;

 private:
  void require_targets(const std::vector<text::Example>& examples, const char* split) const;
  train::UpdateBatch batch(std::int64_t update);
  train::Validation validate(const train::Trainer& trainer);
  double valid_loss(double label_smoothing = 0);

  const Options& options_;
  const FusedKernels kernels_;  ///< as the options say, as long as it lives
  Translator& translator_;
  TranslationModel& model_;
  TrainingPairs& train_;
  const text::ParallelCorpus& valid_;
  const std::vector<text::Example> valid_examples_;
  const Batches batches_;
  train::Ranks* const ranks_;  ///< null for a single process
  std::optional<train::Trainer> trainer_;
  std::int64_t per_epoch_ = 0;
  std::int64_t epoch_ = -1;  ///< epoch of examples_ and epoch_batches_
  const std::vector<text::Example>* examples_ = nullptr;
  std::vector<text::ShapedBatch> epoch_batches_;
};

}  // namespace tern::translate
