// conv2d at the convolutions of ResNet-18, beside peer_convolution.py. Not part of the build:
//
//   g++ -std=c++20 -O3 -march=native bench/convolution.cpp -Isrc -o convolution BUILD/libtern_{ops,autodiff,cpu,tensor,backend}.a -lfmt
//   -pthread                                          [-ldnnl -fopenmp, where the build found oneDNN]
//   with CUDA: -DTERN_CUDA=1, BUILD/libtern_{ops,autodiff,cuda,cpu,tensor,backend}.a, and besides
//   -L/usr/local/cuda/lib64 -lcublas -lcublasLt -lcudart_static -ldl -lrt
//   ./convolution [--device cuda] [--batch 32] [--modes fp32,tf32,bf16] [--shapes 1,2,11] [--threads 1] [--seconds 0.15] [ROWS.jsonl]
//
// Appends a row to ROWS for each shape, mode and pass, and prints a table at the end. `conv2d_fwd` records nothing; `conv2d_both` is
// forward and the gradients of images and weights, of the first convolution of weights alone, as in a training. ms: the median over
// samples, of a call; on a GPU a sample is calls in a row between two events that take 5 ms together, so that the host runs ahead, as it
// does in a training. peak_mib: memory of tensors that a call of both passes adds to its operands, at its highest. `network` adds up the
// 20 convolutions of a ResNet-18 pass.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "autodiff/engine.h"
#include "backend/stream.h"
#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "tensor/context.h"

using namespace tern;

namespace {

struct Convolution {
  std::int64_t in, size, out, kernel, stride;
  int count;  ///< in a ResNet-18 for images of 224 x 224

  std::int64_t padding() const { return kernel / 2; }
  std::int64_t positions() const { return (size + 2 * padding() - kernel) / stride + 1; }
  double flops() const { return 2.0 * static_cast<double>(in * kernel * kernel * out * positions() * positions()); }
};
const Convolution resnet18[] = {{3, 224, 64, 7, 2, 1},   {64, 56, 64, 3, 1, 4},   {64, 56, 128, 3, 2, 1},  {64, 56, 128, 1, 2, 1},
                                {128, 28, 128, 3, 1, 3}, {128, 28, 256, 3, 2, 1}, {128, 28, 256, 1, 2, 1}, {256, 14, 256, 3, 1, 3},
                                {256, 14, 512, 3, 2, 1}, {256, 14, 512, 1, 2, 1}, {512, 7, 512, 3, 1, 3}};

struct Options {
  Device device = cpu;
  std::int64_t batch = 32;
  std::string modes = "fp32,tf32,bf16", shapes;  ///< no shapes: all
  double seconds = 0.15;
  std::FILE* rows = nullptr;
};

bool has_item(const std::string& list, const std::string& item) { return ("," + list + ",").find("," + item + ",") != std::string::npos; }

[[noreturn]] void fail_usage(const std::string& why) {
  std::fprintf(stderr, "error: %s\nusage: convolution [--device cpu|cuda] [--batch B] [--modes fp32,tf32,bf16] [--shapes 1,2,11]",
               why.c_str());
  std::fprintf(stderr, " [--threads N] [--seconds S] [ROWS.jsonl]\n");
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag.rfind("--", 0) != 0) {
      options.rows = std::fopen(argv[i], "a");
      if (!options.rows) fail_usage(flag + " cannot be written");
      continue;
    }
    if (++i == argc) fail_usage("expected a value after " + flag);
    const std::string value = argv[i];
    if (flag == "--device" && (value == "cpu" || value == "cuda")) options.device = value == "cuda" ? cuda() : cpu;
    else if (flag == "--batch" && std::atoi(argv[i]) > 0) options.batch = std::atoi(argv[i]);
    else if (flag == "--modes") options.modes = value;
    else if (flag == "--shapes") options.shapes = value;
    else if (flag == "--threads" && std::atoi(argv[i]) > 0) set_num_threads(std::atoi(argv[i]));
    else if (flag == "--seconds" && std::atof(argv[i]) > 0) options.seconds = std::atof(argv[i]);
    else fail_usage("unknown " + flag + " " + value);
  }
  return options;
}

/// Milliseconds of `calls` calls in a row.
double sample(Device device, int calls, const std::function<void()>& call) {
  const Stream stream = context().stream(device);
  const backend::Event begin(stream, backend::Event::Timing::on);
  for (int i = 0; i < calls; ++i) call();
  const backend::Event end(stream, backend::Event::Timing::on);
  return milliseconds_between(begin, end);
}

/// Median milliseconds of a call.
double measure(const Options& options, const std::function<void()>& call) {
  const bool is_gpu = options.device.type != DeviceType::cpu;
  for (int i = 0; i < (is_gpu ? 3 : 1); ++i) call();  // a GPU's products of a new shape are timed in the first
  synchronize(options.device);
  const double once = std::max(sample(options.device, 1, call), 1e-3);
  const int calls = is_gpu ? std::clamp(static_cast<int>(std::ceil(5 / once)), 1, 200) : 1;
  std::vector<double> times;
  double total = 0;
  while (times.size() < 5 || total < options.seconds * 1e3) {
    times.push_back(sample(options.device, calls, call) / calls);
    total += times.back() * calls;
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Result {
  double forward = NAN, both = NAN, peak_mib = NAN;  ///< ms, ms, MiB
};

Result measure(const Options& options, const Convolution& of, DType dtype) {
  manual_seed(1);
  const TensorOptions memory{.dtype = dtype, .device = options.device};
  Tensor x = randn({options.batch, of.in, of.size, of.size}, memory);
  const Tensor w = randn({of.out, of.in, of.kernel, of.kernel}, memory).set_requires_grad();
  const Tensor g = randn({options.batch, of.out, of.positions(), of.positions()}, memory);
  const ConvOptions conv{.stride = {of.stride, of.stride}, .padding = {of.padding(), of.padding()}};
  Tensors leaves = {w};
  if (of.in > 3) leaves.push_back(x.set_requires_grad());
  Result result;
  {
    const NoGrad unrecorded;
    result.forward = measure(options, [&] { conv2d(x, w, {}, conv); });
  }
  const auto both = [&] { grad({conv2d(x, w, {}, conv)}, leaves, {g}); };
  result.both = measure(options, both);
  synchronize(options.device);
  const std::size_t before = memory_statistics(options.device).allocated;
  reset_peak_memory(options.device);
  both();
  synchronize(options.device);
  result.peak_mib = static_cast<double>(memory_statistics(options.device).peak_allocated - before) / 0x1p20;
  return result;
}

void write_row(const Options& options, const char* op, const Convolution& of, const std::string& mode, double ms, double flops,
               double peak_mib) {
  char row[400], peak[40] = "";
  if (!std::isnan(peak_mib)) std::snprintf(peak, sizeof peak, R"(, "peak_mib": %.1f)", peak_mib);
  std::snprintf(row, sizeof row,
                R"({"op": "%s", "shape": [%ld, %ld, %ld, %ld, %ld, %ld], "dtype": "%s", "impl": "tern", "device": "%s", "threads": %d, )"
                R"("count": %d, "ms": %.5f, "tflops": %.3f%s})",
                op, static_cast<long>(options.batch), static_cast<long>(of.in), static_cast<long>(of.size), static_cast<long>(of.out),
                static_cast<long>(of.kernel), static_cast<long>(of.stride), mode.c_str(),
                options.device.type == DeviceType::cpu ? "cpu" : "cuda", num_threads(), of.count, ms, flops / ms / 1e9, peak);
  std::printf("%s\n", row);
  std::fflush(stdout);
  if (options.rows) std::fprintf(options.rows, "%s\n", row), std::fflush(options.rows);
}

struct Line {
  Convolution of;
  Result result;
};

void print_table(const Options& options, const std::string& mode, const std::vector<Line>& lines) {
  std::printf("\n%s, batch %ld, %s: ms (TFLOP/s)\n\n", options.device.type == DeviceType::cpu ? "cpu" : "cuda",
              static_cast<long>(options.batch), mode.c_str());
  std::printf("| channels | image | kernel | in the network | forward | forward and backward | MiB |\n|---|---|---|---|---|---|---|\n");
  double forward = 0, both = 0;
  for (const auto& [of, result] : lines) {
    const double flops = of.flops() * static_cast<double>(options.batch);
    std::printf("| %ld to %ld | %ld | %ld / %ld | %d | %.3f (%.2f) | %.3f (%.2f) | %.0f |\n", static_cast<long>(of.in),
                static_cast<long>(of.out), static_cast<long>(of.size), static_cast<long>(of.kernel), static_cast<long>(of.stride), of.count,
                result.forward, flops / result.forward / 1e9, result.both, (of.in > 3 ? 3 : 2) * flops / result.both / 1e9,
                result.peak_mib);
    forward += of.count * result.forward;
    both += of.count * result.both;
  }
  std::printf("| network | | | | %.3f | %.3f | |\n", forward, both);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  struct Mode {
    const char* name;
    DType dtype;
    MatmulPrecision precision;
  };
  std::vector<std::pair<std::string, std::vector<Line>>> tables;
  try {
    for (const Mode& mode : {Mode{"fp32", DType::f32, MatmulPrecision::fp32},
                             {"tf32", DType::f32, MatmulPrecision::tf32},
                             {"bf16", DType::bf16, MatmulPrecision::fp32}}) {
      if (!has_item(options.modes, mode.name) || !has_matmul_precision(mode.precision, options.device)) continue;
      context().kernels.matmul_precision = mode.precision;
      tables.emplace_back(mode.name, std::vector<Line>{});
      int number = 0;
      for (const Convolution& of : resnet18) {
        if (++number; !options.shapes.empty() && !has_item(options.shapes, std::to_string(number))) continue;
        const Result result = measure(options, of, mode.dtype);
        const double flops = of.flops() * static_cast<double>(options.batch);
        write_row(options, "conv2d_fwd", of, mode.name, result.forward, flops, NAN);
        write_row(options, "conv2d_both", of, mode.name, result.both, (of.in > 3 ? 3 : 2) * flops, result.peak_mib);
        tables.back().second.push_back({of, result});
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  for (const auto& [mode, lines] : tables) print_table(options, mode, lines);
}
