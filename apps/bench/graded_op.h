#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace tern::bench {

/// Tensors by the names of a kernel's parameters.
using Named = std::map<std::string, Tensor>;
using Sizes = std::vector<std::int64_t>;

/// An op that a kernel of the user's own may compute, and its gradient.
struct GradedOp {
  /// The kernel's work in one of the two directions, with lists of its tensors.
  struct Direction {
    const char* formula;
    const char* inputs;
    const char* outputs;
    double bar;  ///< speed-up over composed ops that the course asks for (CMU 11-868, assignment 3); 0: none
  };
  std::string name;
  std::vector<std::string> sizes;                    ///< names of x's dimensions
  std::array<Direction, 2> directions;               ///< forward, backward
  std::function<Tensor(const Named&)> plain, fused;  ///< y of inputs: composed of other ops, and as the library computes it
  std::vector<Sizes> odd, timed;                     ///< to be right at, and to be measured at as well
  double spread = 0;                                 ///< rows of x lie about as far from 0
};
const std::vector<GradedOp>& graded_ops();

/// Names of the kernel's tensors: inputs, then outputs.
std::vector<std::string> tensors_of(const GradedOp& op, bool is_grad);
/// Sizes of an op's tensor, as indices of those of x: gamma (columns) has the last one.
std::vector<std::size_t> dimensions_of(const GradedOp& op, const std::string& tensor);
/// Parameters of its kernel: "const float* x, float* y, int rows, int columns".
std::string parameters_of(const GradedOp& op, bool is_grad);

/// Inputs of both directions, drawn, and their results: f64, of which inputs are numbers of f32.
Named make_values(const GradedOp& op, const Sizes& sizes, Device device);

/// Calls a kernel with the addresses of its tensors, f32, which lie between red zones; outputs hold marks before. Returns what is wrong
/// after it: a write outside, an input that changed, or the first wrong element, with what it depends on. "" if nothing is.
std::string fault_of(const GradedOp& op, bool is_grad, const Sizes& sizes, const Named& values, Device device,
                     const std::function<void(std::span<void* const> tensors)>& kernel);

}  // namespace tern::bench
