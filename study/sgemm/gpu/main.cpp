// sgemm-gpu: checks each rung of the ladder against a product in f64, and measures it against cuBLAS.
#include <cublas_v2.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>

#include "../report.h"
#include "ladder.h"

namespace study::gpu {
namespace {

/// A block's tile of c is block x block; a thread's, or a warp's where its threads share what they read, is rows x columns, 0 for none.
struct Rung {
  const char* name;
  void (*run)(const Product&, cudaStream_t);
  int block, rows, columns;
  bool is_tf32 = false;
};
constexpr Rung rungs[] = {{"naive", naive, 1, 0, 0},
                          {"coalesced", coalesced, 1, 0, 0},
                          {"shared_tiles", shared_tiles, 32, 1, 1},
                          {"register_tiles", register_tiles, 128, 8, 8},
                          {"vector_loads", vector_loads, 128, 8, 8},
                          {"warp_tiles", warp_tiles, 128, 8, 16},
                          {"async_copies", async_copies, 128, 8, 16},
                          {"tensor_cores", tensor_cores, 128, 64, 64, true}};

void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}
void check(cublasStatus_t code) {
  if (code != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(cublasGetStatusString(code));
}

class Buffer {
 public:
  explicit Buffer(std::size_t count) : count_(count) { check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(float))); }
  explicit Buffer(const std::vector<float>& x) : Buffer(x.size()) {
    check(cudaMemcpy(data_, x.data(), count_ * sizeof(float), cudaMemcpyHostToDevice));
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  float* data() const { return data_; }
  /// Every byte 0xff: NaN, so that an element that nothing writes is seen.
  void poison() { check(cudaMemset(data_, 0xff, count_ * sizeof(float))); }
  std::vector<float> download() const {
    std::vector<float> x(count_);
    check(cudaMemcpy(x.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost));
    return x;
  }

 private:
  std::size_t count_;
  float* data_ = nullptr;
};

/// cuBLAS counts columns first: c^T = b^T a^T.
class Library {
 public:
  explicit Library(bool tf32) {
    check(cublasCreate(&handle_));
    check(cublasSetMathMode(handle_, tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_PEDANTIC_MATH));
  }
  ~Library() { cublasDestroy(handle_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void operator()(const Product& p, cudaStream_t stream) const {
    const float one = 1, zero = 0;
    check(cublasSetStream(handle_, stream));
    check(cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, p.n, p.m, p.k, &one, p.b, p.n, p.a, p.k, &zero, p.c, p.n));
  }

 private:
  cublasHandle_t handle_ = nullptr;
};

/// The median ms of calls in about the seconds given, at least three.
double measure(double seconds, const std::function<void()>& f) {
  cudaEvent_t start, end;
  check(cudaEventCreate(&start));
  check(cudaEventCreate(&end));
  const auto once = [&] {
    check(cudaEventRecord(start));
    f();
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start, end));
    return static_cast<double>(ms);
  };
  once();
  const int repeats = std::clamp(static_cast<int>(seconds * 1e3 / std::max(once(), 1e-3)), 3, 200);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(once());
  check(cudaEventDestroy(start));
  check(cudaEventDestroy(end));
  return median(times);
}

/// Returns the largest error; throws if it is above what the precision explains.
double check_rung(const Rung& rung) {
  double worst = 0;
  for (const Size& size : check_sizes) {
    const auto a = random_matrix(static_cast<std::size_t>(size.m) * size.k, 1),
               b = random_matrix(static_cast<std::size_t>(size.k) * size.n, 2);
    const Buffer on_a(a), on_b(b);
    Buffer on_c(static_cast<std::size_t>(size.m) * size.n);
    on_c.poison();
    rung.run({on_a.data(), on_b.data(), on_c.data(), size.m, size.n, size.k}, nullptr);
    check(cudaGetLastError());
    check(cudaDeviceSynchronize());
    const double error = relative_error(on_c.download(), product_in_f64(a, b, size));
    if (!(error < (rung.is_tf32 ? 2e-3 : 2e-6)))
      throw std::runtime_error(fmt::format("{} ({}, {}, {}): the relative error is {:.3g}", rung.name, size.m, size.n, size.k, error));
    worst = std::max(worst, error);
  }
  return worst;
}

void run(int side, double seconds, const std::string& only, const std::string& json) {
  Lines lines(json);
  const auto count = static_cast<std::size_t>(side) * static_cast<std::size_t>(side);
  const Buffer a(random_matrix(count, 1)), b(random_matrix(count, 2));
  Buffer c(count);
  const Product product{a.data(), b.data(), c.data(), side, side, side};
  const double flops = 2.0 * side * side * side;
  double library[2];
  for (const bool tf32 : {false, true}) {
    const Library cublas(tf32);
    library[tf32] = measure(seconds, [&] { cublas(product, nullptr); });
    fmt::print("cuBLAS {}: {:.2f} TFLOP/s\n", tf32 ? "TF32" : "f32", flops / library[tf32] / 1e9);
    lines.add(
        fmt::format(R"({{"op": "sgemm", "shape": [{0}, {0}, {0}], "device": "cuda", "impl": "{1}", "ms": {2:.5f}, "tflops": {3:.3f}}})",
                    side, tf32 ? "cublas-tf32" : "cublas", library[tf32], flops / library[tf32] / 1e9));
  }
  fmt::print("{:<16} {:>9} {:>8} {:>10} {:>12} {:>12} {:>10}\n", "rung", "ms", "TFLOP/s", "of cuBLAS", "global GB", "shared GB", "error");
  for (const Rung& rung : rungs) {
    if (!only.empty() && only != rung.name) continue;
    const double error = check_rung(rung), ms = measure(seconds, [&] { rung.run(product, nullptr); });
    check(cudaGetLastError());
    // 2 N^3 / L operands of four bytes from global memory, and N^3 (1 / rows + 1 / columns) from shared memory.
    const double global = 4 * flops / rung.block / 1e9,
                 shared = rung.rows == 0 ? 0 : 2 * flops * (1.0 / rung.rows + 1.0 / rung.columns) / 1e9;
    const double share = library[rung.is_tf32] / ms;
    fmt::print("{:<16} {:>9.3f} {:>8.2f} {:>9.1f}% {:>12.2f} {:>12.2f} {:>10.1e}\n", rung.name, ms, flops / ms / 1e9, 100 * share, global,
               shared, error);
    lines.add(
        fmt::format(R"({{"op": "sgemm", "shape": [{0}, {0}, {0}], "device": "cuda", "impl": "{1}", "ms": {2:.5f}, "tflops": {3:.3f}, )"
                    R"("of_library": {4:.4f}, "global_gb": {5:.3f}, "shared_gb": {6:.3f}, "error": {7:.2e}}})",
                    side, rung.name, ms, flops / ms / 1e9, share, global, shared, error));
  }
}

}  // namespace
}  // namespace study::gpu

int main(int argc, char** argv) {
  CLI::App app("Check and measure the SGEMM ladder on the GPU.", "sgemm-gpu");
  int side = 4096;
  double seconds = 0.3;
  std::string only, json;
  app.add_option("--size", side, "rows and columns of the matrices")->check(CLI::Range(1, 32768))->capture_default_str();
  app.add_option("--seconds", seconds, "how long each figure is measured, about")->capture_default_str();
  app.add_option("--only", only, "one rung");
  app.add_option("--json", json, "append rows to this file, one JSON object a line");
  CLI11_PARSE(app, argc, argv);
  try {
    study::gpu::run(side, seconds, only, json);
  } catch (const std::exception& error) {
    fmt::print(stderr, "sgemm-gpu: {}\n", error.what());
    return 1;
  }
  return 0;
}
