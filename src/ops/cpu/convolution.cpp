#include "ops/cpu/convolution.h"

#include "ops/cpu/loops.h"
#include "ops/cpu/rows.h"
#include "ops/kernels/copy.h"
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

void Convolve::run(Cpu) const {
  if (y.numel() == 0) return;
  const Bands s(x, y, of);
  backend::count_flops(2 * s.multiplications(), true);
  dispatch_f32_f64(y.dtype, "conv2d", [&]<class T>() {
    convolve(s, x.as<const T>(), weight.as<const T>(), bias.data ? bias.as<const T>() : nullptr, y.as<T>(), y.stream);
  });
}

// Gradients of a convolution on the CPU, Note [Bands]. dx: the transposed weights times g are the gradients of the windows' elements, which
// are accumulated in a band while it is in a cache. dw: each tap's elements, read in place from a band, times g.

namespace {

template <class T>
void input_gradient(const Bands& s, const T* weight, const T* g, T* dx, const Stream& stream) {
  const std::int64_t threads = threads_for(s), images = s.batch * s.groups, taps = s.taps(), depth = s.depth();
  // Sums run over bands in order, so bands must depend on the shapes alone; channels may be divided by the number of threads.
  constexpr std::int64_t band_positions = 512, cached = 1 << 15, least_channels = 4;
  const std::int64_t rows = std::clamp<std::int64_t>(band_positions / s.window.x.positions, 1, s.window.y.positions);
  const std::int64_t positions = rows * s.window.x.positions;
  const std::int64_t wanted_parts = (2 * threads + images - 1) / images;
  const std::int64_t channels = std::clamp(std::min(cached / (taps * positions), (s.inputs + wanted_parts - 1) / wanted_parts),
                                           std::min(least_channels, s.inputs), s.inputs);
  const std::int64_t parts = (s.inputs + channels - 1) / channels;
  const std::int64_t plane = s.plane(s.window.y.positions);
  const std::int64_t image_size = gemm::round_up(channels * plane, gemm::lanes<T>);
  const std::int64_t columns_size = gemm::round_up(channels * taps * positions, gemm::lanes<T>);
  const std::int64_t packed_size = gemm::round_up(gemm::packed_size<T>({channels * taps, positions, s.outputs}), gemm::lanes<T>);
  const loops::Scratch<T> work((image_size + columns_size + packed_size) * threads, stream);
  loops::share_dynamically(images * parts, threads, [&](std::int64_t unit, std::int64_t thread) {
    T* const sums = work.data() + (image_size + columns_size + packed_size) * thread;
    T *const columns = sums + image_size, *const packed = columns + columns_size;
    const std::int64_t image = unit / parts, first = unit % parts * channels, own = std::min(channels, s.inputs - first);
    const gemm::Matrix<const T> transposed{weight + image % s.groups * s.outputs * depth + first * taps, 1, depth};
    std::fill_n(sums, own * plane, T(0));
    for (std::int64_t row = 0; row < s.window.y.positions; row += rows) {
      const std::int64_t own_rows = std::min(rows, s.window.y.positions - row), own_positions = own_rows * s.window.x.positions;
      const gemm::Matrix<const T> of_band{g + image * s.outputs * s.positions() + row * s.window.x.positions, s.positions(), 1};
      gemm::multiply<T, T>({own * taps, own_positions, s.outputs}, T(1), transposed, of_band, columns, own_positions, false, packed);
      const T* from = columns;
      for (std::int64_t d = 0; d < own * taps; ++d) {
        T* to = sums + d / taps * plane + s.offset(d % taps) + row * s.row_step();
        for (std::int64_t y = 0; y < own_rows; ++y, from += s.window.x.positions, to += s.row_step())
          loops::add_run(from, to, s.window.x.positions);
      }
    }
    copy_image(s, sums, own, dx + (image * s.inputs + first) * s.height * s.width);
  });
}

/// Rows of a tile of dw: each takes a register for its address, in addition to those of its sums.
constexpr int max_taps = loops::vector_bytes == 64 ? 8 : 6;

/// c[r], V vectors, += the sum over the positions of a band, in rows of `width`, of the element under tap r times g, packed by positions.
template <int R, int V, class T>
void tap_tile(const T* band, const std::int64_t* offsets, std::int64_t rows, std::int64_t row_step, std::int64_t width, const T* g, T* c,
              std::int64_t c_stride, int count) {
  using Vector = typename gemm::VectorOf<T>::type;
  Vector sum[R][V] = {};
  for (std::int64_t y = 0; y < rows; ++y, band += row_step) {
    const T* at[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) at[r] = band + offsets[r < count ? r : 0];
    for (std::int64_t k = 0; k < width; ++k, g += V * gemm::lanes<T>) {
      Vector of_g[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) of_g[v] = *reinterpret_cast<const Vector*>(g + v * gemm::lanes<T>);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[r][v] += at[r][k] * of_g[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    if (r >= count) break;
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) *reinterpret_cast<Vector*>(c + r * c_stride + v * gemm::lanes<T>) += sum[r][v];
  }
}

template <class T>
using TapTile = void (*)(const T*, const std::int64_t*, std::int64_t, std::int64_t, std::int64_t, const T*, T*, std::int64_t, int);
template <class T>
TapTile<T> tap_tile_for(int rows, int vectors) {
  static constexpr auto table = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<std::array<TapTile<T>, 2>, sizeof...(I)>{{{tap_tile<I + 1, 1, T>, tap_tile<I + 1, 2, T>}...}};
  }(std::make_integer_sequence<int, max_taps>());
  return table[static_cast<std::size_t>(rows - 1)][static_cast<std::size_t>(vectors - 1)];
}

/// Sink of sums, or none.
template <class T>
struct Target {
  Target(const View& to, Write write) : data(to.data ? to.as<T>() : nullptr), is_added_to(write == Write::accumulate) {}
  void write(std::int64_t i, T sum) const { data[i] = is_added_to ? data[i] + sum : sum; }

  T* data;
  bool is_added_to;
};

template <class T>
void weight_gradient(const Bands& s, const T* x, const T* g, Target<T> dw, Target<T> db, const Stream& stream) {
  const std::int64_t depth = s.depth(), padded = gemm::round_up(s.outputs, gemm::lanes<T>), threads = threads_for(s);
  // g, in panels of at most band_positions, stays in the L1 cache. Bands and the shares of the sums depend on the shapes alone.
  constexpr std::int64_t band_positions = 256, max_sums = 1 << 21, max_shares = 16, least_depth = 64;
  const std::int64_t rows = std::clamp<std::int64_t>(band_positions / s.window.x.positions, 1, s.rows_within(s.inputs, band_elements, 1));
  const std::int64_t bands = (s.window.y.positions + rows - 1) / rows, all_bands = s.batch * bands, positions = rows * s.window.x.positions;
  const std::int64_t share_size = (depth + 1) * padded;  // the last row is db
  const std::int64_t shares = std::clamp<std::int64_t>(max_sums / (s.groups * share_size), 1, std::min(max_shares, all_bands));
  const std::int64_t wanted = (2 * threads + s.groups * shares - 1) / (s.groups * shares);
  const std::int64_t cuts = std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(depth / least_depth, 1));
  const std::int64_t tiles = std::max<std::int64_t>((depth + max_taps - 1) / max_taps, 1);
  const int height = static_cast<int>(std::max<std::int64_t>((depth + tiles - 1) / tiles, 1));
  const loops::Scratch<T> sums(s.groups * shares * share_size, stream);
  const std::int64_t band_size = gemm::round_up(s.inputs * s.plane(rows), gemm::lanes<T>);
  const std::int64_t panel_size = gemm::breadth<T> * positions + gemm::lanes<T>;
  const loops::Scratch<T> work((band_size + panel_size) * threads, stream);
  const loops::Scratch<std::int64_t> offsets(depth * threads, stream);

  loops::share_dynamically(s.groups * shares * cuts, threads, [&](std::int64_t unit, std::int64_t thread) {
    const std::int64_t cut = unit % cuts, share = unit / cuts % shares, group = unit / cuts / shares;
    const std::int64_t begin = std::min(depth, (depth * cut / cuts + height - 1) / height * height);
    const std::int64_t end = cut + 1 == cuts ? depth : std::min(depth, (depth * (cut + 1) / cuts + height - 1) / height * height);
    T *const band = work.data() + (band_size + panel_size) * thread, *const panel = band + band_size;
    T* const own = sums.data() + (group * shares + share) * share_size;
    std::int64_t* const offset = offsets.data() + depth * thread;
    std::fill(own + begin * padded, own + end * padded, T(0));
    if (cut == 0) std::fill_n(own + depth * padded, padded, T(0));
    // Only the channels under the part's taps are copied.
    const std::int64_t first_channel = begin / s.taps(), channels = begin < end ? (end - 1) / s.taps() + 1 - first_channel : 0;
    std::int64_t known_rows = 0;
    for (std::int64_t number = all_bands * share / shares; number < all_bands * (share + 1) / shares; ++number) {
      const std::int64_t image = number / bands * s.groups + group, first = number % bands * rows;
      const std::int64_t own_rows = std::min(rows, s.window.y.positions - first), own_positions = own_rows * s.window.x.positions;
      if (own_rows != known_rows) {
        known_rows = own_rows;
        for (std::int64_t d = begin; d < end; ++d) offset[d] = (d / s.taps() - first_channel) * s.plane(own_rows) + s.offset(d % s.taps());
      }
      copy_band(s, x + (image * s.inputs + first_channel) * s.height * s.width, channels, first, own_rows, band);
      const T* const of_band = g + image * s.outputs * s.positions() + first * s.window.x.positions;
      if (cut == 0 && db.data)
        for (std::int64_t o = 0; o < s.outputs; ++o)
          own[depth * padded + o] += loops::fold_run<loops::Sum>(of_band + o * s.positions(), own_positions);
      for (std::int64_t o = 0; o < s.outputs; o += gemm::breadth<T>) {
        const int n = static_cast<int>(std::min<std::int64_t>(gemm::breadth<T>, s.outputs - o)), vectors = n <= gemm::lanes<T> ? 1 : 2;
        gemm::pack_transposed(of_band + o * s.positions(), s.positions(), n, own_positions, vectors * gemm::lanes<T>, panel);
        const TapTile<T> tile = tap_tile_for<T>(height, vectors);
        for (std::int64_t d = begin; d < end; d += height)
          tile(band, offset + d, own_rows, s.row_step(), s.window.x.positions, panel, own + d * padded + o, padded,
               static_cast<int>(std::min<std::int64_t>(height, end - d)));
      }
    }
  });

  loops::parallel_units(s.groups * s.outputs, depth * shares, loops::stream_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* const first = sums.data() + row / s.outputs * shares * share_size + row % s.outputs;
      const auto total = [&](std::int64_t d) {
        T sum = 0;
        for (std::int64_t share = 0; share < shares; ++share) sum += first[share * share_size + d * padded];
        return sum;
      };
      for (std::int64_t d = 0; dw.data && d < depth; ++d) dw.write(row * depth + d, total(d));
      if (db.data) db.write(row, total(depth));
    }
  });
}

}  // namespace

void ConvolveGrad::run(Cpu) const {
  if (g.numel() == 0) {
    if (dx.data) Fill{dx, 0}.run(Cpu{});
    if (dw.data && write_dw == Write::overwrite) Fill{dw, 0}.run(Cpu{});
    if (db.data && write_db == Write::overwrite) Fill{db, 0}.run(Cpu{});
    return;
  }
  const Bands s(x, g, of);
  dispatch_f32_f64(g.dtype, "conv2d", [&]<class T>() {
    const T* const of_y = g.as<const T>();
    if (dx.data && dx.numel() > 0) {
      backend::count_flops(2 * s.multiplications(), true);
      input_gradient(s, weight.as<const T>(), of_y, dx.as<T>(), dx.stream);
    }
    if (!dw.data && !db.data) return;
    if (dw.data) backend::count_flops(2 * s.multiplications(), true);
    weight_gradient(s, x.as<const T>(), of_y, Target<T>(dw, write_dw), Target<T>(db, write_db), g.stream);
  });
}

// im2col and its adjoint, by rows: tap (i, j) of an output row reads one image row, `stride` elements apart.

void Unfold::run(Cpu) const {
  const std::int64_t channels = x.shape[1], height = x.shape[2], width = x.shape[3], taps = window.y.taps * window.x.taps;
  const std::int64_t positions = window.y.positions * window.x.positions;
  const bool is_run = window.x.stride == 1 && x.strides[3] == 1;  // neighbours in a column are neighbours in the image
  dispatch_floats(x.dtype, "unfold", [&]<class S>() {
    loops::parallel_units(x.shape[0] * channels * taps, positions, loops::stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t j = row % window.x.taps, i = row % taps / window.x.taps, c = row / taps % channels, b = row / taps / channels;
        const loops::Reach along_y(i, height, window.y), along_x(j, width, window.x);
        const S* const image = x.as<const S>() + b * x.strides[0] + c * x.strides[1];
        S* to = columns.as<S>() + b * columns.strides[0] + row % (channels * taps) * columns.strides[1];
        for (std::int64_t oh = 0; oh < window.y.positions; ++oh, to += window.x.positions) {
          if (oh < along_y.begin || oh >= along_y.end) {
            std::fill_n(to, window.x.positions, S{});
            continue;
          }
          const S* const from = image + (along_y.first + oh * window.y.stride) * x.strides[2];
          std::fill_n(to, along_x.begin, S{});
          std::fill_n(to + along_x.end, window.x.positions - along_x.end, S{});
          if (is_run) std::copy_n(from + along_x.first + along_x.begin, along_x.end - along_x.begin, to + along_x.begin);
          else
            for (std::int64_t ow = along_x.begin; ow < along_x.end; ++ow)
              to[ow] = from[(along_x.first + ow * window.x.stride) * x.strides[3]];
        }
      }
    });
  });
}

void Fold::run(Cpu) const {
  const std::int64_t channels = x.shape[1], height = x.shape[2], width = x.shape[3], taps = window.y.taps * window.x.taps;
  dispatch_floats(x.dtype, "fold", [&]<class S>() {
    using C = compute_t<S>;
    const loops::Scratch<C> sums(width * num_threads(), x.stream);
    loops::parallel_units(x.shape[0] * channels * height, width * taps, loops::stream_grain,
                          [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
                            C* const sum = sums.data() + thread * width;
                            for (std::int64_t row = begin; row < end; ++row) {
                              std::fill_n(sum, width, C(0));
                              const std::int64_t h = row % height, c = row / height % channels, b = row / height / channels;
                              const S* const of_channel = columns.as<const S>() + b * columns.strides[0] + c * taps * columns.strides[1];
                              for (std::int64_t i = 0; i < window.y.taps; ++i) {
                                const std::int64_t above = h + window.y.padding - i * window.y.dilation, oh = above / window.y.stride;
                                if (above < 0 || above % window.y.stride != 0 || oh >= window.y.positions) continue;
                                for (std::int64_t j = 0; j < window.x.taps; ++j) {
                                  const loops::Reach along_x(j, width, window.x);
                                  const S* const from = of_channel + (i * window.x.taps + j) * columns.strides[1] + oh * window.x.positions;
                                  C* const into = sum + along_x.first + along_x.begin * window.x.stride;
                                  const std::int64_t count = along_x.end - along_x.begin;
                                  if (window.x.stride == 1) loops::add_run(from + along_x.begin, into, count);
                                  else
                                    for (std::int64_t k = 0; k < count; ++k) into[k * window.x.stride] += C(from[along_x.begin + k]);
                                }
                              }
                              loops::convert_run(sum, x.as<S>() + row * width, width);
                            }
                          });
  });
}

}  // namespace tern::kernels
