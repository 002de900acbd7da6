#pragma once
#include <vector>

#include "nn/module.h"
#include "parallel/data_parallel.h"

// The weights of a model in training, of which each rank may keep a part. `ranks` is null for a single process; otherwise all ranks call
// these.
namespace tern::train {

/// Gathers sharded parameters before they are read or written.
inline void gather(parallel::DataParallel* ranks, const Tensors& parameters) {
  if (ranks) ranks->gather(parameters);
}
/// Copies of tensors on the CPU.
std::vector<NamedTensor> copies(parallel::DataParallel* ranks, const std::vector<NamedTensor>& tensors);
/// Sets the parameters to their masters, rounded.
void round_masters(parallel::DataParallel* ranks, const nn::Module& model);
/// Sets the model's parameters of the same names, and their masters.
void write_parameters(parallel::DataParallel* ranks, const nn::Module& model, const std::vector<NamedTensor>& values);
/// True if all values are finite. Waits for the device once.
bool is_finite(parallel::DataParallel* ranks, const std::vector<NamedTensor>& tensors);

}  // namespace tern::train
