#pragma once
#include "nn/module.h"

namespace tern::nn {

/// One dtype's parameters of a module, one after the other, and their gradients in the same places.
struct FlatParameters {
  Tensor parameters, gradients;  ///< (N), padding included; the padding is zero and stays zero
  Tensor masters;                ///< (N), f32, the values that parameters of 16 bits are rounded from; else undefined
};

/// Moves the parameters that require gradients into one storage per dtype, each slice aligned to 16 bytes, and binds
/// their gradients to slices of a buffer of the same layout. Every parameter stays an ordinary leaf behind its old
/// handle and keeps its value and gradient. From then on zero_grad costs nothing (Note [Later zeros]: read gradients
/// through grad()), and an optimizer's step is one kernel.
/// Parameters of 16 bits get masters, which optimizers update. Throws Error if parameters of one dtype lie on several devices.
std::vector<FlatParameters> flatten_parameters(Module& module);
/// Moreover stores the parameters in a floating dtype; in 16 bits, the masters keep the values that they have now.
std::vector<FlatParameters> flatten_parameters(Module& module, DType dtype);

/// As named_parameters, with those of 16 bits as their masters, where there are any: what is to be saved.
std::vector<NamedTensor> named_masters(const Module& module);

// What optimizers and clipping build on.

/// The memory of flat parameters or gradients. The type says that gaps between slices are padding, and nobody's data.
class FlatStorage final : public Storage {
 public:
  using Storage::Storage;
  Tensor masters;                     ///< of 16-bit parameters: (N), f32
  std::uint32_t masters_version = 0;  ///< this storage's when its elements were last the rounded masters
};

inline constexpr std::size_t flat_alignment = 16;  ///< bytes

/// True for a window on a FlatStorage.
bool is_flat(const Tensor& x);
/// The window on the masters that a contiguous 16-bit parameter is rounded from, of its shape; undefined where it has none.
Tensor master_of(const Tensor& x);
/// True if `next` begins where `previous` ends, or after padding that belongs to nobody; both contiguous.
bool follows(const Tensor& previous, const Tensor& next);
/// (n): everything from the first element of `first` to the last one of `last`, which follow each other.
Tensor run_of(const Tensor& first, const Tensor& last);
/// An order of tensors in which those of one storage stand together, by offset.
bool lies_before(const Tensor& a, const Tensor& b);
/// The tensors merged into as few one-dimensional windows as possible. Contiguous tensors only.
Tensors contiguous_runs(Tensors tensors);

}  // namespace tern::nn
