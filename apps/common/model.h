#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "nn/transformer.h"
#include "train/precision.h"

namespace tern::apps {

/// Texts of options for train::Precision and for CheckpointPolicy.
inline const std::vector<std::string> precision_names = {"fp32", "tf32", "tf32x3", "bf16", "fp16"};
inline const std::vector<std::string> checkpointing_names = {"none", "selective", "full"};

/// @{
/// The value of an option's text, which has been checked: learned, sinusoidal, rotary or none; default, gpt2 or xavier.
nn::Positions positions_of(const std::string& name);
nn::Initialization initialization_of(const std::string& name);
/// @}

/// The number of elements of a model's parameters, computed from the options alone. Tied parameters count once.
std::int64_t count_parameters(const nn::DecoderLMOptions& options);
std::int64_t count_parameters(const nn::EncoderDecoderOptions& options);

/// Throws UsageError if the training of a model of `parameters` parameters needs more than the device's memory. On the CPU the system would
/// otherwise grant the memory and kill the program when it is used. `remedy` names the options that reduce it.
void require_memory(std::int64_t parameters, Device device, const std::string& remedy);

/// Throws UsageError for a precision that the device does not support.
void require_precision(train::Precision precision, Device device);

}  // namespace tern::apps
