#include "backend/event.h"
#include "backend/memory.h"
#include "cuda/runtime/launch.h"

namespace tern::gpu {

void fail_call(cudaError_t code, const char* what) {
  cudaGetLastError();  // reported here: the next check must not meet it again
  fail("cuda", std::string(what) + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")");
}

}  // namespace tern::gpu

namespace tern::backend {

using gpu::check;
using gpu::handle;

int device_count(Cuda) {
  static const int count = [] {
    int found = 0;
    if (cudaGetDeviceCount(&found) == cudaSuccess) return found;
    cudaGetLastError();  // no driver or no device: the CPU is what there is
    return 0;
  }();
  return count;
}

// From pageable memory the runtime stages the bytes before it returns, so the source is free and nothing waits for the
// stream's earlier work.
void copy_from_host(Cuda, void* destination, const void* source, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  gpu::use(stream);
  check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyHostToDevice, handle(stream)), "copy to the device");
}

void copy_to_host(Cuda, void* destination, const void* source, std::size_t bytes, Stream stream) {
  gpu::use(stream);
  if (bytes > 0) check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, handle(stream)), "copy to the host");
  check(cudaStreamSynchronize(handle(stream)), "copy to the host");
}

void synchronize(Cuda, Stream stream) {
  gpu::use(stream);
  check(cudaStreamSynchronize(handle(stream)), "synchronize");
}

void* mark(Cuda, Stream stream) {
  gpu::use(stream);
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  if (const cudaError_t code = cudaEventRecord(event, handle(stream)); code != cudaSuccess) {
    cudaEventDestroy(event);
    gpu::fail_call(code, "cudaEventRecord");
  }
  return event;
}

double milliseconds_between(Cuda, const void* earlier, const void* later) {
  const auto event = [](const void* moment) { return static_cast<cudaEvent_t>(const_cast<void*>(moment)); };
  float milliseconds = 0;
  check(cudaEventSynchronize(event(later)), "cudaEventSynchronize");
  check(cudaEventElapsedTime(&milliseconds, event(earlier), event(later)), "cudaEventElapsedTime");
  return milliseconds;
}

void forget(Cuda, void* moment) noexcept { cudaEventDestroy(static_cast<cudaEvent_t>(moment)); }

}  // namespace tern::backend
