#pragma once
#include "cuda/device/convert.cuh"
#include "ops/kernels/quantized.h"

// Codes of quantised weights (tensor/quant_format.h) as floats, whole numbers of which a scale makes the weights: one scale a row, or one a
// block of 32.
namespace tern::gpu {

/// Two bytes: blocks begin at even addresses, and not at multiples of four.
__device__ __forceinline__ unsigned load_half_word(const std::uint8_t* at) { return *reinterpret_cast<const std::uint16_t*>(at); }

__device__ __forceinline__ float block_scale(const std::uint8_t* block) {
  f16 half;
  half.bits = static_cast<std::uint16_t>(load_half_word(block));
  return static_cast<float>(half);
}
__device__ __forceinline__ float row_scale(const std::uint8_t* row) { return *reinterpret_cast<const float*>(row); }

/// The byte `i` of a word as it stands, and as a signed one.
__device__ __forceinline__ float byte_of(unsigned word, int i) { return static_cast<float>(word >> (8 * i) & 255u); }
__device__ __forceinline__ float signed_byte_of(unsigned word, int i) {
  return static_cast<float>(static_cast<std::int8_t>(word >> (8 * i) & 255u));
}

/// Codes k to k + 3 of a row, k a multiple of 4 below `in`, and the scale of their block, or 1 where it is the row's. Codes past `in` are
/// 0: rows and blocks are filled up.
__device__ __forceinline__ float load_four_codes(const kernels::QuantizedRows& w, const std::uint8_t* row, std::int64_t k,
                                                 float (&codes)[4]) {
  if (!has_blocks(w.format)) {
    const unsigned word = *reinterpret_cast<const std::uint32_t*>(row + 4 + k);
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] = byte_of(word, i) - 128.0f;
    return 1;
  }
  const std::uint8_t* const block = row + k / quant_block * block_bytes(w.format);
  const int first = static_cast<int>(k % quant_block);
  const bool is_q8 = w.format == QuantFormat::q8_0;
  const std::uint8_t* const at = block + 2 + (is_q8 ? first : first % 16);
  const unsigned word = load_half_word(at) | load_half_word(at + 2) << 16;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    codes[i] = is_q8 ? signed_byte_of(word, i) : static_cast<float>(word >> (8 * i + first / 16 * 4) & 15u) - 8.0f;
  return block_scale(block);
}

}  // namespace tern::gpu
