#pragma once
#include <optional>
#include <string_view>

#include "nn/module.h"
#include "tensor/context.h"

namespace tern::train {

/// Precision of a model's arithmetic and storage, as one option of programs and benchmarks.
enum class Precision : std::uint8_t {
  fp32,    ///< f32 parameters and strict f32 products
  tf32,    ///< f32 parameters, products with TF32 operands; only on a GPU
  tf32x3,  ///< f32 parameters, products as accurate as fp32's, each from three with TF32 operands; only on a Hopper GPU
  bf16,    ///< parameters, activations and gradients in 16 bits; float32 within kernels, in masters and in moments
  fp16,    ///< likewise; gradients below 6e-8 underflow, so training needs a GradScaler
};
/// Name of a precision: "fp32", "tf32", "tf32x3", "bf16", "fp16".
const char* name(Precision precision);
/// Precision of that name; none for any other name.
std::optional<Precision> precision_of(std::string_view name);
/// Dtype in which parameters are stored.
DType dtype_of(Precision precision);

/// True if the device has this precision. Otherwise tf32 and tf32x3 use fp32's products.
bool has_precision(Precision precision, Device device);

/// Stores the module's floating parameters and buffers in the precision's dtype. Call it when the parameters are initialized and on their
/// device: trained parameters are flattened, and in 16 bits their current values are kept as masters (flatten_parameters). Going back to
/// fp32 restores those. The precision of f32 products is not a property of the module: see PrecisionScope.
void set_precision(nn::Module& module, Precision precision);

/// Scope in which this thread computes f32 products in the precision; tf32 and tf32x3 need it around forward and backward. Scopes may be
/// nested; the previous setting is restored.
class PrecisionScope {
 public:
  /// fp32, bf16 and fp16 compute f32 products strictly.
  explicit PrecisionScope(Precision precision);

 private:
  MatmulPrecisionMode products_;
};

}  // namespace tern::train
