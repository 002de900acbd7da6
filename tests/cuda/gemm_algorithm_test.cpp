#include <cstring>

#include "catch.h"
#include "cuda/gemm/gemm.h"

using namespace tern;

TEST_CASE("algorithms of GEMMs come back from the cache's words as they were") {
  const gpu::TileConfig config{.swap_ab = true, .tile_n = 80, .cluster = 3, .slices = 7};
  const auto tile = gpu::from_words(gpu::to_words(config));
  REQUIRE(std::holds_alternative<gpu::TileConfig>(tile));
  CHECK(std::get<gpu::TileConfig>(tile) == config);

  cublasLtMatmulAlgo_t algorithm{};
  for (std::size_t i = 0; i < std::size(algorithm.data); ++i) algorithm.data[i] = i * 0x0123456789abcdefull;
  const auto cublaslt = gpu::from_words(gpu::to_words(algorithm));
  REQUIRE(std::holds_alternative<cublasLtMatmulAlgo_t>(cublaslt));
  CHECK(std::memcmp(&std::get<cublasLtMatmulAlgo_t>(cublaslt), &algorithm, sizeof(algorithm)) == 0);
}
