#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace tern::translate {

struct AverageOptions {
  std::vector<std::string> inputs;  ///< runs, or checkpoints of runs
  std::string out;
};

/// Writes a run whose model is the mean of the inputs' weights, as fairseq's average_checkpoints.py makes it: of the checkpoints of one
/// training that were last, or of runs that began with the same weights. Options and tokenizer are the first one's. Throws FileError for
/// inputs that are no models of one shape with one tokenizer, and what io::RunDirectory::create() throws.
void average(const AverageOptions& options);

}  // namespace tern::translate
