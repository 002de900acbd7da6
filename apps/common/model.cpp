#include "common/model.h"

#include <fmt/format.h>

#include "backend/system_memory.h"
#include "common/program.h"

namespace tern::apps {

double matrix_elements(const nn::DecoderLMOptions& options) {
  const auto vocab = static_cast<double>(options.vocab), length = static_cast<double>(options.length),
             width = static_cast<double>(options.width);
  const auto layers = static_cast<double>(options.layers), ff = static_cast<double>(options.ff);
  const double tables = options.tied_head ? 1 : 2;
  return (tables * vocab + length) * width + layers * (4 * width * width + 2 * width * ff);
}

void require_memory(const nn::DecoderLMOptions& options, const std::string& remedy) {
  require_memory(matrix_elements(options), options.device, remedy);
}

void require_memory(double elements, Device device, const std::string& remedy) {
  if (device != cpu) return;
  const double needed = 16 * elements;  // weights, gradients, and Adam's two moments
  const auto there = static_cast<double>(backend::usable_memory());
  if (there > 0 && needed > there)
    throw UsageError(fmt::format("a model of {:.3g} parameters needs {:.3g} GB to train and this machine has {:.3g} GB for it: {}",
                                 elements, needed / 1e9, there / 1e9, remedy));
}

void require_precision(train::Precision precision, Device device) {
  if (precision == train::Precision::tf32 && device == cpu)
    throw UsageError("--precision tf32: a GPU's tensor cores have it and a CPU has not; use fp32 or bf16, or --device cuda");
  if (precision == train::Precision::tf32x3 && !train::has_precision(precision, device))
    throw UsageError("--precision tf32x3: a Hopper GPU has it, in a build for sm_90a, and no other device; use fp32");
}

}  // namespace tern::apps
