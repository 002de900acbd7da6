#include "ops/kernels/attention_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/memory.h"
#include "catch.h"
#include "skip.h"
#include "tensor/dispatch.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();

struct Options {
  bool padded = false, causal = false, prefix = false;
  bool in_place = false;
  bool nans = false;  ///< in some scores, seen and hidden ones
  int shift = 0;
};

/// How far the devices may be apart, relative to the numbers: a probability in a long row is small.
double relative_tolerance(DType dtype) { return dtype == DType::f32 ? 4e-6 : tolerance(dtype); }

/// The GPU's elements of a contiguous tensor.
std::vector<double> elements(const View& view) {
  std::vector<double> result(static_cast<std::size_t>(view.numel()));
  dispatch_floats(view.dtype, "test", [&]<class T>() {
    std::vector<T> copy(result.size());
    backend::copy_to_host(Cuda{}, copy.data(), view.data, copy.size() * sizeof(T), gpu_stream);
    std::transform(copy.begin(), copy.end(), result.begin(), [](T x) { return static_cast<double>(static_cast<compute_t<T>>(x)); });
  });
  return result;
}

/// "" if each element is within tolerance * (|x| + scale).
std::string relative_difference(const Twin& twin, double scale) {
  const View view = twin.device();
  const double allowed = relative_tolerance(view.dtype), smallest = view.dtype == DType::f16 ? 1e-7 : 0;
  const std::vector<double> got = elements(view);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double want = twin.get(static_cast<std::int64_t>(i));
    const bool equal = std::isnan(want) ? std::isnan(got[i]) : std::abs(want - got[i]) <= allowed * (std::abs(want) + scale) + smallest;
    if (!equal) return "element " + std::to_string(i) + ": expected " + std::to_string(want) + " but got " + std::to_string(got[i]);
  }
  return {};
}

kernels::AttentionMask mask_of(const View& padding, const View& prefix, const Options& options) {
  return {.padding = options.padded ? padding : View{}, .prefix = options.prefix ? prefix : View{}, .causal = options.causal};
}

void check(DType dtype, const Shape& shape, const Options& options) {
  INFO(name(dtype) << ' ' << to_string(shape) << (options.padded ? " padded" : "") << (options.causal ? " causal" : "")
                   << (options.prefix ? " prefix" : "") << (options.in_place ? " in place" : "") << (options.nans ? " NaN" : "")
                   << " shift " << options.shift);
  const std::int64_t batches = shape[0], columns = shape[shape.size() - 1], rows = columns ? numel(shape) / columns : 0;
  Twin x(dtype, shape, contiguous_strides(shape), options.shift), y(dtype, shape, contiguous_strides(shape), options.shift);
  x.randomize(1, -3, 3);
  if (options.nans)
    for (std::int64_t row = 0; row < rows; row += 3)
      x.set(row * columns + row * 7 % columns, row % 2 ? nan : row % 4 ? infinity : -infinity);
  // Batch 1 sees nothing; elsewhere every fifth column is hidden, by finite and infinite padding.
  Twin padding(dtype == DType::f64 ? dtype : DType::f32, {batches, columns}), prefix(DType::i64, {batches});
  padding.randomize(2, -1, 1);
  for (std::int64_t b = 0; b < batches; ++b)
    for (std::int64_t c = 0; c < columns; ++c)
      if (b == 1 || (c * 7 + b) % 5 == 0) padding.set(b * columns + c, c % 2 ? -infinity : c % 4 ? -1e30 : -65504);
  for (std::int64_t b = 0; b < batches; ++b) prefix.set(b, static_cast<double>(b * 37 % (columns + 3) - 1));
  x.upload();
  y.upload();
  padding.upload();
  prefix.upload();

  Twin& to = options.in_place ? x : y;
  kernels::attention_softmax(Cpu{}, x.host(), mask_of(padding.host(), prefix.host(), options), to.host());
  kernels::attention_softmax(Cuda{}, x.device(), mask_of(padding.device(), prefix.device(), options), to.device());
  CHECK(to.difference(tolerance(dtype)) == "");
  CHECK(relative_difference(to, 0) == "");
}

void check_grad(DType dtype, const Shape& shape, Twin* choose(Twin& y, Twin& g, Twin& dx), int shift = 0) {
  INFO(name(dtype) << ' ' << to_string(shape) << " shift " << shift);
  const double likely = 1.0 / static_cast<double>(shape[shape.size() - 1]);
  Twin y(dtype, shape, contiguous_strides(shape), shift), g(dtype, shape, contiguous_strides(shape), shift),
      dx(dtype, shape, contiguous_strides(shape), shift);
  y.randomize(3, 0, 2 * likely).upload();
  g.randomize(4).upload();
  dx.upload();
  Twin& to = *choose(y, g, dx);
  kernels::attention_softmax_grad(Cpu{}, y.host(), g.host(), to.host());
  kernels::attention_softmax_grad(Cuda{}, y.device(), g.device(), to.device());
  CHECK(to.difference(tolerance(dtype)) == "");
  CHECK(relative_difference(to, 2 * likely) == "");
}

Twin* into_dx(Twin&, Twin&, Twin& dx) { return &dx; }
Twin* into_y(Twin& y, Twin&, Twin&) { return &y; }
Twin* into_g(Twin&, Twin& g, Twin&) { return &g; }

// Every way to divide a row: lanes of a warp, a warp, blocks, clusters, rows that fit nowhere; vectors and single elements.
constexpr std::int64_t lengths[] = {1,   2,   7,    31,   32,   33,   64,    100,   128,   256,   257,
                                    512, 520, 1024, 1025, 4096, 8200, 16384, 16385, 65536, 100000};

}  // namespace

TEST_CASE("attention softmax and its gradient agree with the CPU at every length", "[cuda]") {
  for (DType dtype : floats)
    for (std::int64_t columns : lengths) {
      const std::int64_t rows = columns > 5000 ? 2 : 9;
      check(dtype, {2, 1, rows, columns}, {});
      check(dtype, {2, 1, rows, columns}, {.padded = true, .causal = true, .prefix = true, .shift = 1});
      check(dtype, {3, 1, rows, columns}, {.padded = true, .in_place = true});
      check_grad(dtype, {2, rows, columns}, into_dx);
      check_grad(dtype, {2, rows, columns}, into_y, 1);
      check_grad(dtype, {2, rows, columns}, into_g);
    }
}

TEST_CASE("on the GPU every combination of masks agrees with the CPU", "[cuda]") {
  for (DType dtype : floats)
    for (const Shape& shape :
         {Shape{3, 2, 5, 40}, Shape{3, 2, 9, 4}, Shape{3, 4, 600}, Shape{2, 1, 3, 2048}, Shape{2, 2, 6000}, Shape{17, 24}})
      for (int flags = 0; flags < 16; ++flags) {
        const bool causal = flags & 2;
        check(dtype, shape, {.padded = (flags & 1) != 0, .causal = causal, .prefix = causal && (flags & 4), .nans = (flags & 8) != 0});
      }
}

TEST_CASE("on the GPU softmax takes no rows, one and many", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    check(dtype, {2, 0, 5}, {});
    check(dtype, {2, 5, 0}, {});
    check_grad(dtype, {0, 5}, into_dx);
    check(dtype, {1, 1}, {.padded = true});
    check(dtype, {100000, 1, 2, 36}, {.padded = true, .causal = true});
    check(dtype, {1, 70001, 5}, {.in_place = true});
    check_grad(dtype, {140001, 40}, into_dx);
  }
}

TEST_CASE("on the GPU scores of any size give probabilities", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (std::int64_t columns : {24, 2000, 3001}) {
      Twin x(dtype, {5, columns}), y(dtype, {5, columns});
      x.randomize(1, -3, 3);
      for (std::int64_t c = 0; c < columns; ++c) {
        x.set(c, -3e38);                                          // what masks by the lowest number leave
        x.set(columns + c, c == 3 ? 3e38 : c % 2 ? -3e38 : 2e9);  // one wins
        x.set(2 * columns + c, c % 2 ? 1e9 : -1e9);
        x.set(3 * columns + c, -infinity);
      }
      x.upload();
      y.upload();
      kernels::attention_softmax(Cpu{}, x.host(), {}, y.host());
      kernels::attention_softmax(Cuda{}, x.device(), {}, y.device());
      CHECK(relative_difference(y, 0) == "");
    }
}

TEST_CASE("on the GPU softmax reaches elements past the 2^31st", "[cuda]") {
  constexpr std::int64_t columns = 1024, rows = (std::int64_t(1) << 21) + 3, bytes = rows * columns * 2;
  void* data = nullptr;
  try {
    data = backend::allocate(Cuda{}, bytes, gpu_stream);
  } catch (const Error&) {
    return test::skip("it needs 4.3 GB of the GPU's memory");
  }
  const View x{data, {1, rows, columns}, {rows * columns, columns, 1}, DType::bf16, gpu_stream};
  const std::vector<bf16> zeros(3 * columns);
  View last{x.as<bf16>() + (rows - 3) * columns, {3, columns}, {columns, 1}, DType::bf16, gpu_stream};
  backend::copy_from_host(Cuda{}, last.data, zeros.data(), zeros.size() * sizeof(bf16), gpu_stream);
  kernels::attention_softmax(Cuda{}, x, {}, x);
  const std::vector<double> got = elements(last);
  CHECK(std::all_of(got.begin(), got.end(), [](double y) { return y == 1.0 / columns; }));
  backend::deallocate(Cuda{}, data, bytes, gpu_stream);
}

}  // namespace tern
