#pragma once
#include <optional>
#include <string_view>

#include "nn/module.h"
#include "tensor/context.h"

namespace tern::train {

/// Arithmetic and storage of a model, as one option that programs and benches show.
enum class Precision : std::uint8_t {
  fp32,    ///< f32 parameters and strict f32 products
  tf32,    ///< f32 parameters, products with TF32 operands; on a GPU alone
  tf32x3,  ///< f32 parameters, products as exact as fp32's, each of three with TF32 operands; on a Hopper GPU alone
  bf16,    ///< parameters, activations and gradients in 16 bits, float32 within the kernels, in masters and in moments
  fp16,    ///< likewise; gradients below 6e-8 vanish, so that training takes a GradScaler
};
/// "fp32", "tf32", "tf32x3", "bf16", "fp16".
const char* name(Precision precision);
/// The precision of that name, if there is one.
std::optional<Precision> precision_of(std::string_view name);
/// The dtype that parameters are stored in.
DType dtype_of(Precision precision);

/// Whether the device computes so. Where it does not, tf32 and tf32x3 take fp32's products.
bool has_precision(Precision precision, Device device);

/// Stores the module's floating parameters and buffers in the precision's dtype. To be called when the parameters have their first
/// values and lie on their device: those that are trained are flattened, and in 16 bits keep the values that they have now as masters
/// (flatten_parameters). Going back to fp32 restores these. How f32 products are computed is not the module's: see PrecisionScope.
void set_precision(nn::Module& module, Precision precision);

/// While it lives, this thread computes f32 products as the precision says; tf32 and tf32x3 need it around forward and backward.
/// Scopes nest, and what was set before holds again after.
class PrecisionScope {
 public:
  /// fp32, bf16 and fp16 compute f32 products strictly.
  explicit PrecisionScope(Precision precision);

 private:
  MatmulPrecisionMode products_;
};

}  // namespace tern::train
