#include "ops/cpu/convolution.h"

#include "ops/cpu/dynamic_schedule.h"
#include "tensor/dispatch.h"

// Convolution on the CPU: for each image, the product of the weights (O, C kh kw) with the windows, whose packed panels (Note [Gemm]) are
// copied directly from a band of the image. The weights are packed once, and threads take one band after another.
namespace tern::kernels {

using namespace convolutions;

namespace {

/// Elements of a band, which should stay in the L2 cache together with the weights.
constexpr std::int64_t band_elements = 1 << 15;

/// Contiguous segment: positions that are adjacent in the panel and in the band.
struct Run {
  std::int64_t from, to, length;
};

/// The segments of the positions [first, first + n) of a band.
int make_runs(const Bands& s, std::int64_t first, std::int64_t n, Run* runs) {
  const std::int64_t width = s.window.x.positions;
  int count = 0;
  for (std::int64_t q = first; q < first + n;) {
    const std::int64_t column = q % width, length = std::min(width - column, first + n - q);
    runs[count++] = {q / width * s.row_step() + column, q - first, length};
    q += length;
  }
  return count;
}

/// Copies one step of the depth for each offset, `width` positions wide. Whole vectors are moved in ascending order, so that the excess of
/// one is overwritten by the next: band and panel have room for one more vector.
template <class T>
void pack_windows(const T* band, const std::int64_t* offsets, std::int64_t depth, const Run* runs, int count, std::int64_t width,
                  T* panel) {
  using Vector = typename gemm::VectorOf<T>::type;
  for (std::int64_t k = 0; k < depth; ++k, panel += width) {
    const T* const under = band + offsets[k];
    for (int i = 0; i < count; ++i)
      for (std::int64_t j = 0; j < runs[i].length; j += gemm::lanes<T>)
        std::memcpy(panel + runs[i].to + j, under + runs[i].from + j, sizeof(Vector));
  }
}

/// Weights of each group in packed panels, by blocks of the depth.
template <class T>
struct PackedWeights {
  PackedWeights(const Bands& s, const T* weight, const Stream& stream)
      : depth(s.depth()),
        height(gemm::panel_height(s.outputs)),
        blocks((depth + gemm::block_depth - 1) / gemm::block_depth),
        block_size(gemm::round_up(gemm::round_up(s.outputs, height) * std::min(depth, gemm::block_depth) + gemm::lanes<T>, gemm::lanes<T>)),
        memory(s.groups * blocks * block_size, stream) {
    loops::parallel_units(s.groups * blocks, s.outputs * gemm::block_depth, loops::stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t unit = begin; unit < end; ++unit) {
        const std::int64_t k0 = unit % blocks * gemm::block_depth;
        gemm::pack(weight + unit / blocks * s.outputs * depth + k0, depth, 1, s.outputs, steps(k0), height,
                   memory.data() + unit * block_size);
      }
    });
  }
  std::int64_t steps(std::int64_t k0) const { return std::min(gemm::block_depth, depth - k0); }
  const T* block(std::int64_t group, std::int64_t k0) const {
    return memory.data() + (group * blocks + k0 / gemm::block_depth) * block_size;
  }

  std::int64_t depth;
  int height;
  std::int64_t blocks, block_size;
  loops::Scratch<T> memory;
};

/// Adds the products for `positions` positions of a band to y, whose channels are y_stride apart.
template <class T>
void multiply_band(const Bands& s, const PackedWeights<T>& weights, std::int64_t group, const T* band, const std::int64_t* offsets,
                   std::int64_t positions, T* panel, T* y, std::int64_t y_stride) {
  Run runs[gemm::breadth<T>];
  for (std::int64_t k0 = 0; k0 < weights.depth; k0 += gemm::block_depth) {
    const std::int64_t depth = weights.steps(k0);
    const T* const packed = weights.block(group, k0);
    for (std::int64_t q = 0; q < positions; q += gemm::breadth<T>) {
      const std::int64_t n = std::min<std::int64_t>(gemm::breadth<T>, positions - q);
      const int vectors = n <= gemm::lanes<T> ? 1 : 2;
      const std::int64_t width = vectors * gemm::lanes<T>;
      // Lanes beyond the last position are computed and dropped; zeros, because denormal numbers would be slow.
      if (n < width) std::fill_n(panel, width * depth, T(0));
      pack_windows(band, offsets + k0, depth, runs, make_runs(s, q, n, runs), width, panel);
      const gemm::Tile<T> tile = gemm::tile_for<T>(weights.height, vectors);
      for (std::int64_t o = 0; o < s.outputs; o += weights.height)
        tile(depth, packed + o * depth, panel, y + o * y_stride + q, y_stride,
             static_cast<int>(std::min<std::int64_t>(weights.height, s.outputs - o)), static_cast<int>(n), T(1), true, nullptr);
    }
  }
}

template <class T>
void convolve(const Bands& s, const T* x, const T* weight, const T* bias, T* y, const Stream& stream) {
  const PackedWeights<T> weights(s, weight, stream);
  const std::int64_t threads = threads_for(s), images = s.batch * s.groups, positions = s.positions();
  // Enough bands for two per thread, but no band smaller than a panel.
  const std::int64_t shared_out = std::max((s.window.y.positions * images + 2 * threads - 1) / (2 * threads),
                                           (gemm::breadth<T> + s.window.x.positions - 1) / s.window.x.positions);
  const std::int64_t rows = std::min(s.rows_within(s.inputs, band_elements, gemm::breadth<T>), shared_out);
  const std::int64_t bands = (s.window.y.positions + rows - 1) / rows;
  const std::int64_t band_size = gemm::round_up(s.inputs * s.plane(rows) + gemm::lanes<T>, gemm::lanes<T>);
  const std::int64_t panel_size = gemm::breadth<T> * std::min(s.depth(), gemm::block_depth) + gemm::lanes<T>;
  const loops::Scratch<T> work((band_size + panel_size) * threads, stream);
  const loops::Scratch<std::int64_t> offsets(2 * s.depth(), stream);
  // The last band of an image may have fewer rows, and then planes of another size.
  const std::int64_t last_rows = s.window.y.positions - (bands - 1) * rows;
  for (std::int64_t d = 0; d < s.depth(); ++d) {
    offsets.data()[d] = d / s.taps() * s.plane(rows) + s.offset(d % s.taps());
    offsets.data()[s.depth() + d] = d / s.taps() * s.plane(last_rows) + s.offset(d % s.taps());
  }
  loops::share_dynamically(images * bands, threads, [&](std::int64_t unit, std::int64_t thread) {
    T *const band = work.data() + (band_size + panel_size) * thread, *const panel = band + band_size;
    const std::int64_t image = unit / bands, first = unit % bands * rows, group = image % s.groups;
    const bool is_last = unit % bands == bands - 1;
    const std::int64_t own_rows = is_last ? last_rows : rows, own_positions = own_rows * s.window.x.positions;
    copy_band(s, x + image * s.inputs * s.height * s.width, s.inputs, first, own_rows, band);
    T* const to = y + image * s.outputs * positions + first * s.window.x.positions;
    for (std::int64_t o = 0; o < s.outputs; ++o) std::fill_n(to + o * positions, own_positions, bias ? bias[group * s.outputs + o] : T(0));
    multiply_band(s, weights, group, band, offsets.data() + (is_last ? s.depth() : 0), own_positions, panel, to, positions);
  });
}

}  // namespace

void convolution(Cpu, const View& x, const View& weight, const View& bias, const Convolution& of, const View& y) {
  if (y.numel() == 0) return;
  const Bands s(x, y, of);
  backend::count_flops(2 * s.multiplications(), true);
  dispatch_f32_f64(y.dtype, "conv2d", [&]<class T>() {
    convolve(s, x.as<const T>(), weight.as<const T>(), bias.data ? bias.as<const T>() : nullptr, y.as<T>(), y.stream);
  });
}

}  // namespace tern::kernels
