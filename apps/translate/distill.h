#pragma once
#include <functional>

#include "nn/generate.h"
#include "text/corpus.h"
#include "translate/options.h"

namespace tern::translate {

/// The search that --beam and --length-penalty ask for.
nn::GenerateOptions search_options(const Options& options);

/// Sequence-level distillation (Kim & Rush, "Sequence-Level Knowledge Distillation", 2016): adds to the training pairs, for each, its
/// source with the translation that the teachers give, the mean of whose probabilities is searched with options.beam hypotheses. `on_step`
/// is called between blocks of lines, and what it throws ends it. Returns the number of pairs that were added: empty translations are not.
/// Throws UsageError for teachers with different tokenizers or of other languages, FileError for a run that is not whole.
std::size_t add_distilled(text::ParallelCorpus& corpus, const Options& options, Device device, const std::function<void()>& on_step);

}  // namespace tern::translate
