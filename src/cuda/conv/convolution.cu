#include <algorithm>
#include <utility>

#include "cuda/device/convert.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/semaphore.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/tensor_map.h"
#include "ops/kernels/conv.h"
#include "tensor/context.h"
#include "tensor/dispatch.h"
#include "tensor/view.h"

// Convolution as an implicit GEMM on Hopper: y (outputs, positions) = weights (outputs, depth) windows (positions, depth)^T, both K-major,
// with a depth of taps and channels. Windows are never written: TMA loads them from a tall image, a box of positions
// at a time, shifted by the tap. For 16-bit floats, or float32 with matmul precision tf32. Accumulates in float32.
//
//   producer              1 thread of warp 8    b.empty -> TMA: a box (rows, 8 or more positions, 128 bytes of channels) -> b.full
//                                               a.empty -> TMA: a tap's weights (outputs, 128 bytes of channels) -> a.full
//   two consumer          warps 0 to 7          b.full; for each tap of the box: a.full -> 4 wgmma m64n128 -> a.empty; then b.empty
//   warpgroups
//
//   shared memory    | 3 stages of a, 16 KiB each | 3 stages of b, 20 KiB each |    128-byte swizzle; two blocks per multiprocessor
//
// Note [Rows of a window]
// A box of 128 positions is `box_width` positions wide, a multiple of 8, so that a row of it is a whole number of swizzle spans. If windows
// move in steps of one row, a box has as many additional rows as the window is high, minus one, and taps that are below each other read the
// same box in shared memory, starting some rows later: a 3 x 3 window is loaded 3 times, 18 rows for 16, and not 9 times. Loads are what
// limits this kernel: a tile of 128 x 128 takes tensor cores 512 cycles per tap, in which the L2 cache delivers some 15 KiB to a
// multiprocessor, of the 32 KiB that weights and positions of a tap have.
//
// More than 64 outputs: a block has a tile of 128 outputs and one box, and each consumer half of the outputs. Otherwise 64 outputs and two
// boxes, one per consumer, because a tile of 128 would be half empty.
namespace tern::gpu::conv {

/// Note [Tall images]
/// Images (B, C, H, W) in the layout from which TMA takes boxes of windows: one image of B `period` rows, for each image H rows and then
/// rows of zeros, with W positions whose channels are contiguous, padded with zeros to a multiple of 16 bytes. An image's rows of zeros are
/// its padding below and that of the next image above; TMA gives zeros outside of the whole. So a box may reach from one image into the
/// next, and small images fill a tile together. Rows of results between two images are computed, but not stored.
///
/// Float32 is rounded to TF32 (to nearest, ties away from zero).
struct TallImage {
  View images;          ///< any strides
  std::int64_t period;  ///< at least H
  void* to;             ///< (B period, W, padded_channels), contiguous

  std::int64_t batch() const { return images.shape[0]; }
  std::int64_t height() const { return images.shape[2]; }
  std::int64_t width() const { return images.shape[3]; }
  std::int64_t channels() const { return padded_channels(images); }
  std::int64_t rows() const { return batch() * period; }
  std::size_t bytes() const { return static_cast<std::size_t>(rows() * width() * channels()) * size_of(images.dtype); }

  static std::int64_t padded_channels(const View& images) {
    const std::int64_t step = 16 / static_cast<std::int64_t>(size_of(images.dtype));
    return ceil_div(images.shape[1], step) * step;
  }
};

// Converts images to channels last: a block has 64 positions and the channels of 128 bytes. It reads a channel of adjacent positions
// together, and writes the channels of a position together; in between they are in shared memory, a position's row of 32 words padded by
// one, so that neither access has bank conflicts.
namespace {

constexpr int places = 64, words = 32, threads = 256;

struct Copy {
  const void* from = nullptr;
  unsigned* to = nullptr;
  std::int64_t strides[4] = {};
  Divider width, period;
  int height = 0, channels = 0, words_of_place = 0;
  std::uint32_t all_places = 0, place_tiles = 0, blocks = 0;

  Copy() = default;
  explicit Copy(const TallImage& image)
      : from(image.images.data),
        to(static_cast<unsigned*>(image.to)),
        strides{image.images.strides[0], image.images.strides[1], image.images.strides[2], image.images.strides[3]},
        width(image.width()),
        period(image.period),
        height(static_cast<int>(image.height())),
        channels(static_cast<int>(image.images.shape[1])),
        words_of_place(static_cast<int>(image.channels() * static_cast<std::int64_t>(size_of(image.images.dtype)) / 4)),
        all_places(static_cast<std::uint32_t>(image.rows() * image.width())),
        place_tiles(static_cast<std::uint32_t>(ceil_div(image.rows() * image.width(), places))),
        blocks(static_cast<std::uint32_t>(place_tiles * ceil_div(words_of_place, words))) {}
};
struct Copies {
  Copy of[2];
};

/// T: float, or the bits of a 16-bit element.
template <class T>
__global__ void __launch_bounds__(threads) write_channels_last(__grid_constant__ const Copies p) {
  __shared__ unsigned tile[places][words + 1];
  constexpr int per_word = 4 / sizeof(T), rows_at_once = threads / places, places_at_once = threads / words;
  launch_dependents();
  const int which = blockIdx.x < p.of[0].blocks ? 0 : 1;
  const Copy& copy = p.of[which];
  const std::uint32_t block = blockIdx.x - (which == 0 ? 0 : p.of[0].blocks);
  const std::uint32_t word0 = block / copy.place_tiles * words, place0 = block % copy.place_tiles * places;
  {
    const std::uint32_t place = threadIdx.x % places, at = place0 + place;
    const std::uint32_t row = copy.width.divide(at), image = copy.period.divide(row);
    const int w = static_cast<int>(at - row * copy.width.divisor), h = static_cast<int>(row - image * copy.period.divisor);
    const bool is_there = at < copy.all_places && h < copy.height;
    const T* const from = static_cast<const T*>(copy.from) + image * copy.strides[0] + h * copy.strides[2] + w * copy.strides[3];
    unsigned read[words / rows_at_once] = {};  // all loads first: the compiler cannot move loads before stores to unknown addresses
#pragma unroll
    for (int i = 0; i < words / rows_at_once; ++i) {
      const int word = static_cast<int>(threadIdx.x) / places + i * rows_at_once, channel = (static_cast<int>(word0) + word) * per_word;
#pragma unroll
      for (int e = 0; e < per_word; ++e) {
        if (!is_there || channel + e >= copy.channels) continue;
        const T value = from[(channel + e) * copy.strides[1]];
        if constexpr (per_word == 1) read[i] = __float_as_uint(round_to_tf32(value));
        else read[i] |= unsigned(value) << 16 * e;
      }
    }
#pragma unroll
    for (int i = 0; i < words / rows_at_once; ++i) tile[place][threadIdx.x / places + i * rows_at_once] = read[i];
  }
  __syncthreads();
  const int word = threadIdx.x % words;
  if (static_cast<int>(word0) + word >= copy.words_of_place) return;
#pragma unroll
  for (int i = 0; i < places / places_at_once; ++i) {
    const std::uint32_t place = threadIdx.x / words + i * places_at_once, at = place0 + place;
    if (at < copy.all_places) copy.to[std::int64_t(at) * copy.words_of_place + word0 + word] = tile[place][word];
  }
}

}  // namespace

/// Writes two tall images, or one if the second has no images, in one launch. The next kernel may overlap with its end. Fewer than 2^31
/// positions each; f32, f16 or bf16, both the same.
static void write_tall_images(const TallImage& first, const TallImage& second) {
  const bool has_second = second.images.data != nullptr;
  const Copies copies{{Copy(first), has_second ? Copy(second) : Copy()}};
  const unsigned blocks = copies.of[0].blocks + copies.of[1].blocks;
  launch(first.images.dtype == DType::f32 ? write_channels_last<float> : write_channels_last<std::uint16_t>, blocks, threads, 0,
         first.images.stream, copies);
}

}  // namespace tern::gpu::conv

namespace tern::gpu {

namespace {

using conv::TallImage;

constexpr int consumers = 256, threads = consumers + 32, warpgroup = 128;
constexpr int box_positions = 128, box_places = 160;  ///< box_places: including the additional rows
constexpr int row_bytes = 128;                        ///< channels of a position in a stage
constexpr int outputs_of_consumer = 64, sums_of_thread = outputs_of_consumer * box_positions / warpgroup;
constexpr int a_stages = 3, b_stages = 3;

struct Memory {
  unsigned char a[a_stages][2 * outputs_of_consumer * row_bytes];
  unsigned char b[b_stages][box_places * row_bytes];
};
constexpr std::size_t shared_bytes = sizeof(Memory) + swizzle_span;

struct ConvParams {
  CUtensorMap x, w;
  const void* bias;  ///< (outputs), or null
  void* y;           ///< (images, outputs, height, width)
  int images, outputs, height, width;
  Divider period;  ///< rows of results per image, including those in between
  int box_width_log, box_height;
  int boxes_of_row, boxes;  ///< boxes side by side; boxes per block, 1 or 2
  int output_tiles;
  int kernel_width, loads, loads_of_channels;  ///< boxes for all of the depth; for 128 bytes of channels
  int taps_of_load;
  int y_stride, x_stride, y_padding, x_padding, y_dilation, x_dilation;
  unsigned a_bytes, b_bytes;  ///< bytes of a load
  bool has_pairs;             ///< positions 2 i and 2 i + 1 of a row are one aligned word, or pair, of y
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Barriers {
  Pipeline<a_stages> a;
  Pipeline<b_stages> b;
};

/// Tile of a block: adjacent blocks have the same positions, which are then in the L2 cache.
struct Tile {
  int output, box;  ///< first output and first box

  __device__ explicit Tile(const ConvParams& p)
      : output(static_cast<int>(blockIdx.x) % p.output_tiles * (p.boxes == 1 ? 2 : 1) * outputs_of_consumer),
        box(static_cast<int>(blockIdx.x) / p.output_tiles * p.boxes) {}
};
/// First row and position of a box, among those of the results.
struct BoxPlace {
  int row, column;

  __device__ BoxPlace(const ConvParams& p, int box)
      : row(box / p.boxes_of_row * p.box_height), column(box % p.boxes_of_row << p.box_width_log) {}
};

/// Producer thread: issues all loads of the tile, in their order.
template <class T>
__device__ __forceinline__ void load_stages(const ConvParams& p, Memory& memory, Barriers& barriers) {
  constexpr int channels = row_bytes / sizeof(T);
  const Tile tile(p);
  const BoxPlace first(p, tile.box), second(p, tile.box + 1);
  PipelineState<a_stages> a;
  PipelineState<b_stages> b;
  const auto load_box = [&](const BoxPlace& place, int channel, int i, int j) {
    MBarrier& full = barriers.b.begin_load(b, p.b_bytes);
    tma_load_3d(shared_address(memory.b[b.index]), p.x, channel, place.column * p.x_stride + j * p.x_dilation - p.x_padding,
                place.row * p.y_stride + i * p.y_dilation - p.y_padding, full);
    b.advance();
  };
  for (int load = 0; load < p.loads; ++load) {
    const int channel = load / p.loads_of_channels * channels, of_channels = load % p.loads_of_channels;
    const int i = of_channels / p.kernel_width, j = of_channels % p.kernel_width;
    load_box(first, channel, i, j);
    for (int below = 0; below < p.taps_of_load; ++below, a.advance()) {
      MBarrier& full = barriers.a.begin_load(a, p.a_bytes);
      tma_load_3d(shared_address(memory.a[a.index]), p.w, channel, (i + below) * p.kernel_width + j, tile.output, full);
      // After a tap's weights: the second box goes to the stage that the first consumer releases once it has queued products with these
      // weights.
      if (below == 0 && p.boxes == 2) load_box(second, channel, i, j);
    }
  }
}

/// Accumulates a consumer's tile. A stage is released when the wgmma of the next one are queued and its own are done.
template <class T>
__device__ __forceinline__ void multiply_stages(const ConvParams& p, Memory& memory, Barriers& barriers, int consumer,
                                                float (&sums)[sums_of_thread]) {
  constexpr int wgmma_steps = 4, step = row_bytes / wgmma_steps >> 4;  // in the descriptor's units of 16 bytes
  const bool is_one_box = p.boxes == 1;
  const unsigned a_offset = is_one_box ? consumer * outputs_of_consumer * row_bytes : 0;
  const unsigned tap_bytes = p.y_dilation * row_bytes << p.box_width_log;
  const bool releases = threadIdx.x % 32 == 0;
  PipelineState<a_stages> a;
  PipelineState<b_stages> b;
  int previous_a = -1, previous_b = -1;
  // Skips the other consumer's box. Every load must be waited for in order: phases two rounds apart have the same parity, so a consumer
  // that skipped a stage's load could mistake it for a later one.
  const auto pass_box = [&] {
    barriers.b.wait_full(b);
    if (releases) barriers.b.empty[b.index].arrive();
    b.advance();
  };
  const auto release = [&] {
    if (releases && previous_a >= 0) barriers.a.empty[previous_a].arrive();
    if (releases && previous_b >= 0) barriers.b.empty[previous_b].arrive();
  };
#pragma unroll 1
  for (int load = 0; load < p.loads; ++load) {
    if (!is_one_box && consumer == 1) pass_box();
    barriers.b.wait_full(b);
#pragma unroll 1
    for (int below = 0; below < p.taps_of_load; ++below) {
      const std::uint64_t a_tile = wgmma_descriptor(shared_address(memory.a[a.index]) + a_offset, 0);
      const std::uint64_t b_tile = wgmma_descriptor(shared_address(memory.b[b.index]) + below * tap_bytes, 0);
      barriers.a.wait_full(a);
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
#pragma unroll
      for (int k = 0; k < wgmma_steps; ++k) {
        if constexpr (is_half<T>) wgmma_k16<T, false, false>(sums, a_tile + k * step, b_tile + k * step, true);
        else wgmma_k8_tf32(sums, a_tile + k * step, b_tile + k * step, true);
      }
      warpgroup_commit_batch();
      warpgroup_wait<1>();
      warpgroup_fence_operand(sums);
      release();
      previous_a = a.index;
      previous_b = below + 1 == p.taps_of_load ? b.index : -1;
      a.advance();
    }
    b.advance();
    if (!is_one_box && consumer == 0) pass_box();
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);
}

/// Writes a consumer's sums, with the bias, to y: a thread has pairs of adjacent positions, of two outputs each.
template <class T>
__device__ __forceinline__ void store_sums(const ConvParams& p, int consumer, const float (&sums)[sums_of_thread]) {
  const Tile tile(p);
  const bool is_one_box = p.boxes == 1;
  const BoxPlace place(p, tile.box + (is_one_box ? 0 : consumer));
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) % warpgroup / 32;
  const int output = tile.output + (is_one_box ? consumer * outputs_of_consumer : 0) + warp * 16 + lane / 4;
  const std::int64_t positions = std::int64_t(p.height) * p.width;
  const T* const bias = static_cast<const T*>(p.bias);
  const bool has[2] = {output < p.outputs, output + 8 < p.outputs};
  float shift[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (bias && has[r]) shift[r] = convert<float>(bias[output + r * 8]);
#pragma unroll
  for (int j = 0; j < box_positions / 8; ++j) {
    const int position = j * 8 + lane % 4 * 2, row = place.row + (position >> p.box_width_log);
    const int column = place.column + (position & ((1 << p.box_width_log) - 1));
    const int image = static_cast<int>(p.period.divide(row)), in_image = row - image * static_cast<int>(p.period.divisor);
    if (image >= p.images || in_image >= p.height || column >= p.width) continue;
    T* const to = static_cast<T*>(p.y) + (std::int64_t(image) * p.outputs + output) * positions + std::int64_t(in_image) * p.width + column;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!has[r]) continue;
      Vector<T, 2> pair;
#pragma unroll
      for (int c = 0; c < 2; ++c) pair.values[c] = convert<T>(sums[4 * j + 2 * r + c] + shift[r]);
      T* const at = to + r * 8 * positions;
      if (p.has_pairs) {
        write_vector(at, pair);
      } else {
        at[0] = pair.values[0];
        if (column + 1 < p.width) at[1] = pair.values[1];
      }
    }
  }
}

#endif

template <class T>
__global__ void __launch_bounds__(threads, 2) implicit_conv_kernel(__grid_constant__ const ConvParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float shared[];
  __shared__ Barriers barriers;  // non-empty only if compiled for wgmma: see runs_wgmma_kernel
  auto& memory = *swizzle_aligned<Memory>(shared);
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.x);
    tma_prefetch_map(p.w);
    barriers.a.init(consumers / 32);
    barriers.b.init(consumers / 32);
    fence_barrier_init();
  }
  __syncthreads();
  grid_dependency_wait();
  if (threadIdx.x < consumers) {
    const int consumer = static_cast<int>(threadIdx.x) / warpgroup;
    float sums[sums_of_thread] = {};
    multiply_stages<T>(p, memory, barriers, consumer, sums);
    store_sums<T>(p, consumer, sums);
  } else if (threadIdx.x == consumers) {
    load_stages<T>(p, memory, barriers);
  }
#endif
}

using Kernel = void (*)(ConvParams);

Kernel kernel_of(DType dtype) {
  if (dtype == DType::f32) return implicit_conv_kernel<float>;
  return dispatch_halves(dtype, [&]<class T>() -> Kernel { return implicit_conv_kernel<T>; });
}

/// Convolution in the kernel's terms; the axes' padding may be negative.
struct Problem {
  View x, w, bias, y;
  kernels::SlidingWindow window;

  std::int64_t channels() const { return x.shape[1]; }
  std::int64_t outputs() const { return w.shape[0]; }
  /// Rows of results per image in the tall image; each begins `stride` rows of the image below the previous one.
  std::int64_t period() const {
    const std::int64_t rows = x.shape[2] + std::max<std::int64_t>(window.y.padding, 0);
    return std::max(ceil_div(rows, window.y.stride), window.y.positions);
  }
  TallImage tall(void* to) const { return {x, period() * window.y.stride, to}; }
};

/// The convolution whose result is dx: of the padded output gradient g with the weights flipped along both axes and their channels
/// transposed.
Problem input_gradient(const View& g, const View& w, const kernels::SlidingWindow& window, const View& dx) {
  const auto axis = [](const kernels::WindowAxis& a, std::int64_t size) {
    return kernels::WindowAxis{a.taps, 1, a.dilation * (a.taps - 1) - a.padding, a.dilation, size};
  };
  View flipped = w;
  flipped.shape = {w.shape[1], w.shape[0], w.shape[2], w.shape[3]};
  flipped.strides = {w.strides[1], w.strides[0], -w.strides[2], -w.strides[3]};
  const std::int64_t last = (w.shape[2] - 1) * w.strides[2] + (w.shape[3] - 1) * w.strides[3];
  flipped.data = static_cast<char*>(w.data) + last * static_cast<std::int64_t>(size_of(w.dtype));
  return {g, flipped, {}, dx, {axis(window.y, dx.shape[2]), axis(window.x, dx.shape[3])}};
}

/// Width of boxes: of those widths whose boxes fit into a stage, the one with the fewest positions outside of the results.
struct Boxes {
  int width_log = 0, taps_of_load = 1;
  std::int64_t of_row = 0, rows = 0;  ///< boxes side by side, and one below another

  int width() const { return 1 << width_log; }
  int height() const { return box_positions >> width_log; }
  int height_of_load(const kernels::WindowAxis& y) const { return height() + static_cast<int>(y.dilation * (taps_of_load - 1)); }
};

Boxes boxes_of(const Problem& p) {
  const kernels::WindowAxis &y = p.window.y, &x = p.window.x;
  Boxes best;
  for (int width_log = 3; width_log <= 7; ++width_log) {
    Boxes boxes{width_log, 1, 0, 0};
    if (boxes.width() * x.stride > 256) continue;  // TMA's limit
    boxes.of_row = ceil_div(x.positions, boxes.width());
    boxes.rows = ceil_div(p.x.shape[0] * p.period(), boxes.height());
    if (y.stride == 1 && (boxes.height() + y.dilation * (y.taps - 1)) * boxes.width() <= box_places)
      boxes.taps_of_load = static_cast<int>(y.taps);
    const auto all = [](const Boxes& b) { return b.of_row * b.rows; };
    if (best.width_log == 0 || all(boxes) < all(best)) best = boxes;
  }
  return best;
}

/// Decides between this kernel and columns (ops/conv.cpp). Not supported are: one tap, where nothing is gathered, and columns
/// are the image or a part of it; groups; fewer than 16 channels, as in a first layer, where seven eighths of a stage's 128 bytes would be
/// zeros; strict float32 and tf32x3, which are not a TF32 product; padding of more rows than the image has; and sizes beyond TMA's strides
/// or 32 bits.
bool has_kernel(const Problem& p, std::int64_t groups) {
  const bool is_exact = p.x.dtype == DType::f32 && context().kernels.matmul_precision != MatmulPrecision::tf32;
  if (is_exact || p.x.dtype == DType::f64 || groups != 1 || p.window.y.taps * p.window.x.taps == 1 || p.channels() < 16) return false;
  if (p.x.shape[0] == 0 || p.outputs() == 0 || p.window.y.positions == 0 || p.window.x.positions == 0) return false;
  constexpr std::int64_t most = std::int64_t(1) << 30;
  for (const auto& [axis, size] : {std::pair{p.window.y, p.x.shape[2]}, {p.window.x, p.x.shape[3]}}) {
    if (axis.stride > 8 || axis.padding > size || axis.dilation * axis.taps > most || size > most / 8) return false;
  }
  return p.x.shape[0] * p.period() * p.window.y.stride < most / std::max(p.x.shape[3], p.window.x.positions) &&
         p.outputs() * p.window.y.taps * p.window.x.taps < most && p.outputs() * p.channels() < most &&
         runs_wgmma_kernel(kernel_of(p.x.dtype), p.x.stream.device);
}

/// Launches the kernel for tall images of both operands.
void multiply(const Problem& p, const TallImage& x, const TallImage& w) {
  const kernels::WindowAxis &y_axis = p.window.y, &x_axis = p.window.x;
  const Boxes boxes = boxes_of(p);
  const auto element = static_cast<std::int64_t>(size_of(p.x.dtype));
  const int channels = static_cast<int>(row_bytes / element), rows = boxes.height_of_load(y_axis);
  const std::int64_t taps = y_axis.taps * x_axis.taps, padded = x.channels();
  ConvParams params{};
  params.boxes = p.outputs() > outputs_of_consumer ? 1 : 2;
  const int outputs_of_tile = params.boxes == 1 ? 2 * outputs_of_consumer : outputs_of_consumer;
  const int x_box[] = {channels, boxes.width(), rows}, w_box[] = {channels, 1, outputs_of_tile};
  params.x = tensor_map(TmaTensor{x.to,
                                  p.x.dtype,
                                  3,
                                  {padded, x.width(), x.rows()},
                                  {1, padded, x.width() * padded},
                                  {1, static_cast<int>(x_axis.stride), static_cast<int>(y_axis.stride)}},
                        x_box);
  params.w = tensor_map(TmaTensor{w.to, p.x.dtype, 3, {padded, taps, p.outputs()}, {1, padded, taps * padded}}, w_box);
  params.bias = p.bias.data;
  params.y = p.y.data;
  params.images = static_cast<int>(p.x.shape[0]);
  params.outputs = static_cast<int>(p.outputs());
  params.height = static_cast<int>(y_axis.positions);
  params.width = static_cast<int>(x_axis.positions);
  params.period = Divider(p.period());
  params.box_width_log = boxes.width_log;
  params.box_height = boxes.height();
  params.boxes_of_row = static_cast<int>(boxes.of_row);
  params.output_tiles = static_cast<int>(ceil_div(p.outputs(), outputs_of_tile));
  params.kernel_width = static_cast<int>(x_axis.taps);
  params.taps_of_load = boxes.taps_of_load;
  params.loads_of_channels = static_cast<int>(taps / boxes.taps_of_load);
  params.loads = params.loads_of_channels * static_cast<int>(ceil_div(padded, channels));
  params.y_stride = static_cast<int>(y_axis.stride), params.x_stride = static_cast<int>(x_axis.stride);
  params.y_padding = static_cast<int>(y_axis.padding), params.x_padding = static_cast<int>(x_axis.padding);
  params.y_dilation = static_cast<int>(y_axis.dilation), params.x_dilation = static_cast<int>(x_axis.dilation);
  params.a_bytes = static_cast<unsigned>(outputs_of_tile * row_bytes);
  params.b_bytes = static_cast<unsigned>(boxes.width() * rows * row_bytes);
  params.has_pairs = x_axis.positions % 2 == 0 && is_aligned(p.y.data, static_cast<std::size_t>(2 * element));
  launch(kernel_of(p.x.dtype),
         LaunchConfig{.grid = blocks_for(ceil_div(boxes.of_row * boxes.rows, params.boxes) * params.output_tiles, 1),
                      .block = threads,
                      .shared = shared_bytes,
                      .stream = p.x.stream,
                      .overlaps_previous = true},
         params);
}

/// Images that are transposed at a time: about the L2 cache of a large GPU (H100: 50 MB), and no more memory than columns take.
constexpr std::int64_t tall_bytes = std::int64_t{64} << 20;

void convolve(const Problem& all) {
  const TallImage one{all.x, all.tall(nullptr).period, nullptr};
  const std::int64_t batch = one.batch(), of_image = static_cast<std::int64_t>(one.bytes()) / batch;
  const std::int64_t runs = ceil_div(batch, std::clamp<std::int64_t>(tall_bytes / of_image, 1, batch)), step = ceil_div(batch, runs);
  const TallImage weights{all.w, all.w.shape[2], nullptr};
  const auto aligned = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::size_t weight_bytes = aligned(weights.bytes());
  const Workspace workspace(weight_bytes + static_cast<std::size_t>(step * of_image), all.x.stream);
  TallImage w = weights;
  w.to = workspace.as<char>();
  const auto element = static_cast<std::int64_t>(size_of(all.x.dtype));
  for (std::int64_t first = 0; first < batch; first += step) {
    Problem run = all;
    run.x.shape[0] = run.y.shape[0] = std::min(step, batch - first);
    run.x.data = run.x.as<char>() + first * run.x.strides[0] * element;
    run.y.data = run.y.as<char>() + first * run.y.strides[0] * element;
    const TallImage x = run.tall(workspace.as<char>() + weight_bytes);
    conv::write_tall_images(x, first == 0 ? w : TallImage{});
    multiply(run, x, w);
  }
}

}  // namespace

}  // namespace tern::gpu

namespace tern::kernels {

bool has_implicit_convolution(Cuda, const View& x, const View& weight, const Convolution& of) {
  return gpu::has_kernel({x, weight, {}, {}, of.window}, of.groups);
}

void ImplicitConvolve::run(Cuda) const { gpu::convolve({x, weight, bias, y, of.window}); }

bool has_implicit_convolution_grad(Cuda, const View& g, const View& weight, const Convolution& of, const View& dx) {
  return of.window.y.stride == 1 && of.window.x.stride == 1 && gpu::has_kernel(gpu::input_gradient(g, weight, of.window, dx), of.groups);
}

void ImplicitConvolveGrad::run(Cuda) const { gpu::convolve(gpu::input_gradient(g, weight, of.window, dx)); }

}  // namespace tern::kernels

// im2col and its adjoint. Unfold: a thread writes 16 bytes of a row of columns, for which it computes its position once; if rows of several
// images are contiguous, as in the columns of a product, a thread's elements may continue from one image to the next. Fold: a thread sums
// one element of the image, and adjacent threads adjacent elements. Both read through the cache, which the taps of a window share.
namespace tern::kernels {

using namespace gpu;

namespace {

/// A window as a kernel takes it; indices in a launch have 32 bits.
struct Axis {
  int taps, stride, padding, dilation, positions;
  explicit Axis(const WindowAxis& axis)
      : taps(static_cast<int>(axis.taps)),
        stride(static_cast<int>(std::min(axis.stride, std::int64_t(1) << 30))),  // larger ones leave the image at once
        padding(static_cast<int>(axis.padding)),
        dilation(static_cast<int>(axis.dilation)),
        positions(static_cast<int>(axis.positions)) {}
};

template <class T>
struct UnfoldArgs {
  const T* x;
  T* columns;
  std::int64_t strides[4];            ///< strides of x: batch, channel, height, width
  std::int64_t batch_step, row_step;  ///< steps of columns
  int height, width;
  Axis y_axis, x_axis;
  Divider runs, rows, taps, taps_of_row, positions, positions_of_row;  ///< runs of a row of columns; C kh kw; kh kw; kw; oh ow; ow
  std::uint32_t length;                                                ///< elements of a row
  std::uint32_t count;                                                 ///< number of threads
};

/// `width` elements of a row, which begin at a multiple of 16 bytes if there are several.
template <class T, int width>
__global__ void __launch_bounds__(block_size) unfold_images(__grid_constant__ const UnfoldArgs<T> a) {
  const std::uint32_t index = blockIdx.x * block_size + threadIdx.x;
  if (index >= a.count) return;
  // index = (image or 0, (c kh + i) kw + j, run), decomposed from the last; a position in a row = (image, oh, ow), or (oh, ow).
  const std::uint32_t line = a.runs.divide(index), begin = (index - line * a.runs.divisor) * width;
  const std::uint32_t outer = a.rows.divide(line), row = line - outer * a.rows.divisor;
  const std::uint32_t c = a.taps.divide(row), tap = row - c * a.taps.divisor;
  const std::uint32_t i = a.taps_of_row.divide(tap), j = tap - i * a.taps_of_row.divisor;
  const std::uint32_t inner = a.positions.divide(begin), position = begin - inner * a.positions.divisor;
  const std::uint32_t oh = a.positions_of_row.divide(position), ow = position - oh * a.positions_of_row.divisor;
  const int h_of_first = static_cast<int>(i) * a.y_axis.dilation - a.y_axis.padding;
  const int w_of_first = static_cast<int>(j) * a.x_axis.dilation - a.x_axis.padding;
  int h = h_of_first + static_cast<int>(oh) * a.y_axis.stride, w = w_of_first + static_cast<int>(ow) * a.x_axis.stride;
  int left_of_row = a.x_axis.positions - static_cast<int>(ow), left_of_image = a.y_axis.positions - static_cast<int>(oh);
  const T* image = a.x + (outer + inner) * a.strides[0] + c * a.strides[1];
  const int in_row = min(width, static_cast<int>(a.length - begin));
  Vector<T, width> values;
#pragma unroll
  for (int k = 0; k < width; ++k) {
    values.values[k] = T{};
    if (k < in_row && h >= 0 && h < a.height && w >= 0 && w < a.width) values.values[k] = image[h * a.strides[2] + w * a.strides[3]];
    w += a.x_axis.stride;
    if (--left_of_row > 0) continue;
    left_of_row = a.x_axis.positions;
    w = w_of_first;
    h += a.y_axis.stride;
    if (--left_of_image > 0) continue;
    left_of_image = a.y_axis.positions;
    h = h_of_first;
    image += a.strides[0];
  }
  T* const to = a.columns + outer * a.batch_step + row * a.row_step + begin;
  if (in_row == width) {
    write_vector(to, values);
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (k < in_row) to[k] = values.values[k];
  }
}

template <class T>
struct FoldArgs {
  const T* columns;
  T* x;
  std::int64_t batch_step, row_step;  ///< steps of columns
  Axis y_axis, x_axis;
  Divider width, height, channels, y_stride, x_stride;
  std::uint32_t count;
};

template <class T>
__global__ void __launch_bounds__(block_size) fold_columns(__grid_constant__ const FoldArgs<T> a) {
  const std::uint32_t index = blockIdx.x * block_size + threadIdx.x;
  if (index >= a.count) return;
  const std::uint32_t row = a.width.divide(index), w = index - row * a.width.divisor;
  const std::uint32_t plane = a.height.divide(row), h = row - plane * a.height.divisor;
  const std::uint32_t b = a.channels.divide(plane), c = plane - b * a.channels.divisor;
  const T* from = a.columns + b * a.batch_step + std::int64_t(c) * a.y_axis.taps * a.x_axis.taps * a.row_step;
  // The windows that contain (h, w), tap by tap: a fixed order, so that sums are reproducible.
  computed_t<T> sum = 0;
  for (int i = 0; i < a.y_axis.taps; ++i) {
    const int above = static_cast<int>(h) + a.y_axis.padding - i * a.y_axis.dilation;
    const int oh = above < 0 ? -1 : static_cast<int>(a.y_stride.divide(above));
    const bool in_y = oh * a.y_axis.stride == above && oh < a.y_axis.positions;
    for (int j = 0; j < a.x_axis.taps; ++j, from += a.row_step) {
      const int before = static_cast<int>(w) + a.x_axis.padding - j * a.x_axis.dilation;
      if (!in_y || above < 0 || before < 0) continue;
      const int ow = static_cast<int>(a.x_stride.divide(before));
      if (ow * a.x_axis.stride == before && ow < a.x_axis.positions) sum += convert<computed_t<T>>(from[oh * a.x_axis.positions + ow]);
    }
  }
  a.x[index] = convert<T>(sum);
}

/// Calls f(first image, number of images) for parts of a batch that have fewer than 2^31 elements, with `of_image` per image.
template <class F>
void for_images(const char* op, std::int64_t batch, std::int64_t of_image, F&& f) {
  constexpr std::int64_t most = std::int64_t(1) << 30;
  if (batch == 0 || of_image == 0) return;
  if (of_image > most) fail(op, "expected at most 2^30 elements of an image on a GPU");
  const std::int64_t step = std::min(batch, most / of_image);
  for (std::int64_t first = 0; first < batch; first += step) f(first, std::min(step, batch - first));
}

}  // namespace

void Unfold::run(Cuda) const {
  const std::int64_t rows = columns.shape[1], positions = columns.shape[2];
  // Contiguous rows of several images are one row.
  const bool is_joined = columns.strides[0] == positions;
  dispatch_floats(x.dtype, "unfold", [&]<class T>() {
    for_images("unfold", x.shape[0], rows * positions, [&](std::int64_t first, std::int64_t images) {
      constexpr int most = vec16_width<T>;
      UnfoldArgs<T> a{x.as<const T>() + first * x.strides[0],
                      columns.as<T>() + first * columns.strides[0],
                      {x.strides[0], x.strides[1], x.strides[2], x.strides[3]},
                      is_joined ? 0 : columns.strides[0],
                      columns.strides[1],
                      static_cast<int>(x.shape[2]),
                      static_cast<int>(x.shape[3]),
                      Axis(window.y),
                      Axis(window.x),
                      {},
                      Divider(rows),
                      Divider(window.y.taps * window.x.taps),
                      Divider(window.x.taps),
                      Divider(positions),
                      Divider(window.x.positions),
                      static_cast<std::uint32_t>(is_joined ? images * positions : positions),
                      0};
      const bool is_wide = is_aligned(a.columns, 16) && a.batch_step % most == 0 && a.row_step % most == 0;
      const std::int64_t runs = (a.length + (is_wide ? most : 1) - 1) / (is_wide ? most : 1);
      a.runs = Divider(runs);
      a.count = static_cast<std::uint32_t>((is_joined ? 1 : images) * rows * runs);
      launch(is_wide ? unfold_images<T, most> : unfold_images<T, 1>, blocks_for(a.count), block_size, 0, columns.stream, a);
    });
  });
}

void Fold::run(Cuda) const {
  const std::int64_t of_image = x.shape[1] * x.shape[2] * x.shape[3];
  dispatch_floats(x.dtype, "fold", [&]<class T>() {
    for_images("fold", x.shape[0], of_image, [&](std::int64_t first, std::int64_t images) {
      const FoldArgs<T> arguments{columns.as<const T>() + first * columns.strides[0],
                                  x.as<T>() + first * of_image,
                                  columns.strides[0],
                                  columns.strides[1],
                                  Axis(window.y),
                                  Axis(window.x),
                                  Divider(x.shape[3]),
                                  Divider(x.shape[2]),
                                  Divider(x.shape[1]),
                                  Divider(Axis(window.y).stride),
                                  Divider(Axis(window.x).stride),
                                  static_cast<std::uint32_t>(images * of_image)};
      launch(fold_columns<T>, blocks_for(arguments.count), block_size, 0, x.stream, arguments);
    });
  });
}

}  // namespace tern::kernels
