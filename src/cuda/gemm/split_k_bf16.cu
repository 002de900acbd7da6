#include <algorithm>

#include "cuda/device/vec16.cuh"
#include "cuda/gemm/split_k_bf16.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/old_names.cuh"
#include "cuda/runtime/tensor_map.h"

// c (M, N) = a^T b for a (K, M) and b (K, N): see Note [Deep products]. A block has a tile of c and a part of the depth; one warp has the
// copy engine bring the next rows of both operands, four multiply what is there.
namespace tern::gpu {

namespace {

constexpr int tile = 64;        ///< rows and columns of c, and elements of 128 bytes
constexpr int tile_depth = 64;  ///< rows of the operands in a stage
constexpr int stages = 6, multipliers = 128, threads = multipliers + 32;
constexpr int most_splits = 8;  ///< what every device with clusters has
constexpr int sums_pitch = tile + 4;

template <class T>
struct Stage {
  T left[tile_depth * tile], right[tile_depth * tile];
};
template <class T>
constexpr std::size_t shared_bytes = stages * sizeof(Stage<T>) + swizzle_span;

struct Problem {
  CUtensorMap left, right;
  const void* before;  ///< what is added, as c
  void* c;
  std::int64_t leading, rows, columns;
  unsigned splits, column_tiles;
  int steps, steps_in_split;
  float alpha;
  bool adds;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Barriers {
  SharedBarrier loaded[stages], used[stages];
};

/// What lies at this place in the shared memory of one of the cluster's blocks.
__device__ __forceinline__ float4 read_in_cluster(const float4* place, unsigned block) {
  float4 value;
  asm volatile("{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %4, %5;\nld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}\n"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(shared_address(place)), "r"(block)
               : "memory");
  return value;
}

/// A tile of which the depth is outermost: rows of 128 bytes in the swizzle of 128 bytes, eight of them after 1024.
template <class T>
__device__ __forceinline__ std::uint64_t descriptor_of_rows(const T* rows) {
  return std::uint64_t((shared_address(rows) & 0x3ffff) >> 4) | std::uint64_t(1) << 16 | std::uint64_t(swizzle_span >> 4) << 32 |
         std::uint64_t(1) << 62;
}

/// d (64, 64) += a (16, 64)^T b (16, 64), by the four warps of a group.
template <class T>
__device__ __forceinline__ void multiply_16(float (&d)[32], std::uint64_t a, std::uint64_t b) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.eq.u32 adds, 0, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, adds, 1, 1, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b));
  } else {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.eq.u32 adds, 0, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, adds, 1, 1, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b));
  }
}

/// A warp's part: brings the stages of steps [first, first + count).
template <class T>
__device__ __forceinline__ void load_stages(const Problem& p, Stage<T>* memory, Barriers& barriers, int row, int column, int first,
                                            int count) {
  for (int i = 0; i < count; ++i) {
    Stage<T>& stage = memory[i % stages];
    SharedBarrier& loaded = barriers.loaded[i % stages];
    barriers.used[i % stages].wait(i / stages % 2 ^ 1);
    loaded.expect(sizeof(Stage<T>));
    copy_box_async(stage.left, p.left, row, (first + i) * tile_depth, loaded);
    copy_box_async(stage.right, p.right, column, (first + i) * tile_depth, loaded);
  }
}

/// The multiplying warps' part. A stage is free when the products after it have been queued and its own are done.
template <class T>
__device__ __forceinline__ void multiply_stages(const Stage<T>* memory, Barriers& barriers, int count,
                                                float (&sums)[tile * tile / multipliers]) {
  constexpr int k = 16;  // of a product
  for (int i = 0; i < count; ++i) {
    const Stage<T>& stage = memory[i % stages];
    barriers.loaded[i % stages].wait(i / stages % 2);
    hold(sums);
    begin_products();
#pragma unroll
    for (int at = 0; at < tile_depth; at += k)
      multiply_16<T>(sums, descriptor_of_rows(stage.left + at * tile), descriptor_of_rows(stage.right + at * tile));
    commit_products();
    wait_products<1>();
    hold(sums);
    if (i > 0 && threadIdx.x % 32 == 0) barriers.used[(i - 1) % stages].arrive();
  }
  wait_products<0>();
  hold(sums);
}

/// The rows of c that this block adds up, from the sums of all blocks of its cluster, in the order of their parts of the depth.
template <class T>
__device__ __forceinline__ void add_up(const Problem& p, const float* sums, unsigned split, std::int64_t row0, std::int64_t column0) {
  constexpr int width = 4;
  const int rows = tile / static_cast<int>(p.splits);
  for (int i = threadIdx.x; i < rows * tile / width; i += threads) {
    const int row = static_cast<int>(split) * rows + i / (tile / width), column = i % (tile / width) * width;
    if (row0 + row >= p.rows || column0 + column >= p.columns) continue;
    const auto place = reinterpret_cast<const float4*>(sums + row * sums_pitch + column);
    float4 parts[most_splits];
#pragma unroll
    for (unsigned part = 0; part < most_splits; ++part)
      if (part < p.splits) parts[part] = read_in_cluster(place, part);
    float4 sum = parts[0];
#pragma unroll
    for (unsigned part = 1; part < most_splits; ++part) {
      if (part >= p.splits) continue;
      sum.x += parts[part].x;
      sum.y += parts[part].y;
      sum.z += parts[part].z;
      sum.w += parts[part].w;
    }
    const float values[] = {sum.x, sum.y, sum.z, sum.w};
    const std::int64_t at = (row0 + row) * p.leading + column0 + column;
    const T* const from = static_cast<const T*>(p.before) + at;
    T* const to = static_cast<T*>(p.c) + at;
    const bool is_aligned = (reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % sizeof(Vector<T, width>) == 0;
    if (column0 + column + width <= p.columns && is_aligned) {
      Vector<T, width> before{}, out;
      if (p.adds) before = read_vector<width>(from);
#pragma unroll
      for (int k = 0; k < width; ++k) out.values[k] = convert<T>(p.alpha * values[k] + (p.adds ? convert<float>(before.values[k]) : 0));
      write_vector(to, out);
    } else {
      for (int k = 0; k < width && column0 + column + k < p.columns; ++k)
        to[k] = convert<T>(p.alpha * values[k] + (p.adds ? convert<float>(from[k]) : 0));
    }
  }
}

#endif

template <class T>
__global__ void __launch_bounds__(threads) multiply(__grid_constant__ const Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float shared[];
  __shared__ Barriers barriers;  // its presence says that this was compiled for wgmma: see has_body
  const auto offset = (swizzle_span - shared_address(shared) % swizzle_span) % swizzle_span;
  auto* const memory = reinterpret_cast<Stage<T>*>(reinterpret_cast<char*>(shared) + offset);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      barriers.loaded[i].init(1);
      barriers.used[i].init(multipliers / 32);
    }
    show_to_copies();
  }
  __syncthreads();
  const unsigned split = blockIdx.x % p.splits, unit = blockIdx.x / p.splits;
  const int row = static_cast<int>(unit / p.column_tiles) * tile, column = static_cast<int>(unit % p.column_tiles) * tile;
  const int first = static_cast<int>(split) * p.steps_in_split, count = max(min(p.steps - first, p.steps_in_split), 0);
  float sums[tile * tile / multipliers] = {};
  if (threadIdx.x < multipliers) multiply_stages<T>(memory, barriers, count, sums);
  else if (threadIdx.x == multipliers) load_stages<T>(p, memory, barriers, row, column, first, count);
  __syncthreads();  // all that was brought has been used
  auto* const own = reinterpret_cast<float*>(memory);
  if (threadIdx.x < multipliers) {
    const int lane = threadIdx.x % 32;
    float* const place = own + (threadIdx.x / 32 * 16 + lane / 4) * sums_pitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < tile / 8; ++j) {
      *reinterpret_cast<float2*>(place + j * 8) = {sums[4 * j], sums[4 * j + 1]};
      *reinterpret_cast<float2*>(place + 8 * sums_pitch + j * 8) = {sums[4 * j + 2], sums[4 * j + 3]};
    }
  }
  meet_in_cluster();
  add_up<T>(p, own, split, row, column);
  meet_in_cluster();  // nobody leaves while others read its sums
#endif
}

bool is_compiled() {
  static const bool is_so = has_body(multiply<bf16>);
  return is_so;
}

template <class T>
void run(const Problem& problem, unsigned blocks, Stream stream) {
  use(stream);
  check(cudaFuncSetAttribute(multiply<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes<T>)),
        "cudaFuncSetAttribute");
  launch_clusters(multiply<T>, blocks, threads, problem.splits, shared_bytes<T>, stream, problem);
}

}  // namespace

bool has_deep_product(const Product& p, const ProductOperands& at, Stream stream) {
  const auto fits = [](const void* data, std::int64_t leading) { return is_aligned(data, 16) && leading % 8 == 0; };
  return (p.dtype == DType::bf16 || p.dtype == DType::f16) && p.count == 1 && p.epilogue == Epilogue::none && !p.a_transposed &&
         p.b_transposed && std::min(p.m, p.n) > 0 && p.k >= tile_depth && std::max({p.m, p.n, p.k}) < (std::int64_t(1) << 31) &&
         fits(at.a, p.a_leading) && fits(at.b, p.b_leading) && attribute(cudaDevAttrComputeCapabilityMajor, stream.device) == 9 &&
         is_compiled();
}

void multiply_deep(const Product& p, const ProductOperands& at, void* to, double alpha, Stream stream) {
  // Rows first: c^T (n, m) = b^T (n, k) a^T (k, m).
  const auto tiles = [](std::int64_t size) { return (size + tile - 1) / tile; };
  Problem problem{};
  problem.left = tensor_map({at.b, p.dtype, p.n, p.k, p.b_leading}, tile, tile_depth);
  problem.right = tensor_map({at.a, p.dtype, p.m, p.k, p.a_leading}, tile, tile_depth);
  problem.before = at.c;
  problem.c = to;
  problem.leading = p.c_leading;
  problem.rows = p.n;
  problem.columns = p.m;
  problem.column_tiles = static_cast<unsigned>(tiles(p.m));
  problem.steps = static_cast<int>((p.k + tile_depth - 1) / tile_depth);
  problem.alpha = static_cast<float>(alpha);
  problem.adds = p.write == Write::accumulate;
  // As many blocks as run at once, two on a multiprocessor, each with some steps at least.
  const std::int64_t units = tiles(p.n) * tiles(p.m), at_once = 2 * attribute(cudaDevAttrMultiProcessorCount, stream.device);
  problem.splits = 1;
  while (problem.splits < most_splits && units * problem.splits * 2 <= at_once && problem.steps >= 8 * static_cast<int>(problem.splits))
    problem.splits *= 2;
  problem.steps_in_split = (problem.steps + static_cast<int>(problem.splits) - 1) / static_cast<int>(problem.splits);
  const auto blocks = static_cast<unsigned>(units * problem.splits);
  if (p.dtype == DType::bf16) run<bf16>(problem, blocks, stream);
  else run<f16>(problem, blocks, stream);
}

}  // namespace tern::gpu
