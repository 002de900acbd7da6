#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "models/hugging_face_config.h"

/// Names of tensors in Hugging Face's files and in a DecoderLM.
namespace tern::models {

/// A tensor of a file and the parameter of the DecoderLM that holds it. A parameter may consist of several tensors, as consecutive rows.
struct TensorName {
  std::string theirs, ours;  ///< name in Hugging Face's files, and path of the parameter
  Shape shape;               ///< shape in the file
  bool transposed = false;   ///< the file has (in, out), as GPT-2's Conv1D
};

/// The tensors of a model, layer by layer, those of one parameter in the order of its rows.
std::vector<TensorName> tensor_names(const HuggingFaceConfig& config);

/// The prefix of an architecture's names, "transformer." or "model.". Files of a model without a head omit it.
std::string_view name_prefix(Architecture architecture);

/// True for a tensor of a file that is not in tensor_names and may be ignored: masks and tables of older files, and the head of a model
/// that ties it to the token table.
bool is_ignored(std::string_view theirs, const HuggingFaceConfig& config);

}  // namespace tern::models
