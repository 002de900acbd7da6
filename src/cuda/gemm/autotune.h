#pragma once
#include <cublasLt.h>

#include <array>
#include <optional>
#include <variant>

#include "cuda/gemm/split_k_bf16.h"
#include "cuda/gemm/tf32_gemm.h"

namespace tern::gpu {

/// What the choice of an algorithm depends on, in words.
using ProductKey = std::array<std::int64_t, 11>;

/// One of cuBLASLt's, the kernel of tf32.h with a cut, or that of deep_product.h.
using ProductAlgorithm = std::variant<cublasLtMatmulAlgo_t, Tf32Cut, DeepAlgorithm>;

/// Note [Choice of algorithms]
/// cuBLASLt ranks its algorithms by a model of the device that is off by up to a fifth (a head of 10,000 classes: 697 us, where its
/// second choice takes 578), so the first eight are timed once for each new kind of product, in a graph. A fill of four bytes before a
/// product takes 6 us there. In TF32 the first four of tf32_cuts are timed with them, for 3xTF32 those alone, and of 16-bit floats the
/// kernel of deep_product.h, which counts as the first choice. Which one wins decides how sums are split, and so the last bits. To give the
/// same bits in every later run on a machine, the choice is kept in a file, $XDG_CACHE_HOME/tern or ~/.cache/tern, one for each kind of GPU
/// and version of cuBLAS; and another than the first choice is taken only where it is faster by more than the noise, and among equals one
/// whose result is the first's bit for bit. Nothing is timed while a graph is recorded, nor for products that take no time: those get the
/// first of cuBLASLt's. With TERN_TUNE=0 in the environment all do, and the file is neither read nor written: the same bits on every
/// machine of a kind.
bool tuning_is_on();

/// The choice that an earlier product or process made.
std::optional<ProductAlgorithm> chosen_algorithm(Device device, const ProductKey& key);
/// Keeps a choice for this process and later ones. A file that cannot be written is none.
void keep_algorithm(Device device, const ProductKey& key, const ProductAlgorithm& algorithm);

}  // namespace tern::gpu
