#pragma once
#include "nn/module.h"

namespace tern::nn {

/// A parameter or buffer of a model.
struct SummaryRow {
  std::string path, kind;  ///< `blocks.0.fc.weight`, and the type of the module that has it: `Linear`
  Shape shape;
  DType dtype = DType::f32;
  std::int64_t count = 0, bytes = 0;
  bool is_buffer = false, is_trained = false;  ///< a parameter that is not trained is frozen
  std::string shared_with;                     ///< the first path of a tensor that came before; it counts there alone
};

/// All tensors of a model, in the order of visit, and what they add up to: tied ones count once.
struct Summary {
  std::vector<SummaryRow> rows;
  std::int64_t parameters = 0, trained = 0, buffers = 0;  ///< elements
  std::int64_t parameter_bytes = 0, buffer_bytes = 0;
};

/// Throws Error where parameters() does.
Summary summary(const Module& module);

/// As a table: a line for each row, and two of totals.
std::string to_string(const Summary& summary);
std::ostream& operator<<(std::ostream& out, const Summary& summary);

}  // namespace tern::nn
