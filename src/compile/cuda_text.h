#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compile/groups.h"

namespace tern::compiler {

// Note [Generated kernels]
// A group (Note [Groups]) becomes the text of a CUDA kernel. A thread has some elements, as arrays in registers: of adjacent elements of 16
// bytes, or of any others; in a group of rows its part of one row. The text reads the operands that come from outside, runs the calls one
// after the other, each by the functor of its kernel (ops/kernels/functors.h), and writes what others need:
//
//   float r2[4];
//   for (int k = 0; k < 4; ++k) r2[k] = convert<float>(functors::Mul{}(convert<float>(r0[k]), convert<float>(r1[k])));
//
// Sums of columns are parts, one for each block of threads, which the program adds up later (Note [Parts of sums]).
//
// Every result is rounded to its dtype, and no product and sum become one operation, as in the kernels of cuda/pointwise: the bits are
// theirs. Sizes, strides and numbers are arguments, so one text serves many shapes; a width of vectors, the threads of a row and what is
// done are in the text.

/// The text of a kernel, and what a launch of it needs.
struct CudaText {
  static constexpr const char* name = "kernel";
  std::string text;
  std::vector<View> operands;        ///< views as of the group's calls, whose addresses come first among the arguments
  std::vector<Call::Place> places;   ///< theirs
  std::vector<bool> is_written;      ///< whether the kernel writes them
  std::vector<PhiloxState> draws;    ///< after the addresses, strides and numbers
  std::vector<std::byte> arguments;  ///< of one struct; addresses and draws are set at each launch
  /// Sums of columns, whose parts (blocks, columns) an operand is.
  struct ColumnSum {
    View to;
    Call::Place place;  ///< of `to`
    bool adds = false;
    std::size_t operand = 0;
  };
  std::vector<ColumnSum> sums;
  std::size_t draws_at = 0;   ///< where draws begin among them
  std::size_t counts_at = 0;  ///< where the numbers of elements are, one for each group
  std::size_t copies = 1;     ///< groups that it is for, one for each row of blocks
  unsigned blocks = 0, threads = 0;
};

/// The group, and those that do the same, as a kernel; nothing if the texts of these differ. lives_inside(block): only they use it;
/// alignment(place): a power of two that divides its address.
std::optional<CudaText> cuda_text(const Group& group, const std::vector<Call>& calls, const std::function<bool(std::size_t)>& lives_inside,
                                  const std::function<std::size_t(const Call::Place&)>& alignment);

}  // namespace tern::compiler
