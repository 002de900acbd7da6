#pragma once
#include <cublasLt.h>

#include <variant>

#include "cuda/gemm/gelu_gemm.h"
#include "cuda/gemm/split_k_bf16.h"
#include "cuda/gemm/tf32_gemm.h"

namespace tern::gpu {

/// One way to compute a GEMM: an algorithm of cuBLASLt, or a kernel of ours.
using GemmAlgorithm = std::variant<cublasLtMatmulAlgo_t, TileConfig, SplitKAlgorithm, GeluGemmAlgorithm>;

}  // namespace tern::gpu
