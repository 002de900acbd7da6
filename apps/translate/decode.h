#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "translate/translator.h"

namespace tern::translate {

/// Runs that translate as one, and how.
struct SearchOptions {
  std::vector<std::string> models;
  std::string device = "auto", precision = "fp32";
  int threads = 0;  ///< 0: one for each processor
  std::int64_t beam = 1;
  double length_penalty = 1;
};

/// Loads the runs and says which are unfinished. Throws UsageError where their tokenizers or languages differ.
std::vector<Translator> load_models(const SearchOptions& options);

struct DecodeOptions : SearchOptions {
  std::int64_t batch_size = 0;  ///< 0: 64 on a CPU, 512 on a GPU
  std::int64_t n_best = 0;      ///< 0: a translation a line, and nothing else
  bool sample = false;
  double temperature = 1, top_p = 1;
  std::int64_t top_k = 0;
  std::uint64_t seed = 1;
  bool statistics = false;
};

/// Translates the lines of the standard input to the standard output, a line for a line, as they come: memory does not grow with the
/// input. With n_best it writes `number ||| translation ||| score` for each, lines counted from 0. Throws UsageError for options that do
/// not go together, DataError for a fault in a model's directory, and for one in the input when the lines before it are written.
void decode(const DecodeOptions& options);

}  // namespace tern::translate
