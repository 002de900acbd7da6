// Products with quantised weights beside float32's, in seconds of the processor, on one thread, or on a GPU beside bf16's. Not part of the
// build:
//
//   g++ -std=c++20 -O3 -march=native bench/quantised_products.cpp -Isrc -o quantised_products
//   BUILD/libtern_{ops,autodiff,cpu,tensor,backend}.a -lfmt -pthread [-ldnnl -fopenmp, where the build found oneDNN]
//   ./quantised_products [--cuda] [REPEATS] [ROWS...]
//
// For each number of rows, and the products of presets quick and best, it prints the speed without quantisation and how many times as fast
// each format is: medians of REPEATS rounds, in each of which all take turns. On a GPU a product is one of 20 in a graph, as in decoding,
// and a build with CUDA also wants libtern_cuda.a and its libraries.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>

#include "backend/device.h"
#include "backend/stream.h"
#include "ops/captured_step.h"
#include "ops/matmul.h"
#include "ops/quantize.h"
#include "ops/random.h"
#include "tensor/context.h"

using namespace tern;

/// Seconds of one call of f, of as many as the clock resolves.
class Timer {
 public:
  Timer(Device device, std::function<Tensor()> f, double flops)
      : device_(device),
        calls_(device == cpu ? std::max(1, static_cast<int>(2e8 / (flops + 2e5))) : 20),
        step_(
            [f, calls = calls_](const Tensors&) {
              for (int i = 1; i < calls; ++i) f();
              return f();
            },
            device) {
    for (int i = 0; i < 3; ++i) step_({});  // as written, recorded, replayed
  }
  double operator()() {
    if (device_ == cpu) {
      const std::clock_t begin = std::clock();
      step_({});
      return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / calls_;
    }
    const Stream stream = context().stream(device_);
    const backend::Event begin(stream, backend::Event::Timing::on);
    for (int i = 0; i < 10; ++i) step_({});
    const backend::Event end(stream, backend::Event::Timing::on);
    return milliseconds_between(begin, end) * 1e-4 / calls_;
  }

 private:
  Device device_;
  int calls_;
  CapturedStep step_;
};

static void compare(Device device, std::int64_t rows, std::int64_t in, std::int64_t out, int repeats) {
  const TensorOptions options{.dtype = device == cpu ? DType::f32 : DType::bf16, .device = device};
  const Tensor x = randn({rows, in}, options), weight = randn({out, in}, options), bias = randn({out}, options);
  const double flops = 2.0 * static_cast<double>(rows * in * out);
  std::vector<Timer> timers;
  timers.emplace_back(device, [=] { return linear(x, weight, bias); }, flops);
  for (const QuantFormat format : quant_formats)
    timers.emplace_back(device, [=, w = quantize(weight, format)] { return quantized_linear(x, w, bias); }, flops);
  std::vector<std::vector<double>> taken(timers.size());
  for (int round = 0; round < repeats; ++round)
    for (std::size_t which = 0; which < taken.size(); ++which) taken[which].push_back(timers[which]());
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  const double base = median(taken[0]);
  std::printf("| %ld | %ld | %ld | ", static_cast<long>(rows), static_cast<long>(in), static_cast<long>(out));
  if (device == cpu) std::printf("%.0f |", 1e-9 * flops / base);
  else std::printf("%.2f |", 1e6 * base);
  for (std::size_t which = 1; which < taken.size(); ++which) std::printf(" %.2fx |", base / median(taken[which]));
  std::printf("\n");
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  const bool on_gpu = argc > 1 && std::strcmp(argv[1], "--cuda") == 0;
  const Device device = on_gpu ? cuda() : cpu;
  const int first = on_gpu ? 2 : 1;
  set_num_threads(1);
  const NoGrad unrecorded;
  const NoAutotune first_choice;  // as decoding
  const int repeats = argc > first ? std::atoi(argv[first]) : 15;
  std::vector<std::int64_t> all_rows;
  for (int i = first + 1; i < argc; ++i) all_rows.push_back(std::atoi(argv[i]));
  if (all_rows.empty()) all_rows = {1, 8, 64, 256};
  std::printf("| rows | in | out | %s |", on_gpu ? "bf16, us" : "float32, Gflop/s");
  for (const QuantFormat format : quant_formats) std::printf(" %s |", name(format));
  std::printf("\n|---|---|---|---|---|---|---|---|\n");
  for (const std::int64_t rows : all_rows)
    for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{128, 128},
                                  {128, 384},
                                  {128, 512},
                                  {512, 128},
                                  {128, 1500},
                                  {256, 256},
                                  {256, 768},
                                  {256, 1024},
                                  {1024, 256},
                                  {256, 2900},
                                  {256, 10000}})
      Compare{rows, in, out, repeats}.run(device);
}
