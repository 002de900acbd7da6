#pragma once
#include <memory>
#include <span>

#include "program.h"

namespace study::loops {

/// A program, compiled by `c++ -O3 -march=native` and the library's flags for floats in a private temporary directory, and loaded.
class CpuKernel {
 public:
  /// Throws Error with the compiler's first line, or where there is no compiler.
  explicit CpuKernel(const Program& program);
  /// The caller's tensors in the program's order. Steps of loops of cores are shared out among threads.
  void run(std::span<float* const> tensors, int threads) const;

 private:
  using Function = void (*)(float* const* tensors, long first, long last);
  std::shared_ptr<void> library_;
  std::vector<std::pair<Function, std::int64_t>> nests_;  ///< with their steps that can run at once
};

/// f(tensors) on copies of the values in f32, each between red zones: the outputs after it, in f64. Throws Error if a red zone is written.
std::vector<std::vector<double>> run_between_red_zones(const Program& program, const std::vector<std::vector<double>>& values,
                                                       const std::function<void(std::span<float* const>)>& f);

}  // namespace study::loops
