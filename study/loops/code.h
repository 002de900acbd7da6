#pragma once
#include "program.h"

namespace study::loops {

/// A program as C++: a function `void loops_N(float* const* tensors, long first, long last)` for each nest of loops, of the steps of its
/// outermost loop, or of all of it where that is not bound to cores. `tensors` are the caller's.
std::string cpp_text(const Program& program);
/// A program as CUDA: a kernel `loops_N` for each nest of loops, whose parameter is a struct of the caller's tensors.
std::string cuda_text(const Program& program);
/// The name of the function of a nest, and how often its outermost loops run at once: steps of a loop of cores, blocks.
std::string function_name(std::size_t nest);
std::int64_t steps_of(const Program& program, std::size_t nest, Bind bind);

}  // namespace study::loops
