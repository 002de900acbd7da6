#pragma once
#include "cuda/device/convert.cuh"
#include "ops/kernels/matmul.h"

// Quantized weights (tensor/dtype.h) on a GPU: decoding of their codes, integers, to floats, and their scales, one per row or one
// per block of 32.
namespace tern::gpu {

/// y = x @ w transposed + bias of 16-bit x and y on tensor cores (quantized_gemm.cu); see kernels::quantized_linear.
void quantized_gemm(const View& x, const kernels::QuantizedRows& w, const View& bias, const View& y);

/// Loads two bytes: blocks begin at even addresses, but not at multiples of four.
__device__ __forceinline__ unsigned load_half_word(const std::uint8_t* at) { return *reinterpret_cast<const std::uint16_t*>(at); }

__device__ __forceinline__ float block_scale(const std::uint8_t* block) {
  f16 half;
  half.bits = static_cast<std::uint16_t>(load_half_word(block));
  return convert<float>(half);
}
__device__ __forceinline__ float row_scale(const std::uint8_t* row) { return *reinterpret_cast<const float*>(row); }

/// Byte `i` of a word, unsigned and signed.
__device__ __forceinline__ float byte_of(unsigned word, int i) { return static_cast<float>(word >> (8 * i) & 255u); }
__device__ __forceinline__ float signed_byte_of(unsigned word, int i) {
  return static_cast<float>(static_cast<std::int8_t>(word >> (8 * i) & 255u));
}

/// Loads codes k to k + 3 of a row, k a multiple of 4 below `in`, and returns the scale of their block, or 1 if the scale is the row's.
/// Codes past `in` are 0: rows and blocks are padded.
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

/// Decodes two codes, stored as bytes plus 128 in a half word, to 16-bit floats. Without a conversion: under the exponent of 128 (bf16) or
/// 1024 (f16) the bits of a byte are its value. bf16 has only 7 of them, so the eighth selects the subtrahend, 256 or 128.
template <class T>
__device__ __forceinline__ unsigned code_pair(unsigned half_word) {
  const unsigned pair = __byte_perm(half_word, 0, 0x4140);
  unsigned result;
  if constexpr (std::is_same_v<T, bf16>) {
    const unsigned low_bits = (pair & 0x007f007fu) | 0x43004300u, subtracted = (~pair & 0x00800080u) | 0xc300c300u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(low_bits), "r"(0x3f803f80u), "r"(subtracted));
  } else {
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(pair | 0x64006400u), "r"(0xe480e480u));
  }
  return result;
}

/// The same for the low four bits of each byte, in which codes are stored plus 8: subtracts 136 (bf16) or 1032 (f16).
template <class T>
__device__ __forceinline__ unsigned four_bit_pair(unsigned half_word) {
  const unsigned pair = __byte_perm(half_word, 0, 0x4140) & 0x000f000fu;
  unsigned result;
  if constexpr (std::is_same_v<T, bf16>)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair | 0x43004300u), "r"(0x3f803f80u), "r"(0xc308c308u));
  else asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(pair | 0x64006400u), "r"(0xe408e408u));
  return result;
}

}  // namespace tern::gpu
