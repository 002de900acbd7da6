// Products with quantised weights beside float32's, in seconds of the processor, on one thread. Not part of the build:
//
//   g++ -std=c++20 -O3 -march=native bench/quantised_products.cpp -Isrc -o quantised_products
//   BUILD/libtern_{ops,autodiff,cpu,tensor,backend}.a -lfmt -pthread [-ldnnl -fopenmp, where the build found oneDNN]
//   ./quantised_products [REPEATS] [ROWS...]
//
// For each number of rows, and the products of presets quick and best, it prints the Gflop/s of float32 and how many times as fast each
// format is: medians of REPEATS rounds, in each of which all take turns.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "backend/device.h"
#include "ops/matmul.h"
#include "ops/quantize.h"
#include "ops/random.h"

using namespace tern;

static double seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

static void compare(std::int64_t rows, std::int64_t in, std::int64_t out, int repeats) {
  const Tensor x = randn({rows, in}), weight = randn({out, in}), bias = randn({out});
  std::vector<QuantizedWeight> quantized;
  for (const QuantFormat format : quant_formats) quantized.push_back(quantize(weight, format));
  // Rounds of some milliseconds, which the clock resolves.
  const std::int64_t times = std::max<std::int64_t>(1, 100'000'000 / (rows * in * out + 100'000));
  std::vector<std::vector<double>> taken(1 + quantized.size());
  for (int round = 0; round < repeats; ++round)
    for (std::size_t which = 0; which < taken.size(); ++which) {
      const double begin = seconds();
      for (std::int64_t i = 0; i < times; ++i) which == 0 ? linear(x, weight, bias) : quantized_linear(x, quantized[which - 1], bias);
      taken[which].push_back((seconds() - begin) / static_cast<double>(times));
    }
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  const double base = median(taken[0]);
  std::printf("| %ld | %ld | %ld | %.0f |", static_cast<long>(rows), static_cast<long>(in), static_cast<long>(out),
              2e-9 * static_cast<double>(rows * in * out) / base);
  for (std::size_t which = 1; which < taken.size(); ++which) std::printf(" %.2fx |", base / median(taken[which]));
  std::printf("\n");
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  set_num_threads(1);
  const NoGrad unrecorded;
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 15;
  std::vector<std::int64_t> all_rows;
  for (int i = 2; i < argc; ++i) all_rows.push_back(std::atoi(argv[i]));
  if (all_rows.empty()) all_rows = {1, 8, 64, 256};
  std::printf("| rows | in | out | float32, Gflop/s |");
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
                                  {256, 2900}})
      compare(rows, in, out, repeats);
}
