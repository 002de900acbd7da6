#pragma once
#include <cstdint>
#include <string>

namespace tern::translate {

struct ScorePairsOptions {
  std::string model, src_file, tgt_file, device = "auto", precision = "fp32";
  int threads = 0;  ///< 0: one for each processor
  std::int64_t batch_size = 64;
  double length_penalty = 0;
};

/// Writes a line for each pair of a source and a target file: the log-probability of the target with its end token, given the source,
/// divided by length^length_penalty (nn::GenerateOptions). Throws UsageError if the files have different numbers of lines, DataError for a
/// fault in a file.
void score_pairs(const ScorePairsOptions& options);

}  // namespace tern::translate
