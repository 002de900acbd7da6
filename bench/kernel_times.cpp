// A library that the CUDA driver loads into a program to write down when each kernel, fill and copy ran, those of graphs included. Not part
// of the build:
//
//   g++ -O1 -shared -fPIC bench/kernel_times.cpp -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcupti -o libkernel_times.so
//   KERNEL_TIMES=mt.tsv CUDA_INJECTION64_PATH=$PWD/libkernel_times.so tern-bench step --model mt ... --capture --warmup 5 --steps 8
//   bench/kernel_times.py mt-bf16 mt.tsv
//
// A line each: begin and end in ns, blocks or bytes, threads of a block, name, 1 for a node of a graph; in the order in which CUPTI hands
// them out. kernel_compare.py holds them beside a profile of our own.
#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

FILE* out;

void write_line(std::uint64_t start, std::uint64_t end, std::uint64_t size, int threads, const char* name, std::uint64_t node) {
  std::fprintf(out, "%llu\t%llu\t%llu\t%d\t%s\t%d\n", static_cast<unsigned long long>(start), static_cast<unsigned long long>(end),
               static_cast<unsigned long long>(size), threads, name, node != 0);
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *size = std::size_t(16) << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
      const auto* kernel = reinterpret_cast<CUpti_ActivityKernel9*>(record);
      write_line(kernel->start, kernel->end, std::uint64_t(kernel->gridX) * kernel->gridY * kernel->gridZ,
                 kernel->blockX * kernel->blockY * kernel->blockZ, kernel->name, kernel->graphNodeId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* fill = reinterpret_cast<CUpti_ActivityMemset4*>(record);
      write_line(fill->start, fill->end, fill->bytes, 0, "fill", fill->graphNodeId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* copy = reinterpret_cast<CUpti_ActivityMemcpy5*>(record);
      write_line(copy->start, copy->end, copy->bytes, 0, "copy", copy->graphNodeId);
    }
  }
  std::free(buffer);
}

void finish() {
  cuptiActivityFlushAll(1);
  std::fclose(out);
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* const path = std::getenv("KERNEL_TIMES");
  out = path ? std::fopen(path, "w") : nullptr;
  if (!out) {
    std::fprintf(stderr, "kernel_times: cannot write to $KERNEL_TIMES (%s): set it to a file\n", path ? path : "unset");
    return 0;
  }
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_MEMCPY})
    cuptiActivityEnable(kind);
  std::atexit(finish);
  return 1;
}
