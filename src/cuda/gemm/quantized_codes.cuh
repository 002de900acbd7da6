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

/// Codes of 32 weights as they are stored: a whole block, or 32 bytes of a row that has one scale. A block begins at an even address, so
/// that its words are read from the one below it where that is no multiple of four.
template <QuantFormat format>
struct RawCodes {
  static constexpr bool by_blocks = has_blocks(format);
  static constexpr int count = by_blocks ? static_cast<int>(block_bytes(format) / 4) + 1 : 8;
  unsigned words[count];
  bool begins_in_a_word;

  /// Of the weights k to k + 31 of a row, k a multiple of 32: zeros where there is no such row or weight.
  __device__ __forceinline__ void load(const kernels::QuantizedRows& w, std::int64_t channel, std::int64_t k) {
    begins_in_a_word = false;
#pragma unroll
    for (unsigned& word : words) word = by_blocks ? 0u : 0x80808080u;
    if (channel >= w.out || k >= w.in) return;
    if constexpr (by_blocks) {
      const std::uint8_t* const block = w.row(channel) + k / quant_block * block_bytes(format);
      begins_in_a_word = reinterpret_cast<std::uintptr_t>(block) % 4 != 0;
      const auto* const from = reinterpret_cast<const std::uint32_t*>(block - (begins_in_a_word ? 2 : 0));
#pragma unroll
      for (int i = 0; i < count - 1; ++i) words[i] = from[i];
      words[count - 1] = begins_in_a_word ? from[count - 1] : load_half_word(block + block_bytes(format) - 2);
    } else {
      const auto* const from = reinterpret_cast<const std::uint32_t*>(w.row(channel) + 4 + k);
      const auto there = static_cast<int>((w.in - k + 3) / 4);
#pragma unroll
      for (int i = 0; i < count; ++i)
        if (i < there) words[i] = from[i];
    }
  }

  /// The scale of the block.
  __device__ __forceinline__ float scale() const {
    f16 half;
    half.bits = static_cast<std::uint16_t>(begins_in_a_word ? words[0] >> 16 : words[0]);
    return static_cast<float>(half);
  }

  /// Codes 4 i to 4 i + 3, a byte each: 128 more than they are.
  __device__ __forceinline__ unsigned bytes(int i) const {
    if constexpr (!by_blocks) return words[i];
    else if constexpr (format == QuantFormat::q8_0) return behind_scale(i) ^ 0x80808080u;
    else return (behind_scale(i % 4) >> (i / 4 * 4) & 0x0f0f0f0fu) + 0x78787878u;
  }

 private:
  __device__ __forceinline__ unsigned behind_scale(int i) const {
    return begins_in_a_word ? words[i + 1] : __funnelshift_r(words[i], words[i + 1], 16);
  }
};

/// Two codes, bytes 2 i and 2 i + 1 of a word in which they are 128 more, as 16-bit floats. No conversion: beneath the exponent of 128
/// (bf16) or 1024 (f16) the bits of a byte are its value. bf16 has 7 of them, and the eighth is in what is subtracted, 256 or 128.
template <class T>
__device__ __forceinline__ unsigned code_pair(unsigned word, int i) {
  const unsigned pair = __byte_perm(word, 0, i == 0 ? 0x4140 : 0x4342);
  unsigned result;
  if constexpr (std::is_same_v<T, bf16>) {
    const unsigned low_bits = (pair & 0x007f007fu) | 0x43004300u, subtracted = (~pair & 0x00800080u) | 0xc300c300u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(low_bits), "r"(0x3f803f80u), "r"(subtracted));
  } else {
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(pair | 0x64006400u), "r"(0xe480e480u));
  }
  return result;
}

}  // namespace tern::gpu
