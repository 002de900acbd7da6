// Linear algebra on a GPU, in rows that join.py reads, beside peer_linalg.py. Not part of the build:
//
//   g++ -std=c++20 -O3 bench/linalg.cpp -Isrc -DTERN_CUDA=1 -o linalg BUILD/libtern_{ops,autodiff,cuda,cpu,tensor,backend}.a
//   -L/usr/local/cuda/lib64 -lcublas -lcublasLt -lcudart_static -lfmt -lpthread -ldl -lrt [-ldnnl -fopenmp, where the build found oneDNN]
//   ./linalg OUT.jsonl [SECONDS]
//
// Appends a row for each op, dtype and size: the median of calls that take about SECONDS together (0.5), each between two CUDA events
// with the GPU idle before it, so that what an op waits for is counted, and so is the launching of its kernels.
#include "ops/linalg.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "backend/device.h"
#include "backend/stream.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/view.h"
#include "tensor/context.h"

using namespace tern;

/// Median milliseconds of a call.
static double measure(const std::function<void()>& call, double seconds) {
  call();
  call();
  std::vector<double> times;
  double total = 0;
  while (times.size() < 5 || (total < seconds * 1e3 && times.size() < 1000)) {
    const Stream stream = context().stream(cuda());
    synchronize(cuda());
    const backend::Event begin(stream, backend::Event::Timing::on);
    call();
    const backend::Event end(stream, backend::Event::Timing::on);
    times.push_back(milliseconds_between(begin, end));
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: linalg OUT.jsonl [SECONDS]\n");
    return 2;
  }
  std::FILE* const out = std::fopen(argv[1], "a");
  if (!out) {
    std::fprintf(stderr, "error: %s cannot be written\n", argv[1]);
    return 2;
  }
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.5;
  const NoGrad unrecorded;
  struct Size {
    std::int64_t batch, n;
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Size& size : {Size{1, 64}, {1, 512}, {1, 2048}, {256, 32}}) {
      const Shape shape = size.batch == 1 ? Shape{size.n, size.n} : Shape{size.batch, size.n, size.n};
      const TensorOptions options{.dtype = dtype, .device = cuda()};
      manual_seed(1);
      const Tensor x = randn(shape, options), a = x + eye(size.n, options) * double(size.n), b = randn(shape, options);
      const Tensor definite = matmul(x, transpose(x, -2, -1)) / double(size.n) + eye(size.n, options);
      const std::pair<const char*, std::function<void()>> ops[] = {{"cholesky", [&] { cholesky(definite); }},
                                                                   {"solve", [&] { solve(a, b); }},
                                                                   {"inverse", [&] { inverse(a); }},
                                                                   {"det", [&] { det(a); }},
                                                                   {"qr", [&] { qr(x); }},
                                                                   {"eigh", [&] { eigh(definite); }},
                                                                   {"svd", [&] { svd(x); }}};
      for (const auto& [op, call] : ops) {
        char row[300];
        std::snprintf(row, sizeof row,
                      R"({"op": "%s", "shape": [%ld, %ld, %ld], "dtype": "%s", "impl": "tern", "device": "cuda", "ms": %.5f})", op,
                      static_cast<long>(size.batch), static_cast<long>(size.n), static_cast<long>(size.n),
                      dtype == DType::f32 ? "float32" : "float64", measure(call, seconds));
        std::fprintf(out, "%s\n", row);
        std::fflush(out);
        std::printf("%s\n", row);
      }
    }
  }
  std::fclose(out);
}
