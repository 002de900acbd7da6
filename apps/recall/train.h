#pragma once
#include "recall/options.h"

namespace tern::recall {

/// Checks the options, also against this machine, and returns the device. Throws UsageError.
Device require_trainable(const Options& options);

/// Trains on the task, and writes config.json, log.jsonl, model.safetensors and summary.json to options.out. Throws UsageError or Error for
/// invalid options, before anything is written.
void train(const Options& options);

}  // namespace tern::recall
