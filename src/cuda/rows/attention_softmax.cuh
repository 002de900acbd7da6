#pragma once
#include <cooperative_groups.h>

#include <bit>
#include <optional>

#include "cuda/device/group.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/launch.h"
#include "tensor/view.h"

// What the kernels of softmax and of its gradient share. A row lies in the registers of a team of threads, so that memory is read
// once and written once: some lanes of a warp for short rows, a block for longer ones, and for the longest a cluster of blocks.
// Each warp first reduces its own share of the row; the warps of a team exchange results once, through shared memory. What keeps the
// memory busy is how much of the rows is under way, some 64 KB on each multiprocessor: hence many threads of few registers, each with
// several 16-byte loads before its first use of one. Long rows of 16-bit numbers, which take more registers than they bring bytes,
// lie in shared memory instead.
namespace tern::gpu {

/// The threads that hold a row.
struct Team {
  unsigned threads = 1;  ///< in a block: a power of two up to 32, or the whole block
  unsigned blocks = 1;   ///< of a cluster: a power of two; more than one only with whole blocks

  /// Whether the team is part of a warp, so that shuffles are all it needs.
  __host__ __device__ bool in_a_warp() const { return threads <= 32; }
  __device__ unsigned lanes() const { return min(threads, 32u); }
};

/// What follows from the value is cheap to compute and dear to keep in registers: the compiler, which would keep all of it for the
/// next loop, takes the value for a new one from here on.
__device__ __forceinline__ void forget(int& value) { asm volatile("" : "+r"(value)); }

/// Which row a thread works on, and which vectors of it. Vectors begin at multiples of 16 bytes, so where a row does not, its first
/// vector begins `skew` elements before it. What vectors hold of other rows is neither used nor written.
struct Place {
  std::int64_t row;
  int member, size;  ///< this thread of the team, and the team's threads
  int first = 0, stride = 0;

  __device__ explicit Place(Team team) {
    if (team.in_a_warp()) {
      const unsigned shift = __ffs(team.threads) - 1;
      row = std::int64_t(blockIdx.x) * (blockDim.x >> shift) + (threadIdx.x >> shift);
      member = static_cast<int>(threadIdx.x & (team.threads - 1));
      size = static_cast<int>(team.threads);
    } else {
      row = blockIdx.x >> (__ffs(team.blocks) - 1);
      member = static_cast<int>((blockIdx.x & (team.blocks - 1)) * blockDim.x + threadIdx.x);
      size = static_cast<int>(team.blocks * blockDim.x);
    }
  }

  template <int width, bool aligned, class T>
  __device__ void divide(const T* row_start) {
    const int skew = width == 1 || aligned ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(row_start) % 16 / sizeof(T));
    first = member * width - skew;
    stride = size * width;
  }

  /// The column at which vector i begins.
  __device__ int column(int i) const { return first + i * stride; }
  __device__ void forget_columns() { forget(first); }
};

/// Whether a column is one of the first `count`.
__device__ __forceinline__ bool is_within(int column, int count) { return static_cast<unsigned>(column) < static_cast<unsigned>(count); }
/// The same of all columns of a vector. Where rows are aligned, no vector lies in a row in part.
template <int width, bool aligned>
__device__ __forceinline__ bool is_vector_within(int column, int count) {
  return aligned ? column < count : column >= 0 && column + width <= count;
}

inline constexpr unsigned most_threads = 512, most_blocks = 8;

/// The combination of the values of a team's lanes of one warp, in all of them.
template <class F>
__device__ __forceinline__ float combine_lanes(float value, unsigned lanes, F&& combine) {
  for (unsigned step = lanes / 2; step > 0; step /= 2) value = combine(value, shuffle_xor(value, step));
  return value;
}
__device__ __forceinline__ float max_of_lanes(float value, unsigned lanes) {
  return combine_lanes(value, lanes, [](float a, float b) { return fmaxf(a, b); });
}
__device__ __forceinline__ float sum_of_lanes(float value, unsigned lanes) {
  return combine_lanes(value, lanes, [](float a, float b) { return a + b; });
}

/// What the warps of a team tell each other; every block of the team has all of it.
template <class V>
struct Parts {
  V values[most_threads / 32 * most_blocks];
};

/// To be called first by a kernel that exchanges: a block may write to another's shared memory only once that has started.
__device__ __forceinline__ void announce(Team team) {
#if __CUDA_ARCH__ >= 900
  if (team.blocks > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;");
#endif
}

/// Brings the value of every warp of the team to all its blocks, and returns how many there are. Once in a kernel.
template <class V>
__device__ __forceinline__ unsigned exchange(Parts<V>& parts, V value, Team team) {
  const unsigned warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
  if (team.blocks > 1) {
    const auto cluster = cooperative_groups::this_cluster();
    cluster.barrier_wait();
    if (lane < team.blocks) cluster.map_shared_rank(&parts, lane)->values[cluster.block_rank() * warps + warp] = value;
    cluster.sync();
    return team.blocks * warps;
  }
#endif
  if (lane == 0) parts.values[warp] = value;
  __syncthreads();
  return warps;
}

/// Copies 16 bytes to shared memory without waiting, and without a register on their way.
__device__ __forceinline__ void copy_async(uint4& shared, const void* address) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(&shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(address) : "memory");
}
/// Waits for this thread's own copies.
__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// What one instruction reads and writes: 16 bytes, or one element.
template <class T, int width>
using Word = std::conditional_t<width == 1, T, uint4>;

/// A word that the kernel may write to later. It is read once, so the first-level cache is left to what is read often.
template <int width, class T>
__device__ __forceinline__ Word<T, width> read_once(const T* address) {
  if constexpr (width > 1) return __ldcg(reinterpret_cast<const uint4*>(address));
  else if constexpr (is_half<T>) return std::bit_cast<T>(__ldcg(&address->bits));
  else return __ldcg(address);
}

/// A word of one value. Two 16-bit numbers fill each of its registers.
template <int width, class T>
__device__ __forceinline__ Word<T, width> repeat(T value) {
  if constexpr (width == 1) return value;
  else {
    unsigned bits;
    if constexpr (is_half<T>) bits = value.bits * 0x10001u;
    else bits = __float_as_uint(value);
    return uint4{bits, bits, bits, bits};
  }
}

template <class T, int width>
__device__ __forceinline__ void unpack(const Word<T, width>& word, float (&values)[width]) {
  if constexpr (width == 1) values[0] = convert<float>(word);
  else {
    const unsigned registers[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (is_half<T>) unpack_pair<T>(registers[k], values[2 * k], values[2 * k + 1]);
      else values[k] = __uint_as_float(registers[k]);
    }
  }
}

/// Writes the vector at `column` of a row, or the part that lies in the row.
template <bool aligned, class T, int width>
__device__ __forceinline__ void write_vector(T* row, int column, int columns, const float (&values)[width]) {
  if (!is_vector_within<width, aligned>(column, columns)) {
    if constexpr (!aligned && width > 1) {
#pragma unroll
      for (int k = 0; k < width; ++k)
        if (is_within(column + k, columns)) row[column + k] = convert<T>(values[k]);
    }
  } else if constexpr (width == 1) {
    row[column] = convert<T>(values[0]);
  } else {
    uint4 word;
    if constexpr (std::is_same_v<T, float>) {
      word = {__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]), __float_as_uint(values[3])};
    } else {
      word = {pack_pair<T>(values[0], values[1]), pack_pair<T>(values[2], values[3]), pack_pair<T>(values[4], values[5]),
              pack_pair<T>(values[6], values[7])};
    }
    *reinterpret_cast<uint4*>(row + column) = word;
  }
}

/// How memory lets rows be read.
enum class Rowwise {
  aligned,  ///< all begin and end at multiples of 16 bytes
  skewed,   ///< the same row of all tensors is equally far from one
  single,   ///< element by element
};
template <class T>
Rowwise rowwise(std::initializer_list<View> views, std::int64_t columns) {
  const auto distance = [](const View& view) { return reinterpret_cast<std::uintptr_t>(view.data) % 16; };
  const std::uintptr_t first = distance(*views.begin());
  if (!std::all_of(views.begin(), views.end(), [&](const View& view) { return distance(view) == first; })) return Rowwise::single;
  return first == 0 && columns % (16 / sizeof(T)) == 0 ? Rowwise::aligned : Rowwise::skewed;
}

/// How many elements each thread of a team holds, in vectors of 16 bytes or one by one.
struct Plan {
  Rowwise rows;
  int elements;
  Team team;
  unsigned block;
};

/// A plan in which each thread holds `elements` of a row, or more, up to `most_elements`, where the row would not fit or two warps
/// would share what one can hold. Nothing if the row is too long.
template <class T>
std::optional<Plan> plan_for(std::int64_t columns, Rowwise rows, int elements, int most_elements, Stream stream) {
  const bool vectors = rows != Rowwise::single;
  if (!vectors) elements = most_elements = columns <= 256 ? 8 : 16;
  const std::int64_t longest = columns + (rows == Rowwise::skewed ? 16 / sizeof(T) - 1 : 0);
  const auto threads_with = [&](int each) { return (longest + each - 1) / each; };
  const auto is_better_doubled = [&](std::int64_t threads) { return threads > most_threads || (threads > 32 && threads <= 64); };
  while (elements < most_elements && is_better_doubled(threads_with(elements))) elements *= 2;
  // Neighbouring threads read neighbouring elements, so a team for single elements has a lane for each.
  const std::int64_t threads = vectors ? threads_with(elements) : std::max(threads_with(elements), std::min<std::int64_t>(columns, 32));
  Plan plan{rows, elements, {}, 0};
  if (threads <= 32) {
    while (plan.team.threads < threads) plan.team.threads *= 2;
    constexpr int bytes_of_block = 4096;  // smaller blocks cost starts, and larger ones wait longer for their last team
    plan.block = static_cast<unsigned>(bytes_of_block / (elements * sizeof(T)));
    return plan;
  }
  unsigned& blocks = plan.team.blocks;
  while (threads > most_threads * blocks && blocks < most_blocks) blocks *= 2;
  if (threads > most_threads * blocks) return std::nullopt;
  if (blocks > 1) {
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, stream.device.index), "cudaDeviceGetAttribute");
    if (major < 9) return std::nullopt;
  }
  const auto of_block = static_cast<unsigned>((threads + blocks - 1) / blocks);
  plan.block = plan.team.threads = (of_block + 31) / 32 * 32;
  return plan;
}

/// Calls run.operator()<width, vectors, aligned>() with the plan's numbers.
template <class T, int most_elements, class F>
void with_layout(const Plan& plan, F&& run) {
  constexpr int width = 16 / sizeof(T);
  const auto with_alignment = [&]<bool aligned>() {
    if (plan.elements == 8) return run.template operator()<width, 8 / width, aligned>();
    if (plan.elements == 16) return run.template operator()<width, 16 / width, aligned>();
    if constexpr (most_elements == 32) return run.template operator()<width, 32 / width, aligned>();
  };
  if (plan.rows == Rowwise::aligned) return with_alignment.template operator()<true>();
  if (plan.rows == Rowwise::skewed) return with_alignment.template operator()<false>();
  if (plan.elements == 8) return run.template operator()<1, 8, false>();
  return run.template operator()<1, 16, false>();
}

/// Launches a kernel whose blocks hold teams: kernel(team, arguments...). Each thread has `shared` bytes of its block's memory.
template <class... Parameters, class... Arguments>
void launch_teams(void (*kernel)(Team, Parameters...), const Plan& plan, std::int64_t rows, std::size_t shared, Stream stream,
                  Arguments&&... arguments) {
  const auto [threads, blocks] = plan.team;
  shared *= plan.block;
  if (constexpr std::size_t without_asking = 47 << 10; shared > without_asking) {  // and 1 KB for Parts
    use(stream);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "cudaFuncSetAttribute");
  }
  if (blocks > 1) {
    launch_clusters(kernel, blocks_for(rows * blocks, 1), plan.block, blocks, shared, stream, plan.team, arguments...);
  } else {
    launch(kernel, blocks_for(rows, plan.block / threads), plan.block, shared, stream, plan.team, arguments...);
  }
}

/// Blocks and their threads, for kernels that take a row per block at a time.
struct LoopingGrid {
  unsigned blocks, threads;
};
inline LoopingGrid looping_grid(std::int64_t rows, std::int64_t columns) {
  const auto whole_warps = (std::min<std::int64_t>(columns, most_threads) + 31) / 32 * 32;
  return {static_cast<unsigned>(std::min<std::int64_t>(rows, 1 << 20)), static_cast<unsigned>(whole_warps)};
}

}  // namespace tern::gpu
