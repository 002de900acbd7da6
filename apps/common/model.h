#pragma once
#include <string>

#include "nn/decoder_lm.h"
#include "train/precision.h"

namespace tern::apps {

/// The elements of a model's matrices: nearly all of its parameters, known before memory is taken for any.
double matrix_elements(const nn::DecoderLMOptions& options);

/// Throws UsageError for a model of `elements` elements, or of these options, that cannot be trained in this machine's memory: the system
/// would grant the memory, and end the program when it is used. `remedy` names the options that make it smaller.
void require_memory(double elements, Device device, const std::string& remedy);
void require_memory(const nn::DecoderLMOptions& options, const std::string& remedy);

/// Throws UsageError for a precision that the device has not.
void require_precision(train::Precision precision, Device device);

}  // namespace tern::apps
