#pragma once
#include "recall/options.h"

namespace tern::recall {

/// Checks the options and what they ask of this machine; gives the device. Throws UsageError.
Device require_trainable(const Options& options);

/// Trains on the task, and writes config.json, log.jsonl, model.safetensors and summary.json into options.out. Throws UsageError
/// or Error for a mistake of the user's, before anything is written.
void train(const Options& options);

}  // namespace tern::recall
