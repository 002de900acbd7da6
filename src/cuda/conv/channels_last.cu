#include "cuda/conv/channels_last.h"
#include "cuda/device/indexer.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/programmatic.cuh"

// Converts images to channels last: a block has 64 positions and the channels of 128 bytes. It reads a channel of adjacent positions
// together, and writes the channels of a position together; in between they are in shared memory, a position's row of 32 words padded by
// one, so that neither access has bank conflicts.
namespace tern::gpu::conv {

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

void write_tall_images(const TallImage& first, const TallImage& second) {
  const bool has_second = second.images.data != nullptr;
  const Copies copies{{Copy(first), has_second ? Copy(second) : Copy()}};
  const unsigned blocks = copies.of[0].blocks + copies.of[1].blocks;
  launch(first.images.dtype == DType::f32 ? write_channels_last<float> : write_channels_last<std::uint16_t>, blocks, threads, 0,
         first.images.stream, copies);
}

}  // namespace tern::gpu::conv
