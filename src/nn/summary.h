#pragma once
#include "nn/module.h"

namespace tern::nn {

/// A parameter or buffer of a model.
struct SummaryRow {
  std::string path;          ///< `blocks.0.fc.weight`
  std::string kind;          ///< the type of the module that has it: `Linear`
  Shape shape;               ///< of the tensor
  DType dtype = DType::f32;  ///< of its elements
  std::int64_t count = 0;    ///< elements
  std::int64_t bytes = 0;    ///< of these elements, without padding
  bool is_buffer = false;    ///< state that is not trained, such as running means
  bool is_trained = false;   ///< a parameter that requires a gradient; another one is frozen
  std::string shared_with;   ///< the first path of a tensor that came before; it counts there alone
};

/// All tensors of a model, in the order of visit, and what they add up to: tied ones count once.
struct Summary {
  std::vector<SummaryRow> rows;      ///< tied tensors have a row for each place
  std::int64_t parameters = 0;       ///< elements, trained or frozen
  std::int64_t trained = 0;          ///< elements of those that require gradients
  std::int64_t buffers = 0;          ///< elements
  std::int64_t parameter_bytes = 0;  ///< without gradients and an optimizer's state
  std::int64_t buffer_bytes = 0;     ///< of quantised weights too, which are buffers
};

/// Throws Error where parameters() does.
Summary summary(const Module& module);

/// As a table: a line for each row, and two of totals.
std::string to_string(const Summary& summary);
std::ostream& operator<<(std::ostream& out, const Summary& summary);  ///< the same table

}  // namespace tern::nn
