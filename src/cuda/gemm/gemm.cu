#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>

#include "backend/file.h"
#include "backend/stream.h"
#include "cuda/device/group.cuh"
#include "cuda/gemm/cublas.h"
#include "cuda/gemm/gemm.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"

// GEMMs by cuBLASLt, or for 3xTF32 by our own kernels. Descriptor, algorithm and workspace size of a problem form a plan; a call looks up
// its plan by a key of numbers and launches it. A plan is made once: from the file of choices, or by timing candidates.
namespace tern::gpu {

// Handles (cublas.h).

namespace {

cublasHandle_t create_handle(Stream stream) {
  void* const workspace = allocate_for_good(cublas_workspace_bytes, "workspace of cuBLAS");
  cublasHandle_t created = nullptr;
  check(cublasCreate(&created), "cublasCreate");
  check(cublasSetStream(created, handle(stream)), "cublasSetStream");
  check(cublasSetWorkspace(created, workspace, cublas_workspace_bytes), "cublasSetWorkspace");
  // Otherwise the partial sums of a split-K GEMM of 16-bit floats would be added in 16 bits.
  const auto math = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  check(cublasSetMathMode(created, math), "cublasSetMathMode");
  return created;
}

}  // namespace

void check(cublasStatus_t code, const char* what) {
  if (code != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    fail("cuda", std::string(what) + ": " + cublasGetStatusString(code));
}

cublasHandle_t cublas(Stream stream) { return HandlePool<cublasHandle_t>::handle_for(stream, create_handle); }

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::f64: return CUDA_R_64F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: fail("matmul", std::string("expected a floating dtype but got ") + name(dtype));
  }
}

cublasComputeType_t compute_type(DType dtype, MatmulPrecision precision) {
  if (dtype == DType::f64) return CUBLAS_COMPUTE_64F;
  return dtype == DType::f32 && precision == MatmulPrecision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// Products in cuBLASLt's terms.

namespace {

/// Number of parts in which an algorithm of cuBLASLt adds up the depth k.
int parts_of(const cublasLtMatmulAlgo_t& algorithm) {
  int parts = 1;
  std::size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof(parts), &written);
  return std::max(parts, 1);
}

/// Largest power of two, up to 16, that divides an address, as its exponent.
int log2_alignment(const void* address) { return __builtin_ctzll(reinterpret_cast<std::uintptr_t>(address) | 16); }

struct Candidate {
  GemmAlgorithm algorithm;
  std::size_t workspace_bytes = 0;
};

constexpr int max_timed = 8;              ///< of cuBLASLt's candidates
constexpr std::int64_t least_depth = 64;  ///< of a part of a sum over k
constexpr double small = 1 << 24;         ///< multiplications

template <class T, cublasStatus_t (*destroy)(T)>
struct Destroyer {
  using pointer = T;
  void operator()(T object) const { destroy(object); }
};

/// A problem in cuBLASLt's terms: operation descriptor and operand layouts. Epilogue addresses are part of the descriptor, so only one
/// thread at a time may use it.
class CublasLtGemm {
 public:
  explicit CublasLtGemm(const GemmProblem& p) {
    cublasLtMatmulDesc_t descriptor = nullptr;
    check(cublasLtMatmulDescCreate(&descriptor, compute_type(p.dtype, p.precision), p.dtype == DType::f64 ? CUDA_R_64F : CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    descriptor_.reset(descriptor);
    set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t(p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t(p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (p.epilogue != Epilogue::none) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE,
          std::uint32_t(p.epilogue == Epilogue::bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_GELU_AUX_BIAS));
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t(cuda_type(p.dtype)));
    }
    if (p.epilogue == Epilogue::bias_gelu) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldc);
    depth_ = p.k;
    is_small_ = static_cast<double>(p.m) * p.n * p.k * p.batch_count < small;
    a_ = make_layout(p, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k, p.lda, p.a_batch_stride);
    b_ = make_layout(p, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n, p.ldb, p.b_batch_stride);
    c_ = make_layout(p, p.m, p.n, p.ldc, p.c_batch_stride);
  }

  /// At most max_count algorithms, itself at most max_timed, for operands of this alignment, ranked by cuBLASLt's model; those that do
  /// not divide the depth of a small product too far come first.
  std::vector<Candidate> algorithms(const GemmOperands& operands, cublasLtHandle_t handle, int max_count) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const std::unique_ptr<cublasLtMatmulPreference_t, Destroyer<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>> owner(
        preference);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t(cublas_workspace_bytes));
    const auto bytes = [](const void* address) { return std::uint32_t(1) << log2_alignment(address); };
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(operands.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(operands.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(operands.c));
    // An epilogue reads the bias in vectors as wide as those in which it writes D, but no attribute gives its alignment.
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::min({bytes(operands.c), bytes(operands.bias), bytes(operands.before_gelu)}));
    std::vector<Candidate> candidates;
    const auto find = [&](cublasLtReductionScheme_t scheme) {
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t(scheme));
      cublasLtMatmulHeuristicResult_t found[max_timed];
      int count = 0;
      if (cublasLtMatmulAlgoGetHeuristic(handle, descriptor_.get(), a_.get(), b_.get(), c_.get(), c_.get(), preference, max_timed, found,
                                         &count) != CUBLAS_STATUS_SUCCESS)
        return;
      for (int i = 0; i < count; ++i)
        if (found[i].state == CUBLAS_STATUS_SUCCESS) candidates.push_back({found[i].algo, found[i].workspaceSize});
    };
    // Adds the partial sums of split-K in the compute type: in 16 bits they would lose float32's precision.
    find(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    // Of a small product the model divides the depth by the number of multiprocessors (0.05 ms for (384, 96) by (96, 16) on an H100), and
    // names no algorithm that does not. So those are added, and one whose parts are longer goes first.
    if (is_small_) find(CUBLASLT_REDUCTION_SCHEME_NONE);
    std::ranges::stable_sort(candidates, {}, [&](const Candidate& candidate) {
      return std::max<std::int64_t>(parts_of(std::get<cublasLtMatmulAlgo_t>(candidate.algorithm)), depth_ / least_depth);
    });
    if (static_cast<int>(candidates.size()) > max_count) candidates.resize(static_cast<std::size_t>(max_count));
    return candidates;
  }

  /// Bytes of workspace that an algorithm needs; none if it cannot be used here.
  std::optional<std::size_t> workspace_bytes(const cublasLtMatmulAlgo_t& algorithm, cublasLtHandle_t handle) const {
    cublasLtMatmulHeuristicResult_t known{};
    if (cublasLtMatmulAlgoCheck(handle, descriptor_.get(), a_.get(), b_.get(), c_.get(), c_.get(), &algorithm, &known) !=
            CUBLAS_STATUS_SUCCESS ||
        known.workspaceSize > cublas_workspace_bytes)
      return {};
    return known.workspaceSize;
  }

  /// Queues the problem that this was constructed from. `out` is c or has its layout.
  cublasStatus_t launch(const GemmProblem& p, const GemmOperands& operands, void* out, double alpha, const cublasLtMatmulAlgo_t& algorithm,
                        void* workspace, std::size_t workspace_bytes, cublasLtHandle_t handle, Stream stream) const {
    if (p.epilogue != Epilogue::none) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    if (p.epilogue == Epilogue::bias_gelu) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.before_gelu);
    const GemmScale scale(alpha, p.dtype), beta(p.write == Write::accumulate ? 1 : 0, p.dtype);
    return cublasLtMatmul(handle, descriptor_.get(), scale.data(), operands.a, a_.get(), operands.b, b_.get(), beta.data(), operands.c,
                          c_.get(), out, c_.get(), &algorithm, workspace, workspace_bytes, gpu::handle(stream));
  }

 private:
  using Layout = std::unique_ptr<cublasLtMatrixLayout_t, Destroyer<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;

  static Layout make_layout(const GemmProblem& p, std::int64_t rows, std::int64_t columns, std::int64_t leading_dimension,
                            std::int64_t batch_stride) {
    cublasLtMatrixLayout_t layout = nullptr;
    check(cublasLtMatrixLayoutCreate(&layout, cuda_type(p.dtype), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                                     leading_dimension),
          "cublasLtMatrixLayoutCreate");
    Layout owner(layout);
    const auto batch_count = static_cast<std::int32_t>(p.batch_count);
    check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch_count, sizeof(batch_count)),
          "cublasLtMatrixLayoutSetAttribute");
    check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride, sizeof(batch_stride)),
          "cublasLtMatrixLayoutSetAttribute");
    return owner;
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const {
    check(cublasLtMatmulDescSetAttribute(descriptor_.get(), attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }

  std::unique_ptr<cublasLtMatmulDesc_t, Destroyer<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>> descriptor_;
  Layout a_, b_, c_;
  std::int64_t depth_ = 0;
  bool is_small_ = false;
};

/// A call of a problem, by any candidate.
struct GemmCall {
  const CublasLtGemm& cublaslt;
  const GemmProblem& problem;
  const GemmOperands& operands;
  double alpha;
  cublasLtHandle_t handle;
  Stream stream;

  /// Candidates from cuBLASLt or, for 3xTF32, which it does not have, from our kernels: all that are worth timing, or one.
  std::vector<Candidate> ranked_candidates(bool are_timed) const {
    if (problem.precision != MatmulPrecision::tf32x3) return cublaslt.algorithms(operands, handle, are_timed ? max_timed : 1);
    std::vector<Candidate> candidates;
    auto configs = tf32_configs(problem, operands, stream);
    configs.resize(std::min<std::size_t>(configs.size(), are_timed ? 4 : 1));
    for (const TileConfig& config : configs) candidates.push_back({config});
    return candidates;
  }
  /// A choice that was read from a file, with its workspace size, if it can be used here.
  std::optional<Candidate> revived(const GemmAlgorithm& algorithm) const {
    if (const auto* const one = std::get_if<cublasLtMatmulAlgo_t>(&algorithm)) {
      const auto bytes = cublaslt.workspace_bytes(*one, handle);
      return bytes ? std::optional(Candidate{algorithm, *bytes}) : std::nullopt;
    }
    const auto configs = tf32_configs(problem, operands, stream);
    const bool serves = std::find(configs.begin(), configs.end(), std::get<TileConfig>(algorithm)) != configs.end();
    return serves ? std::optional(Candidate{algorithm}) : std::nullopt;
  }
  /// Queues it. `out` is c, or memory with its layout.
  cublasStatus_t launch(const Candidate& candidate, void* out, void* workspace, Stream on) const {
    if (const auto* const one = std::get_if<cublasLtMatmulAlgo_t>(&candidate.algorithm))
      return cublaslt.launch(problem, operands, out, alpha, *one, workspace, candidate.workspace_bytes, handle, on);
    tf32_gemm(problem, operands, out, alpha, std::get<TileConfig>(candidate.algorithm), on);
    return CUBLAS_STATUS_SUCCESS;
  }
};

// Choice by timing.

/// Checksum: the sum of all 16-bit words, each times an odd number. In integers, so that the order of additions does not matter.
__global__ void __launch_bounds__(block_size) add_words(const std::uint16_t* data, std::size_t count, unsigned long long* total) {
  unsigned long long sum = 0;
  for (std::size_t i = blockIdx.x * std::size_t(block_size) + threadIdx.x; i < count; i += gridDim.x * std::size_t(block_size))
    sum += data[i] * ((i * 0x9e3779b97f4a7c15ull >> 8) | 1);
  sum = warp_all_reduce<PlusOp<unsigned long long>>(sum);
  if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

/// Checksum of a result, by which results are compared. Waits for the stream.
std::uint64_t checksum_of(const void* data, std::size_t bytes, Stream stream) {
  const Workspace total(sizeof(unsigned long long), stream);
  check(cudaMemsetAsync(total.as<void>(), 0, sizeof(unsigned long long), handle(stream)), "cudaMemsetAsync");
  const unsigned blocks = std::min(1024u, blocks_for(static_cast<std::int64_t>(bytes / 2)));
  launch(add_words, blocks, block_size, 0, stream, static_cast<const std::uint16_t*>(data), bytes / 2, total.as<unsigned long long>());
  unsigned long long sum = 0;
  check(cudaMemcpyAsync(&sum, total.as<void>(), sizeof(sum), cudaMemcpyDeviceToHost, handle(stream)), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(handle(stream)), "cudaStreamSynchronize");
  return sum;
}

/// Times candidates within a graph: there the fills that some need, and the kernels that add up a split-K GEMM, cost more than on a stream,
/// and training steps run as graphs. Overwrites c of an overwriting problem.
class Autotuner {
 public:
  /// `ranked`: by expected speed.
  Autotuner(const std::vector<Candidate>& ranked, const GemmCall& call)
      : ranked_(ranked),
        call_(call),
        workspace_(std::ranges::max(ranked, {}, &Candidate::workspace_bytes).workspace_bytes, call.stream),
        bytes_(bytes_of(call.problem)),
        scratch_(call.problem.write == Write::accumulate ? bytes_ : 0, call.stream),
        // A GEMM that overwrites can be repeated; one that accumulates writes its sum elsewhere.
        out_(call.problem.write == Write::accumulate ? scratch_.as<void>() : call.operands.c),
        graph_stream_(backend::graph_stream(Cuda{}, call.stream.device)) {}

  /// The choice by the rule of the note; null if no candidate can be launched.
  const Candidate* choose() {
    constexpr double noise = 1.03;
    std::vector<Timing> timings;
    double best_us = -1;
    for (const Candidate& one : ranked_) {
      const Timing timing = time(one, best_us);
      if (timing.us < 0) continue;
      timings.push_back(timing);
      if (best_us < 0 || timing.us < best_us) best_us = timing.us;
    }
    const Timing* choice = nullptr;
    for (const Timing& timing : timings) {
      if (timing.us > noise * best_us) continue;
      if (timing.checksum == timings[0].checksum) {
        choice = &timing;
        break;
      }
      if (!choice || timing.us < choice->us) choice = &timing;
    }
    return choice ? choice->candidate : nullptr;
  }

 private:
  struct Timing {
    const Candidate* candidate;
    double us;  ///< negative: the launch failed
    std::uint64_t checksum;
  };

  static std::size_t bytes_of(const GemmProblem& p) {
    return static_cast<std::size_t>((p.batch_count - 1) * p.c_batch_stride + (p.n - 1) * p.ldc + p.m) * size_of(p.dtype);
  }
  bool launch(const Candidate& one, Stream stream) {
    return call_.launch(one, out_, workspace_.as<void>(), stream) == CUBLAS_STATUS_SUCCESS;
  }

  Timing time(const Candidate& one, double best_us) {
    // A fifth of a millisecond for each of three samples; a candidate slower than prune_ratio times the best so far gets only one sample.
    constexpr double sample_us = 200, prune_ratio = 1.2;
    if (!launch(one, call_.stream)) return {&one, -1, 0};                    // the first launch of a kernel loads it
    const std::uint64_t checksum = checksum_of(out_, bytes_, call_.stream);  // waits: after this any stream may read the operands
    double us = sample(*record(one, 1), 1);
    const int repeats = static_cast<int>(std::clamp(sample_us / us, 1.0, 20.0));
    const auto graph = record(one, repeats);
    for (int i = 0; i < 3 && (best_us < 0 || us < prune_ratio * best_us || i == 0); ++i) us = std::min(us, sample(*graph, repeats));
    return {&one, us, checksum};
  }

  std::unique_ptr<backend::Graph> record(const Candidate& one, int repeats) {
    return graph_stream_->record([&] {
      for (int i = 0; i < repeats; ++i) launch(one, graph_stream_->get());
    });
  }

  /// Microseconds per launch, of one launch of the graph.
  double sample(backend::Graph& graph, int repeats) {
    graph.launch();
    const backend::Event begin(graph_stream_->get(), backend::Event::Timing::on);
    graph.launch();
    const backend::Event end(graph_stream_->get(), backend::Event::Timing::on);
    return milliseconds_between(begin, end) * 1e3 / repeats;
  }

  const std::vector<Candidate>& ranked_;
  const GemmCall& call_;
  Workspace workspace_;
  std::size_t bytes_;
  Workspace scratch_;
  void* out_;
  std::unique_ptr<backend::GraphStream> graph_stream_;
};

// File of choices.

/// Numbers that the choice of an algorithm depends on.
using ProblemKey = std::array<std::uint64_t, 11>;
using Choices = std::map<ProblemKey, AlgorithmWords>;

constexpr const char* header = "tern products 6";  // names the format; a file of another format is overwritten

/// FNV-1a, word by word, so that truncated or edited lines are detected.
std::uint64_t checksum_of(const ProblemKey& key, const AlgorithmWords& words) {
  std::uint64_t sum = 0xcbf29ce484222325;
  const auto add = [&](std::uint64_t word) { sum = (sum ^ word) * 0x100000001b3; };
  for (const std::uint64_t word : key) add(word);
  for (const std::uint64_t word : words) add(word);
  return sum;
}

/// Adds the file's choices; malformed lines are ignored.
void read(const std::filesystem::path& path, Choices& choices) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || line != header) return;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    fields >> std::hex;
    ProblemKey key{};
    AlgorithmWords words{};
    std::uint64_t checksum = 0;
    for (std::uint64_t& word : key) fields >> word;
    for (std::uint64_t& word : words) fields >> word;
    if (fields >> checksum && checksum == checksum_of(key, words)) choices.insert_or_assign(key, words);
  }
}

/// A file that cannot be written is not an error: the choices then serve this process only.
void write(const std::filesystem::path& path, const Choices& choices) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::ostringstream text;
  text << header << '\n' << std::hex;
  for (const auto& [key, words] : choices) {
    for (const std::uint64_t word : key) text << word << ' ';
    for (const std::uint64_t word : words) text << word << ' ';
    text << checksum_of(key, words) << '\n';
  }
  backend::replace_file(path, text.str());
}

/// The device's name, as part of a file name.
std::string kind_of(Device device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties");
  std::string name = properties.name;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  return name;
}

std::filesystem::path path_for(const std::string& kind) {
  const std::filesystem::path directory = backend::cache_directory();
  return directory.empty() ? directory : directory / ("products-" + kind + "-cublas-" + std::to_string(cublasLtGetVersion()) + ".txt");
}

struct Cache {
  std::filesystem::path path;
  Choices choices;
};

std::mutex mutex;

/// Choices for the device's kind, read at first use: GPUs of one kind share them, and so give the same bits. Call with the mutex locked.
Cache& cache(Device device) {
  static auto& by_kind = *new std::map<std::string, Cache>;
  static auto& by_device = *new std::map<int, Cache*>;
  Cache*& known = by_device[device.index];
  if (!known) {
    const std::string kind = kind_of(device);
    const auto [place, is_new] = by_kind.try_emplace(kind, Cache{path_for(kind), {}});
    if (is_new && !place->second.path.empty()) read(place->second.path, place->second.choices);
    known = &place->second;
  }
  return *known;
}

/// False with TERN_TUNE=0 in the environment.
bool autotune_is_on() {
  static const bool is_on = [] {
    const char* const value = std::getenv("TERN_TUNE");
    return !value || std::strcmp(value, "0") != 0;
  }();
  return is_on;
}

/// Algorithm that an earlier call or process chose for the problem. Stored in $XDG_CACHE_HOME/tern or ~/.cache/tern, in a file for each
/// kind of GPU and version of cuBLAS.
std::optional<GemmAlgorithm> cached_algorithm(Device device, const ProblemKey& key) {
  const std::lock_guard lock(mutex);
  const Choices& choices = cache(device).choices;
  const auto place = choices.find(key);
  if (place == choices.end()) return {};
  return from_words(place->second);
}

/// Stores a choice for this process and later ones; only for this one if the file cannot be written.
void cache_algorithm(Device device, const ProblemKey& key, const GemmAlgorithm& algorithm) {
  const std::lock_guard lock(mutex);
  Cache& kept = cache(device);
  kept.choices[key] = to_words(algorithm);
  if (kept.path.empty()) return;
  // Keeps choices that other processes have written meanwhile, for later runs.
  Choices all = kept.choices;
  read(kept.path, all);
  write(kept.path, all);
}

// Plans.

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

using Plans = std::unordered_map<ProblemKey, GemmPlan, KeyHash>;

bool is_recording(Stream stream) {
  cudaStreamCaptureStatus status{};
  check(cudaStreamIsCapturing(handle(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

std::optional<Candidate> choose(const GemmCall& call, const ProblemKey& key) {
  constexpr double worth_timing = 1 << 17;  // multiplications: below that a product costs little more than its launch, on any device
  const GemmProblem& p = call.problem;
  const Device device = call.stream.device;
  const bool is_tuned =
      autotune_is_on() && context().kernels.autotune && static_cast<double>(p.m) * p.n * p.k * p.batch_count >= worth_timing;
  if (is_tuned)
    if (const auto algorithm = cached_algorithm(device, key))
      if (auto choice = call.revived(*algorithm)) return choice;
  const bool is_timed = is_tuned && !is_recording(call.stream);
  const auto ranked = call.ranked_candidates(is_timed);
  if (ranked.empty()) return {};
  if (!is_timed) return ranked[0];
  const Candidate* const chosen = Autotuner(ranked, call).choose();
  if (!chosen) return {};
  cache_algorithm(device, key, chosen->algorithm);
  return *chosen;
}

bool gemm_by_plan(const GemmProblem& p, const GemmOperands& operands, double alpha, Stream stream) {
  const auto handle = reinterpret_cast<cublasLtHandle_t>(cublas(stream));  // a cuBLAS handle is a cuBLASLt handle as well
  // Never destroyed, like the handles. Each thread has its own, because addresses are set in a plan's descriptor.
  thread_local auto& all_plans = *new std::unordered_map<int, Plans>;
  constexpr std::size_t max_plans = 4096;  // a kilobyte each, and made again in microseconds, with the same choice
  Plans& plans = all_plans[stream.device.index];
  const ProblemKey key = key_of(p, operands);
  auto place = plans.find(key);
  const bool is_new = place == plans.end();
  if (is_new && plans.size() >= max_plans) plans.clear();
  if (is_new) {
    GemmPlan made{CublasLtGemm(p), {}};
    made.choice = choose({made.cublaslt, p, operands, alpha, handle, stream}, key);
    place = plans.emplace(key, std::move(made)).first;
  }
  GemmPlan& plan = place->second;
  if (!plan.choice) return false;
  const Workspace workspace(plan.choice->workspace_bytes, stream);
  const GemmCall call{plan.cublaslt, p, operands, alpha, handle, stream};
  const cublasStatus_t status = call.launch(*plan.choice, operands.c, workspace.as<void>(), stream);
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

// The first word is the variant's index, which files contain: it must not change.
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
  if (words[0] == 1) return TileConfig{words[1] != 0, static_cast<int>(words[2]), static_cast<int>(words[3]), static_cast<int>(words[4])};
  cublasLtMatmulAlgo_t cublaslt;
  std::memcpy(&cublaslt, &words[1], sizeof(cublaslt));
  return cublaslt;
}

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
