#include "cuda/gemm/gemm.h"

#include <algorithm>
#include <unordered_map>

#include "cuda/gemm/autotune.h"
#include "cuda/gemm/cublas.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"

// GEMMs by cuBLASLt, or for 3xTF32 by our own kernels. Descriptor, algorithm and workspace size of a problem form a plan; a call looks up
// its plan by a key of numbers and launches it.
namespace tern::gpu {

namespace {

ProblemKey key_of(const GemmProblem& p, const GemmOperands& operands) {
  std::uint64_t packed = 0;
  const auto pack = [&](auto value, int bits) { packed = packed << bits | static_cast<std::uint64_t>(value); };
  pack(!context().kernels.autotune, 1);
  pack(p.dtype, 4);
  pack(p.precision, 4);
  pack(p.epilogue, 4);
  pack(p.write == Write::accumulate, 1);
  pack(p.a_transposed, 1);
  pack(p.b_transposed, 1);
  for (const void* address :
       {operands.a, operands.b, static_cast<const void*>(operands.c), operands.bias, static_cast<const void*>(operands.before_gelu)})
    pack(log2_alignment(address), 4);
  const std::array numbers{p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.batch_count, p.a_batch_stride, p.b_batch_stride, p.c_batch_stride};
  ProblemKey key{packed};
  std::transform(numbers.begin(), numbers.end(), key.begin() + 1, [](std::int64_t number) { return static_cast<std::uint64_t>(number); });
  return key;
}

struct KeyHash {
  std::size_t operator()(const ProblemKey& key) const {
    std::uint64_t hash = 0;
    for (const std::uint64_t word : key) hash = (hash ^ word) * 0x9e3779b97f4a7c15, hash ^= hash >> 29;
    return hash;
  }
};

/// A problem that is ready to be launched.
struct GemmPlan {
  CublasLtGemm cublaslt;
  std::optional<Candidate> choice;  ///< none if no algorithm takes the problem
};

/// Candidates from cuBLASLt or, for 3xTF32, which it does not have, from our kernels: all that are worth timing, or one.
std::vector<Candidate> ranked_candidates(const GemmPlan& plan, const GemmProblem& p, const GemmOperands& operands, cublasLtHandle_t handle,
                                         Stream stream, bool are_timed) {
  std::vector<Candidate> candidates;
  if (p.precision != MatmulPrecision::tf32x3) {
    for (const auto& one : plan.cublaslt.algorithms(operands, handle, are_timed ? 8 : 1))
      candidates.push_back({one.algo, one.workspaceSize});
    return candidates;
  }
  auto configs = tf32_configs(p, operands, stream);
  configs.resize(std::min<std::size_t>(configs.size(), are_timed ? 4 : 1));
  for (const TileConfig& config : configs) candidates.push_back({config});
  return candidates;
}

/// `out` is c, or memory with its layout.
cublasStatus_t launch_candidate(const GemmPlan& plan, const Candidate& candidate, const GemmProblem& p, const GemmOperands& operands,
                                void* out, double alpha, cublasLtHandle_t handle, void* workspace, Stream stream) {
  const GemmAlgorithm& algorithm = candidate.algorithm;
  if (const auto* const one = std::get_if<cublasLtMatmulAlgo_t>(&algorithm))
    return plan.cublaslt.launch(p, operands, out, alpha, *one, workspace, candidate.workspace_bytes, handle, stream);
  tf32_gemm(p, operands, out, alpha, std::get<TileConfig>(algorithm), stream);
  return CUBLAS_STATUS_SUCCESS;
}

bool is_recording(Stream stream) {
  cudaStreamCaptureStatus status{};
  check(cudaStreamIsCapturing(handle(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

/// A choice that was read from a file, with its workspace size, if it can be used here.
std::optional<Candidate> revive(const GemmAlgorithm& algorithm, const GemmPlan& plan, const GemmProblem& p, const GemmOperands& operands,
                                cublasLtHandle_t handle, Stream stream) {
  if (const auto* const one = std::get_if<cublasLtMatmulAlgo_t>(&algorithm)) {
    const auto bytes = plan.cublaslt.workspace_bytes(*one, handle);
    return bytes ? std::optional(Candidate{algorithm, *bytes}) : std::nullopt;
  }
  const auto configs = tf32_configs(p, operands, stream);
  const bool serves = std::find(configs.begin(), configs.end(), std::get<TileConfig>(algorithm)) != configs.end();
  return serves ? std::optional(Candidate{algorithm}) : std::nullopt;
}

GemmPlan make_plan(const GemmProblem& p, const ProblemKey& key, const GemmOperands& operands, double alpha, cublasLtHandle_t handle,
                   Stream stream) {
  constexpr double worth_timing = 1 << 22;  // multiplications: below that a product costs little more than its launch, on any device
  GemmPlan plan{CublasLtGemm(p), {}};
  const bool is_tuned =
      autotune_is_on() && context().kernels.autotune && static_cast<double>(p.m) * p.n * p.k * p.batch_count >= worth_timing;
  if (is_tuned)
    if (const auto algorithm = cached_algorithm(stream.device, key)) plan.choice = revive(*algorithm, plan, p, operands, handle, stream);
  if (plan.choice) return plan;
  const bool is_timed = is_tuned && !is_recording(stream);
  const auto ranked = ranked_candidates(plan, p, operands, handle, stream, is_timed);
  if (ranked.empty()) return plan;
  const Candidate* chosen = &ranked[0];
  if (is_timed) {
    chosen = autotune(ranked, p, operands, stream, [&](const Candidate& one, void* out, void* workspace, Stream on) {
      return launch_candidate(plan, one, p, operands, out, alpha, handle, workspace, on) == CUBLAS_STATUS_SUCCESS;
    });
    if (chosen) cache_algorithm(stream.device, key, chosen->algorithm);
  }
  if (chosen) plan.choice = *chosen;
  return plan;
}

bool gemm_by_plan(const GemmProblem& p, const GemmOperands& operands, double alpha, Stream stream) {
  const auto handle = reinterpret_cast<cublasLtHandle_t>(cublas(stream));  // a cuBLAS handle is a cuBLASLt handle as well
  // Never destroyed, like the handles. Each thread has its own, because addresses are set in a plan's descriptor.
  using Plans = std::unordered_map<ProblemKey, GemmPlan, KeyHash>;
  thread_local auto& all_plans = *new std::unordered_map<int, Plans>;
  constexpr std::size_t max_plans = 4096;  // a kilobyte each, and made again in microseconds, with the same choice
  Plans& plans = all_plans[stream.device.index];
  const ProblemKey key = key_of(p, operands);
  auto place = plans.find(key);
  if (place == plans.end() && plans.size() >= max_plans) plans.clear(), place = plans.end();
  if (place == plans.end()) place = plans.emplace(key, make_plan(p, key, operands, alpha, handle, stream)).first;
  GemmPlan& plan = place->second;
  if (!plan.choice) return false;
  const Workspace workspace(plan.choice->workspace_bytes, stream);
  const cublasStatus_t status = launch_candidate(plan, *plan.choice, p, operands, operands.c, alpha, handle, workspace.as<void>(), stream);
  // cuBLASLt's heuristic returns algorithms for 16-bit floats at odd addresses that fail only here.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
    plan.choice.reset();
    return false;
  }
  check(status, "cublasLtMatmul");
  backend::count_flops(2 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k * p.batch_count), true);
  return true;
}

}  // namespace

bool gemm(const GemmProblem& p, const GemmOperands& operands, double alpha, Stream stream) {
  constexpr double worth_tf32x3 = 1 << 26;  // multiplications: below, a launch takes as long as the product
  const bool is_float = p.dtype == DType::f32;
  if (is_float && p.precision == MatmulPrecision::tf32) return gemm_by_plan(p, operands, alpha, stream);
  if (is_float && p.precision == MatmulPrecision::tf32x3 && static_cast<double>(p.m) * p.n * p.k >= worth_tf32x3 &&
      gemm_by_plan(p, operands, alpha, stream))
    return true;
  GemmProblem strict = p;
  strict.precision = MatmulPrecision::fp32;
  return gemm_by_plan(strict, operands, alpha, stream);
}

}  // namespace tern::gpu
