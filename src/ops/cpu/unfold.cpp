#include "ops/cpu/window.h"

// im2col and its adjoint, by rows: tap (i, j) of an output row reads one image row, `stride` elements apart.
namespace tern::kernels {

using namespace loops;

void unfold(Cpu, const View& x, const SlidingWindow& window, const View& columns) {
  const std::int64_t channels = x.shape[1], height = x.shape[2], width = x.shape[3], taps = window.y.taps * window.x.taps;
  const std::int64_t positions = window.y.positions * window.x.positions;
  const bool is_run = window.x.stride == 1 && x.strides[3] == 1;  // neighbours in a column are neighbours in the image
  dispatch_floats(x.dtype, "unfold", [&]<class S>() {
    parallel_units(x.shape[0] * channels * taps, positions, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t j = row % window.x.taps, i = row % taps / window.x.taps, c = row / taps % channels, b = row / taps / channels;
        const Reach along_y(i, height, window.y), along_x(j, width, window.x);
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

void fold(Cpu, const View& columns, const SlidingWindow& window, const View& x) {
  const std::int64_t channels = x.shape[1], height = x.shape[2], width = x.shape[3], taps = window.y.taps * window.x.taps;
  dispatch_floats(x.dtype, "fold", [&]<class S>() {
    using C = compute_t<S>;
    const Scratch<C> sums(width * num_threads(), x.stream);
    parallel_units(x.shape[0] * channels * height, width * taps, stream_grain,
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
                           const Reach along_x(j, width, window.x);
                           const S* const from = of_channel + (i * window.x.taps + j) * columns.strides[1] + oh * window.x.positions;
                           C* const into = sum + along_x.first + along_x.begin * window.x.stride;
                           const std::int64_t count = along_x.end - along_x.begin;
                           if (window.x.stride == 1) add_run(from + along_x.begin, into, count);
                           else
                             for (std::int64_t k = 0; k < count; ++k) into[k * window.x.stride] += C(from[along_x.begin + k]);
                         }
                       }
                       convert_run(sum, x.as<S>() + row * width, width);
                     }
                   });
  });
}

}  // namespace tern::kernels
