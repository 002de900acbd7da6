// The seam between devices: streams of a thread, events, and kernels that one device alone has.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "backend/memory.h"
#include "backend/stream.h"
#include "catch.h"
#include "message.h"
#include "skip.h"
#include "tensor/kernel.h"
#include "tensor/tensor.h"

namespace tern {

namespace {

/// A kernel of either device, which tells that it ran.
struct Marks {
  bool& ran;
  template <class Backend>
  void run(Backend) const {
    ran = true;
  }
};

}  // namespace

TEST_CASE("A kernel runs on the device that it is launched on, and in a build without CUDA on no GPU") {
  bool ran = false;
  launch(cpu, Marks{ran});
  CHECK(std::exchange(ran, false));
  launch(Cpu{}, Marks{ran});
  CHECK(std::exchange(ran, false));
  CHECK_FALSE(cuda_has(cpu, [](auto) { return true; }));
  CHECK(cuda_has(cuda(), [](auto) { return true; }) == built_with_cuda);
  if (built_with_cuda) return;
  CHECK(message_of([&] { launch(Cuda{}, Marks{ran}); }) == "[device] expected a build with CUDA for cuda:0: configure with -DTERN_CUDA=ON");
  CHECK(message_of([&] { launch(cuda(1), Marks{ran}); }) ==
        "[device] expected a build with CUDA for cuda:1: configure with -DTERN_CUDA=ON");
  CHECK_FALSE(ran);
}

TEST_CASE("Each device has a stream of its own in a thread") {
  int places[2];
  const Stream first{cuda(0), &places[0]}, second{cuda(1), &places[1]};
  {
    const StreamScope outer(first);
    CHECK(context().stream(cuda(0)).handle == first.handle);
    CHECK(context().stream(cuda(1)).handle == nullptr);
    const StreamScope inner(second);
    CHECK(inner.outer().device == cuda(1));
    CHECK(inner.outer().handle == nullptr);
    CHECK(context().stream(cuda(0)).handle == first.handle);
    CHECK(context().stream(cuda(1)).handle == second.handle);
    CHECK(context().stream(cpu).handle == nullptr);
    std::thread([] { CHECK(context().stream(cuda(0)).handle == nullptr); }).join();
  }
  CHECK(context().stream(cuda(0)).handle == nullptr);
  CHECK(context().stream(cuda(1)).handle == nullptr);
  // Neither the CPU nor a device that cannot be has one.
  for (const Device device : {cpu, cuda(max_cuda_devices), cuda(-1)}) {
    const StreamScope scope({device, &places[0]});
    CHECK(context().stream(device).handle == nullptr);
  }
}

TEST_CASE("Events of the CPU are reached when they are recorded") {
  backend::Event earlier(Stream{}, backend::Event::Timing::on);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  backend::Event later(cpu, backend::Event::Timing::on);
  later.record({});
  later.wait({});
  later.synchronize();
  CHECK(milliseconds_between(earlier, later) >= 5);
  const backend::Event moved = std::move(later);
  CHECK(milliseconds_between(earlier, moved) >= 5);
  backend::wait_stream({}, {});
  CHECK(message_of([&] { earlier.record({cuda(1)}); }) == "[event] expected a stream of cpu but got one of cuda:1");
}

TEST_CASE("Memory is counted for the device that is asked about") {
  reset_peak_memory(cpu);
  const auto before = memory_statistics(cpu);
  {
    const Tensor x = empty({1000});
  }
  CHECK(memory_statistics(cpu).peak_allocated >= before.allocated + 4000);
  CHECK(memory_statistics(cpu).allocated == before.allocated);
}

TEST_CASE("A part of the context goes back to what it was in whatever order its scopes end") {
  for (const int first : {0, 1, 2}) {
    CAPTURE(first);
    std::optional<GradMode> scopes[3];
    for (int i = 0; i < 3; ++i) scopes[i].emplace(i == 1);
    scopes[first].reset();
    CHECK(context().grad == (first == 2));  // the innermost one alive
    scopes[(first + 1) % 3].reset();
    scopes[(first + 2) % 3].reset();
    CHECK(context().grad);
    CHECK(ScopeLink::innermost == nullptr);
  }
  int places[3];
  std::optional<StreamScope> outer(Stream{cuda(0), &places[0]}), inner(Stream{cuda(0), &places[1]}), other(Stream{cuda(1), &places[2]});
  outer.reset();
  CHECK(context().stream(cuda(0)).handle == &places[1]);
  CHECK(inner->outer().handle == nullptr);
  inner.reset();
  CHECK(context().stream(cuda(0)).handle == nullptr);
  CHECK(context().stream(cuda(1)).handle == &places[2]);
  other.reset();
  CHECK(context().stream(cuda(1)).handle == nullptr);
}

TEST_CASE("A large block on the CPU asks for huge pages") {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) test::skip("a system without huge pages on request");
  constexpr std::size_t bytes = std::size_t{32} << 20;
  void* const data = backend::allocate(Cpu{}, bytes, Stream{});
  std::ifstream maps("/proc/self/smaps");
  std::string flags;
  bool is_inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) is_inside = begin <= std::uintptr_t(data) && std::uintptr_t(data) < end;
    if (is_inside && line.starts_with("VmFlags:")) flags = line + ' ';
  }
  backend::deallocate(Cpu{}, data, bytes, Stream{});
  CAPTURE(flags);
  CHECK(flags.find(" hg ") != flags.npos);
}

}  // namespace tern
