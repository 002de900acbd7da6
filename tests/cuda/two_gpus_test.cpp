// Two GPUs in one process: copies between them, and what each has for itself. ctest -R two-gpus runs these alone.
#include <thread>

#include "autodiff/engine.h"
#include "backend/memory.h"
#include "backend/stream.h"
#include "catch.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "skip.h"
#include "tensor/dispatch.h"

namespace tern {

namespace {

const std::vector<DType> all_dtypes = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean};

/// 0, 1, 2, ... modulo 100, in any dtype.
Tensor counting(const Shape& shape, DType dtype, Device device) {
  const std::int64_t count = numel(shape);
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = i % 100;
  return to(cast(Tensor::from(values, shape), dtype), device);
}

bool same_elements(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  return dispatch_all(a.dtype(), [&]<class T>() {
    const std::vector<T> x = a.to_vector<T>(), y = b.to_vector<T>();
    return std::equal(x.begin(), x.end(), y.begin(), [](T p, T q) { return static_cast<double>(p) == static_cast<double>(q); });
  });
}

}  // namespace

TEST_CASE("Tensors of any size, stride and dtype go from one GPU to the other and back", "[cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  for (const auto& [from, target] : {std::pair(cuda(0), cuda(1)), std::pair(cuda(1), cuda(0))})
    for (DType dtype : all_dtypes) {
      INFO(name(dtype) << " from " << to_string(from) << " to " << to_string(target));
      for (std::int64_t n : {0, 1, 31, 33, 1025, (1 << 20) + 3}) {
        const Tensor here = counting({n}, dtype, cpu), there = to(to(here, from), target);
        CHECK(there.device() == target);
        CHECK(same_elements(there, here));
        CHECK(same_elements(to(there, from), here));
      }
      const Tensor wide = counting({7, 33, 5}, dtype, cpu), source = to(wide, from);
      const auto check = [&](const std::function<Tensor(const Tensor&)>& view) {
        const Tensor there = to(view(source), target);
        CHECK(there.is_contiguous());
        CHECK(same_elements(there, view(wide)));
      };
      check([](const Tensor& x) { return transpose(x, 0, 2); });
      check([](const Tensor& x) { return slice(x, 1, 3, 20); });
      check([](const Tensor& x) { return select(x, 2, 4); });
      check([](const Tensor& x) { return broadcast_to(select(x, 0, 1), {3, 33, 5}); });
      check([](const Tensor& x) { return x.window({11, 3}, {-5, 2}, 100); });
    }
}

TEST_CASE("copy_ converts and broadcasts from one GPU to a view on the other", "[cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  for (const auto& [from, target] : {std::pair(cuda(0), cuda(1)), std::pair(cuda(1), cuda(0))})
    for (DType source_dtype : all_dtypes)
      for (DType target_dtype : all_dtypes) {
        INFO(name(source_dtype) << " on " << to_string(from) << " to " << name(target_dtype) << " on " << to_string(target));
        const Tensor source = counting({33, 1}, source_dtype, cpu), want = zeros({9, 33, 7}, target_dtype);
        const Tensor got = zeros({9, 33, 7}, target_dtype, target);
        const auto window = [](const Tensor& x) { return transpose(slice(x, 0, 2, 7), 1, 2); };  // (5, 7, 33), not contiguous
        copy_(window(want), transpose(source, 0, 1));
        copy_(window(got), transpose(to(source, from), 0, 1));
        CHECK(same_elements(got, want));
      }
}

TEST_CASE("Copies between GPUs keep the order of both streams", "[cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  const Shape shape{3 << 20};
  for (int round = 0; round < 20; ++round) {
    const Tensor source = zeros(shape, DType::f32, cuda(0));
    for (int i = 0; i < 10; ++i) add_(source, 1.0);
    Tensor old = full(shape, -1, DType::f32, cuda(1));  // gives its memory to the copy, while work on it is queued
    for (int i = 0; i < 10; ++i) add_(old, 1.0);
    old = {};
    const Tensor copy = to(source, cuda(1));
    add_(source, 100.0);  // after the copy
    const Tensor doubled = copy + copy;
    CHECK(min(doubled).item() == 20);
    CHECK(max(doubled).item() == 20);
    CHECK(min(source).item() == 110);
  }
}

TEST_CASE("Copies between GPUs wait for streams of their own", "[cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  const gpu::OwnedStream first(cuda(0)), second(cuda(1));
  const StreamScope on_first(first.get()), on_second(second.get());
  CHECK(context().stream(cuda(0)).handle == first.get().handle);
  CHECK(context().stream(cuda(1)).handle == second.get().handle);
  Tensor x = zeros({1 << 22}, DType::f32, cuda(0));
  for (int i = 0; i < 9; ++i) {
    add_(x, 1.0);
    x = to(to(x, cuda(1)) + 1, cuda(0));
  }
  CHECK(min(x).item() == 18);
  CHECK(max(x).item() == 18);
}

TEST_CASE("Gradients flow from one GPU to the other", "[cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  Tensor x = counting({5, 33}, DType::f32, cuda(0)).set_requires_grad();
  Tensor y = counting({5, 33}, DType::f32, cuda(1)).set_requires_grad();
  sum(to(square(x), cuda(1)) * y).backward();
  CHECK(x.grad().device() == cuda(0));
  CHECK(y.grad().device() == cuda(1));
  CHECK(same_elements(x.grad(), to(2 * x.detach() * to(y.detach(), cuda(0)), cuda(0))));
  CHECK(same_elements(y.grad(), to(square(x.detach()), cuda(1))));
}

TEST_CASE("Memory is counted for each GPU by itself", "[cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  gpu::release_cached_memory();
  const auto first = memory_statistics(cuda(0)), second = memory_statistics(cuda(1));
  reset_peak_memory(cuda(0));
  reset_peak_memory(cuda(1));
  constexpr std::size_t bytes = std::size_t(32) << 20;
  {
    const Tensor x = empty({static_cast<std::int64_t>(bytes)}, DType::u8, cuda(1));
    CHECK(memory_statistics(cuda(1)).allocated - second.allocated == bytes);
    CHECK(memory_statistics(cuda(1)).reserved - second.reserved == bytes);
    CHECK(memory_statistics(cuda(1)).allocations - second.allocations == 1);
    CHECK(memory_statistics(cuda(0)).allocated == first.allocated);
    CHECK(memory_statistics(cuda(0)).reserved == first.reserved);
    CHECK(memory_statistics(cuda(0)).allocations == first.allocations);
  }
  CHECK(memory_statistics(cuda(1)).peak_allocated == second.allocated + bytes);
  CHECK(memory_statistics(cuda(0)).peak_allocated == first.allocated);
  reset_peak_memory(cuda(0));
  CHECK(memory_statistics(cuda(1)).peak_allocated == second.allocated + bytes);
  reset_peak_memory(cuda(1));
  CHECK(memory_statistics(cuda(1)).peak_allocated == second.allocated);
  gpu::release_cached_memory();
  CHECK(memory_statistics(cuda(1)).reserved == second.reserved);
}

TEST_CASE("Streams belong to one GPU, and events go between them", "[cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  const gpu::OwnedStream side(cuda(1));
  {
    const StreamScope scope(side.get());
    CHECK(context().stream(cuda(0)).handle == nullptr);
    CHECK(context().stream(cuda(1)).handle == side.get().handle);
  }
  CHECK(context().stream(cuda(1)).handle == nullptr);
  const Stream first{cuda(0)};
  backend::Event here(first, backend::Event::Timing::on), there(side.get(), backend::Event::Timing::on);
  there.wait(first);
  here.wait(side.get());
  here.record(first);
  here.synchronize();
  CHECK(message_of([&] { here.record(side.get()); }) == "[event] expected a stream of cuda:0 but got one of cuda:1");
  CHECK(message_of([&] { milliseconds_between(here, there); }) == "[event] expected two events of one device but got cuda:0 and cuda:1");
}

TEST_CASE("Threads work on one GPU each", "[cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  // Every per-device cache is filled from both at once: handles of cuBLAS, chosen algorithms, counters, pools of memory.
  const Tensor a = counting({300, 200}, DType::f32, cpu), b = counting({200, 100}, DType::f32, cpu);
  Tensor results[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      const NoGrad unrecorded;
      for (int round = 0; round < 20; ++round) {
        const Tensor y = matmul(to(a, cuda(i)), to(b, cuda(i)));
        results[i] = to(sum(y, {0}), cpu);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(same_elements(results[0], results[1]));
}

}  // namespace tern
