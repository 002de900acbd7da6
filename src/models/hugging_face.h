#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/language_model.h"

/// Reading and writing of models in the formats of other libraries: docs/hugging-face.md.
namespace tern::models {

/// Loads a model that Hugging Face's transformers has saved in a directory: config.json and model.safetensors, or several files with
/// model.safetensors.index.json. Its model_type has to be "gpt2" or "llama". The model is in evaluation mode. Draws no random numbers of
/// the thread's generator. Throws FileError for a model_type or an option of config.json that DecoderLM lacks and for tensors other than
/// config.json implies, before parameters are allocated, and for values out of the range of `dtype`. Throws Error for a dtype that is not
/// floating.
nn::DecoderLM load_hugging_face(const std::string& directory, const LoadOptions& options = {});

/// The options of the model that load_hugging_face would make, of config.json's length. Throws FileError.
nn::DecoderLMOptions hugging_face_shape(const std::string& directory);

/// Loads a model likewise, with tokenizer.json, the ids of special tokens in config.json and generation_config.json, and the chat template
/// of chat_template.jinja or tokenizer_config.json. Throws FileError also for a tokenizer of more tokens than the model.
LanguageModel load_language_model(const std::string& directory, const LoadOptions& options = {});

/// Most bytes of tensors in a file, unless another number is given.
inline constexpr std::uint64_t default_file_bytes = 5'000'000'000;

/// Writes a model for transformers and load_hugging_face: config.json, and the tensors in the parameters' dtype, in files of at most
/// max_file_bytes. The directory is made if it is missing. An earlier model in it is replaced (io::save_safetensors_files); other files,
/// such as tokenizer.json, are left alone. Throws Error for a model that is neither a GPT-2 nor a Llama, and FileError or DiskError.
void save_hugging_face(const nn::DecoderLM& model, const std::string& directory, std::uint64_t max_file_bytes = default_file_bytes);

/// Writes a model likewise, and what its text needs, for load_language_model too: tokenizer.json, tokenizer_config.json, and the ids of
/// special tokens in config.json. Throws as save_hugging_face does.
void save_language_model(const LanguageModel& model, const std::string& directory);

namespace detail {

/// Architectures of Hugging Face's that a DecoderLM has.
enum class Architecture : std::uint8_t { gpt2, llama };

/// Contents of config.json.
struct HuggingFaceConfig {
  Architecture architecture = Architecture::gpt2;  ///< `model_type`
  nn::DecoderLMOptions options;                    ///< the model's
};

/// Parses config.json. Throws FileError with a message that begins with `where`, its path, and names the key and the remedy.
HuggingFaceConfig parse_config(std::string_view json, const std::string& where);

/// The architecture of options. Throws Error, of the function `where`, if they are of no known architecture, or use an option that
/// transformers lacks.
HuggingFaceConfig config_of(const nn::DecoderLMOptions& options, const char* where = "save_hugging_face");

/// A tensor of a file and the parameter of the DecoderLM that holds it. A parameter may consist of several tensors, as consecutive rows.
struct TensorName {
  std::string theirs, gguf, ours;  ///< name in Hugging Face's files and in GGUF files, and path of the parameter
  Shape shape;                     ///< shape in Hugging Face's files
  bool transposed = false;         ///< these have (in, out), as GPT-2's Conv1D; GGUF files have (out, in)
};

/// The tensors of a model, layer by layer, those of one parameter in the order of its rows.
std::vector<TensorName> tensor_names(const HuggingFaceConfig& config);

/// The text of config.json. `dtype` is that of the parameters; `begin` and `ends` are tokens as LanguageModel has them.
std::string config_text(const HuggingFaceConfig& config, DType dtype, const std::vector<std::int64_t>& begin,
                        const std::vector<std::int64_t>& ends);

}  // namespace detail

}  // namespace tern::models
