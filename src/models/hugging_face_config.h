#pragma once
#include <string>
#include <string_view>

#include "nn/decoder_lm.h"

/// Hugging Face's config.json, as a DecoderLM's options, and back.
namespace tern::models {

enum class Architecture : std::uint8_t { gpt2, llama };

struct HuggingFaceConfig {
  Architecture architecture = Architecture::gpt2;
  nn::DecoderLMOptions options;
};

/// Reads config.json; `where`, its path, begins each message. Throws FileError, which names the key and what to do.
HuggingFaceConfig parse_config(std::string_view json, const std::string& where);

/// The architecture that options describe. Throws Error where none does, or with an option that transformers does not have.
HuggingFaceConfig config_of(const nn::DecoderLMOptions& options);

/// config.json, with the dtype of the parameters.
std::string config_text(const HuggingFaceConfig& config, DType dtype);

}  // namespace tern::models
