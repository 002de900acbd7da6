#pragma once
#include <cublasLt.h>

#include <array>
#include <variant>
#include <vector>

#include "tensor/context.h"
#include "tensor/view.h"

// GEMMs: the problem, 3xTF32, which cuBLASLt does not have, and the choice of an algorithm.
namespace tern::gpu {

/// Epilogue of a GEMM: work on the result while it is still in registers.
enum class Epilogue : std::uint8_t {
  none,
  bias,       ///< adds the bias (m) to each column of c
  bias_gelu,  ///< bias, then gelu_tanh; the value before GELU is written as well
};

/// Batch of GEMMs, column-major as in BLAS: c (m, n) = a (m, k) b (k, n). Holds everything that the choice of an algorithm depends on,
/// except the operands' addresses.
struct GemmProblem {
  DType dtype = DType::f32;
  MatmulPrecision precision = MatmulPrecision::fp32;  ///< for float32
  Epilogue epilogue = Epilogue::none;
  Write write = Write::overwrite;
  bool a_transposed = false, b_transposed = false;  ///< (k, m) and (n, k) in memory
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  ///< leading dimensions: elements from column to column in memory
  std::int64_t batch_count = 1, a_batch_stride = 0, b_batch_stride = 0, c_batch_stride = 0;
};

struct GemmOperands {
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  void* before_gelu = nullptr;  ///< with c's layout; written by bias_gelu
};

/// Queues alpha a b, added to c if the problem accumulates, with the algorithm of Note [Choice of algorithms]. Returns false, with nothing
/// queued, if there is none.
bool gemm(const GemmProblem& problem, const GemmOperands& operands, double alpha, Stream stream);

/// Note [3xTF32]
/// A float x is big + small + e, where big is x in TF32's 11 bits, small is x - big in as many, and e is below 2^-21 x. Then a b = big big
/// + big small + small big to within float32's own error, and tensor cores compute the three products in less than half of the time that
/// float32 takes without them. Two things decide whether the sum is as accurate as SGEMM's. Tensor cores truncate towards zero when they
/// add, where float32 rounds, so a sum of thousands drifts (to 1e-4 at a depth of 10,000, where SGEMM's error is 1e-6): only a depth of 32
/// is summed there, small products first, and those sums are added in float32. And the parts are computed where they are needed, in
/// registers and shared memory: written to memory, those of a gradient of logits alone would take as long as the GEMM. An infinite operand
/// gives NaN, because its small part is NaN.

/// Tiles of 128 x `tile_n` elements of c, or of c^T, each with its depth divided into splits of (nearly) equal length.
struct TileConfig {
  bool swap_ab = false;  ///< tiles of c^T = b^T a^T, with the operands swapped
  int tile_n = 128;
  int cluster = 1;  ///< blocks with one split each, which reduce their sums through DSMEM
  int slices = 1;   ///< clusters for each tile (split-K slices), whose sums the last one adds in global memory
  bool operator==(const TileConfig&) const = default;

  int splits() const { return cluster * slices; }
};

/// True if the device has tf32_gemm: compute capability 9, in a build for sm_90a.
bool has_tf32_gemm(Device device);

/// All configurations of tf32_gemm for a problem, the fastest first by a model of the device. None if the device has none (then cuBLASLt
/// computes the problem) or the operands allow none.
std::vector<TileConfig> tf32_configs(const GemmProblem& problem, const GemmOperands& operands, Stream stream);

/// Queues alpha a b, added to c if the problem accumulates, into `out`, which is c or has its layout. Deterministic for a given
/// configuration.
void tf32_gemm(const GemmProblem& problem, const GemmOperands& operands, void* out, double alpha, const TileConfig& config, Stream stream);

/// Note [Choice of algorithms]
/// cuBLASLt ranks its algorithms by a model of the device that is off by up to a fifth, for small products by much more, so the first eight
/// are timed once for each new kind of problem, in a graph, where they take as long as in a step's; for 3xTF32 the first four of
/// tf32_configs. The winner determines how sums are split, and so the last bits. To give the same bits in every later run on a machine, the
/// choice is kept in a file, and a choice other than the first is taken only if it is faster by more than the noise; among equals, one
/// whose result is the first's bit for bit. Nothing is timed during graph capture, nor for problems that take no time: those get the first
/// candidate. Within NoAutotune, which decoding uses, all do; and with TERN_TUNE=0 in the environment all do everywhere, and the file is
/// neither read nor written: the same bits on every machine of a kind.

/// Algorithm of a GEMM: one of cuBLASLt's, or a configuration of tf32_gemm.
using GemmAlgorithm = std::variant<cublasLtMatmulAlgo_t, TileConfig>;

/// Kind of an algorithm and its parameters, as stored in the file.
using AlgorithmWords = std::array<std::uint64_t, 9>;
AlgorithmWords to_words(const GemmAlgorithm& algorithm);
GemmAlgorithm from_words(const AlgorithmWords& words);
}  // namespace tern::gpu
