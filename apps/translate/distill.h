#pragma once
#include <functional>

#include "nn/generate.h"
#include "text/corpus.h"
#include "translate/options.h"

namespace tern::translate {

/// Sequence-level distillation (Kim & Rush, "Sequence-Level Knowledge Distillation", 2016): adds to the training pairs each source with its
/// translation by the ensemble of teachers, found with options.beam and options.length_penalty. Empty translations are left out. Calls
/// `on_step` between blocks of lines, and passes on its exceptions. Returns the number of added pairs. Throws UsageError for teachers with
/// different tokenizers or of other languages, FileError for a damaged run.
std::size_t add_distilled(text::ParallelCorpus& corpus, const Options& options, Device device, const std::function<void()>& on_step);

}  // namespace tern::translate
