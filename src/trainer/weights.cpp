#include "trainer/weights.h"

#include <cmath>
#include <map>

#include "autodiff/parameter_buffer.h"
#include "nn/module.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"

namespace tern::train {

std::vector<NamedTensor> copies(parallel::DataParallel* ranks, const std::vector<NamedTensor>& tensors) {
  const NoGrad unrecorded;
  std::vector<NamedTensor> result;
  for (const NamedTensor& entry : tensors) {
    gather(ranks, {entry.tensor});
    result.push_back({entry.name, entry.tensor.device() == cpu ? clone(entry.tensor) : to(entry.tensor.detach(), cpu)});
  }
  return result;
}

void round_masters(parallel::DataParallel* ranks, const nn::Module& model) {
  const NoGrad unrecorded;
  for (const NamedTensor& entry : nn::named_parameters(model)) {
    const Tensor master = master_of(entry.tensor);
    if (!master.defined()) continue;
    gather(ranks, {entry.tensor, master});
    copy_(entry.tensor, cast(master, entry.tensor.dtype()));
  }
}

void write_parameters(parallel::DataParallel* ranks, const nn::Module& model, const std::vector<NamedTensor>& values) {
  const NoGrad unrecorded;
  std::map<std::string, Tensor> by_name;
  for (const NamedTensor& entry : values) by_name[entry.name] = entry.tensor;
  for (const NamedTensor& entry : nn::named_masters(model)) {
    gather(ranks, {entry.tensor});
    copy_(entry.tensor, by_name.at(entry.name));
  }
  round_masters(ranks, model);
}

bool is_finite(parallel::DataParallel* ranks, const std::vector<NamedTensor>& tensors) {
  const NoGrad unrecorded;
  Tensor sums;
  for (const NamedTensor& entry : tensors) {
    gather(ranks, {entry.tensor});
    const Tensor zero = sum(entry.tensor.detach() * 0.0);  // 0 * inf and 0 * NaN are NaN
    sums = sums.defined() ? sums + zero : zero;
  }
  return !sums.defined() || std::isfinite(sums.item<double>());
}

}  // namespace tern::train
