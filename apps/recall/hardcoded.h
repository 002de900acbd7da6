#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/plot/heat_map.h"
#include "nn/decoder_lm.h"
#include "recall/data_set.h"

namespace tern::recall {

using apps::HeatMap;

/// A model that recalls without training: two layers of one attention head, residuals, no MLP and no norm. See Note
/// [Hard-coded recall].
nn::DecoderLM hardcoded_model(std::int64_t vocab, std::int64_t length, Device device = cpu);

/// The recall task with a vocabulary of `vocab` tokens and inputs of `length`: (length - 2) / 2 pairs, keys and values in halves.
Task hardcoded_task(std::int64_t vocab, std::int64_t length);

/// True for columns of an input whose key occurred before, so that its value is known: (count, columns), row-major.
std::vector<bool> repeated_keys(const Task& task, const Examples& examples);

/// Q, K, scores and probabilities of each layer for one input, a row of task.columns() ids.
std::vector<std::vector<HeatMap>> attention_maps(const nn::DecoderLM& model, const Task& task, const std::vector<std::int64_t>& input);

struct HardcodedOptions {
  std::int64_t vocab = 0, length = 0;  ///< 0: the four sizes in turn
  std::int64_t examples = 0;           ///< 0: some 24,000 tokens
  std::int64_t seed = 1;
  std::string device = "auto", out;  ///< out: a directory for heat maps, or ""
  int threads = 0;
};

/// Scores the model, prints examples at which it fails, and draws heat maps. Throws UsageError.
void hardcoded(const HardcodedOptions& options);

}  // namespace tern::recall
