#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/program.h"
#include "io/svg.h"
#include "nn/transformer.h"
#include "recall/data_set.h"

namespace tern::recall {

using io::svg::HeatMap;

/// A model that solves recall without training: two attention layers of one head with residual connections, without MLP and norm (Note
/// [Hard-coded recall]).
nn::DecoderLM hardcoded_model(std::int64_t vocab, std::int64_t length, Device device = cpu);

/// The recall task with a vocabulary of `vocab` tokens and inputs of `length`: (length - 2) / 2 pairs, keys and values in halves.
Task hardcoded_task(std::int64_t vocab, std::int64_t length);

/// (count, columns), row-major: true for columns whose key occurred before, so that its value is determined.
std::vector<bool> repeated_keys(const Task& task, const Examples& examples);

/// Q, K, scores and probabilities of each layer for one input, a row of task.columns() ids.
std::vector<std::vector<HeatMap>> attention_maps(const nn::DecoderLM& model, const Task& task, const std::vector<std::int64_t>& input);

struct HardcodedOptions : apps::Processors {
  std::int64_t vocab = 0, length = 0;  ///< 0: all four sizes
  std::int64_t examples = 0;           ///< 0: some 24,000 tokens
  std::int64_t seed = 1;
  std::string out;  ///< directory for heat maps; "": none
};

/// Scores the model, prints examples at which it fails, and draws heat maps. Throws UsageError.
void hardcoded(const HardcodedOptions& options);

}  // namespace tern::recall
