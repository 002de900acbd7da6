#include "ops/cpu/convolution.h"
#include "ops/cpu/dynamic_schedule.h"
#include "ops/cpu/fold.h"
#include "ops/kernels/copy.h"
#include "tensor/dispatch.h"

// Gradients of a convolution on the CPU, Note [Bands]. dx: the transposed weights times g are the gradients of the windows' elements, which
// are accumulated in a band while it is in a cache. dw: each tap's elements, read in place from a band, times g.
namespace tern::kernels {

using namespace convolutions;

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
  constexpr std::int64_t band_positions = 256, band_elements = 1 << 15, max_sums = 1 << 21, max_shares = 16, least_depth = 64;
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

void convolution_grad(Cpu, const View& x, const View& weight, const View& g, const Convolution& of, const View& dx, const View& dw,
                      Write write_dw, const View& db, Write write_db) {
  if (g.numel() == 0) {
    if (dx.data) fill(Cpu{}, dx, 0);
    if (dw.data && write_dw == Write::overwrite) fill(Cpu{}, dw, 0);
    if (db.data && write_db == Write::overwrite) fill(Cpu{}, db, 0);
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

}  // namespace tern::kernels
