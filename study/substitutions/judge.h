#pragma once
#include <string>
#include <vector>

#include "substitutions/terms.h"
#include "tensor/tensor.h"

namespace tern::substitutions {

// Note [Judge]
// Both sides are computed by the library's ops in f32, bf16 and f16, and the left one in float64 as well, from the same inputs. Sums, and
// products of matrices, add from left to right, of 16 bits in f32: the order of a kernel depends on shapes and on the processor. Inputs
// have three shapes: one element each; matrices of 2 x 4, 4 x 2 and 4 x 4, in two ways that fit the left side. Their elements are normally
// distributed, subnormal, +-1e25 (in f16 +-6e4), +-1e4, within +-100, +-1, +-0, and in every fourth matrix +-inf or NaN as well. The number
// s is -3, and 0.3.
//
//   exact     equal bits everywhere; any NaN is as any other
//   sound     inf and NaN in the same places, and an error of at most twice the left side's and one unit in the last place of the dtype
//   rejected  else, with the input that shows it, or if the right side has another shape or dtype than the left one

enum class Verdict : std::uint8_t { rejected, sound, exact };
constexpr const char* name(Verdict verdict) {
  constexpr const char* names[] = {"rejected", "sound", "exact"};
  return names[static_cast<int>(verdict)];
}

struct Judgement {
  Verdict verdict = Verdict::rejected;
  double error = 0;    ///< the right side's largest, in units in the last place
  std::string reason;  ///< of a rejection: "bf16, a = 1e+25, b = -1e+25: left 0, right nan, exactly 0"
};

/// Note [Judge]. Constant, so that threads may share it.
class Judge {
 public:
  Judge();
  Judgement operator()(const Terms& terms, Id left, Id right) const;
  /// A term computed by ops, of inputs (..., rows, columns). narrow casts to `low`, widen to f32, or to f64 where that is `low`. Sums and
  /// products are the library's own `by_kernels`.
  static Tensor compute(const Terms& terms, Id id, const std::array<Tensor, input_count>& inputs, DType low, double number,
                        bool by_kernels = false);

 private:
  /// Inputs of one dtype, and the same in float64.
  struct Shaped {
    std::array<Type, input_count> types;
    std::array<Tensor, input_count> low, exact;
  };
  /// Up to three combinations of shapes that the term takes.
  std::vector<std::size_t> fitting(const Terms& terms, Id left) const;
  /// Lowers the verdict by what the two sides are for these inputs.
  void compare(const Terms& terms, Id left, Id right, DType dtype, const Shaped& shaped, double number, Judgement& result) const;
  std::vector<std::vector<Shaped>> shapes_;  ///< by dtype: all combinations, the single element first
};

}  // namespace tern::substitutions
