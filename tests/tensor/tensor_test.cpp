// The handle and its memory: construction, elements, windows, errors, the allocator's counts.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <vector>

#include "catch.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern {

namespace {

Tensor count(const Shape& shape) {
  std::vector<float> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return Tensor::from(values, shape);
}
using Floats = std::vector<float>;

}  // namespace

TEST_CASE("A tensor is made from values and gives them back") {
  const Tensor x = Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(x.defined());
  CHECK(x.dims() == 2);
  CHECK(x.size(0) == 2);
  CHECK(x.size(-1) == 3);
  CHECK(x.numel() == 6);
  CHECK(x.dtype() == DType::i64);
  CHECK(x.device() == cpu);
  CHECK(x.is_contiguous());
  CHECK(x.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});
  CHECK(x.data<std::int64_t>()[4] == 5);
  const std::array<bool, 3> truths = {true, false, true};
  CHECK(Tensor::from(std::span<const bool>(truths), {3}).to_vector<bool>() == std::vector<bool>{true, false, true});
  CHECK(Tensor::from(std::vector<f16>{f16(1.5f)}, {1}).to_vector<f16>()[0].bits == f16(1.5f).bits);
  CHECK_THROWS_WITH(Tensor::from(std::vector<float>{1, 2}, {3}), "[from] expected 3 values for shape (3,) but got 2");
  CHECK_THROWS_WITH(x.to_vector<float>(), "[to_vector] expected a tensor of f32 but got i64");
  CHECK_THROWS_WITH(x.data<float>(), "[data] expected a tensor of f32 but got i64");
}

TEST_CASE("item converts the only element") {
  CHECK(Tensor::scalar(2.5f).item() == 2.5f);
  CHECK(Tensor::scalar(std::int64_t(7)).item<double>() == 7);
  CHECK(Tensor::scalar(true).item<std::int64_t>() == 1);
  CHECK(Tensor::scalar(f16(0.5f)).item<double>() == 0.5);
  CHECK(full({1, 1, 1}, 3).item<bool>());
  CHECK(select(count({5}), 0, 3).item() == 3);
  CHECK_THROWS_WITH(count({2}).item(), "[item] expected one element but got shape (2,)");
  CHECK_THROWS_AS(count({0}).item(), Error);
}

TEST_CASE("Empty and zero-dimensional tensors are tensors") {
  const Tensor none = empty({2, 0, 3});
  CHECK(none.numel() == 0);
  CHECK(none.to_vector<float>().empty());
  CHECK(Tensor::from(Floats{}, {0}).to_vector<float>().empty());
  CHECK(none.impl().storage->bytes() == 0);
  CHECK(none.is_contiguous());
  const Tensor zero = Tensor::scalar(4.0f);
  CHECK(zero.shape() == Shape{});
  CHECK(zero.numel() == 1);
  CHECK(zero.to_vector<float>() == Floats{4});
  CHECK_THROWS_AS(zero.size(0), Error);
}

TEST_CASE("An undefined tensor answers with an error") {
  const Tensor none;
  CHECK_FALSE(none.defined());
  CHECK_THROWS_WITH(none.shape(), "[tensor] expected a defined tensor but got an undefined one");
  CHECK_THROWS_AS(none.dtype(), Error);
  CHECK_THROWS_AS(none.view(), Error);
  CHECK_THROWS_AS(none.requires_grad(), Error);
  CHECK_THROWS_AS(none.to_vector<float>(), Error);
  CHECK_THROWS_AS(none.detach(), Error);
}

TEST_CASE("Sizes that do not fit in memory are errors") {
  constexpr std::int64_t large = std::int64_t(1) << 40;
  CHECK_THROWS_WITH(empty({2, -3}), "[empty] expected sizes >= 0 but got (2, -3)");
  CHECK_THROWS_WITH(empty({large, large}), "[empty] expected a shape whose size fits in memory but got (1099511627776, 1099511627776)");
  CHECK_THROWS_AS(empty({std::numeric_limits<std::int64_t>::max()}), Error);
  CHECK_THROWS_AS(empty({large, large, 0}), Error);
  CHECK_THROWS_AS(empty(Shape::filled(8, 1000000000)), Error);
  CHECK_THROWS_AS(Tensor::from(Floats{1}, {-1}), Error);
}

TEST_CASE("A window shares memory and is checked") {
  const Tensor x = count({4, 3});
  const Tensor column = x.window({4}, {3}, 1);
  CHECK(column.to_vector<float>() == Floats{1, 4, 7, 10});
  column.data<float>()[3] = -1;
  CHECK(x.to_vector<float>()[4] == -1);
  CHECK(x.window({3}, {-4}, 11).to_vector<float>() == Floats{11, 7, 3});
  CHECK(x.window({2, 2}, {0, 1}, 10).to_vector<float>() == Floats{10, 11, 10, 11});
  CHECK(x.window({0}, {1}, 12).numel() == 0);
  CHECK_THROWS_WITH(x.window({4}, {3}, 3),
                    "[window] expected a window inside a storage of 12 elements but got shape (4,), strides (3,), offset 3");
  CHECK_THROWS_AS(x.window({13}, {1}, 0), Error);
  CHECK_THROWS_AS(x.window({3}, {-4}, 7), Error);
  CHECK_THROWS_AS(x.window({1}, {1}, -1), Error);
  CHECK_THROWS_AS(x.window({1}, {1}, 12), Error);
  CHECK_THROWS_AS(x.window({0}, {1}, 13), Error);
  CHECK_THROWS_AS(x.window({-2}, {1}, 3), Error);
  CHECK_THROWS_AS(x.window({2, 2}, {1}, 0), Error);
  CHECK_THROWS_AS(x.window({3}, {std::numeric_limits<std::int64_t>::max()}, 0), Error);
  constexpr std::int64_t large = std::int64_t(1) << 40;
  CHECK_THROWS_AS(x.window({large, large}, {0, 0}, 0), Error);
}

TEST_CASE("Handles share, copies do not") {
  const Tensor x = count({3});
  const Tensor same = x;
  CHECK(same.is_same(x));
  const Tensor copy = clone(x);
  CHECK_FALSE(copy.is_same(x));
  fill_(same, 9);
  CHECK(x.to_vector<float>() == Floats{9, 9, 9});
  CHECK(copy.to_vector<float>() == Floats{0, 1, 2});
  const Tensor view = x.detach();
  CHECK_FALSE(view.is_same(x));
  CHECK(view.data<float>() == x.data<float>());
}

TEST_CASE("In-place edits count, in all views of a storage") {
  const Tensor x = count({2, 3});
  const Tensor row = select(x, 0, 1);
  CHECK(x.version() == 0);
  fill_(row, 7);
  add_(x, 1);
  CHECK(x.version() == 2);
  CHECK(row.version() == 2);
  CHECK(x.to_vector<float>() == Floats{1, 2, 3, 8, 8, 8});
  copy_(transpose(x, 0, 1), count({3, 2}));
  CHECK(x.to_vector<float>() == Floats{0, 2, 4, 1, 3, 5});
}

TEST_CASE("The allocator counts what is live, and keeps the peak") {
  const auto before = memory_statistics(cpu);
  {
    const Tensor x = empty({1000}), y = empty({1000});
    const auto now = memory_statistics(cpu);
    CHECK(now.allocated >= before.allocated + 8000);
    CHECK(now.allocated <= before.allocated + 8000 + 8000 / 4);
    CHECK(now.allocations == before.allocations + 2);
    CHECK(now.peak_allocated >= now.allocated);
    CHECK(now.reserved >= now.allocated);
  }
  CHECK(memory_statistics(cpu).allocated == before.allocated);
  reset_peak_memory(cpu);
  CHECK(memory_statistics(cpu).peak_allocated == before.allocated);
  {
    const Tensor view = transpose(empty({30, 40}), 0, 1);
    const auto with_view = memory_statistics(cpu).allocated;
    const Tensor more = slice(view, 0, 3);
    CHECK(memory_statistics(cpu).allocated == with_view);
  }
  CHECK(memory_statistics(cpu).allocated == before.allocated);
  const Tensor none = empty({0});
  CHECK(memory_statistics(cpu).allocated == before.allocated);
}

#if !defined(__SANITIZE_ADDRESS__)  // which ends the program instead
TEST_CASE("Memory that the system does not have is an exception, and leaves the counts as they were") {
  const auto before = memory_statistics(cpu);
  CHECK_THROWS(empty({std::int64_t(1) << 55}));
  const auto after = memory_statistics(cpu);
  CHECK(after.allocated == before.allocated);
  CHECK(after.peak_allocated == before.peak_allocated);
  CHECK(count({3}).to_vector<float>() == Floats{0, 1, 2});
}
#endif

TEST_CASE("A device that there is not is an error") {
  const Device none = cuda(cuda_device_count());
  CHECK_THROWS_AS(empty({3}, DType::f32, none), Error);
  CHECK_THROWS_AS(to(count({3}), none), Error);
}

TEST_CASE("item gives no number that its type does not hold") {
  const auto item = [](auto value, auto as) { return Tensor::scalar(value).template item<decltype(as)>(); };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {std::nan(""), infinity, -infinity, 1e19, 0x1p63}) CHECK_THROWS_AS(item(value, std::int64_t()), Error);
  CHECK(item(-0x1p63, std::int64_t()) == std::numeric_limits<std::int64_t>::min());
  CHECK(item(2.75, std::int64_t()) == 2);
  CHECK_THROWS_AS(item(std::int64_t(1) << 31, std::int32_t()), Error);
  CHECK(item(std::int64_t(16777216), 0.0f) == 16777216.0f);
  CHECK_THROWS_WITH(item(std::int64_t(16777217), 0.0f),
                    "[item] expected a number that f32 holds but got 16777217: item<std::int64_t>() gives an integer");
  CHECK_THROWS_AS(item(std::numeric_limits<std::int64_t>::max(), 0.0), Error);
  CHECK(std::isnan(item(std::nan(""), 0.0f)));
  CHECK(item(0.1, 0.0f) == 0.1f);
}

TEST_CASE("Too little memory is an error that says so", "[memory]") {
  const std::int64_t huge = std::int64_t(1) << 58;
  CHECK_THROWS_AS(zeros({huge}), OutOfMemory);
  const std::string message = message_of([&] { zeros({huge}); });
  CHECK(message.find("[cpu] expected 1152921504606846976 bytes (1099511627776 MiB) of memory but got none") == 0);
  CHECK(message.find("use a smaller batch or model") != std::string::npos);
  CHECK(ones({4}).to_vector<float>() == Floats(4, 1));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose own memory has no such limit
TEST_CASE("Memory that ran out is left to others once it is free", "[memory]") {
  // In a process with 256 MiB more than it has: 0 if what follows a caught OutOfMemory is well.
  const auto run = [](std::int64_t elements) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t limit = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20);
    const rlimit both{limit, limit};
    ::setrlimit(RLIMIT_AS, &both);
    for (int again = 0; again < 2; ++again) {
      std::vector<Tensor> kept;
      kept.reserve(100'000);
      try {
        for (;;) kept.push_back(empty({elements}));
      } catch (const OutOfMemory&) {
        kept.clear();
      }
      std::vector<std::vector<char>> small;  // 8 MiB
      for (int i = 0; i < 2048; ++i) small.emplace_back(4096);
      for (int i = 0; i < 20; ++i) kept.push_back(empty({1 << 20}));
    }
    return 0;
  };
  for (const std::int64_t elements : {1 << 12, 1 << 18, 1 << 22}) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        ::_exit(run(elements));
      } catch (const std::exception&) {
        ::_exit(1);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    INFO(elements);
    CHECK(status == 0);
  }
}
#endif

TEST_CASE("A tensor that grows leaves no trail of blocks", "[memory]") {
  const std::int64_t mib = 1 << 18;  // elements
  const std::size_t before = memory_statistics(cpu).reserved;
  Tensor x = empty({mib});
  for (std::int64_t size = 2; size <= 128; ++size) {
    x = {};
    x = empty({size * mib});
  }
  const backend::MemoryStatistics after = memory_statistics(cpu);
  CHECK(after.reserved - before < std::size_t(282) << 20);  // 2.2 times what was in use
  // Blocks of one size are still kept for the next tensor of it.
  x = {};
  const std::size_t reserved = memory_statistics(cpu).reserved;
  for (int i = 0; i < 3; ++i) empty({128 * mib});
  CHECK(memory_statistics(cpu).reserved == reserved);
}

}  // namespace tern
