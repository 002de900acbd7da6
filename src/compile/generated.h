#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compile/cuda_text.h"
#include "compile/kernel_cache.h"

namespace tern::compiler {

/// Text of a header that generated kernels include.
struct DeviceHeader {
  const char* name;  ///< as in an include
  const char* text;
};
/// All of them: cmake/device_headers.cmake writes their texts into the program.
std::span<const DeviceHeader> device_headers();

/// Machine code of a CUDA kernel's text for an architecture such as "sm_90a". By NVRTC, which is loaded at the first call: no program is
/// linked with it. Throws Error with its message.
std::string compile_cuda(const std::string& text, const std::string& architecture);
/// The same, from the cache or for it.
struct CudaCode {
  std::string code;
  bool was_kept = false;  ///< the cache had it
};
CudaCode compile_cuda(const std::string& text, const std::string& architecture, const KernelCache& cache);
/// All that the code depends on, as the cache's key: the text, those of the headers, the architecture, NVRTC and its options.
std::string key_of(const std::string& text, const std::string& architecture);
/// CUDA of a user's own: kernels, and functions of the device.
struct CudaFile {
  std::string name, text;            ///< the name is for messages
  std::vector<std::string> kernels;  ///< as C++ names them: "softmax", "softmax<256>"
};
struct CudaFileCode {
  std::string code;
  std::vector<std::string> names;  ///< of the kernels in it
};
/// Its machine code. Unlike in generated kernels, a product and a sum may become one operation, as by nvcc; headers are the toolkit's, and
/// those of C that nvcc includes unasked are there without one. Throws Error with the first message of NVRTC, which has the line.
CudaFileCode compile_cuda(const CudaFile& file, const std::string& architecture);
/// True if NVRTC can be loaded.
bool has_nvrtc();

/// Kernels of texts.
struct GeneratedKernels {
  std::vector<std::unique_ptr<KernelCall>> kernels;  ///< null where there is no text, or one that could not be compiled
  std::string failure;                               ///< why the first of these could not; else empty
  CompileCounts counts;
};
/// Compiles the texts side by side, each once in a process, unless the cache on disk has their code, and loads them on the device.
GeneratedKernels make_kernels(Device device, const std::vector<std::optional<CudaText>>& texts);

}  // namespace tern::compiler
