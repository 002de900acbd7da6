#pragma once
#include <bit>
#include <cmath>

#include "cuda/convert.cuh"
#include "cuda/warp.cuh"
#include "tensor/random.h"
#include "tensor/view.h"

// What layer_norm and its gradient share: how rows are dealt out to threads, how the threads of a row add up, and dropout.
//
// A row stays in registers, `elements_per_thread` of it in each of its threads, so that memory sees it once. The threads of a row
// are a team: a few lanes of a warp for short rows, then whole warps of a block, then the blocks of a cluster. How many, and of
// how many vectors the last ones hold none, is known at run time only: a few kernels then serve all lengths.
namespace tern::gpu::norm {

inline constexpr int elements_per_thread = 16;
inline constexpr unsigned max_cluster = 8;  ///< blocks; every device that has clusters has them of this size

/// How rows are dealt out.
struct Plan {
  unsigned threads = 1;  ///< of a block that share a row: a power of two up to 32, or whole warps
  unsigned rows = 1;     ///< that a block holds at a time; 1 in a cluster
  unsigned cluster = 1;  ///< blocks that share a row: a power of two

  unsigned block() const { return threads * rows; }
};

/// The plan for rows of so many elements, in vectors of `width`. A block has at most `max_threads`; it has several teams of at most
/// `sharing` threads, up to `row_block` in all. threads is 0 where even a cluster cannot hold a row.
inline Plan plan_rows(std::int64_t columns, int width, unsigned row_block, unsigned sharing, unsigned max_threads, bool clusters) {
  const std::int64_t vectors = (columns + width - 1) / width, needed = (columns + elements_per_thread - 1) / elements_per_thread;
  Plan plan;
  if (needed > std::int64_t(max_threads) * (clusters ? max_cluster : 1)) return {0, 0, 0};
  if (needed <= 32) {
    while (plan.threads < 32 && plan.threads < vectors) plan.threads *= 2;
  } else {
    while (needed > std::int64_t(max_threads) * plan.cluster) plan.cluster *= 2;
    plan.threads = static_cast<unsigned>((needed + plan.cluster * 32 - 1) / (plan.cluster * 32) * 32);
  }
  if (plan.cluster == 1 && plan.threads <= sharing) plan.rows = std::max(1u, row_block / plan.threads);
  return plan;
}

/// Where the warps of a block, or of a cluster, leave their sums for each other. A second exchange needs a second one.
struct Exchange {
  static constexpr unsigned max_warps = 16;  ///< of a block
  float sums[max_warps * max_cluster][2];
};

/// The team that the calling thread is in. `alone`: a team of more than a warp has its block for itself.
template <bool alone>
class Team {
 public:
  __device__ explicit Team(const Plan& plan) : threads_(plan.threads), cluster_(plan.cluster) {
    if (in_a_warp()) {
      thread_ = threadIdx.x & (threads_ - 1);
      group_ = threadIdx.x >> (31 - __clz(threads_));
    } else {
      group_ = alone ? 0 : threadIdx.x / threads_;
      thread_ = threadIdx.x - group_ * threads_;
    }
    rank_ = blockIdx.x & (cluster_ - 1);
#if __CUDA_ARCH__ >= 900
    if (cluster_ > 1) __cluster_barrier_arrive_relaxed();
#endif
  }
  /// Once, before the first add_up: waits until the blocks of the cluster run, and can be written to.
  __device__ void meet() const {
#if __CUDA_ARCH__ >= 900
    if (cluster_ > 1) __cluster_barrier_wait();
#endif
  }

  __device__ bool in_a_warp() const { return threads_ <= 32; }
  __device__ unsigned cluster() const { return blockIdx.x >> (31 - __clz(cluster_)); }  ///< the number of the team's cluster, or block
  __device__ unsigned group() const { return group_; }                                 ///< the team's number in its block
  __device__ unsigned thread() const { return rank_ * threads_ + thread_; }            ///< this thread's number in the team
  __device__ unsigned size() const { return threads_ * cluster_; }

  /// The sums over the team, to all of its threads. The same bits for each of them: all add in the same order.
  template <int n>
  __device__ void add_up(float (&values)[n], Exchange& exchange) const {
    add_lanes(values, threads_);
    if (in_a_warp()) return;
    const unsigned warps = threads_ / 32, warp = thread_ / 32, lane = thread_ % 32, sums_of_all = warps * cluster_;
    float(*const sums)[2] = exchange.sums + group_ * warps;
    if (cluster_ == 1) {
      if (lane == 0) {
#pragma unroll
        for (int k = 0; k < n; ++k) sums[warp][k] = values[k];
      }
      if constexpr (alone) __syncthreads();
      else asm volatile("bar.sync %0, %1;" ::"r"(1 + group_), "r"(threads_) : "memory");  // this team alone; 0 is __syncthreads
    } else {
#if __CUDA_ARCH__ >= 900
      if (lane < cluster_) {
        auto* const there = static_cast<float*>(__cluster_map_shared_rank(sums[rank_ * warps + warp], lane));
#pragma unroll
        for (int k = 0; k < n; ++k) there[k] = values[k];
      }
      __cluster_barrier_arrive();
      __cluster_barrier_wait();
#endif
    }
#pragma unroll
    for (int k = 0; k < n; ++k) values[k] = lane < sums_of_all ? sums[lane][k] : 0;
#pragma unroll 1
    for (unsigned i = lane + 32; i < sums_of_all; i += 32) {
#pragma unroll
      for (int k = 0; k < n; ++k) values[k] += sums[i][k];
    }
    add_lanes(values, 32);
  }

 private:
  template <int n>
  static __device__ void add_lanes(float (&values)[n], unsigned lanes) {
#pragma unroll
    for (unsigned step = 16; step > 0; step /= 2) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const float other = shuffle_xor(values[k], step);
        if (step < lanes) values[k] += other;
      }
    }
  }

  unsigned threads_, cluster_, group_, thread_, rank_;
};

/// Elements that are read once: they go past the first cache, which keeps the parameters. The kernel may write there later.
template <int width, class T>
__device__ __forceinline__ Vector<T, width> read_once(const T* address) {
  using V = Vector<T, width>;
  if constexpr (sizeof(V) == 16) return std::bit_cast<V>(__ldcg(reinterpret_cast<const uint4*>(address)));
  else if constexpr (sizeof(V) == 4) return std::bit_cast<V>(__ldcg(reinterpret_cast<const unsigned*>(address)));
  else return std::bit_cast<V>(__ldcg(reinterpret_cast<const unsigned short*>(address)));
}

/// A vector as floats. Pairs of 16-bit elements, which lie in one register, take one instruction each.
template <class T, int width>
__device__ __forceinline__ void unpack(const Vector<T, width>& words, float (&values)[width]) {
  if constexpr (is_half<T> && width % 2 == 0) {
    struct Pairs {
      std::uint32_t pairs[width / 2];
    };
    const auto packed = std::bit_cast<Pairs>(words);
#pragma unroll
    for (int k = 0; k < width / 2; ++k) {
      const std::uint32_t pair = packed.pairs[k];
      if constexpr (std::is_same_v<T, bf16>) {
        values[2 * k] = __uint_as_float(pair << 16);
        values[2 * k + 1] = __uint_as_float(pair & 0xffff0000u);
      } else {
        const float2 both = __half22float2(reinterpret_cast<const __half2&>(pair));
        values[2 * k] = both.x;
        values[2 * k + 1] = both.y;
      }
    }
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = convert<float>(words.values[k]);
  }
}

template <class T, int width>
__device__ __forceinline__ Vector<T, width> pack(const float (&values)[width]) {
  if constexpr (is_half<T> && width % 2 == 0) {
    struct Pairs {
      std::uint32_t pairs[width / 2];
    } packed;
#pragma unroll
    for (int k = 0; k < width / 2; ++k) {
      using Pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
      if constexpr (std::is_same_v<T, bf16>) reinterpret_cast<Pair&>(packed.pairs[k]) = __floats2bfloat162_rn(values[2 * k], values[2 * k + 1]);
      else reinterpret_cast<Pair&>(packed.pairs[k]) = __floats2half2_rn(values[2 * k], values[2 * k + 1]);
    }
    return std::bit_cast<Vector<T, width>>(packed);
  } else {
    Vector<T, width> words;
#pragma unroll
    for (int k = 0; k < width; ++k) words.values[k] = convert<T>(values[k]);
    return words;
  }
}

template <class T, int width>
__device__ __forceinline__ void write_vector(T* address, const float (&values)[width]) {
  *reinterpret_cast<Vector<T, width>*>(address) = pack<T>(values);
}

/// A parameter's vector as floats; all are `otherwise` where there is no parameter.
template <int width, class T>
__device__ __forceinline__ void read_parameter(const T* parameter, unsigned column, float otherwise, float (&values)[width]) {
  Vector<T, width> words;
#pragma unroll
  for (int k = 0; k < width; ++k) words.values[k] = convert<T>(otherwise);
  if (parameter) words = read_vector<width>(parameter + column);
  unpack(words, values);
}

/// Dropout of elements that lie anywhere in a larger tensor.
template <class C>
struct Dropout {
  PhiloxState draws;
  std::uint32_t bound;  ///< unit_float(word) < p holds where word >> 8 is below this, exactly
  C keep;

  Dropout(double p, PhiloxState state)
      : draws(state), bound(static_cast<std::uint32_t>(std::ceil(std::min(std::max(0.0, p), 1.0) * 0x1p24))), keep(static_cast<C>(1 - p)) {}

  __device__ std::uint64_t position() const { return draws.offset + (bound > 0 && draws.base ? *draws.base : 0); }

  /// Elements first, first + 1, ... of the tensor, where `first` is a multiple of 4 or there is one element.
  template <int width>
  __device__ void operator()(C (&values)[width], std::int64_t first, std::uint64_t position) const {
#pragma unroll
    for (int block = 0; block < width; block += 4) {
      const PhiloxBlock drawn = philox(draws.seed, position + static_cast<std::uint64_t>(first + block) / 4);
      if constexpr (width == 1) {
        const auto word = static_cast<unsigned>(first) % 4;  // chosen by comparisons: an index would put the words into memory
        const std::uint32_t low = word == 0 ? drawn.words[0] : drawn.words[1], high = word == 2 ? drawn.words[2] : drawn.words[3];
        values[0] = drop(values[0], word < 2 ? low : high);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) values[block + k] = drop(values[block + k], drawn.words[k]);
      }
    }
  }

 private:
  __device__ C drop(C value, std::uint32_t word) const { return word >> 8 < bound ? C(0) : value / keep; }
};

inline bool has_clusters(Stream stream) {
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, stream.device.index), "cudaDeviceGetAttribute");
  return major >= 9;
}

/// True where rows of so many elements of T, at all of these addresses, can be read 16 bytes at a time.
template <class T>
bool are_aligned(std::int64_t columns, std::initializer_list<const View*> views) {
  bool aligned = columns % static_cast<std::int64_t>(16 / sizeof(T)) == 0;
  for (const View* view : views) aligned = aligned && is_aligned(view->data, 16);
  return aligned;
}

/// Calls run.operator()<T>() for the types that are computed in f32; false for f64.
template <class F>
bool dispatch_short_floats(DType dtype, F&& run) {
  switch (dtype) {
    case DType::f32: run.template operator()<float>(); return true;
    case DType::f16: run.template operator()<f16>(); return true;
    case DType::bf16: run.template operator()<bf16>(); return true;
    case DType::f64: return false;
    default: fail("layer_norm", std::string("expected a floating dtype but got ") + name(dtype));
  }
}

/// As launch_clusters, with dynamic shared memory.
template <class... Parameters, class... Arguments>
void launch_plan(void (*kernel)(Parameters...), unsigned grid, const Plan& plan, std::size_t shared, Stream stream, Arguments&&... arguments) {
  if (plan.cluster == 1) return launch(kernel, grid, plan.block(), shared, stream, std::forward<Arguments>(arguments)...);
  use(stream);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {plan.cluster, 1, 1};
  const cudaLaunchConfig_t config{grid, plan.block(), shared, handle(stream), &attribute, 1};
  [&](Parameters... values) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&values))...};
    check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers), "launch");
  }(std::forward<Arguments>(arguments)...);
}

}  // namespace tern::gpu::norm
