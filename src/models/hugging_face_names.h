#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "models/hugging_face_config.h"

/// Hugging Face's names of tensors, and those of a DecoderLM.
namespace tern::models {

/// A tensor of theirs, which is all of a parameter of ours or its next rows: those of one parameter stand in order.
struct TensorName {
  std::string theirs, ours;
  Shape shape;              ///< of theirs
  bool transposed = false;  ///< theirs is (in, out): GPT-2's Conv1D
};

/// All tensors of a model, layer by layer.
std::vector<TensorName> tensor_names(const HuggingFaceConfig& config);

/// The prefix of a model's names, which the file of a model without a head leaves out: "transformer." or "model.".
std::string_view name_prefix(Architecture architecture);

/// Whether a tensor that tensor_names does not list is none of the model's: masks and tables that older files have, and the head of a model
/// that ties it to the token table.
bool is_ignored(std::string_view theirs, const HuggingFaceConfig& config);

}  // namespace tern::models
