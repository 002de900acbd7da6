#include "backend/loaded_kernel.h"

#include "cuda/runtime/launch.h"

namespace tern::gpu {

namespace {

class LibraryKernel final : public backend::LoadedKernel {
 public:
  LibraryKernel(std::string_view code, const char* name) {
    check(cudaLibraryLoadData(&library_, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cudaLibraryLoadData");
    if (const cudaError_t result = cudaLibraryGetKernel(&kernel_, library_, name); result != cudaSuccess) {
      cudaLibraryUnload(library_);
      check(result, "cudaLibraryGetKernel");
    }
  }
  ~LibraryKernel() override { cudaLibraryUnload(library_); }
  LibraryKernel(const LibraryKernel&) = delete;
  LibraryKernel& operator=(const LibraryKernel&) = delete;

  void launch(unsigned blocks, unsigned rows, unsigned threads, const void* arguments, Stream stream) const override {
    use(stream);
    void* parameters[] = {const_cast<void*>(arguments)};
    const cudaLaunchConfig_t config{dim3(blocks, rows), dim3(threads), 0, handle(stream), nullptr, 0};
    check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel_), parameters), "launch");
  }

 private:
  cudaLibrary_t library_{};
  cudaKernel_t kernel_{};
};

}  // namespace
}  // namespace tern::gpu

namespace tern::backend {

std::unique_ptr<LoadedKernel> load_kernel(Cuda, Device device, std::string_view code, const char* name) {
  gpu::use({device});
  return std::make_unique<gpu::LibraryKernel>(code, name);
}

std::string architecture_of(Cuda, Device device) {
  const int major = gpu::attribute(cudaDevAttrComputeCapabilityMajor, device),
            minor = gpu::attribute(cudaDevAttrComputeCapabilityMinor, device);
  return "sm_" + std::to_string(major) + std::to_string(minor) + (major >= 9 ? "a" : "");
}

}  // namespace tern::backend
