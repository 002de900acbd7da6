#pragma once
#include <cuda_pipeline.h>

#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/convert.cuh"
#include "cuda/warp.cuh"
#include "tensor/random.h"
#include "tensor/view.h"

// What layer_norm and its gradient share: how rows are dealt out to threads, how the threads of a row add up, and dropout.
//
// A row stays in registers, a few vectors of it in each of its threads, so that memory sees it once. The threads of a row are a team:
// some lanes of a warp for short rows, then whole warps of a block, then the blocks of a cluster. How many, and which of their vectors
// lie beyond the row's end, is known at run time only: a few kernels then serve all lengths.
namespace tern::gpu::norm {

inline constexpr unsigned max_cluster = 8;  ///< blocks; every device that has clusters has them of this size

/// How rows are dealt out.
struct Plan {
  unsigned threads = 1;  ///< of a block that share a row: a power of two up to 32, or whole warps
  unsigned rows = 1;     ///< that a block holds at a time; 1 in a cluster
  unsigned cluster = 1;  ///< blocks that share a row: a power of two

  unsigned block() const { return threads * rows; }
};

/// The plan for rows of so many elements, of which a thread takes `elements` at most, in vectors of `width`. A block has at most
/// `max_threads`; it has several teams of at most `sharing` threads, up to `row_block` in all. threads is 0 where even a cluster cannot
/// hold a row.
inline Plan plan_rows(std::int64_t columns, int elements, int width, unsigned row_block, unsigned sharing, unsigned max_threads,
                      bool clusters) {
  const std::int64_t vectors = (columns + width - 1) / width, needed = (columns + elements - 1) / elements;
  Plan plan;
  if (needed > std::int64_t(max_threads) * (clusters ? max_cluster : 1)) return {0, 0, 0};
  if (needed <= 32) {
    // At least eight vectors side by side, the 128 bytes that memory gives at once.
    while (plan.threads < needed || (plan.threads < 8 && plan.threads < vectors)) plan.threads *= 2;
  } else {
    while (needed > std::int64_t(max_threads) * plan.cluster) plan.cluster *= 2;
    plan.threads = static_cast<unsigned>((needed + plan.cluster * 32 - 1) / (plan.cluster * 32) * 32);
  }
  if (plan.cluster == 1 && plan.threads <= sharing) plan.rows = std::max(1u, row_block / plan.threads);
  return plan;
}

/// Where the warps of a team leave their sums for each other. In a cluster the sums come from afar, and `arrived` counts their bytes.
struct alignas(64) Exchange {
  static constexpr unsigned max_warps = 16;  ///< of a block
  float2 sums[max_warps * max_cluster];
  std::uint64_t arrived;
};

/// The team that the calling thread is in. `alone`: a team of more than a warp has its block for itself.
template <bool alone>
class Team {
 public:
  /// The exchanges, in shared memory, take turns: while some warps still read one, others may be at the next.
  __device__ Team(const Plan& plan, Exchange (&exchanges)[2]) : exchanges_(exchanges), threads_(plan.threads), cluster_(plan.cluster) {
    if (in_a_warp()) {
      thread_ = threadIdx.x & (threads_ - 1);
      group_ = threadIdx.x >> (31 - __clz(threads_));
    } else {
      group_ = alone ? 0 : threadIdx.x / threads_;
      thread_ = threadIdx.x - group_ * threads_;
    }
#if __CUDA_ARCH__ >= 900
    if (cluster_ > 1) {
      if (threadIdx.x == 0) {
        for (Exchange& exchange : exchanges)
          asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_of(&exchange.arrived)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      }
      asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    }
#endif
  }
  /// Once, before the first add_up: waits until the blocks of the cluster run, and can be written to.
  __device__ void meet() const {
#if __CUDA_ARCH__ >= 900
    if (cluster_ > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
  }

  __device__ bool in_a_warp() const { return threads_ <= 32; }
  __device__ unsigned cluster() const { return blockIdx.x >> (31 - __clz(cluster_)); }  ///< the number of the team's cluster, or block
  __device__ unsigned group() const { return group_; }                                  ///< the team's number in its block
  __device__ unsigned thread() const { return rank() * threads_ + thread_; }            ///< this thread's number in the team
  __device__ unsigned size() const { return threads_ * cluster_; }

  /// The sums over the team, to all of its threads. The same bits for each of them: all add in the same order.
  __device__ float2 add_up(float2 value) {
    value = add_lanes<16>(value, threads_);
    if (in_a_warp()) return value;
    const unsigned warps = threads_ / 32, warp = thread_ / 32, lane = thread_ % 32;
    Exchange& exchange = exchanges_[turn_ & 1];
    if (cluster_ == 1) {
      float2* const sums = exchange.sums + group_ * warps;
      if (lane == 0) sums[warp] = value;
      if constexpr (alone) __syncthreads();
      else asm volatile("bar.sync %0, %1;" ::"r"(1 + group_), "r"(threads_) : "memory");  // this team alone; 0 is __syncthreads
      const unsigned other = lane % Exchange::max_warps;
      value = add_lanes<Exchange::max_warps / 2>(other < warps ? sums[other] : float2{}, 32);
    } else {
      exchange_in_cluster(exchange, value, rank() * warps + warp, warps * cluster_);
      value = {};
      for (unsigned i = lane; i < warps * cluster_; i += 32) value.x += exchange.sums[i].x, value.y += exchange.sums[i].y;
      value = add_lanes<16>(value, 32);
    }
    ++turn_;
    return value;
  }

 private:
  static __device__ unsigned address_of(const void* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }
  __device__ unsigned rank() const { return blockIdx.x & (cluster_ - 1); }

  /// Puts the value into sums[at] of all blocks, and waits for the others' values. A store that says to its target's barrier that it has
  /// arrived: a barrier of the cluster would first wait for all earlier writes, and empty the first cache.
  __device__ void exchange_in_cluster(Exchange& exchange, float2 value, unsigned at, unsigned count) const {
#if __CUDA_ARCH__ >= 900
    const unsigned arrived = address_of(&exchange.arrived), lane = thread_ % 32;
    if (threadIdx.x == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrived), "r"(count * unsigned(sizeof value)) : "memory");
    if (lane < cluster_) {
      asm volatile(
          "{\n\t.reg .b32 there, barrier;\n\t"
          "mapa.shared::cluster.u32 there, %0, %2;\n\t"
          "mapa.shared::cluster.u32 barrier, %1, %2;\n\t"
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [barrier];\n\t}" ::
          "r"(address_of(exchange.sums + at)), "r"(arrived), "r"(lane), "f"(value.x), "f"(value.y)
          : "memory");
    }
    asm volatile(
        "{\n\t.reg .pred done;\n\t"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t}" ::"r"(arrived), "r"(turn_ / 2 & 1)
        : "memory");
#endif
  }

  /// Among the lanes up to `most` apart, of which `lanes` are in the team.
  template <unsigned most>
  static __device__ float2 add_lanes(float2 value, unsigned lanes) {
#pragma unroll
    for (unsigned step = most; step > 0; step /= 2) {
      const float2 other{shuffle_xor(value.x, step), shuffle_xor(value.y, step)};
      if (step < lanes) value.x += other.x, value.y += other.y;
    }
    return value;
  }

  Exchange (&exchanges_)[2];
  unsigned threads_, cluster_, group_, thread_, turn_ = 0;
};

/// A vector as it lies in registers: elements of 16 bits in pairs, since a register holds two.
template <class T, int width>
using Words = std::conditional_t<is_half<T> && width % 2 == 0, Vector<std::uint32_t, (width + 1) / 2>, Vector<T, width>>;

/// Starts a copy into shared memory.
template <class V>
__device__ __forceinline__ void copy_ahead(V* to, const void* from) {
  if constexpr (sizeof(V) >= 4) __pipeline_memcpy_async(to, from, sizeof(V));
  else *to = *static_cast<const V*>(from);
}

/// Elements that are read once: they go past the first cache, which keeps the parameters. The kernel may write there later.
template <int width, class T>
__device__ __forceinline__ Words<T, width> read_once(const T* address) {
  using W = Words<T, width>;
  if constexpr (sizeof(W) == 16) return std::bit_cast<W>(__ldcg(reinterpret_cast<const uint4*>(address)));
  else if constexpr (sizeof(W) == 4) return std::bit_cast<W>(__ldcg(reinterpret_cast<const unsigned*>(address)));
  else return std::bit_cast<W>(__ldcg(reinterpret_cast<const unsigned short*>(address)));
}

template <class T, int width>
__device__ __forceinline__ void unpack(const Words<T, width>& words, float (&values)[width]) {
#pragma unroll
  for (int k = 0; k < width; ++k) {
    if constexpr (std::is_same_v<Words<T, width>, Vector<T, width>>) {
      values[k] = convert<float>(words.values[k]);
    } else {
      const std::uint32_t pair = words.values[k / 2];
      if constexpr (std::is_same_v<T, bf16>) values[k] = __uint_as_float(k % 2 ? pair & 0xffff0000u : pair << 16);
      else values[k] = __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> k % 2 * 16)));
    }
  }
}

template <class T, int width>
__device__ __forceinline__ Words<T, width> pack(const float (&values)[width]) {
  Words<T, width> words;
  if constexpr (std::is_same_v<Words<T, width>, Vector<T, width>>) {
#pragma unroll
    for (int k = 0; k < width; ++k) words.values[k] = convert<T>(values[k]);
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
#pragma unroll
    for (int k = 0; k < width; k += 2) {
      Pair pair;
      if constexpr (std::is_same_v<T, bf16>) pair = __floats2bfloat162_rn(values[k], values[k + 1]);
      else pair = __floats2half2_rn(values[k], values[k + 1]);
      words.values[k / 2] = reinterpret_cast<const std::uint32_t&>(pair);
    }
  }
  return words;
}

template <class T, int width>
__device__ __forceinline__ void write_vector(T* address, const float (&values)[width]) {
  *reinterpret_cast<Words<T, width>*>(address) = pack<T>(values);
}

/// A parameter's vector as floats; all are `otherwise` where there is no parameter.
template <int width, class T>
__device__ __forceinline__ void read_parameter(const T* parameter, float otherwise, float (&values)[width]) {
  float none[width];
#pragma unroll
  for (int k = 0; k < width; ++k) none[k] = otherwise;
  unpack<T>(parameter ? *reinterpret_cast<const Words<T, width>*>(parameter) : pack<T>(none), values);
}

/// Dropout of elements that lie anywhere in a larger tensor.
template <class C>
struct Dropout {
  PhiloxState draws;
  std::uint32_t bound;  ///< unit_float(word) < p holds where word >> 8 is below this, exactly
  C keep, scale;        ///< 1 - p and its inverse

  Dropout(double p, PhiloxState state)
      : draws(state), bound(static_cast<std::uint32_t>(std::ceil(std::min(std::max(0.0, p), 1.0) * 0x1p24))), keep(static_cast<C>(1 - p)),
        scale(1 / keep) {}

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
  /// value / keep, as the CPU divides: the product, and what it leaves of the value. (Division has a path for tiny divisors.)
  __device__ C drop(C value, std::uint32_t word) const {
    const C product = value * scale;
    return word >> 8 < bound ? C(0) : fma(fma(-product, keep, value), scale, product);
  }
};

inline int attribute(cudaDeviceAttr which, Stream stream) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, stream.device.index), "cudaDeviceGetAttribute");
  return value;
}
inline bool has_clusters(Stream stream) { return attribute(cudaDevAttrComputeCapabilityMajor, stream) >= 9; }

/// How many clusters, or blocks, run at once: clusters lie within parts of the chip that need not be multiples of them. Asked once for
/// each plan.
inline unsigned clusters_at_once(const void* kernel, const Plan& plan, std::size_t shared, Stream stream) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, unsigned, unsigned>, unsigned> known;
  const std::lock_guard lock(mutex);
  unsigned& clusters = known[{kernel, stream.device.index, plan.cluster, plan.threads}];
  if (clusters == 0) {
    use(stream);
    int found = 0;
    if (plan.cluster == 1) {
      const int block = static_cast<int>(plan.block());
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, block, shared), "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
      found *= attribute(cudaDevAttrMultiProcessorCount, stream);
    } else {
      cudaLaunchAttribute size{};
      size.id = cudaLaunchAttributeClusterDimension;
      size.val.clusterDim = {plan.cluster, 1, 1};
      const cudaLaunchConfig_t config{plan.cluster, plan.block(), shared, nullptr, &size, 1};
      check(cudaOccupancyMaxActiveClusters(&found, kernel, &config), "cudaOccupancyMaxActiveClusters");
    }
    clusters = static_cast<unsigned>(std::max(found, 1));
  }
  return clusters;
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

/// `clusters` clusters, or blocks, of the plan.
template <class... Parameters, class... Arguments>
void launch_plan(void (*kernel)(Parameters...), unsigned clusters, const Plan& plan, std::size_t shared, Stream stream,
                 Arguments&&... arguments) {
  if (plan.cluster == 1) return launch(kernel, clusters, plan.block(), shared, stream, std::forward<Arguments>(arguments)...);
  launch_clusters(kernel, clusters * plan.cluster, plan.block(), plan.cluster, shared, stream, std::forward<Arguments>(arguments)...);
}

/// A kernel that may start while the one before it ends, and waits for that end itself before it reads what that one writes.
template <class... Parameters, class... Arguments>
void launch_overlapping(void (*kernel)(Parameters...), dim3 grid, dim3 block, Stream stream, Arguments&&... arguments) {
  if (!has_clusters(stream)) return launch(kernel, grid, block, 0, stream, std::forward<Arguments>(arguments)...);  // of the same generation
  use(stream);
  [&](Parameters... values) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&values))...};
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    const cudaLaunchConfig_t config{grid, block, 0, handle(stream), &attribute, 1};
    check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers), "launch");
  }(std::forward<Arguments>(arguments)...);
}

}  // namespace tern::gpu::norm
