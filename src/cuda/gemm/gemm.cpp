#include "cuda/gemm/gemm.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <variant>
#include <vector>

#include "backend/graph.h"
#include "cuda/gemm/autotune.h"
#include "cuda/gemm/checksum.h"
#include "cuda/gemm/cublas.h"
#include "cuda/gemm/split_k_bf16.h"
#include "cuda/gemm/tf32_gemm.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/stream.h"

// Products by cuBLASLt, and of float32 by a kernel of ours. Descriptions, algorithm and workspace size of a product make a plan; a call
// looks its plan up by a key of numbers and launches it.
namespace tern::gpu {

namespace {

constexpr std::size_t most_workspace = std::size_t(32) << 20;  // what cuBLAS recommends for sm_90

template <class T, cublasStatus_t (*destroy)(T)>
struct Destroyer {
  using pointer = T;
  void operator()(T object) const { destroy(object); }
};
using Description = std::unique_ptr<cublasLtMatmulDesc_t, Destroyer<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using MatrixLayout = std::unique_ptr<cublasLtMatrixLayout_t, Destroyer<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreference_t, Destroyer<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

/// The largest power of two, up to 16, that divides an address, as a power.
std::int64_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 16;
  return __builtin_ctzll(address);
}

ProductKey key_of(const Product& p, const ProductOperands& at) {
  std::int64_t packed = 0;
  const auto pack = [&](std::int64_t value, int bits) { packed = packed << bits | value; };
  pack(static_cast<std::int64_t>(p.dtype), 4);
  pack(static_cast<std::int64_t>(p.precision), 4);
  pack(static_cast<std::int64_t>(p.epilogue), 4);
  pack(p.write == Write::accumulate, 1);
  pack(p.a_transposed, 1);
  pack(p.b_transposed, 1);
  for (const void* address : {at.a, at.b, static_cast<const void*>(at.c), at.bias, static_cast<const void*>(at.before_gelu)})
    pack(alignment_of(address), 4);
  return {packed, p.m, p.n, p.k, p.a_leading, p.b_leading, p.c_leading, p.count, p.a_step, p.b_step, p.c_step};
}

struct KeyHash {
  std::size_t operator()(const ProductKey& key) const {
    std::uint64_t hash = 0;
    for (const std::int64_t word : key) hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15, hash ^= hash >> 29;
    return hash;
  }
};

/// A way to compute a product, and what memory cuBLASLt wants for it.
struct Candidate {
  ProductAlgorithm algorithm;
  std::size_t workspace = 0;
};

/// A product that is ready to be launched.
struct Plan {
  Description description;
  MatrixLayout a, b, c;
  Candidate choice;
  bool is_supported = false;
};

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::f64 ? CUDA_R_64F : dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

MatrixLayout matrix(const Product& p, std::int64_t rows, std::int64_t columns, std::int64_t leading, std::int64_t step) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, data_type(p.dtype), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                                   leading),
        "cublasLtMatrixLayoutCreate");
  MatrixLayout owner(layout);
  const auto count = static_cast<std::int32_t>(p.count);
  check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
        "cublasLtMatrixLayoutSetAttribute");
  check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step)),
        "cublasLtMatrixLayoutSetAttribute");
  return owner;
}

template <class T>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
}

Plan describe(const Product& p) {
  const bool is_double = p.dtype == DType::f64, takes_tf32 = p.dtype == DType::f32 && p.precision == MatmulPrecision::tf32;
  Plan plan;
  cublasLtMatmulDesc_t description = nullptr;
  check(cublasLtMatmulDescCreate(&description,
                                 is_double    ? CUBLAS_COMPUTE_64F
                                 : takes_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                              : CUBLAS_COMPUTE_32F,
                                 is_double ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  plan.description.reset(description);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t(p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t(p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  if (p.epilogue != Epilogue::none) {
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE,
        std::uint32_t(p.epilogue == Epilogue::bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_GELU_AUX_BIAS));
    set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t(data_type(p.dtype)));
  }
  if (p.epilogue == Epilogue::bias_gelu) set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.c_leading);
  plan.a = matrix(p, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k, p.a_leading, p.a_step);
  plan.b = matrix(p, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n, p.b_leading, p.b_step);
  plan.c = matrix(p, p.m, p.n, p.c_leading, p.c_step);
  return plan;
}

void set_addresses(const Plan& plan, const Product& p, const ProductOperands& at) {
  if (p.epilogue != Epilogue::none) set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias);
  if (p.epilogue == Epilogue::bias_gelu) set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at.before_gelu);
}

std::vector<Candidate> library_algorithms(const Plan& plan, const ProductOperands& at, cublasLtHandle_t library, int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const Preference owner(preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t(most_workspace));
  // Parts of a split sum are added in the type of the arithmetic: in 16 bits they would lose what float32 had.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto bytes = [](const void* address) { return std::uint32_t(1) << alignment_of(address); };
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(at.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(at.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(at.c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(at.c));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library, plan.description.get(), plan.a.get(), plan.b.get(), plan.c.get(),
                                                               plan.c.get(), preference, most, found.data(), &count);
  found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
  std::vector<Candidate> candidates;
  for (const auto& one : found)
    if (one.state == CUBLAS_STATUS_SUCCESS) candidates.push_back({one.algo, one.workspaceSize});
  return candidates;
}

/// The best of cuBLASLt's, which has no 3xTF32, and of ours: all that are worth timing, or one. The deep one is first, as where it is no
/// slower it saves a kernel.
std::vector<Candidate> ranked_candidates(const Plan& plan, const Product& p, const ProductOperands& at, cublasLtHandle_t library,
                                         Stream stream, bool are_timed) {
  std::vector<Candidate> candidates;
  if (p.precision != MatmulPrecision::tf32x3) candidates = library_algorithms(plan, at, library, are_timed ? 8 : 1);
  if (are_timed && has_deep_product(p, at, stream)) candidates.insert(candidates.begin(), Candidate{DeepAlgorithm{}});
  if (p.precision == MatmulPrecision::fp32 || (!are_timed && !candidates.empty())) return candidates;
  auto cuts = tf32_cuts(p, at, stream);
  cuts.resize(std::min<std::size_t>(cuts.size(), are_timed ? 4 : 1));
  for (const Tf32Cut& cut : cuts) candidates.push_back({cut});
  return candidates;
}

/// alpha or beta, in the type of the arithmetic.
struct Factor {
  Factor(double value, DType dtype) : wide(value), narrow(static_cast<float>(value)), is_wide(dtype == DType::f64) {}
  const void* data() const { return is_wide ? static_cast<const void*>(&wide) : &narrow; }
  double wide;
  float narrow;
  bool is_wide;
};

/// `to` is c, or where a trial writes instead.
cublasStatus_t launch_plan(const Plan& plan, const Product& p, const ProductOperands& at, void* to, double alpha, cublasLtHandle_t library,
                           const Workspace& workspace, Stream stream) {
  if (const auto* const cut = std::get_if<Tf32Cut>(&plan.choice.algorithm)) {
    multiply_tf32(p, at, to, alpha, *cut, stream);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (std::holds_alternative<DeepAlgorithm>(plan.choice.algorithm)) {
    multiply_deep(p, at, to, alpha, stream);
    return CUBLAS_STATUS_SUCCESS;
  }
  const Factor scale(alpha, p.dtype), keep(p.write == Write::accumulate ? 1 : 0, p.dtype);
  return cublasLtMatmul(library, plan.description.get(), scale.data(), at.a, plan.a.get(), at.b, plan.b.get(), keep.data(), at.c,
                        plan.c.get(), to, plan.c.get(), std::get_if<cublasLtMatmulAlgo_t>(&plan.choice.algorithm), workspace.as<void>(),
                        plan.choice.workspace, handle(stream));
}

/// Times the algorithms of one product, as parts of a graph: there the fills that some ask for, and the kernels that add a split sum, cost
/// more than on a stream, and graphs are what steps are run as.
class Trial {
 public:
  Trial(Plan& plan, const Product& product, const ProductOperands& at, double alpha, cublasLtHandle_t library, Stream stream,
        std::size_t workspace_bytes)
      : plan_(plan),
        product_(product),
        at_(at),
        alpha_(alpha),
        library_(library),
        stream_(stream),
        workspace_(workspace_bytes, stream),
        bytes_(static_cast<std::size_t>((product.count - 1) * product.c_step + (product.n - 1) * product.c_leading + product.m) *
               size_of(product.dtype)),
        scratch_(product.write == Write::accumulate ? bytes_ : 0, stream),
        // A product that overwrites may be written again and again; one that adds writes its sum elsewhere.
        to_(product.write == Write::accumulate ? scratch_.as<void>() : at.c),
        aside_(backend::graph_stream(Cuda{}, stream.device)) {}

  /// Leaves the plan with the choice. Source of the rule: Note [Choice of algorithms].
  void choose(const std::vector<Candidate>& ranked) {
    constexpr double noise = 1.03;
    std::vector<Result> results;
    double best = -1;
    for (const auto& one : ranked) {
      const Result result = run(one, best);
      if (result.us < 0) continue;
      results.push_back(result);
      if (best < 0 || result.us < best) best = result.us;
    }
    if (results.empty()) {
      plan_.is_supported = false;
      return;
    }
    const Result* choice = nullptr;
    for (const Result& result : results) {
      if (result.us > noise * best) continue;
      if (result.checksum == results[0].checksum) {
        choice = &result;
        break;
      }
      if (!choice || result.us < choice->us) choice = &result;
    }
    take(*choice->candidate);
  }

 private:
  struct Result {
    const Candidate* candidate;
    double us;  ///< negative: refused
    std::uint64_t checksum;
  };

  void take(const Candidate& one) {
    plan_.choice = one;
    plan_.is_supported = true;
  }

  bool launch(Stream stream) {
    return launch_plan(plan_, product_, at_, to_, alpha_, library_, workspace_, stream) == CUBLAS_STATUS_SUCCESS;
  }

  Result run(const Candidate& one, double best) {
    // A fifth of a millisecond for each of three samples; what is clearly slower than the best so far gets no second one.
    constexpr double sample_us = 200, hopeless = 1.2;
    take(one);
    if (!launch(stream_)) return {&one, -1, 0};                        // the first launch of a kernel loads it
    const std::uint64_t checksum = checksum_of(to_, bytes_, stream_);  // waits: from here on the operands are there for any stream
    double us = sample(*recorded(1), 1);
    const int repeats = static_cast<int>(std::clamp(sample_us / us, 1.0, 20.0));
    const auto graph = recorded(repeats);
    for (int i = 0; i < 3 && (best < 0 || us < hopeless * best || i == 0); ++i) us = std::min(us, sample(*graph, repeats));
    return {&one, us, checksum};
  }

  std::unique_ptr<backend::Graph> recorded(int repeats) {
    return aside_->record([&] {
      for (int i = 0; i < repeats; ++i) launch(aside_->get());
    });
  }

  /// Microseconds of one of a graph's launches.
  double sample(backend::Graph& graph, int repeats) {
    graph.launch();
    const TimedEvent begin(aside_->get());
    graph.launch();
    const TimedEvent end(aside_->get());
    return end.microseconds_since(begin) / repeats;
  }

  Plan& plan_;
  const Product& product_;
  const ProductOperands& at_;
  double alpha_;
  cublasLtHandle_t library_;
  Stream stream_;
  Workspace workspace_;
  std::size_t bytes_;
  Workspace scratch_;
  void* to_;
  std::unique_ptr<backend::GraphStream> aside_;
};

bool is_recording(Stream stream) {
  cudaStreamCaptureStatus status{};
  check(cudaStreamIsCapturing(handle(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

/// Whether a choice that was kept in a file serves here; the plan gets its workspace.
bool is_possible(Plan& plan, const Product& p, const ProductOperands& at, cublasLtHandle_t library, Stream stream) {
  if (const auto* const cut = std::get_if<Tf32Cut>(&plan.choice.algorithm)) {
    const auto cuts = tf32_cuts(p, at, stream);
    return std::find(cuts.begin(), cuts.end(), *cut) != cuts.end();
  }
  if (std::holds_alternative<DeepAlgorithm>(plan.choice.algorithm)) return has_deep_product(p, at, stream);
  cublasLtMatmulHeuristicResult_t known{};
  if (cublasLtMatmulAlgoCheck(library, plan.description.get(), plan.a.get(), plan.b.get(), plan.c.get(), plan.c.get(),
                              std::get_if<cublasLtMatmulAlgo_t>(&plan.choice.algorithm), &known) != CUBLAS_STATUS_SUCCESS)
    return false;
  plan.choice.workspace = known.workspaceSize;
  return known.workspaceSize <= most_workspace;
}

Plan make_plan(const Product& p, const ProductKey& key, const ProductOperands& at, double alpha, cublasLtHandle_t library, Stream stream) {
  constexpr double worth_timing = 1 << 22;  // multiplications: some microseconds
  Plan plan = describe(p);
  const bool is_tuned = tuning_is_on() && static_cast<double>(p.m) * p.n * p.k * p.count >= worth_timing;
  if (is_tuned) {
    if (const auto chosen = chosen_algorithm(stream.device, key)) {
      plan.choice = {*chosen};
      plan.is_supported = is_possible(plan, p, at, library, stream);
      if (plan.is_supported) return plan;
    }
  }
  const bool is_timed = is_tuned && !is_recording(stream);
  const auto ranked = ranked_candidates(plan, p, at, library, stream, is_timed);
  if (ranked.empty()) return plan;
  plan.choice = ranked[0];
  plan.is_supported = true;
  if (!is_timed) return plan;
  set_addresses(plan, p, at);
  std::size_t workspace_bytes = 0;
  for (const Candidate& one : ranked) workspace_bytes = std::max(workspace_bytes, one.workspace);
  Trial(plan, p, at, alpha, library, stream, workspace_bytes).choose(ranked);
  if (plan.is_supported) keep_algorithm(stream.device, key, plan.choice.algorithm);
  return plan;
}

bool multiply_by_plan(const Product& p, const ProductOperands& at, double alpha, Stream stream) {
  // The handle of cuBLAS serves cuBLASLt as well.
  const auto library = reinterpret_cast<cublasLtHandle_t>(cublas(stream));
  // Never destroyed, like the handles. Addresses are set in a plan's description, so a thread has its own.
  using Plans = std::unordered_map<ProductKey, Plan, KeyHash>;
  thread_local auto& plans = *new std::unordered_map<int, Plans>;
  Plans& here = plans[stream.device.index];
  const ProductKey key = key_of(p, at);
  auto place = here.find(key);
  if (place == here.end()) place = here.emplace(key, make_plan(p, key, at, alpha, library, stream)).first;
  Plan& plan = place->second;
  if (!plan.is_supported) return false;
  set_addresses(plan, p, at);
  const Workspace workspace(plan.choice.workspace, stream);
  const cublasStatus_t status = launch_plan(plan, p, at, at.c, alpha, library, workspace, stream);
  // What the heuristic offers for 16-bit floats at odd addresses is refused only here.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return plan.is_supported = false;
  check(status, "cublasLtMatmul");
  return true;
}

}  // namespace

bool multiply(const Product& p, const ProductOperands& at, double alpha, Stream stream) {
  constexpr double worth_three = 1 << 26;  // multiplications
  const bool is_float = p.dtype == DType::f32;
  if (is_float && p.precision == MatmulPrecision::tf32) return multiply_by_plan(p, at, alpha, stream);
  if (is_float && p.precision == MatmulPrecision::tf32x3 && static_cast<double>(p.m) * p.n * p.k >= worth_three &&
      multiply_by_plan(p, at, alpha, stream))
    return true;
  Product strict = p;
  strict.precision = MatmulPrecision::fp32;
  return multiply_by_plan(strict, at, alpha, stream);
}

}  // namespace tern::gpu
