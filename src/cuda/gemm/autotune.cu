#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "backend/file.h"
#include "backend/stream.h"
#include "cuda/device/group.cuh"
#include "cuda/gemm/autotune.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"

namespace tern::gpu {

namespace {

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

std::size_t max_workspace_bytes(const std::vector<Candidate>& candidates) {
  std::size_t bytes = 0;
  for (const Candidate& one : candidates) bytes = std::max(bytes, one.workspace_bytes);
  return bytes;
}

/// Times candidates within a graph: there the fills that some need, and the kernels that add up a split-K GEMM, cost more than on a stream,
/// and training steps run as graphs.
class Autotuner {
 public:
  Autotuner(const std::vector<Candidate>& ranked, const GemmProblem& p, const GemmOperands& operands, Stream stream,
            const LaunchCandidate& launch)
      : ranked_(ranked),
        launch_(launch),
        stream_(stream),
        workspace_(max_workspace_bytes(ranked), stream),
        bytes_(static_cast<std::size_t>((p.batch_count - 1) * p.c_batch_stride + (p.n - 1) * p.ldc + p.m) * size_of(p.dtype)),
        scratch_(p.write == Write::accumulate ? bytes_ : 0, stream),
        // A GEMM that overwrites can be repeated; one that accumulates writes its sum elsewhere.
        out_(p.write == Write::accumulate ? scratch_.as<void>() : operands.c),
        graph_stream_(backend::graph_stream(Cuda{}, stream.device)) {}

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

  bool launch(const Candidate& one, Stream stream) { return launch_(one, out_, workspace_.as<void>(), stream); }

  Timing time(const Candidate& one, double best_us) {
    // A fifth of a millisecond for each of three samples; a candidate slower than prune_ratio times the best so far gets only one sample.
    constexpr double sample_us = 200, prune_ratio = 1.2;
    if (!launch(one, stream_)) return {&one, -1, 0};                    // the first launch of a kernel loads it
    const std::uint64_t checksum = checksum_of(out_, bytes_, stream_);  // waits: after this any stream may read the operands
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
  const LaunchCandidate& launch_;
  Stream stream_;
  Workspace workspace_;
  std::size_t bytes_;
  Workspace scratch_;
  void* out_;
  std::unique_ptr<backend::GraphStream> graph_stream_;
};

}  // namespace

const Candidate* autotune(const std::vector<Candidate>& ranked, const GemmProblem& problem, const GemmOperands& operands, Stream stream,
                          const LaunchCandidate& launch) {
  return Autotuner(ranked, problem, operands, stream, launch).choose();
}

// File of choices.

namespace {

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

/// Returns an empty path if the environment gives no place.
std::filesystem::path cache_directory() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::filesystem::path(value ? value : "");
  };
  if (const auto cache = variable("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "tern";
  if (const auto home = variable("HOME"); home.is_absolute()) return home / ".cache" / "tern";
  return {};
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
  const std::filesystem::path directory = cache_directory();
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

bool autotune_is_on() {
  static const bool is_on = [] {
    const char* const value = std::getenv("TERN_TUNE");
    return !value || std::strcmp(value, "0") != 0;
  }();
  return is_on;
}

std::optional<GemmAlgorithm> cached_algorithm(Device device, const ProblemKey& key) {
  const std::lock_guard lock(mutex);
  const Choices& choices = cache(device).choices;
  const auto place = choices.find(key);
  if (place == choices.end()) return {};
  return from_words(place->second);
}

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

}  // namespace tern::gpu
