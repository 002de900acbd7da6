#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "nn/decoder_lm.h"
#include "nn/encoder_decoder.h"
#include "train/precision.h"

namespace tern::apps {

/// The values of options for train::Precision, and for CheckpointPolicy.
inline const std::vector<std::string> precision_names = {"fp32", "tf32", "tf32x3", "bf16", "fp16"};
inline const std::vector<std::string> checkpointing_names = {"none", "selective", "full"};

/// @{
/// By their names in options, which have been checked: learned, sinusoidal, rotary or none; default, gpt2 or xavier.
nn::Positions positions_of(const std::string& name);
nn::Initialization initialization_of(const std::string& name);
/// @}

/// The number of a model's parameters, elements of tied ones once, before memory is taken for any.
std::int64_t count_parameters(const nn::DecoderLMOptions& options);
std::int64_t count_parameters(const nn::EncoderDecoderOptions& options);

/// Throws UsageError for a model of so many parameters that cannot be trained on the device, in this machine's memory: the system would
/// grant the memory, and end the program when it is used. `remedy` names the options that make it smaller.
void require_memory(std::int64_t parameters, Device device, const std::string& remedy);

/// Throws UsageError for a precision that the device has not.
void require_precision(train::Precision precision, Device device);

}  // namespace tern::apps
