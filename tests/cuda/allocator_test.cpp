// The promises of the caching allocator and of copies.
#include "cuda/runtime/allocator.h"

#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "backend/stream.h"
#include "catch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/copy.h"
#include "tensor/tensor.h"
#include "twin.h"

namespace tern {

using cuda_test::gpu_stream;

static void* allocate(std::size_t bytes, Stream stream = gpu_stream) { return backend::allocate(Cuda{}, bytes, stream); }
static void deallocate(void* data, std::size_t bytes, Stream stream = gpu_stream) { backend::deallocate(Cuda{}, data, bytes, stream); }

TEST_CASE("Freed memory is handed out again on its stream", "[cuda]") {
  void* const first = allocate(10000);
  deallocate(first, 10000);
  void* const second = allocate(9990);
  CHECK(second == first);
  void* const other = allocate(10000);
  CHECK(other != first);
  deallocate(second, 9990);
  deallocate(other, 10000);

  const gpu::OwnedStream side(cuda());
  void* const elsewhere = allocate(10000, side.get());
  CHECK(elsewhere != first);
  CHECK(elsewhere != other);
  deallocate(elsewhere, 10000, side.get());
}

TEST_CASE("A small request does not take a large block", "[cuda]") {
  gpu::release_cached_memory();
  void* const large = allocate(std::size_t(64) << 20);
  deallocate(large, std::size_t(64) << 20);
  void* const small = allocate(std::size_t(1) << 20);
  CHECK(small != large);
  deallocate(small, std::size_t(1) << 20);
}

TEST_CASE("Memory is counted while it lives and while it is cached", "[cuda]") {
  constexpr std::size_t segment = std::size_t(32) << 20;
  gpu::release_cached_memory();
  const auto before = memory_statistics(cuda());
  CHECK(before.reserved >= before.allocated);
  reset_peak_memory(cuda());
  void* const data = allocate(segment);
  const auto live = memory_statistics(cuda());
  CHECK(live.allocated - before.allocated == segment);
  CHECK(live.reserved - before.reserved == segment);
  CHECK(live.allocations - before.allocations == 1);
  deallocate(data, segment);
  const auto cached = memory_statistics(cuda());
  CHECK(cached.allocated == before.allocated);
  CHECK(cached.reserved == live.reserved);
  CHECK(cached.peak_allocated == live.allocated);
  reset_peak_memory(cuda());
  CHECK(memory_statistics(cuda()).peak_allocated == before.allocated);
  gpu::release_cached_memory();
  CHECK(memory_statistics(cuda()).reserved == before.reserved);
}

TEST_CASE("A large block serves several requests, and is whole again when they are back", "[cuda]") {
  constexpr std::size_t MiB = 1 << 20;
  gpu::release_cached_memory();
  auto* const whole = static_cast<std::byte*>(allocate(64 * MiB));
  deallocate(whole, 64 * MiB);
  const auto reserved = memory_statistics(cuda()).reserved;
  for (const bool forward : {true, false}) {
    void* parts[3];
    for (int i = 0; i < 3; ++i) parts[i] = allocate(20 * MiB);
    CHECK(parts[0] == whole);
    CHECK(parts[1] == whole + 20 * MiB);
    CHECK(parts[2] == whole + 40 * MiB);
    CHECK(memory_statistics(cuda()).reserved == reserved);
    for (int i = 0; i < 3; ++i) deallocate(parts[forward ? i : (i + 1) % 3], 20 * MiB);
    void* const again = allocate(64 * MiB);
    CHECK(again == whole);
    deallocate(again, 64 * MiB);
  }
  gpu::release_cached_memory();
}

TEST_CASE("Where memory is short the cache is given back first, but for what graphs use", "[cuda]") {
  constexpr std::size_t bytes = std::size_t(32) << 20;
  gpu::release_cached_memory();
  const auto before = memory_statistics(cuda()).reserved;
  auto graph_stream = backend::graph_stream(Cuda{}, cuda());
  const auto graph = graph_stream->record([&] { deallocate(allocate(bytes, graph_stream->get()), bytes, graph_stream->get()); });
  gpu::release_cached_memory();
  const auto held = memory_statistics(cuda()).reserved;
  CHECK(held - before == bytes);
  std::size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  deallocate(allocate(free / 2), free / 2);
  CHECK(memory_statistics(cuda()).reserved >= held + free / 2);
  void* const most = allocate(free / 4 * 3);
  CHECK(memory_statistics(cuda()).reserved < held + free);
  deallocate(most, free / 4 * 3);
  gpu::release_cached_memory();
  CHECK(memory_statistics(cuda()).reserved == held);
  graph_stream.reset();
  gpu::release_cached_memory();
  CHECK(memory_statistics(cuda()).reserved == before);
}

TEST_CASE("Memory of a capture begins with what the stream has free, and is for captures alone until the graphs are gone", "[cuda]") {
  for (const std::size_t bytes : {std::size_t(3) << 10, std::size_t(32) << 20}) {
    gpu::release_cached_memory();
    auto graph_stream = backend::graph_stream(Cuda{}, cuda());
    const Stream stream = graph_stream->get();
    const auto of_capture = [&] {
      void* data = nullptr;
      graph_stream->record([&] { deallocate(data = allocate(bytes, stream), bytes, stream); });
      return data;
    };
    void* const first = allocate(bytes, stream);
    deallocate(first, bytes, stream);
    CHECK(of_capture() == first);
    void* const second = allocate(bytes, stream);
    CHECK(second != first);
    CHECK(of_capture() == first);
    void* third = nullptr;  // lives on after its capture
    graph_stream->record([&] { third = allocate(bytes, stream); });
    CHECK(third == first);
    CHECK(of_capture() != first);
    graph_stream.reset();
    deallocate(third, bytes, stream);
    deallocate(second, bytes, stream);
    const auto cached = memory_statistics(cuda()).reserved;
    deallocate(allocate(bytes, stream), bytes, stream);
    CHECK(memory_statistics(cuda()).reserved == cached);
    gpu::release_cached_memory();
    CHECK(memory_statistics(cuda()).reserved < cached);
  }
}

TEST_CASE("A request beyond the device's memory is refused and leaves the device usable", "[cuda]") {
  const auto before = memory_statistics(cuda());
  std::string message;
  try {
    allocate(std::size_t(1) << 50);
  } catch (const OutOfMemory& error) {
    message = error.what();
  }
  CHECK(message.find("[cuda] expected 1125899906842624 bytes") == 0);
  for (const char* part : {"cuda:0", "free", "live tensors", "reserved"}) CHECK(message.find(part) != std::string::npos);
  CHECK(memory_statistics(cuda()).allocated == before.allocated);
  cuda_test::Twin y(DType::f32, {100});
  y.upload();
  kernels::Fill{y.host(), 3}.run(Cpu{});
  kernels::Fill{y.device(), 3}.run(Cuda{});
  CHECK(y.difference() == "");
}

TEST_CASE("A request for which memory is short does not break the capture of another thread, nor its own", "[cuda]") {
  const auto is_refused = [] {
    try {
      allocate(std::size_t(1) << 50);
    } catch (const OutOfMemory&) {
      return true;
    }
    return false;
  };
  auto graph_stream = backend::graph_stream(Cuda{}, cuda());
  cuda_test::Twin y(DType::f32, {100});
  y.upload();
  bool is_own_refused = false;
  std::future<bool> is_other_refused;
  const auto graph = graph_stream->record([&] {
    is_other_refused = std::async(std::launch::async, is_refused);
    is_other_refused.wait_for(std::chrono::milliseconds(200));
    is_own_refused = is_refused();
    View there = y.device();
    there.stream = graph_stream->get();
    kernels::Fill{there, 3}.run(Cuda{});
  });
  CHECK(is_own_refused);
  CHECK(is_other_refused.get());
  kernels::Fill{y.host(), 3}.run(Cpu{});
  graph->launch();
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(y.difference() == "");
}

TEST_CASE("Allocations are aligned and safe among threads", "[cuda]") {
  std::vector<std::thread> threads;
  std::vector<int> misaligned(4);
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 1; i < 200; ++i) {
        void* const data = allocate(i * 37);
        misaligned[t] += reinterpret_cast<std::uintptr_t>(data) % 256 != 0;
        deallocate(data, i * 37);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int count : misaligned) CHECK(count == 0);
}

TEST_CASE("The source of a copy may change as soon as the copy returns", "[cuda]") {
  constexpr std::size_t count = 1 << 20;
  std::vector<int> source(count);
  void* const data = allocate(count * sizeof(int));
  std::vector<int> back(count);
  for (int round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < count; ++i) source[i] = static_cast<int>(i) + round;
    backend::copy_from_host(Cuda{}, data, source.data(), count * sizeof(int), gpu_stream);
    std::fill(source.begin(), source.end(), -1);
    backend::copy_to_host(Cuda{}, back.data(), data, count * sizeof(int), gpu_stream);
    bool equal = true;
    for (std::size_t i = 0; i < count; ++i) equal = equal && back[i] == static_cast<int>(i) + round;
    CHECK(equal);
  }
  deallocate(data, count * sizeof(int));
}

TEST_CASE("A stream can be made to wait for another", "[cuda]") {
  const gpu::OwnedStream side(cuda());
  cuda_test::Twin y(DType::f32, {1 << 20});
  y.upload();
  backend::wait_stream(side.get(), gpu_stream);
  View view = y.device();
  view.stream = side.get();
  kernels::Fill{view, 2}.run(Cuda{});
  backend::wait_stream(gpu_stream, side.get());
  kernels::Fill{y.host(), 2}.run(Cpu{});
  CHECK(y.difference() == "");
  backend::synchronize(Cuda{}, side.get());
}

}  // namespace tern
