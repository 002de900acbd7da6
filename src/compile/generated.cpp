#include "compile/generated.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "backend/error.h"
#include "backend/loaded_kernel.h"
#include "backend/sha256.h"

namespace tern::compiler {

namespace {

/// Functions of NVRTC that are called here (https://docs.nvidia.com/cuda/nvrtc), without its header, which only the toolkit has.
struct Nvrtc {
  using Program = void*;
  int (*version)(int* major, int* minor) = nullptr;
  int (*create)(Program*, const char* text, const char* name, int headers, const char* const* texts, const char* const* names) = nullptr;
  int (*add_name)(Program, const char* expression) = nullptr;
  int (*compile)(Program, int count, const char* const* options) = nullptr;
  int (*log_size)(Program, std::size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*code_size)(Program, std::size_t*) = nullptr;
  int (*code)(Program, char*) = nullptr;
  int (*lowered_name)(Program, const char* expression, const char** name) = nullptr;
  int (*destroy)(Program*) = nullptr;

  Nvrtc() {
    void* library = nullptr;
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"})
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    find(version, "nvrtcVersion");
    find(create, "nvrtcCreateProgram");
    find(add_name, "nvrtcAddNameExpression");
    find(compile, "nvrtcCompileProgram");
    find(log_size, "nvrtcGetProgramLogSize");
    find(log, "nvrtcGetProgramLog");
    find(code_size, "nvrtcGetCUBINSize");
    find(code, "nvrtcGetCUBIN");
    find(lowered_name, "nvrtcGetLoweredName");
    find(destroy, "nvrtcDestroyProgram");
  }
  bool is_there() const {
    return version && create && add_name && compile && log_size && log && code_size && code && lowered_name && destroy;
  }
};

const Nvrtc& nvrtc() {
  static const Nvrtc library;
  return library;
}

/// Headers of the standard library and of the toolkit in whose place compile/device/standard.h stands.
constexpr std::array standard_headers = {"bit", "cmath", "cstddef", "cstdint", "limits", "type_traits", "cuda_bf16.h", "cuda_fp16.h"};

constexpr std::array options = {"-std=c++20", "--fmad=false", "--device-as-default-execution-space", "-w"};

/// The same for files of users: headers that are not missed, and options as of nvcc.
constexpr std::array file_headers = {"cfloat", "cmath",    "cstdint", "cstdio",   "cstdlib",       "float.h",
                                     "math.h", "stdint.h", "stdio.h", "stdlib.h", "cuda_runtime.h"};
constexpr std::array file_options = {"-std=c++20",
                                     "--device-as-default-execution-space",
                                     "-w",
                                     "--pre-include=compile/device/user_file.h",
                                     "--include-path=/usr/local/cuda/include",
                                     "--include-path=/usr/local/cuda/include/cccl"};

/// All headers of ours, and others that have this text.
std::vector<DeviceHeader> headers_with(std::span<const char* const> names, const char* text) {
  std::vector<DeviceHeader> headers(device_headers().begin(), device_headers().end());
  for (const char* name : names) headers.push_back({name, text});
  return headers;
}

CudaFileCode run_nvrtc(const CudaFile& file, std::span<const DeviceHeader> headers, std::span<const char* const> flags,
                       const std::string& architecture) {
  const Nvrtc& library = nvrtc();
  if (!library.is_there()) fail("compile", "expected libnvrtc.so, of the CUDA toolkit, on the loader's path but found none");
  std::vector<const char*> names, texts;
  for (const DeviceHeader& header : headers) names.push_back(header.name), texts.push_back(header.text);
  Nvrtc::Program program = nullptr;
  if (library.create(&program, file.text.c_str(), file.name.c_str(), static_cast<int>(names.size()), texts.data(), names.data()) != 0)
    fail("compile", "expected NVRTC to take a program but it refused");
  for (const std::string& kernel : file.kernels) library.add_name(program, kernel.c_str());
  const std::string target = "--gpu-architecture=" + architecture;
  std::vector<const char*> all_flags(flags.begin(), flags.end());
  all_flags.push_back(target.c_str());
  const int result = library.compile(program, static_cast<int>(all_flags.size()), all_flags.data());
  std::string message;
  CudaFileCode found;
  std::size_t size = 0;
  if (result != 0) {
    library.log_size(program, &size);
    message.resize(size);
    library.log(program, message.data());
  } else {
    library.code_size(program, &size);
    found.code.resize(size);
    library.code(program, found.code.data());
    for (const std::string& kernel : file.kernels) {
      const char* name = "";  // of the program's
      library.lowered_name(program, kernel.c_str(), &name);
      found.names.emplace_back(name);
    }
  }
  library.destroy(&program);
  if (result != 0 || found.code.empty())
    fail("compile", "expected a kernel that NVRTC compiles but got: " + message.substr(0, message.find('\n')));
  return found;
}

using Loaded = std::shared_ptr<const backend::LoadedKernel>;

constexpr std::size_t max_kept = 4096;  ///< kernels of a process, of some 20 KiB each

/// A group's kernel with its operands.
class Generated final : public KernelCall {
 public:
  Generated(const CudaText& text, Loaded code) : text_(text), code_(std::move(code)) { text_.text.clear(); }

  const std::type_info& type() const override { return typeid(Generated); }
  std::unique_ptr<KernelCall> copy() const override { return std::make_unique<Generated>(*this); }
  void visit(Visitor& visitor) override {
    for (std::size_t i = 0; i < text_.operands.size(); ++i)
      visitor.view(text_.operands[i], text_.is_written[i] ? kernels::Access::update : kernels::Access::read);
    for (PhiloxState& draw : text_.draws) visitor.random(draw);
  }
  bool reports() const override { return false; }
  void run(Device) const override {
    std::vector<std::byte> arguments = text_.arguments;
    for (std::size_t i = 0; i < text_.operands.size(); ++i) {
      const void* const address = text_.operands[i].data;
      std::memcpy(arguments.data() + i * sizeof(void*), &address, sizeof(void*));
    }
    if (!text_.draws.empty()) std::memcpy(arguments.data() + text_.draws_at, text_.draws.data(), text_.draws.size() * sizeof(PhiloxState));
    const void* const parameter = arguments.data();
    code_->launch({{text_.blocks, static_cast<unsigned>(text_.copies), 1}, {text_.threads, 1, 1}}, {&parameter, 1},
                  text_.operands[0].stream);
  }

 private:
  const void* kernel() const override { return this; }

  CudaText text_;
  Loaded code_;
};

struct LoadedCode {
  Loaded kernel;
  bool was_kept = false;
};

LoadedCode compiled(Device device, const std::string& text, const KernelCache& cache) {
  return with_backend(device, [&](auto dev) -> LoadedCode {
    if constexpr (requires { backend::architecture_of(dev, device); }) {
      const CudaCode found = compile_cuda(text, backend::architecture_of(dev, device), cache);
      const std::string name = CudaText::name;
      return {std::move(backend::load_kernels(dev, device, found.code, {&name, 1})[0]), found.was_kept};
    } else return {};
  });
}

}  // namespace

bool has_nvrtc() { return nvrtc().is_there(); }

std::string compile_cuda(const std::string& text, const std::string& architecture) {
  const auto headers = headers_with(standard_headers, "#include \"compile/device/standard.h\"\n");
  return run_nvrtc({"group.cu", text, {}}, headers, options, architecture).code;
}

CudaFileCode compile_cuda(const CudaFile& file, const std::string& architecture) {
  return run_nvrtc(file, headers_with(file_headers, ""), file_options, architecture);
}

std::string key_of(const std::string& text, const std::string& architecture) {
  static const std::string headers = [] {
    std::string all = fmt::format("{}\n", fmt::join(standard_headers, " "));
    for (const DeviceHeader& header : device_headers()) all += fmt::format("{} {}\n", header.name, backend::sha256(header.text));
    return backend::sha256(all);
  }();
  int major = 0, minor = 0;
  if (nvrtc().is_there()) nvrtc().version(&major, &minor);
  return backend::sha256(
      fmt::format("{}\n{}.{}\n{}\n{}\n{}\n{}", cache_format, major, minor, architecture, fmt::join(options, " "), headers, text));
}

CudaCode compile_cuda(const std::string& text, const std::string& architecture, const KernelCache& cache) {
  const std::string key = key_of(text, architecture);
  if (std::optional<std::string> code = cache.find(key)) return {std::move(*code), true};
  CudaCode result{compile_cuda(text, architecture)};
  cache.keep(key, result.code);
  return result;
}

GeneratedKernels make_kernels(Device device, const std::vector<std::optional<CudaText>>& texts) {
  static std::mutex mutex;
  static auto& kept = *new std::map<std::pair<int, std::string>, Loaded>;  // never destroyed: the runtime may be gone by then
  const std::lock_guard lock(mutex);
  if (kept.size() + texts.size() > max_kept) kept.clear();
  std::vector<std::pair<const std::pair<int, std::string>, Loaded>*> missing;
  for (const std::optional<CudaText>& text : texts) {
    if (!text || text->operands.empty()) continue;
    const auto entry = kept.try_emplace({device.index, text->text}).first;
    if (!entry->second && std::find(missing.begin(), missing.end(), &*entry) == missing.end()) missing.push_back(&*entry);
  }
  GeneratedKernels result;
  const KernelCache cache(backend::cache_directory());
  const auto start = std::chrono::steady_clock::now();
  std::atomic<std::size_t> next = 0;
  std::mutex counting;
  const auto work = [&] {
    for (std::size_t i = next++; i < missing.size(); i = next++) try {
        const LoadedCode found = compiled(device, missing[i]->first.second, cache);
        missing[i]->second = found.kernel;
        const std::lock_guard one(counting);
        ++(found.was_kept ? result.counts.kept : result.counts.compiled);
      } catch (const std::exception& error) {
        const std::lock_guard one(counting);
        if (result.failure.empty()) result.failure = error.what();
      }
  };
  const std::size_t threads = std::min<std::size_t>({std::max(1u, std::thread::hardware_concurrency()), 16, missing.size()});
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  others.clear();
  if (result.counts.compiled > 0) cache.trim();
  result.counts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const std::optional<CudaText>& text : texts) {
    const auto found = text ? kept.find({device.index, text->text}) : kept.end();
    const Loaded code = found != kept.end() ? found->second : nullptr;
    result.kernels.push_back(code ? std::make_unique<Generated>(*text, code) : nullptr);
  }
  return result;
}

}  // namespace tern::compiler
