#include "cuda/gemm/algorithm.h"

#include <cstring>

namespace tern::gpu {

// The first word is the variant's index. Files hold these numbers: they stay what they are.
static_assert(sizeof(AlgorithmWords) >= sizeof(std::uint64_t) + sizeof(cublasLtMatmulAlgo_t));

AlgorithmWords to_words(const GemmAlgorithm& algorithm) {
  AlgorithmWords words{algorithm.index()};
  if (const auto* const cublaslt = std::get_if<cublasLtMatmulAlgo_t>(&algorithm)) {
    std::memcpy(&words[1], cublaslt, sizeof(*cublaslt));
  } else if (const auto* const config = std::get_if<TileConfig>(&algorithm)) {
    words[1] = config->swap_ab;
    words[2] = static_cast<std::uint64_t>(config->tile_n);
    words[3] = static_cast<std::uint64_t>(config->cluster);
    words[4] = static_cast<std::uint64_t>(config->slices);
  }
  return words;
}

GemmAlgorithm from_words(const AlgorithmWords& words) {
  if (words[0] == 2) return SplitKAlgorithm{};
  if (words[0] == 3) return GeluGemmAlgorithm{};
  if (words[0] == 1) return TileConfig{words[1] != 0, static_cast<int>(words[2]), static_cast<int>(words[3]), static_cast<int>(words[4])};
  cublasLtMatmulAlgo_t cublaslt;
  std::memcpy(&cublaslt, &words[1], sizeof(cublaslt));
  return cublaslt;
}

}  // namespace tern::gpu
