#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "backend/memory.h"
#include "backend/stream.h"
#include "cuda/runtime/launch.h"

namespace tern::gpu {

void fail_call(cudaError_t code, const char* what) {
  cudaGetLastError();  // clears the error, which is reported here and must not reach the next check
  // The call may have failed for the reason that was reported earlier.
  int index = 0;
  if (cudaGetDevice(&index) == cudaSuccess) backend::throw_if_failed(cuda(index));
  fail("cuda", std::string(what) + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")");
}

unsigned clusters_at_once(const void* kernel, unsigned cluster, unsigned block, std::size_t shared, Stream stream) {
  using Shape = std::tuple<const void*, int, unsigned, unsigned, std::size_t>;
  static std::mutex mutex;
  static auto& known = *new std::map<Shape, unsigned>;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known.try_emplace(Shape{kernel, stream.device.index, cluster, block, shared}, 0);
  if (!is_new) return place->second;
  use(stream);
  allow_shared(kernel, shared);
  int found = 0;
  if (cluster == 1) {
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, static_cast<int>(block), shared),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    found *= attribute(cudaDevAttrMultiProcessorCount, stream.device);
  } else {
    cudaLaunchAttribute size{};
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim = {cluster, 1, 1};
    const cudaLaunchConfig_t config{cluster, block, shared, nullptr, &size, 1};
    check(cudaOccupancyMaxActiveClusters(&found, kernel, &config), "cudaOccupancyMaxActiveClusters");
  }
  return place->second = static_cast<unsigned>(found);
}

}  // namespace tern::gpu

namespace tern::backend {

using gpu::check;
using gpu::handle;

int device_count(Cuda) {
  static const int count = [] {
    int found = 0;
    if (cudaGetDeviceCount(&found) == cudaSuccess) return found;
    cudaGetLastError();  // no driver or no device: only the CPU
    return 0;
  }();
  return count;
}

// From pageable memory the runtime stages the bytes before it returns, so the source may be reused at once, and the host does not wait for
// earlier work of the stream.
void copy_from_host(Cuda, void* destination, const void* source, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  gpu::use(stream);
  check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyHostToDevice, handle(stream)), "copy to the device");
}

void* allocate_pinned(Cuda, std::size_t bytes, Device device) {
  gpu::use({device, nullptr});
  void* data = nullptr;
  cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    release_cached_memory(Cpu{});  // of the host, as pinned memory is
    code = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
  }
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory("[cuda] expected " + std::to_string(bytes) + " bytes of pinned memory but got none: use smaller batches");
  }
  check(code, "allocate pinned memory");
  return data;
}

void free_pinned(Cuda, void* data) noexcept { cudaFreeHost(data); }

void copy_to_host(Cuda, void* destination, const void* source, std::size_t bytes, Stream stream) {
  gpu::use(stream);
  if (bytes > 0) check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, handle(stream)), "copy to the host");
  check(cudaStreamSynchronize(handle(stream)), "copy to the host");
  throw_if_failed(stream.device);
}

void synchronize(Cuda, Stream stream) {
  gpu::use(stream);
  check(cudaStreamSynchronize(handle(stream)), "synchronize");
  throw_if_failed(stream.device);
}

/// Enables peer access from one device to another, once for each pair. For a pair without it, the runtime copies through the host.
static void enable_peer_access(Device device, Device peer) {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> done;
  const std::lock_guard lock(mutex);
  if (!done.insert({device.index, peer.index}).second) return;
  int can_access = 0;
  check(cudaDeviceCanAccessPeer(&can_access, device.index, peer.index), "cudaDeviceCanAccessPeer");
  if (!can_access) return;
  gpu::use({device});
  if (const cudaError_t code = cudaDeviceEnablePeerAccess(peer.index, 0); code == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
  else check(code, "cudaDeviceEnablePeerAccess");
}

void copy_between(Cuda, void* destination, Stream destination_stream, const void* source, Stream source_stream, std::size_t bytes) {
  if (bytes == 0) return;
  const Device from = source_stream.device, to = destination_stream.device;
  enable_peer_access(from, to);
  enable_peer_access(to, from);
  // The destination may be in use by work queued before; work queued later on its stream reads the copy.
  wait_stream(source_stream, destination_stream);
  gpu::use(source_stream);
  check(cudaMemcpyPeerAsync(destination, to.index, source, from.index, bytes, handle(source_stream)), "copy between devices");
  wait_stream(destination_stream, source_stream);
}

static cudaEvent_t event_of(const void* event) { return static_cast<cudaEvent_t>(const_cast<void*>(event)); }

void* create_event(Cuda, Device device, bool is_timed) {
  gpu::use({device});
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, is_timed ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreate");
  return event;
}

void record_event(Cuda, void* event, Stream stream) {
  gpu::use(stream);
  check(cudaEventRecord(event_of(event), handle(stream)), "cudaEventRecord");
}

void wait_event(Cuda, const void* event, Stream stream) {
  gpu::use(stream);
  check(cudaStreamWaitEvent(handle(stream), event_of(event), 0), "cudaStreamWaitEvent");
}

bool is_event_reached(Cuda, const void* event) {
  const cudaError_t code = cudaEventQuery(event_of(event));
  if (code != cudaErrorNotReady) check(code, "cudaEventQuery");
  return code == cudaSuccess;
}

void synchronize_event(Cuda, const void* event) { check(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize"); }

double milliseconds_between(Cuda, const void* earlier, const void* later) {
  synchronize_event(Cuda{}, later);
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, event_of(earlier), event_of(later)), "cudaEventElapsedTime");
  return milliseconds;
}

void destroy_event(Cuda, void* event) noexcept { cudaEventDestroy(event_of(event)); }

}  // namespace tern::backend
