#pragma once
#include <algorithm>
#include <optional>

#include "ops/kernels/conv.h"
#include "tensor/checked.h"

namespace tern::detail {

/// Window that slides along an axis of `size` elements with `padding` more at both ends; nothing if a number is out of range or the window
/// does not fit. Of the result the kernels may add up any terms: a stride or a dilation of which no second step is taken is shortened.
/// Throws Error that names `op` for sizes beyond 2^61.
inline std::optional<kernels::WindowAxis> window_axis(const char* op, std::int64_t size, std::int64_t taps, std::int64_t stride,
                                                      std::int64_t padding, std::int64_t dilation) {
  if (taps < 1 || stride < 1 || padding < 0 || dilation < 1) return std::nullopt;
  const std::int64_t padded = checked_add(op, size, checked_mul(op, 2, padding)), most = std::int64_t(1) << 61;
  if (padded > most) fail(op, "expected at most 2^61 elements with the padding but got " + std::to_string(padded));
  const std::int64_t rest = padded - checked_mul(op, dilation, taps - 1) - 1;
  if (rest < 0) return std::nullopt;
  return kernels::WindowAxis{taps, std::min(stride, padded), padding, taps == 1 ? 1 : dilation, rest / stride + 1};
}

}  // namespace tern::detail
