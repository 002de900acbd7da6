#pragma once
#include <functional>
#include <string>
#include <vector>

#include "autodiff/anomaly.h"
#include "tensor/tensor.h"
#include "train/precision.h"

// Functions written out in plain ops, as a user writes them who knows no fused ones: what `tern-bench compile` measures.
namespace tern::bench {

/// Sizes of a model; what they are of is in the help of `tern-bench compile`.
struct CompileSizes {
  std::int64_t batch = 0, length = 0, width = 0, layers = 0, vocab = 0;
};

/// A function that is measured: a training step, or a forward pass without gradients.
struct CompileCase {
  std::string model;
  bool is_step = true;
  train::Precision precision = train::Precision::fp32;
  CompileSizes sizes;
};

/// The names of the models.
std::vector<std::string> compile_models();
/// The sizes that a model has without flags.
CompileSizes default_sizes(const std::string& model);
/// The cases of a model: for rows and chains a case for each formula, and no forward pass of an optimizer.
std::vector<CompileCase> cases_of(const std::string& model, bool is_step, train::Precision precision, const CompileSizes& sizes);
/// True if a call may have arguments of another length.
bool has_lengths(const CompileCase& c);

/// A function with parameters of its own, on the device of new tensors.
struct Subject {
  std::function<Tensor(const Tensors&)> function;
  ModuleNames names;  ///< of its modules
};
/// The function as written, from this thread's generator.
Subject make_written(const CompileCase& c);
/// True if there is the same function of fused kernels.
bool has_fused(const CompileCase& c);
/// That function, with parameters of its own.
std::function<Tensor(const Tensors&)> make_fused(const CompileCase& c);
/// Its arguments; `length` is at most that of the sizes.
Tensors make_arguments(const CompileCase& c, std::int64_t length);

}  // namespace tern::bench
