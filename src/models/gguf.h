#pragma once
#include <cstdint>
#include <string>

#include "io/gguf.h"
#include "models/language_model.h"

namespace tern::models {

/// Writes a model of GPT-2's or Llama's shape for llama.cpp and load_gguf, with the names and metadata of its convert_hf_to_gguf.py; of the
/// tokens that end a text the first one. `format` is that of the matrices; vectors and the table of learned positions are f32. Formats are
/// those of its llama-quantize, but that a q4_0 file has q8_0, not q6_K, for the head, or for the token table that is the head. Rows that
/// are no whole blocks of 32 are f16. A quantised weight keeps its blocks if they are of the format; others are dequantised first. Throws
/// Error for a model of another shape, an activation that llama.cpp does not compute, a tokenizer of more tokens than the model or with
/// words that it does not know (NFC is left to the caller), FileError, and DiskError: the old file then stays.
void save_gguf(const LanguageModel& model, const std::string& path, io::GgufFormat format = io::GgufFormat::f16);

/// Loads a file, in evaluation mode. Matrices of q8_0 and q4_0 stay in their blocks, as nn::quantize makes them, unless
/// options.dequantizes. The file has "general.architecture" gpt2 or llama and byte-level BPE (GPT-2's, Llama 3's or Qwen 2's words). A
/// matrix of ours whose parts have different formats is dequantised. Draws no random numbers of the thread's generator. Throws FileError
/// for anything else, with its name, before parameters are allocated, and for values out of the range of `dtype`. Throws Error for a dtype
/// that is not floating.
LanguageModel load_gguf(const std::string& path, const LoadOptions& options = {});

/// The options of the model that load_gguf would make, of the file's length. Throws FileError.
nn::DecoderLMOptions gguf_shape(const std::string& path);

namespace detail {
/// Adds the metadata of a model's text. Throws Error.
void add_text(io::GgufMetadata& metadata, const LanguageModel& model);
/// The tokenizer of a file's metadata. Throws FileError.
text::Tokenizer tokenizer_of(const io::GgufMetadata& metadata, const std::string& path);

/// Metadata of a file, checked: every function throws FileError, one line with path and key.
class GgufKeys {
 public:
  GgufKeys(const io::GgufMetadata& metadata, const std::string& path) : metadata_(metadata), path_(path) {}
  /// The value of a key; null if there is none.
  const io::GgufValue* find(const std::string& key) const;
  /// An integer in [least, 2^30], for sizes and ids.
  std::int64_t integer(const std::string& key, std::int64_t least = 1) const;
  /// The same, or `otherwise` for a missing key.
  std::int64_t integer_or(const std::string& key, std::int64_t otherwise, std::int64_t least = 1) const;
  /// A finite number > 0, or `otherwise`; NaN: the key is needed.
  double positive(const std::string& key, double otherwise) const;
  /// A text, or `otherwise`; null: the key is needed.
  std::string text(const std::string& key, const char* otherwise) const;
  /// A list of `type`.
  const io::GgufValue& list(const std::string& key, io::GgufType type) const;
  [[noreturn]] void fail(const std::string& key, const std::string& message) const;

 private:
  const io::GgufMetadata& metadata_;
  const std::string& path_;
};
}  // namespace detail

}  // namespace tern::models
