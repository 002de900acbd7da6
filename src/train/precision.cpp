#include "train/precision.h"

#include <array>

#include "backend/parse.h"
#include "nn/module.h"
#include "ops/matmul.h"

namespace tern::train {

using namespace nn;  // parameters and their buffers

static constexpr std::array<const char*, 5> names = {"fp32", "tf32", "tf32x3", "bf16", "fp16"};

const char* name(Precision precision) { return names[static_cast<std::size_t>(precision)]; }

std::optional<Precision> precision_of(std::string_view name) { return backend::enum_of<Precision>(name, names.size()); }

DType dtype_of(Precision precision) {
  switch (precision) {
    case Precision::bf16: return DType::bf16;
    case Precision::fp16: return DType::f16;
    default: return DType::f32;
  }
}

static MatmulPrecision matmul_precision_of(Precision precision) {
  switch (precision) {
    case Precision::tf32: return MatmulPrecision::tf32;
    case Precision::tf32x3: return MatmulPrecision::tf32x3;
    default: return MatmulPrecision::fp32;
  }
}

bool has_precision(Precision precision, Device device) { return has_matmul_precision(matmul_precision_of(precision), device); }

PrecisionScope::PrecisionScope(Precision precision) : products_(matmul_precision_of(precision)) {}

void set_precision(nn::Module& module, Precision precision) {
  // Flatten trained parameters first, with f32 masters: to() would round them to 16 bits and keep no master.
  flatten_parameters(module, dtype_of(precision));
  to(module, dtype_of(precision));
}

}  // namespace tern::train
