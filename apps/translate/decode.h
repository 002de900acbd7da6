#pragma once
#include <cstdint>
#include <string>

namespace tern::translate {

struct DecodeOptions {
  std::string model, device = "auto";
  std::int64_t batch_size = 64;
  int threads = 0;  ///< 0: one for each processor
};

/// Translates the lines of the standard input to the standard output, a line for a line, as they come: memory does not grow with the
/// input. Throws DataError for a fault in the model's directory, and for one in the input when the lines before it are written.
void decode(const DecodeOptions& options);

}  // namespace tern::translate
