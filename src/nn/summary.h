#pragma once
#include "nn/module.h"

namespace tern::nn {

/// Row of a summary: a parameter or buffer of a model.
struct SummaryRow {
  std::string path;          ///< `blocks.0.fc.weight`
  std::string kind;          ///< type of its module: `Linear`
  Shape shape;               ///< shape of the tensor
  DType dtype = DType::f32;  ///< dtype of its elements
  std::int64_t count = 0;    ///< number of elements
  std::int64_t bytes = 0;    ///< bytes of the elements, without padding
  bool is_buffer = false;    ///< state that is not trained, such as running means
  bool is_trained = false;   ///< true for a parameter that requires a gradient; others are frozen
  std::string shared_with;   ///< for a tied tensor that was listed before: its first path, where it is counted
};

/// Summary of all tensors of a model, in the order of visit, with totals in which tied ones count once.
struct Summary {
  std::vector<SummaryRow> rows;      ///< tied tensors have a row for each occurrence
  std::int64_t parameters = 0;       ///< elements, trained or frozen
  std::int64_t trained = 0;          ///< elements of those that require gradients
  std::int64_t buffers = 0;          ///< number of elements
  std::int64_t parameter_bytes = 0;  ///< without gradients and an optimizer's state
  std::int64_t buffer_bytes = 0;     ///< includes quantized weights, which are buffers
};

/// Summarizes a module. Throws Error as parameters() does.
Summary summary(const Module& module);

/// Table with a line for each row, and two lines of totals.
std::string to_string(const Summary& summary);
std::ostream& operator<<(std::ostream& out, const Summary& summary);  ///< the same table

}  // namespace tern::nn
