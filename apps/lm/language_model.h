#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "nn/transformer.h"
#include "text/bpe.h"

namespace tern::lm {

/// A language model with what its text needs.
struct LanguageModel {
  nn::DecoderLM model;  ///< in evaluation mode; its parameters need no gradients
  text::Tokenizer tokenizer;
  std::vector<std::int64_t> begin;  ///< tokens before a text
  std::vector<std::int64_t> ends;   ///< tokens that end a text
  std::string chat_template;        ///< of tokenizer_config.json; "" if there is none
};

struct LoadOptions {
  std::string precision = "fp32";  ///< of apps::precision_names
  std::int64_t length = 0;         ///< most tokens of a model with rotary positions; 0: the model's
  Device device = cpu;
  bool dequantizes = false;  ///< true: the blocks of a GGUF file become parameters
};

/// Loads the run of a training, whose adapters are merged into the weights of the model that it went on from, a directory in Hugging Face's
/// format with a tokenizer.json, or a GGUF file, whose matrices stay quantised. Throws UsageError for a path that is none of these,
/// FileError for files that are damaged or do not fit together.
LanguageModel load(const std::string& path, const LoadOptions& options);

/// The path of a model's tokenizer.json, for a message; for a GGUF file, how to get one.
std::string tokenizer_of(const std::string& path);

/// The options of the model that load() would make. Throws as it does.
nn::DecoderLMOptions shape_of(const std::string& path);

}  // namespace tern::lm
