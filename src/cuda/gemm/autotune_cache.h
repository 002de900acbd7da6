#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "backend/device.h"
#include "cuda/gemm/algorithm.h"

namespace tern::gpu {

/// The numbers that the choice of an algorithm depends on.
using ProblemKey = std::array<std::uint64_t, 11>;
/// An algorithm's kind and its parameters, as the file has them.
using AlgorithmWords = std::array<std::uint64_t, 9>;
AlgorithmWords to_words(const GemmAlgorithm& algorithm);
GemmAlgorithm from_words(const AlgorithmWords& words);

/// False with TERN_TUNE=0 in the environment: see Note [Choice of algorithms].
bool autotune_is_on();

/// The algorithm that an earlier call or process chose for the problem. Kept in $XDG_CACHE_HOME/tern or ~/.cache/tern, in a file for each
/// kind of GPU and version of cuBLAS.
std::optional<GemmAlgorithm> cached_algorithm(Device device, const ProblemKey& key);
/// Keeps a choice for this process and later ones; for this one alone where the file cannot be written.
void cache_algorithm(Device device, const ProblemKey& key, const GemmAlgorithm& algorithm);

}  // namespace tern::gpu
