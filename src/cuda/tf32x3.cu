#include <algorithm>
#include <cmath>

#include "cuda/allocator.h"
#include "cuda/convert.cuh"
#include "cuda/launch.h"
#include "cuda/tf32x3.h"
#include "cuda/wgmma.cuh"
#include "ops/kernels/matmul.h"

// Float32 products on Hopper's tensor cores, Note [Three TF32 products]. Tiles of 128 x `width` elements of c are summed in steps of 32
// along the depth. Of a block's three groups of four warps, the last has the copy engine bring the operands' tiles to shared memory, two
// steps ahead, and splits the right one's, which wgmma takes from there, with the depth innermost. The other two have 64 rows each: they
// take the left operand to registers, split it there and multiply. A block stays for several tiles, and loads the next while it writes one.
//
// Shared memory has little to spare: of the 1536 cycles in which tensor cores do a step of width 128, their own reads take 768, the copies
// 256 and the splits 384. With cp.async instead of the copy engine the products of a training step took 2.15 ms, and so 1.76. Two groups
// that take turns with the tensor cores are no faster than two that do not.
namespace tern::gpu {

namespace {

constexpr int tile_rows = 128, tile_depth = 32, stages = 4;
constexpr int splitters = 128, multipliers = 256, threads = splitters + multipliers;

/// One side of the product: (size, depth), with one stride of 1.
struct Side {
  const float* data;
  std::int64_t size, leading;
};

/// c (left, right) = left right^T.
struct Problem {
  CUtensorMap left_map, right_map;
  Side left, right;
  std::int64_t depth;
  float* c;
  std::int64_t c_leading;
  bool turned;        ///< c is stored (right, left)
  const float* bias;  ///< along c's contiguous side, or null
  float alpha;
  bool adds;
  int row_tiles, column_tiles, splits;
  int steps;       ///< along the depth, of each split
  float* partial;  ///< (splits, ...) as c without gaps, or null: c is written at once

  __host__ __device__ int units() const { return row_tiles * column_tiles * splits; }
};

template <int width>
struct Stage {
  float left[tile_rows * tile_depth];
  float right[width * tile_depth];  ///< wgmma cuts off what TF32 has no room for: this is the large part as it is
  float rest[width * tile_depth];
};

/// With room to begin at a multiple of the swizzle's span.
template <int width>
constexpr std::size_t shared_bytes = stages * sizeof(Stage<width>) + swizzle_span;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// What a block does, one tile after the other, in the same order for those who load and those who multiply.
struct Cursor {
  int row_tile, column_tile, split, first_step, steps;

  /// False where nothing is left.
  __device__ bool find(const Problem& p, int unit) {
    constexpr int panel = 16;  // tiles that run at the same time share rows and columns
    const int tiles = p.row_tiles * p.column_tiles;
    if (unit >= p.units()) return false;
    split = unit / tiles;
    const int tile = unit % tiles, above = tile / (panel * p.column_tiles) * panel, rows = min(panel, p.row_tiles - above);
    const int within = tile - above * p.column_tiles;
    row_tile = above + within % rows;
    column_tile = within / rows;
    first_step = split * p.steps;
    steps = min(p.steps, static_cast<int>((p.depth + tile_depth - 1) / tile_depth) - first_step);
    return true;
  }
};

/// Where element (row, k) lies in a tile whose rows have the depth innermost: the copy engine's and wgmma's swizzle of 128 bytes.
__device__ __forceinline__ int place_in_rows(int row, int k) { return row * tile_depth + ((k / 4 ^ row % 8) * 4 + k % 4); }
/// And in one whose columns do: boxes of 32 rows, each swizzled.
__device__ __forceinline__ int place_in_columns(int row, int k) {
  return row / 32 * (32 * tile_depth) + k * 32 + ((row % 32 / 4 ^ k % 8) * 4 + row % 4);
}

/// Begins to bring a tile.
template <bool along_depth, int rows>
__device__ __forceinline__ void load_tile(const CUtensorMap& map, int row0, int k0, float* to, SharedBarrier& barrier) {
  if constexpr (along_depth) {
    copy_box_async(to, map, k0, row0, barrier);
  } else {
#pragma unroll
    for (int i = 0; i < rows / 32; ++i) copy_box_async(to + i * 32 * tile_depth, map, row0 + i * 32, k0, barrier);
  }
}

__device__ __forceinline__ float to_tf32(float x) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}
/// What is left of x where wgmma has cut it off.
__device__ __forceinline__ float rest_of(float x) { return to_tf32(x - __uint_as_float(__float_as_uint(x) & 0xffffe000u)); }
__device__ __forceinline__ float4 rest_of(float4 x) { return {rest_of(x.x), rest_of(x.y), rest_of(x.z), rest_of(x.w)}; }

/// The rest of a right tile.
template <int width>
__device__ __forceinline__ void split_rows(int thread, Stage<width>& stage) {
#pragma unroll
  for (int i = 0; i < width / 16; ++i) {
    const int place = (thread + i * splitters) * 4;
    *reinterpret_cast<float4*>(stage.rest + place) = rest_of(*reinterpret_cast<const float4*>(stage.right + place));
  }
}
/// Likewise of one whose columns have the rows innermost; turns it in its place.
template <int width>
__device__ __forceinline__ void split_columns(int thread, Stage<width>& stage) {
  // Squares of 4 x 4 elements. Those of eight threads lie on a diagonal, so that lines are read and rows written in different banks.
  constexpr int each = width * tile_depth / 16 / splitters;
  float4 lines[each][4];
  int rows[each], ks[each];
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int diagonal = (thread + i * splitters) / 8, along = thread % 8;
    rows[i] = diagonal / 8 * 32 + along * 4;
    ks[i] = (along ^ diagonal % 8) * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) lines[i][j] = *reinterpret_cast<const float4*>(stage.right + place_in_columns(rows[i], ks[i] + j));
  }
  sync_named(1, splitters);
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const auto& [a, b, c, d] = lines[i];
    const float4 turned[4] = {{a.x, b.x, c.x, d.x}, {a.y, b.y, c.y, d.y}, {a.z, b.z, c.z, d.z}, {a.w, b.w, c.w, d.w}};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int place = place_in_rows(rows[i] + j, ks[i]);
      *reinterpret_cast<float4*>(stage.right + place) = turned[j];
      *reinterpret_cast<float4*>(stage.rest + place) = rest_of(turned[j]);
    }
  }
}

/// Barriers of the stages.
struct Barriers {
  SharedBarrier loaded[stages], split[stages], used[stages];
};

template <bool left_along, bool right_along, int width>
__device__ __forceinline__ void load_tiles(const Problem& p, Stage<width>* memory, Barriers& barriers) {
  const int thread = static_cast<int>(threadIdx.x) - multipliers;
  Cursor at;
  int unit = blockIdx.x, step = 0;
  bool is_more = at.find(p, unit);
  for (int loaded = 0, split = 0; is_more || split < loaded;) {
    if (loaded - split == stages - 2 || !is_more) {
      const int i = split % stages;
      barriers.loaded[i].wait(split / stages % 2);
      if constexpr (right_along) split_rows(thread, memory[i]);
      else split_columns(thread, memory[i]);
      show_to_matrix_units();
      __syncwarp();
      if (thread % 32 == 0) barriers.split[i].arrive();
      ++split;
    }
    if (!is_more) continue;
    if (thread == 0) {
      const int i = loaded % stages, k0 = (at.first_step + step) * tile_depth;
      Stage<width>& stage = memory[i];
      barriers.used[i].wait(loaded / stages % 2 ^ 1);
      barriers.loaded[i].expect(sizeof(stage.left) + sizeof(stage.right));
      load_tile<left_along, tile_rows>(p.left_map, at.row_tile * tile_rows, k0, stage.left, barriers.loaded[i]);
      load_tile<right_along, width>(p.right_map, at.column_tile * width, k0, stage.right, barriers.loaded[i]);
    }
    __syncwarp();
    ++loaded;
    if (++step == at.steps) {
      step = 0;
      unit += gridDim.x;
      is_more = at.find(p, unit);
    }
  }
}

/// A thread's sums to c, or to its split's part of the sum. It has two rows and, of every 8 columns, two neighbours.
template <int width>
__device__ __forceinline__ void write_sums(const Problem& p, const Cursor& at, int row, int other_row, int column,
                                           const float (&sums)[width / 2]) {
  const std::int64_t row0 = std::int64_t(at.row_tile) * tile_rows, column0 = std::int64_t(at.column_tile) * width + column;
  const std::int64_t leading = !p.partial ? p.c_leading : p.turned ? p.left.size : p.right.size;
  float* const to = p.partial ? p.partial + at.split * p.left.size * p.right.size : p.c;
  const bool adds = p.adds && !p.partial;
  const float alpha = p.partial ? 1 : p.alpha;
  const float* const bias = p.partial ? nullptr : p.bias;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t r = row0 + (half == 0 ? row : other_row);
    if (r >= p.left.size) continue;
#pragma unroll
    for (int j = 0; j < width / 8; ++j) {
      const std::int64_t c = column0 + j * 8;
      const float2 sum = {alpha * sums[4 * j + 2 * half], alpha * sums[4 * j + 2 * half + 1]};
      if (c >= p.right.size) continue;
      if (p.turned) {
        float* const place = to + c * leading + r;
        const float more = bias ? bias[r] : 0;
        *place = sum.x + more + (adds ? *place : 0);
        if (c + 1 < p.right.size) place[leading] = sum.y + more + (adds ? place[leading] : 0);
      } else {
        float2* const place = reinterpret_cast<float2*>(to + r * leading + c);
        const float2 more = bias ? float2{bias[c], bias[c + 1]} : float2{0, 0}, before = adds ? *place : float2{0, 0};
        *place = {sum.x + more.x + before.x, sum.y + more.y + before.y};
      }
    }
  }
}

template <bool left_along, int width>
__device__ __forceinline__ void multiply_tiles(const Problem& p, const Stage<width>* memory, Barriers& barriers) {
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32, eighth = lane / 4, member = lane % 4;
  // The rows that a thread has, in which order is ours to choose: such that a warp's are in different banks.
  const int row = left_along ? warp * 16 + eighth : warp / 2 * 32 + warp % 2 * 8 + eighth / 4 * 16 + eighth % 4;
  const int other_row = row + (left_along ? 8 : 4);
  Cursor at;
  int used = 0;
  for (int unit = blockIdx.x; at.find(p, unit); unit += gridDim.x) {
    float sums[width / 2] = {}, products[width / 2];
    for (int step = 0; step < at.steps; ++step, ++used) {
      const Stage<width>& stage = memory[used % stages];
      barriers.loaded[used % stages].wait(used / stages % 2);
      std::uint32_t large[4][4], rest[4][4];
#pragma unroll
      for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = i % 2 == 0 ? row : other_row, k = s * 8 + i / 2 * 4 + member;
          const float x = stage.left[left_along ? place_in_rows(r, k) : place_in_columns(r, k)], rounded = to_tf32(x);
          large[s][i] = __float_as_uint(rounded);
          rest[s][i] = __float_as_uint(to_tf32(x - rounded));
        }
      const std::uint64_t right_large = descriptor_of(stage.right), right_rest = descriptor_of(stage.rest);
      constexpr int eight_floats = 8 * sizeof(float) >> 4;
      barriers.split[used % stages].wait(used / stages % 2);
      hold(products);
      begin_products();
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        multiply_8(products, rest[s], right_large + s * eight_floats, s > 0);
        multiply_8(products, large[s], right_rest + s * eight_floats, true);
      }
#pragma unroll
      for (int s = 0; s < 4; ++s) multiply_8(products, large[s], right_large + s * eight_floats, true);
      commit_products();
      wait_products<0>();
      hold(products);
      __syncwarp();
      if (lane == 0) barriers.used[used % stages].arrive();
#pragma unroll
      for (int i = 0; i < width / 2; ++i) sums[i] += products[i];
    }
    write_sums<width>(p, at, row, other_row, member * 2, sums);
  }
}

#endif

template <bool left_along, bool right_along, int width>
__global__ void __launch_bounds__(threads, 1) multiply(__grid_constant__ const Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float memory[];
  __shared__ Barriers barriers;  // its presence says that this was compiled for wgmma: see is_compiled
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      barriers.loaded[i].init(1);
      barriers.split[i].init(splitters / 32);
      barriers.used[i].init(multipliers / 32);
    }
    show_to_copies();
  }
  __syncthreads();
  const auto offset = (swizzle_span - shared_address(memory) % swizzle_span) % swizzle_span;
  const auto stage = reinterpret_cast<Stage<width>*>(memory + offset / sizeof(float));
  if (threadIdx.x >= multipliers) {
    give_registers<80>();
    load_tiles<left_along, right_along>(p, stage, barriers);
  } else {
    take_registers<208>();
    multiply_tiles<left_along>(p, stage, barriers);
  }
#endif
}

/// c from the sums of the splits of the depth.
__global__ void __launch_bounds__(block_size) add_partial(__grid_constant__ const Problem p) {
  const std::int64_t pairs = (p.turned ? p.left.size : p.right.size) / 2, rows = p.turned ? p.right.size : p.left.size;
  const std::int64_t at = std::int64_t(blockIdx.x) * block_size + threadIdx.x, row = at / pairs, column = at % pairs * 2;
  if (row >= rows) return;
  float2 sum = {0, 0};
#pragma unroll 16
  for (int i = 0; i < p.splits; ++i) {
    const float2 part = *reinterpret_cast<const float2*>(p.partial + (i * rows + row) * pairs * 2 + column);
    sum.x += part.x;
    sum.y += part.y;
  }
  float2* const place = reinterpret_cast<float2*>(p.c + row * p.c_leading + column);
  const float2 before = p.adds ? *place : float2{0, 0};
  const float2 bias = p.bias ? float2{p.bias[column], p.bias[column + 1]} : float2{0, 0};
  *place = {p.alpha * sum.x + bias.x + before.x, p.alpha * sum.y + bias.y + before.y};
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

/// Whether the program holds the kernels for wgmma, which asks for the architecture 90a and not 90.
bool is_compiled() {
  static const bool is_so = [] {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, multiply<true, true, 128>) == cudaSuccess && attributes.sharedSizeBytes > 0;
  }();
  return is_so;
}

/// What the copy engine is told of an operand; a box is 32 elements of its contiguous side, and `outer` lines.
CUtensorMap map_of(const Side& side, std::int64_t depth, bool along_depth, int outer) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found), "cudaGetDriverEntryPoint");
    if (!function) fail_call(cudaErrorSymbolNotFound, "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const auto size = static_cast<cuuint64_t>(side.size), k = static_cast<cuuint64_t>(depth);
  const cuuint64_t sizes[] = {along_depth ? k : size, along_depth ? size : k};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(side.leading) * sizeof(float)};
  const cuuint32_t box[] = {32, static_cast<cuuint32_t>(outer)}, every[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<float*>(side.data), sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail_call(cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
  return map;
}

std::int64_t tiles(std::int64_t size, int tile) { return (size + tile - 1) / tile; }

/// How a product is cut up. The best is the one that takes least time, counted in steps of tiles of width 128.
struct Cut {
  bool turned = false;
  int width = 128, splits = 1;
  double time = INFINITY;
};

Cut best_cut(const Problem& straight, bool left_along, bool right_along, int multiprocessors) {
  const double bytes = 8.0 * static_cast<double>(straight.left.size * straight.right.size);  // of a part, written and read
  const std::int64_t steps = tiles(straight.depth, tile_depth);
  Cut best;
  for (const bool turned : {false, true}) {
    // Who lies with the depth innermost is the right one, if one does.
    if (left_along != right_along && turned != left_along) continue;
    const std::int64_t rows = (turned ? straight.right : straight.left).size, columns = (turned ? straight.left : straight.right).size;
    for (const int width : {128, 80}) {
      if (width != 128 && !(turned ? left_along : right_along)) continue;
      const auto units = static_cast<double>(tiles(rows, tile_rows) * tiles(columns, width));
      for (int splits = 1; splits <= std::min<std::int64_t>(steps, 64); ++splits) {
        const double rounds = std::ceil(units * splits / multiprocessors), each = std::ceil(static_cast<double>(steps) / splits) + 0.7;
        const double adding = splits > 1 ? 4 + bytes * splits / 2.5e6 : 0;  // bytes in the time of a step
        const double time = rounds * each * (width == 128 ? 1 : 0.7) + adding;
        if (time < best.time) best = {turned, width, splits, time};
      }
    }
  }
  return best;
}

}  // namespace

bool has_product_in_parts(const Product& p, const ProductOperands& at, Stream stream) {
  constexpr double worth_it = 1 << 26;  // multiplications
  const auto fits = [](const void* data, std::int64_t leading) { return is_aligned(data, 16) && leading % 4 == 0; };
  return p.dtype == DType::f32 && p.count == 1 && p.epilogue != Epilogue::bias_gelu && std::min(p.m, p.n) >= 64 && p.k >= tile_depth &&
         p.m % 2 == 0 && static_cast<double>(p.m) * p.n * p.k >= worth_it && fits(at.a, p.a_leading) && fits(at.b, p.b_leading) &&
         fits(at.c, p.c_leading) && kernels::has_tf32x3(Cuda{}, stream.device);
}

void multiply_in_parts(const Product& p, const ProductOperands& at, double alpha, Stream stream) {
  // Rows first: c^T (n, m) = b^T (n, k) a^T (k, m).
  Problem problem{};
  problem.left = {static_cast<const float*>(at.b), p.n, p.b_leading};
  problem.right = {static_cast<const float*>(at.a), p.m, p.a_leading};
  problem.depth = p.k;
  problem.c = static_cast<float*>(at.c);
  problem.c_leading = p.c_leading;
  problem.bias = p.epilogue == Epilogue::bias ? static_cast<const float*>(at.bias) : nullptr;
  problem.alpha = static_cast<float>(alpha);
  problem.adds = p.write == Write::accumulate;

  bool left_along = !p.b_transposed, right_along = p.a_transposed;
  const int multiprocessors = attribute(cudaDevAttrMultiProcessorCount, stream.device.index);
  const Cut cut = best_cut(problem, left_along, right_along, multiprocessors);
  problem.turned = cut.turned;
  if (cut.turned) {
    std::swap(problem.left, problem.right);
    std::swap(left_along, right_along);
  }
  problem.row_tiles = static_cast<int>(tiles(problem.left.size, tile_rows));
  problem.column_tiles = static_cast<int>(tiles(problem.right.size, cut.width));
  const std::int64_t steps = tiles(p.k, tile_depth);
  problem.steps = static_cast<int>((steps + cut.splits - 1) / cut.splits);
  problem.splits = static_cast<int>((steps + problem.steps - 1) / problem.steps);
  const Workspace partial(problem.splits > 1 ? static_cast<std::size_t>(problem.splits * p.n * p.m) * sizeof(float) : 0, stream);
  if (problem.splits > 1) problem.partial = partial.as<float>();

  problem.left_map = map_of(problem.left, p.k, left_along, left_along ? tile_rows : tile_depth);
  problem.right_map = map_of(problem.right, p.k, right_along, right_along ? cut.width : tile_depth);
  const auto run = [&](auto kernel, std::size_t bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "cudaFuncSetAttribute");
    launch(kernel, static_cast<unsigned>(std::min(problem.units(), multiprocessors)), threads, bytes, stream, problem);
  };
  if (!right_along) run(multiply<false, false, 128>, shared_bytes<128>);
  else if (left_along) cut.width == 128 ? run(multiply<true, true, 128>, shared_bytes<128>) : run(multiply<true, true, 80>, shared_bytes<80>);
  else cut.width == 128 ? run(multiply<false, true, 128>, shared_bytes<128>) : run(multiply<false, true, 80>, shared_bytes<80>);
  if (problem.splits > 1) launch(add_partial, blocks_for(p.n * p.m / 2), block_size, 0, stream, problem);
}

}  // namespace tern::gpu

bool tern::kernels::has_tf32x3(Cuda, Device device) {
  return gpu::attribute(cudaDevAttrComputeCapabilityMajor, device.index) == 9 && gpu::is_compiled();
}
