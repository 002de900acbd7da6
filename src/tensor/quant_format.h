#pragma once
#include <cstdint>

#include "tensor/ceil_div.h"

namespace tern {

/// Memory format of a quantized weight (out, in): `out` rows of bytes, each independent. A row of the first two formats is one block: an
/// f32 scale and `in` bytes of 128 + q, padded with 128 to a multiple of four. The others are ggml's blocks of 32 weights, each with an f16
/// scale d first; the last block of a row is padded with zeros.
enum class QuantFormat : std::uint8_t {
  int8,          ///< w = scale q, q in [-127, 127]
  dynamic_int8,  ///< the same bytes; on a CPU the rows of x are rounded to 8 bits as well, for integer products
  q8_0,          ///< w = d q: 32 bytes of q in [-127, 127]
  q4_0,          ///< w = d (q - 8): 16 bytes; byte j holds q of weight j in its low half and that of weight j + 16 in its high half
};
/// All formats, for options and tests.
inline constexpr QuantFormat quant_formats[] = {QuantFormat::int8, QuantFormat::dynamic_int8, QuantFormat::q8_0, QuantFormat::q4_0};

/// Name of a format: "int8", "dynamic-int8", "q8_0", "q4_0".
constexpr const char* name(QuantFormat format) {
  constexpr const char* names[] = {"int8", "dynamic-int8", "q8_0", "q4_0"};
  return names[static_cast<int>(format)];
}

/// Number of weights in a block of q8_0 and q4_0.
inline constexpr std::int64_t quant_block = 32;
/// True for ggml's formats, which have a scale for each 32 weights rather than for each row.
constexpr bool has_blocks(QuantFormat format) { return format >= QuantFormat::q8_0; }
/// Bytes of a block of 32 weights with its scale, for a format that has_blocks.
constexpr std::int64_t block_bytes(QuantFormat format) { return format == QuantFormat::q8_0 ? 34 : 18; }

/// Bytes of a row of `in` weights.
constexpr std::int64_t row_bytes(QuantFormat format, std::int64_t in) {
  if (!has_blocks(format)) return 4 + round_up(in, 4);
  return ceil_div(in, quant_block) * block_bytes(format);
}

}  // namespace tern
