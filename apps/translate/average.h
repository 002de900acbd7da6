#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace tern::translate {

struct AverageOptions {
  std::vector<std::string> inputs;  ///< runs or checkpoints
  std::string out;
};

/// Writes a run whose model is the mean of the inputs' weights, as fairseq's average_checkpoints.py. The inputs are the last checkpoints of
/// a training, or runs that began with the same weights. Options and tokenizer are those of the first input. Throws FileError for inputs
/// with different tensors or tokenizers, and as io::RunDirectory::create().
void average(const AverageOptions& options);

}  // namespace tern::translate
