#pragma once
#include <cstdint>
#include <filesystem>

#include "nn/decoder_lm.h"

/// Models of others, in the files that they come in: docs/hugging-face.md.
namespace tern::models {

/// Options of load_hugging_face.
struct HuggingFaceOptions {
  DType dtype = DType::f32;          ///< of the parameters, whatever the files have
  std::int64_t length = 0;           ///< the most tokens, where positions are rotary; 0: as config.json says
  Device device = default_device();  ///< that the parameters are loaded to
};

/// The model of a directory that Hugging Face's transformers has saved: config.json and model.safetensors, or several files with
/// model.safetensors.index.json. Its model_type is "gpt2" or "llama". In evaluation mode, with plain kernels: set_use_fused_kernel(true)
/// has the fused ones. The thread's generator stays where it is. Throws FileError, before memory for a parameter is taken, for a model or
/// an option of config.json that DecoderLM does not have, and where the tensors are not those that config.json asks for; also for numbers
/// that `dtype` does not hold. Throws Error for a dtype that is not floating.
nn::DecoderLM load_hugging_face(const std::filesystem::path& directory, const HuggingFaceOptions& options = {});

/// Options of save_hugging_face.
struct HuggingFaceSaveOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;  ///< of tensors in one file
};

/// Writes a model so that transformers, and load_hugging_face, read it: config.json and the tensors, in the parameters' dtype. The
/// directory is made if need be; a model that was there is replaced, as io::save_safetensors_files says, and other files, a tokenizer.json
/// say, are left alone. Throws Error for a model of neither GPT-2's nor Llama's shape, and FileError or DiskError.
void save_hugging_face(const nn::DecoderLM& model, const std::filesystem::path& directory, const HuggingFaceSaveOptions& options = {});

}  // namespace tern::models
