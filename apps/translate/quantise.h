#pragma once
#include <string>

namespace tern::translate {

struct QuantiseOptions {
  std::string run, format = "q8_0";
  std::string out;  ///< "": RUN-FORMAT
};

/// Writes a run whose weights have a format of 8 bits or 4 (nn/quantize.h), for everything that loads a run but a training, and prints how
/// large both models are. Throws UsageError for a run that is quantised already or is to replace itself, FileError for one that is not
/// whole, and what io::RunDirectory::create() throws.
void quantise(const QuantiseOptions& options);

}  // namespace tern::translate
