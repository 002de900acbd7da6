#pragma once
#include "translate/options.h"

namespace tern::translate {

/// Trains a translator from raw text, and writes RUN/{config.json, tokenizer.json, model.safetensors, log.jsonl, summary.json}. Progress
/// goes to stderr, results to stdout. Throws DataError for a fault in the data, before an earlier run in the directory is changed, and
/// UsageError for options that do not fit together.
void train(const Options& options);

}  // namespace tern::translate
