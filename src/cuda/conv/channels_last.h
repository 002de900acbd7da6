#pragma once
#include "cuda/runtime/launch.h"
#include "tensor/view.h"

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

/// Writes two tall images, or one if the second has no images, in one launch. The next kernel may overlap with its end. Fewer than 2^31
/// positions each; f32, f16 or bf16, both the same.
void write_tall_images(const TallImage& first, const TallImage& second);

}  // namespace tern::gpu::conv
