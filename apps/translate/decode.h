#pragma once
#include <cstdint>
#include <string>

namespace tern::translate {

struct DecodeOptions {
  std::string model, device = "auto";
  std::int64_t batch_size = 64;
  int threads = 0;  ///< 0: one for each processor
};

/// Translates the lines of the standard input to the standard output, a line for a line. All input is read and checked
/// first, so that a fault in its last line does not come after hours of work. Throws DataError for a fault in the input
/// or in the model's directory.
void decode(const DecodeOptions& options);

}  // namespace tern::translate
