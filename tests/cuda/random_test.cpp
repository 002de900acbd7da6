#include "ops/kernels/random.h"

#include "backend/memory.h"
#include "catch.h"
#include "ops/factory.h"
#include "ops/operators.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

constexpr std::int64_t sizes[] = {0, 1, 31, 33, 1025, 300001};
constexpr PhiloxState states[] = {{1, 0, nullptr}, {0x123456789abcdef0u, 0xffffffffu, nullptr}};

/// A counter in device memory.
class Counter {
 public:
  explicit Counter(std::uint64_t value) { backend::copy_from_host(Cuda{}, data_, &value, sizeof value, gpu_stream); }
  ~Counter() { backend::deallocate(Cuda{}, data_, sizeof(std::uint64_t), gpu_stream); }
  const std::uint64_t* get() const { return static_cast<const std::uint64_t*>(data_); }

 private:
  void* data_ = backend::allocate(Cuda{}, sizeof(std::uint64_t), gpu_stream);
};

/// Calls draw(tag, view, state) on both devices, for each state, size and alignment.
template <class F>
void check(DType dtype, double tolerance, F draw) {
  for (std::int64_t n : sizes)
    for (int shift : {0, 1})
      for (const PhiloxState& state : states) {
        INFO(name(dtype) << ", " << n << ", shift " << shift);
        Twin y(dtype, {n}, {1}, shift);
        y.upload();
        draw(Cpu{}, y.host(), state);
        draw(Cuda{}, y.device(), state);
        CHECK(y.difference(tolerance) == "");
      }
}

}  // namespace

TEST_CASE("uniform and bernoulli draw the CPU's numbers", "[cuda]") {
  for (DType dtype : floats) {
    check(dtype, 0, [](auto dev, const View& y, PhiloxState state) { kernels::uniform(dev, y, 0, 1, state); });
    // Whether low + width * u is rounded once or twice is the compilers' choice.
    check(dtype, tolerance(dtype) / 10, [](auto dev, const View& y, PhiloxState state) { kernels::uniform(dev, y, -0.3, 0.7, state); });
  }
  // The largest draws round to the upper bound, and both devices take the number below it.
  for (DType dtype : floats)
    for (const auto& [low, high] : {std::pair{-1.0, 0.0}, {0.0, 3.0}, {4096.0, 4098.0}})
      check(dtype, tolerance(dtype) / 10, [=](auto dev, const View& y, PhiloxState state) { kernels::uniform(dev, y, low, high, state); });
  for (DType dtype : all_dtypes)
    for (double probability : {0.0, 0.1, 1.0})
      check(dtype, 0, [=](auto dev, const View& y, PhiloxState state) { kernels::bernoulli(dev, y, probability, state); });
}

TEST_CASE("normal draws the CPU's numbers up to rounding", "[cuda]") {
  for (DType dtype : floats)
    check(dtype, tolerance(dtype), [](auto dev, const View& y, PhiloxState state) { kernels::normal(dev, y, 0.5, 2, state); });
}

TEST_CASE("dropout draws and divides as the CPU, also in place", "[cuda]") {
  for (DType dtype : floats)
    for (std::int64_t n : sizes)
      for (int shift : {0, 1}) {
        INFO(name(dtype) << ", " << n);
        Twin x(dtype, {n}), y(dtype, {n}, {1}, shift);
        x.randomize(1).upload();
        y.upload();
        kernels::dropout(Cpu{}, x.host(), y.host(), 0.3, states[1]);
        kernels::dropout(Cuda{}, x.device(), y.device(), 0.3, states[1]);
        CHECK(y.difference() == "");
        kernels::dropout(Cpu{}, x.host(), x.host(), 0.3, states[0]);
        kernels::dropout(Cuda{}, x.device(), x.device(), 0.3, states[0]);
        CHECK(x.difference() == "");
      }
}

TEST_CASE("uniform numbers of a GPU stay below the upper bound", "[cuda]") {
  const DeviceScope scope(cuda());
  for (DType dtype : floats)
    for (const auto& [low, high] : {std::pair{0.0, 1.0}, {-1.0, 0.0}, {1e3, 1e3 + 10}, {0.1, 0.7}}) {
      INFO(name(dtype) << ", " << low << " to " << high);
      const Tensor x = rand({300001}, low, high, dtype);
      CHECK(all(x < high).item<bool>());
      CHECK(all(x >= full({}, low, dtype)).item<bool>());  // the dtype may lack `low`: 0.1 is less in f16
    }
  CHECK(all(rand({300001}, 1e6, 1e6 + 10) < 1e6 + 10).item<bool>());
}

TEST_CASE("whole numbers of a GPU are the CPU's", "[cuda]") {
  // Spans of which almost no and of which a quarter of the draws are rejected, of 32 and of 64 bits. (Twin compares doubles.)
  for (const auto& [low, high] :
       {std::pair<std::int64_t, std::int64_t>{-7, 190}, {0, 3ll << 30}, {0, 1ll << 32}, {0, 3ll << 61}, {INT64_MIN, INT64_MAX}}) {
    const auto drawn = [low = low, high = high](Device device) {
      manual_seed(12);
      return randint(low, high, {300001}, DType::i64, device).to_vector<std::int64_t>();
    };
    CHECK(drawn(cuda()) == drawn(cpu));
  }
  for (DType dtype : {DType::i32, DType::u8})
    check(dtype, 0, [](auto dev, const View& y, PhiloxState state) { kernels::whole_numbers(dev, y, 3, 197, state); });
}

TEST_CASE("permutation draws the CPU's order", "[cuda]") {
  for (std::int64_t n : {0, 1, 2, 33, 1025, 100000})
    for (const PhiloxState& state : states) {
      Twin y(DType::i64, {n}), gaps(DType::i64, {n}, {2});
      for (Twin* twin : {&y, &gaps}) {
        twin->upload();
        kernels::permutation(Cpu{}, twin->host(), state);
        kernels::permutation(Cuda{}, twin->device(), state);
        CHECK(twin->difference() == "");
      }
    }
}

TEST_CASE("a base in device memory moves the draws", "[cuda]") {
  const Counter counter(1000);
  Twin y(DType::f32, {1025}), order(DType::i64, {100});
  y.upload();
  order.upload();
  kernels::uniform(Cpu{}, y.host(), 0, 1, {7, 1005, nullptr});
  kernels::uniform(Cuda{}, y.device(), 0, 1, {7, 5, counter.get()});
  CHECK(y.difference() == "");
  kernels::permutation(Cpu{}, order.host(), {7, 1005, nullptr});
  kernels::permutation(Cuda{}, order.device(), {7, 5, counter.get()});
  CHECK(order.difference() == "");
}

}  // namespace tern
