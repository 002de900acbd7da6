#pragma once
#include <map>
#include <string>

#include "common/lists.h"
#include "tensor/dtype.h"

// Lists and dtypes of the flags of tern-bench.
namespace tern::bench {

using apps::words, apps::numbers, apps::reals, apps::list_of;

/// Floating dtypes by their names in flags, with their names in rows.
inline const std::map<std::string, std::pair<DType, const char*>>& float_modes() {
  static const auto& modes = *new std::map<std::string, std::pair<DType, const char*>>{{"fp32", {DType::f32, "float32"}},
                                                                                       {"fp16", {DType::f16, "float16"}},
                                                                                       {"bf16", {DType::bf16, "bfloat16"}},
                                                                                       {"fp64", {DType::f64, "float64"}}};
  return modes;
}

}  // namespace tern::bench
