#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "nn/transformer.h"
#include "text/bpe.h"

namespace tern::models {

/// A language model with what its text needs.
struct LanguageModel {
  nn::DecoderLM model;                   ///< its tensors are shared by copies
  text::Tokenizer tokenizer;             ///< may have fewer tokens than the model
  std::vector<std::int64_t> begin = {};  ///< tokens before a text: one, or none
  std::vector<std::int64_t> ends = {};   ///< tokens that end a text
  std::string chat_template = {};        ///< Jinja text, as in tokenizer_config.json; "": none
};

/// Options of the functions that load models.
struct LoadOptions {
  DType dtype = DType::f32;          ///< dtype of the parameters, to which those of the files are cast
  std::int64_t length = 0;           ///< maximum length in tokens of a model with rotary positions; 0: that of the files
  Device device = default_device();  ///< device of the parameters
  bool dequantizes = false;          ///< true: blocks of a GGUF file become parameters, for training and for Hugging Face's format
};

}  // namespace tern::models
