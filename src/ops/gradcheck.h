#pragma once
#include "autodiff/engine.h"

namespace tern {

/// Options of gradcheck() and gradgradcheck().
struct GradcheckOptions {
  double step = 1e-6;      ///< step of the central differences
  double relative = 1e-6;  ///< bounds on |analytic - numeric|: absolute + relative * |numeric|
  double absolute = 1e-7;  ///< likewise
  std::uint64_t seed = 0;  ///< seed of the random weights that reduce all outputs to one number
};

/// Findings of a gradcheck.
struct GradcheckResult {
  bool ok = true;       ///< all elements are within the bounds
  double worst = 0;     ///< the largest |analytic - numeric|
  std::string message;  ///< for a failure: input, element and both values
  /// `ok`, for REQUIRE(gradcheck(f, inputs)).
  explicit operator bool() const { return ok; }
};

/// Compares the gradients of f with central differences, element by element of every floating input that requires a
/// gradient. The outputs are reduced to one number by fixed random weights. The inputs must be f64.
GradcheckResult gradcheck(const TensorFunction& f, const Tensors& inputs, const GradcheckOptions& options = {});

/// As gradcheck, for the gradients of f themselves, with respect to the inputs and to the outputs' gradients.
GradcheckResult gradgradcheck(const TensorFunction& f, const Tensors& inputs, const GradcheckOptions& options = {});

}  // namespace tern
