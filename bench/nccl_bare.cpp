// NCCL's all_reduce called bare, beside `tern-bench comm`: how much of a collective's time is ours. Not part of the build:
//
//   g++ -std=c++20 -O2 bench/nccl_bare.cpp -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart -lnccl -o nccl_bare
//   ./nccl_bare RANKS OUT.jsonl [SECONDS]
//
// A process a GPU, as tern's. Each figure is measured as measure_comm does (apps/bench/comm_case.cpp): samples of many calls in a row, all
// ranks there when one begins, the median over samples of the slowest rank. The calls of a sample have nothing between them.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void check(cudaError_t result) {
  if (result != cudaSuccess) std::fprintf(stderr, "error: %s\n", cudaGetErrorString(result)), std::exit(1);
}
static void check(ncclResult_t result) {
  if (result != ncclSuccess) std::fprintf(stderr, "error: %s\n", ncclGetErrorString(result)), std::exit(1);
}

namespace {

class Rank {
 public:
  Rank(int rank, int size, const ncclUniqueId& id) {
    check(cudaSetDevice(rank));
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(ncclCommInitRank(&communicator_, size, id, rank));
    check(cudaMalloc(&number_, sizeof(double)));
  }

  /// Median ms of a call, of the rank that is slowest in a sample.
  double measure(std::size_t bytes, ncclDataType_t dtype, std::size_t element, double seconds) {
    void* data = nullptr;
    check(cudaMalloc(&data, bytes));
    check(cudaMemset(data, 0, bytes));
    const auto call = [&] { check(ncclAllReduce(data, data, bytes / element, dtype, ncclSum, communicator_, stream_)); };
    int calls = 10;
    const auto sample = [&] {
      largest(0);
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) call();
      check(cudaStreamSynchronize(stream_));
      return largest(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / calls);
    };
    sample();
    const double once = sample();
    calls = static_cast<int>(std::clamp(5 / std::max(once, 1e-3), 5.0, 100.0));
    std::vector<double> ms(static_cast<std::size_t>(std::clamp(seconds * 1e3 / (once * calls), 3.0, 200.0)));
    for (double& each : ms) each = sample();
    check(cudaFree(data));
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2];
  }

 private:
  /// Of all ranks, which meet here.
  double largest(double value) {
    check(cudaMemcpy(number_, &value, sizeof value, cudaMemcpyHostToDevice));
    check(ncclAllReduce(number_, number_, 1, ncclDouble, ncclMax, communicator_, stream_));
    check(cudaMemcpyAsync(&value, number_, sizeof value, cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
    return value;
  }

  cudaStream_t stream_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  double* number_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: nccl_bare RANKS OUT.jsonl [SECONDS]\n");
    return 2;
  }
  const int size = std::atoi(argv[1]);
  const double seconds = argc > 3 ? std::atof(argv[3]) : 1;
  std::FILE* const out = std::fopen(argv[2], "a");
  if (size < 1 || !out) {
    std::fprintf(stderr, "error: expected a number of ranks and a file that can be written but got %s and %s\n", argv[1], argv[2]);
    return 2;
  }
  // Processes are made before CUDA is asked for anything, and rank 0's id goes to each of them through a pipe.
  std::vector<int> ends(static_cast<std::size_t>(2 * size));
  for (int i = 0; i < size; ++i)
    if (pipe(&ends[static_cast<std::size_t>(2 * i)]) != 0) return 1;
  int rank = 0;
  while (rank + 1 < size && fork() == 0) ++rank;
  ncclUniqueId id;
  if (rank == 0) {
    check(ncclGetUniqueId(&id));
    for (int i = 1; i < size; ++i)
      if (write(ends[static_cast<std::size_t>(2 * i + 1)], &id, sizeof id) != sizeof id) return 1;
  } else if (read(ends[static_cast<std::size_t>(2 * rank)], &id, sizeof id) != sizeof id) {
    return 1;
  }
  Rank own(rank, size, id);
  struct Kind {
    const char* name;
    ncclDataType_t dtype;
    std::size_t bytes;
  };
  for (const Kind& kind : {Kind{"float32", ncclFloat32, 4}, Kind{"bfloat16", ncclBfloat16, 2}})
    for (const int mb : {1, 10, 100, 1000}) {
      const double ms = own.measure(static_cast<std::size_t>(mb) * 1'000'000, kind.dtype, kind.bytes, seconds);
      if (rank > 0) continue;
      std::fprintf(out,
                   "{\"what\": \"all_reduce\", \"impl\": \"nccl-bare\", \"dtype\": \"%s\", \"mb\": %d, \"ranks\": %d, \"ms\": %.5f, "
                   "\"bus_gbs\": %.1f}\n",
                   kind.name, mb, size, ms, mb / ms * 2 * (size - 1) / size);
      std::printf("nccl bare  %-9s %5d MB %9.4f ms %8.1f GB/s\n", kind.name, mb, ms, mb / ms * 2 * (size - 1) / size);
    }
  std::fclose(out);
  int status = 0;
  while (wait(&status) > 0)
    if (status != 0) return 1;
  return 0;
}
