#pragma once
#include <string>

#include "models/language_model.h"

namespace tern::lm {

using models::LanguageModel;

/// Loads the run of a training, whose adapters are merged into the weights of the model that it went on from, a directory in Hugging Face's
/// format with a tokenizer.json, or a GGUF file, whose matrices stay quantised. The model is in evaluation mode, and its parameters need no
/// gradients. Throws UsageError for a path that is none of these, FileError for files that are damaged or do not fit together.
LanguageModel load(const std::string& path, const models::LoadOptions& options);

/// The path of a model's tokenizer.json, for a message; for a GGUF file, how to get one.
std::string tokenizer_of(const std::string& path);

/// The options of the model that load() would make. Throws as it does.
nn::DecoderLMOptions shape_of(const std::string& path);

}  // namespace tern::lm
