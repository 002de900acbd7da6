#pragma once
#include <string>

namespace tern::translate {

struct QuantiseOptions {
  std::string run, format = "q8_0";
  std::string out;  ///< "": RUN-FORMAT
};

/// Writes a copy of a run with quantised weights (nn/quantize.h), which all commands but a training can load, and prints the sizes of both
/// models. Throws UsageError if the run is quantised already or would replace itself, FileError for a damaged run, and as
/// io::RunDirectory::create().
void quantise(const QuantiseOptions& options);

}  // namespace tern::translate
