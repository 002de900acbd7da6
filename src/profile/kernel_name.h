#pragma once
#include <string>

namespace tern::profile {

/// A readable name of a GPU kernel. Kernels of tern give "adam.cu: update_all", since the mangled name of an anonymous namespace holds the
/// file's name; others the function's name without parameters and template arguments. Names that are not mangled stay as they are.
std::string readable_kernel_name(const std::string& name);

/// True for the readable name of a GEMM kernel: of cuBLAS (nvjet, cutlass, splitKreduce) or of tern.
bool is_product_kernel(const std::string& name);

}  // namespace tern::profile
