#pragma once
#include "translate/options.h"

namespace tern::translate {

/// Trains a translator from raw text and writes RUN/{config.json, tokenizer.json, model.safetensors, log.jsonl,
/// summary.json}. Progress goes to stderr, results to stdout. Throws DataError for a fault in the data, before the run
/// directory is touched, and UsageError for options that do not fit.
void train(const Options& options);

}  // namespace tern::translate
