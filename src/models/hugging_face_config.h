#pragma once
#include <string>
#include <string_view>

#include "nn/transformer.h"

/// Conversion between Hugging Face's config.json and the options of a DecoderLM.
namespace tern::models {

enum class Architecture : std::uint8_t { gpt2, llama };

struct HuggingFaceConfig {
  Architecture architecture = Architecture::gpt2;
  nn::DecoderLMOptions options;
};

/// Parses config.json. Throws FileError with a message that begins with `where`, its path, and names the key and the remedy.
HuggingFaceConfig parse_config(std::string_view json, const std::string& where);

/// The architecture of options. Throws Error if they are of no known architecture, or use an option that transformers lacks.
HuggingFaceConfig config_of(const nn::DecoderLMOptions& options);

/// The text of config.json. `dtype` is that of the parameters.
std::string config_text(const HuggingFaceConfig& config, DType dtype);

}  // namespace tern::models
