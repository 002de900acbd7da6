#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "translate/translator.h"

namespace tern::translate {

/// Models and search of a translation.
struct SearchOptions {
  std::vector<std::string> models;  ///< runs; several are an ensemble
  std::string device = "auto", precision = "fp32";
  int threads = 0;  ///< 0: one for each processor
  std::int64_t beam = 1;
  double length_penalty = 1;
};

/// Loads the runs, with a message for those whose training has not finished. Throws UsageError if their tokenizers or languages differ.
std::vector<Translator> load_models(const SearchOptions& options);

struct DecodeOptions : SearchOptions {
  std::string src_file;         ///< file of the lines, plain or gzip; empty for the standard input
  std::int64_t batch_size = 0;  ///< 0: 64 on a CPU, 512 on a GPU
  std::int64_t n_best = 0;      ///< translations of each line, with scores; 0: one, without a score
  bool sample = false;
  double temperature = 1, top_p = 1;
  std::int64_t top_k = 0;
  std::uint64_t seed = 1;
  bool statistics = false;
};

/// Translates the lines of `src_file` or the standard input to the standard output in constant memory, one line for each line. With n_best
/// it writes `number ||| translation ||| score`, with line numbers from 0. Throws UsageError for options that do not fit together,
/// DataError for a fault in a model's directory or, after the lines before it have been written, in the input.
void decode(const DecodeOptions& options);

}  // namespace tern::translate
