#include "backend/loaded_kernel.h"

#include "cuda/runtime/launch.h"

namespace tern::gpu {

namespace {

using Library = std::shared_ptr<std::remove_pointer_t<cudaLibrary_t>>;

class LibraryKernel final : public backend::LoadedKernel {
 public:
  LibraryKernel(Library library, const char* name) : library_(std::move(library)) {
    check(cudaLibraryGetKernel(&kernel_, library_.get(), name), "cudaLibraryGetKernel");
  }

  void launch(const backend::LaunchSize& size, std::span<const void* const> parameters, Stream stream) const override {
    use(stream);
    const void* const kernel = reinterpret_cast<const void*>(kernel_);
    allow_shared(kernel, size.shared);
    const auto& [grid, block, shared] = size;
    const cudaLaunchConfig_t config{
        dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), shared, handle(stream), nullptr, 0};
    check(cudaLaunchKernelExC(&config, kernel, const_cast<void**>(parameters.data())), "launch");
  }

 private:
  Library library_;
  cudaKernel_t kernel_{};
};

}  // namespace
}  // namespace tern::gpu

namespace tern::backend {

std::vector<std::unique_ptr<LoadedKernel>> load_kernels(Cuda, Device device, std::string_view code, std::span<const std::string> names) {
  gpu::use({device});
  cudaLibrary_t loaded{};
  gpu::check(cudaLibraryLoadData(&loaded, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cudaLibraryLoadData");
  const gpu::Library library(loaded, cudaLibraryUnload);
  std::vector<std::unique_ptr<LoadedKernel>> kernels;
  for (const std::string& name : names) kernels.push_back(std::make_unique<gpu::LibraryKernel>(library, name.c_str()));
  return kernels;
}

std::string architecture_of(Cuda, Device device) {
  const int major = gpu::attribute(cudaDevAttrComputeCapabilityMajor, device),
            minor = gpu::attribute(cudaDevAttrComputeCapabilityMinor, device);
  return "sm_" + std::to_string(major) + std::to_string(minor) + (major >= 9 ? "a" : "");
}

}  // namespace tern::backend
