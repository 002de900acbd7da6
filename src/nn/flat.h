#pragma once
#include "nn/module.h"

namespace tern::nn {

/// One dtype's parameters of a module, one after the other, and their gradients in the same places.
struct FlatParameters {
  Tensor parameters, gradients;  ///< (N), padding included; the padding is zero and stays zero
};

/// Moves the parameters that require gradients into one storage per dtype, each slice aligned to 16 bytes, and binds
/// their gradients to slices of a buffer of the same layout. Every parameter stays an ordinary leaf behind its old
/// handle and keeps its value and gradient. From then on zero_grad is one fill, and an optimizer's step one kernel.
/// Throws Error if parameters of one dtype lie on several devices.
std::vector<FlatParameters> flatten_parameters(Module& module);

// What optimizers and clipping build on.

/// The memory of flat parameters or gradients. The type says that gaps between slices are padding, and nobody's data.
class FlatStorage final : public Storage {
 public:
  using Storage::Storage;
};

inline constexpr std::size_t flat_alignment = 16;  ///< bytes

/// True for a window on a FlatStorage.
bool is_flat(const Tensor& x);
/// True if `next` begins where `previous` ends, or after padding that belongs to nobody; both contiguous.
bool follows(const Tensor& previous, const Tensor& next);
/// (n): everything from the first element of `first` to the last one of `last`, which follow each other.
Tensor run_of(const Tensor& first, const Tensor& last);
/// An order of tensors in which those of one storage stand together, by offset.
bool lies_before(const Tensor& a, const Tensor& b);
/// The tensors merged into as few one-dimensional windows as possible. Contiguous tensors only.
Tensors contiguous_runs(Tensors tensors);

}  // namespace tern::nn
