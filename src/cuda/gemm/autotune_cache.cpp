#include "cuda/gemm/autotune_cache.h"

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "backend/replace_file.h"
#include "cuda/runtime/launch.h"

namespace tern::gpu {

namespace {

using Choices = std::map<ProblemKey, AlgorithmWords>;

constexpr const char* header = "tern products 5";  // names the format; a file of another one is written anew

/// FNV-1a, word by word. A line that was cut off or edited does not carry its words' checksum.
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

/// A file that cannot be written is no error: the choices serve this process alone.
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

/// Empty where the environment names no place.
std::filesystem::path cache_directory() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::filesystem::path(value ? value : "");
  };
  if (const auto cache = variable("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "tern";
  if (const auto home = variable("HOME"); home.is_absolute()) return home / ".cache" / "tern";
  return {};
}

/// The device's name, fit for that of a file.
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

/// The choices for the device's kind, read when they are first asked for: GPUs of one kind share them, and so give the same bits. Under the
/// mutex.
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

// The first word is the variant's index. Files hold these numbers: they must not change.
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
  // Other processes' choices of the meantime stay, for the runs to come.
  Choices all = kept.choices;
  read(kept.path, all);
  write(kept.path, all);
}

}  // namespace tern::gpu
