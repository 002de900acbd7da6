#pragma once
#include <string>

namespace tern::profile {

/// A GPU kernel's name for people: "adam.cu: update_all" of a mangled one of ours, whose anonymous namespace holds the file's name, and
/// otherwise the function's name without parameters and template arguments. Names that are not mangled stay as they are.
std::string readable_kernel_name(const std::string& name);

/// True for a GEMM kernel by its readable name: those of cuBLAS (nvjet, cutlass, splitKreduce), and ours.
bool is_product_kernel(const std::string& name);

}  // namespace tern::profile
