#pragma once
#include <bit>
#include <cstdint>

#include "ops/cpu/gemm.h"
#include "ops/kernels/matmul.h"
#include "tensor/sizes.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tern::integers {

using namespace kernels;
using namespace loops;

/// Note [Integer products]: rows of x become integers, x = scale q, and an instruction adds the products of the bytes in a lane to that
/// lane's 32-bit sum: four products of an unsigned byte, the weight's, and a signed one (`Bytes`: VNNI's vpdpbusd), or two of 16-bit
/// numbers (`Pairs`: VNNI's vpdpwssd, or pmaddwd and an addition). That is four or two times the products of a float32 FMA. int8 uses 16
/// bits of x, with one scale per row; dynamic_int8 uses 8 bits, and so do q8_0 and q4_0, with one scale per block of 32, as in ggml. A
/// block's sum is exact, and is scaled and added up in float32, in one order: a row of y does not depend on the number of rows. Otherwise
/// the product is that of gemm.h: a panel of two vectors of output channels is packed by step of the depth, x by step for a tile of rows,
/// and a tile's sums stay in registers. Weights of any format are unpacked into panels once for all rows.

constexpr int lanes = gemm::lanes<std::int32_t>;
using IntVector = gemm::VectorOf<std::int32_t>::type;
using ShortVector = gemm::VectorOf<std::int16_t>::type;

/// Note [VNNI at run time]: the levels x86-64-v3 and -v4 do not include VNNI, but many processors that load a library built for them have
/// it (cmake/library.cmake). A build without VNNI, with registers of the same width, asks the processor at run time, and uses the
/// instructions through inline assembly, which needs no compiler flag: with a flag, templates that other files instantiate too could be
/// emitted with instructions that the processor lacks.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
inline constexpr bool vnni_is_built_in = true, vnni_is_asked_for = false;
inline bool has_vnni() { return true; }
#elif defined(__AVX512BW__)
inline constexpr bool vnni_is_built_in = false, vnni_is_asked_for = true;
inline bool has_vnni() { return __builtin_cpu_supports("avx512vnni"); }
#elif defined(__AVX2__) && !defined(__AVX512F__)
inline constexpr bool vnni_is_built_in = false, vnni_is_asked_for = true;
/// AVX-VNNI is bit 4 of EAX of CPUID's leaf 7, subleaf 1 (Intel's manual, volume 2A); clang 14 knows no name for it.
inline bool has_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#else
inline constexpr bool vnni_is_built_in = false, vnni_is_asked_for = false;
inline bool has_vnni() { return false; }
#endif

#if defined(__AVX512BW__) || defined(__AVX2__)
/// x of 8 bits. Weights are unsigned bytes in [0, 255]; the contribution of their zero point is subtracted at the start of a sum.
struct Bytes {
  using Code = std::int8_t;
  static constexpr int per_lane = 4;
  static constexpr float most = 127;
  /// Number of products of 255 and 127 whose sum is below 2^31.
  static constexpr std::int64_t longest = 32768;
  static constexpr bool has_zeros = true;

  [[gnu::always_inline]] static IntVector dot(IntVector sums, IntVector weights, std::int32_t x) {
    return dot(sums, weights, IntVector{} + x);
  }
  [[gnu::always_inline]] static IntVector dot(IntVector sums, IntVector weights, IntVector x) {
#if defined(__AVX512VNNI__)
    return (IntVector)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)x);
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (IntVector)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, (__m256i)x);
#elif defined(__AVX512F__)
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(x));
    return sums;
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(weights), "x"(x));
    return sums;
#endif
  }
};
#endif

/// x in [-Most, Most] of 16 bits, weights in [-128, 127] of 16 bits. With Vnni, product and sum are one instruction.
template <int Most, bool Vnni>
struct Pairs {
  using Code = std::int16_t;
  static constexpr int per_lane = 2;
  static constexpr float most = Most;
  static constexpr std::int64_t longest = Most > 127 ? 512 : 32768;  // likewise, for products of 128 and Most
  static constexpr bool has_zeros = false;

  [[gnu::always_inline]] static IntVector dot(IntVector sums, IntVector weights, std::int32_t x) {
#if defined(__AVX512VNNI__)
    return (IntVector)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(x));
#elif defined(__AVX512BW__)
    if constexpr (Vnni) asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(_mm512_set1_epi32(x)));
    else sums += (IntVector)_mm512_madd_epi16((__m512i)weights, _mm512_set1_epi32(x));
    return sums;
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (IntVector)_mm256_dpwssd_avx_epi32((__m256i)sums, (__m256i)weights, _mm256_set1_epi32(x));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (Vnni) asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sums) : "x"(weights), "x"(_mm256_set1_epi32(x)));
    else sums += (IntVector)_mm256_madd_epi16((__m256i)weights, _mm256_set1_epi32(x));
    return sums;
#elif defined(__SSE2__) && !defined(__AVX__)
    return sums + (IntVector)_mm_madd_epi16((__m128i)weights, _mm_set1_epi32(x));
#else
    const IntVector first = weights << 16 >> 16, second = weights >> 16;
    return sums + first * std::int32_t(std::int16_t(x)) + second * (x >> 16);
#endif
  }
};

template <bool Vnni>
using SixteenBits = Pairs<32767, Vnni>;
template <bool Vnni>
struct EightBitsOf {
  using type = Pairs<127, false>;  // gives the same sums
};
#if defined(__AVX512BW__) || defined(__AVX2__)
template <>
struct EightBitsOf<true> {
  using type = Bytes;
};
#endif
template <bool Vnni>
using EightBits = typename EightBitsOf<Vnni>::type;

/// Calls f<Vnni>() for the processor at hand.
template <class F>
void with_vnni(const F& f) {
  if constexpr (vnni_is_built_in) {
    f.template operator()<true>();
  } else if constexpr (vnni_is_asked_for) {
    static const bool has = has_vnni();
    if (has) f.template operator()<true>();
    else f.template operator()<false>();
  } else {
    f.template operator()<false>();
  }
}

constexpr int panel = 2 * lanes;
using FloatVector = gemm::VectorOf<float>::type;

inline float half_at(const std::uint8_t* at) {
  f16 half;
  std::memcpy(&half, at, sizeof half);
#if defined(__F16C__) && defined(__AVX__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half.bits)));
#else
  return static_cast<float>(half);
#endif
}
inline float float_at(const std::uint8_t* at) {
  float value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// The 32 codes of a block as unsigned bytes; `zero_of` the format is the code of 0.
[[gnu::always_inline]] inline void unpack_block(QuantFormat format, const std::uint8_t* block, std::uint8_t* to) {
  if (format == QuantFormat::q8_0) {
#pragma omp simd
    for (int i = 0; i < quant_block; ++i) to[i] = block[2 + i] ^ 0x80;
    return;
  }
#pragma omp simd
  for (int i = 0; i < quant_block / 2; ++i) {
    const std::uint8_t pair = block[2 + i];
    to[i] = pair & 15;
    to[i + quant_block / 2] = pair >> 4;
  }
}
constexpr std::int32_t zero_of(QuantFormat format) { return format == QuantFormat::q4_0 ? 8 : 128; }

/// Division of the depth: `groups` parts of `steps` lane words each, except the last one; each has its own scale of the weight.
template <class Kind>
struct Depth {
  explicit Depth(const QuantizedRows& w)
      : length(round_up(w.in, has_blocks(w.format) ? quant_block : 4)),
        all_steps(length / Kind::per_lane),
        steps((has_blocks(w.format) ? quant_block : Kind::longest) / Kind::per_lane),
        groups(std::max<std::int64_t>(1, ceil_div(all_steps, steps))) {}
  std::int64_t length, all_steps, steps, groups;
};

/// Rows of a tile: one with several groups has as many float32 sums in addition to those of integers.
constexpr int max_rows(bool grouped) { return grouped ? (gemm::max_height > 6 ? 7 : 3) : gemm::max_height; }

/// Tiles of even height.
struct Tiles {
  Tiles(std::int64_t rows_, int most) : rows(rows_), count(ceil_div(rows_, most)) {}
  std::int64_t begin(std::int64_t tile) const { return rows * tile / count; }
  std::int64_t rows, count;
};

/// Rows of x as integers, by tiles of height R: one lane word for each of (all_steps, R).
struct Encoded {
  std::int32_t* codes;
  std::int64_t tile_size;
  std::int32_t* zeros;  ///< (rows, groups): the negated contribution of the weight's zero point to a group's sum
  float* scales;        ///< (rows, groups); NaN for a group that is not finite
};

/// Reduction of the lanes of a vector by f, which is associative.
template <int Step, class F, int... Lane>
[[gnu::always_inline]] inline std::int32_t fold(IntVector x, const F& f, std::integer_sequence<int, Lane...> all) {
  const IntVector both = f(x, __builtin_shufflevector(x, x, (Lane ^ Step)...));
  if constexpr (Step > 1) return fold<Step / 2>(both, f, all);
  return both[0];
}
template <class F>
[[gnu::always_inline]] inline std::int32_t fold(IntVector x, const F& f) {
  return fold<lanes / 2>(x, f, std::make_integer_sequence<int, lanes>());
}

/// Calls f(values + i, i) for each `panel` of n numbers, the last one padded with zeros.
template <class F>
[[gnu::always_inline]] inline void each_panel(const float* values, std::int64_t n, const F& f) {
  std::int64_t i = 0;
  for (; i + panel <= n; i += panel) f(values + i, i);
  if (i == n) return;
  alignas(64) float last[panel] = {};
  std::copy_n(values + i, n - i, last);
  f(last, i);
}

/// Bits of the largest magnitude of n numbers: magnitudes are ordered as their bits, with infinity and NaN last.
[[gnu::always_inline]] inline std::int32_t largest_bits(const float* values, std::int64_t n) {
  const auto larger = [](IntVector x, IntVector y) { return x > y ? x : y; };
  IntVector top[2] = {};
  each_panel(values, n, [&](const float* from, std::int64_t) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      IntVector bits;
      std::memcpy(&bits, from + v * lanes, sizeof bits);
      top[v] = larger(top[v], bits & 0x7fffffff);
    }
  });
  return fold(larger(top[0], top[1]), larger);
}

/// A segment of x with one scale: x is scale q with |q| <= Kind::most.
template <class Kind>
struct Scale {
  explicit Scale(std::int32_t largest) : is_finite(largest < 0x7f800000) {
    const auto top = std::bit_cast<float>(largest);
    value = is_finite ? top / Kind::most : std::numeric_limits<float>::quiet_NaN();
    factor = top > 1e-30F ? Kind::most / top : 0;
  }
  bool is_finite;
  float value, factor;
};

template <int... Code>
[[gnu::always_inline]] inline ShortVector pair_up(ShortVector first, ShortVector second, std::integer_sequence<int, Code...>) {
  // Of each four codes, in the even halves of the lanes: 0, 2, 1, 3.
  return __builtin_shufflevector(first, second, (2 * (Code % 4 == 1 ? Code + 1 : Code % 4 == 2 ? Code - 1 : Code))...);
}

/// Codes of n numbers, padded with zeros to a multiple of four, and their sum. Of each four codes, pairs hold the first and third in one
/// lane, and the second and fourth in the next: the order that pack_codes gives the weights.
template <class Kind>
[[gnu::always_inline]] inline std::int32_t write_codes(const float* values, std::int64_t n, const Scale<Kind>& scale,
                                                       typename Kind::Code* to) {
  if (!scale.is_finite) {
    std::memset(to, 0, static_cast<std::size_t>(round_up(n, 4)) * sizeof *to);
    return 0;
  }
  IntVector sums = {};
  each_panel(values, n, [&](const float* from, std::int64_t at) {
    // Adding 1.5 2^23 leaves the nearest integer in the low bits.
    constexpr float shift = 12582912.0F;
    IntVector whole[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      FloatVector x;
      std::memcpy(&x, from + v * lanes, sizeof x);
      whole[v] = (IntVector)(x * scale.factor + shift) - std::bit_cast<std::int32_t>(shift);
    }
    typename Kind::Code codes[panel];
    if constexpr (Kind::per_lane == 4) {
      typedef std::int8_t CodeVector __attribute__((vector_size(lanes)));
      for (int v = 0; v < 2; ++v) {
        const CodeVector narrow = __builtin_convertvector(whole[v], CodeVector);
        std::memcpy(codes + v * lanes, &narrow, sizeof narrow);
      }
      sums += whole[0] + whole[1];
    } else {
      const ShortVector narrow = pair_up((ShortVector)whole[0], (ShortVector)whole[1], std::make_integer_sequence<int, panel>());
      std::memcpy(codes, &narrow, sizeof narrow);
    }
    if (n - at >= panel) std::memcpy(to + at, codes, sizeof codes);
    else std::memcpy(to + at, codes, static_cast<std::size_t>(round_up(n - at, 4)) * sizeof *codes);
  });
  return Kind::has_zeros ? fold(sums, [](IntVector x, IntVector y) { return x + y; }) : 0;
}

/// Codes of a row, `depth.length` of them, and for each group its scale (one for all, or, with HasBlocks, the block's own) and the sum of
/// its codes.
template <class Kind, bool HasBlocks, class S>
void encode_row(const S* x, std::int64_t in, const Depth<Kind>& depth, typename Kind::Code* to, float* scales, std::int32_t* sums) {
  alignas(64) float buffer[chunk];
  const auto each_chunk = [&](auto f) {
    for (std::int64_t k = 0; k < in; k += chunk) f(load(x + k, 1, std::min(chunk, in - k), buffer), k, std::min(chunk, in - k));
  };
  if constexpr (HasBlocks) {
    if (in == 0) {  // one group, and no block that would write it
      scales[0] = 0;
      if constexpr (Kind::has_zeros) sums[0] = 0;
    }
    each_chunk([&](const float* values, std::int64_t k, std::int64_t n) {
      for (std::int64_t i = 0; i < n; i += quant_block) {
        alignas(64) float last[quant_block] = {};
        const float* const block = n - i >= quant_block ? values + i : last;
        if (block == last) std::copy_n(values + i, n - i, last);
        const Scale<Kind> scale(largest_bits(block, quant_block));
        const std::int64_t group = (k + i) / quant_block;
        scales[group] = scale.value;
        const std::int32_t sum = write_codes<Kind>(block, quant_block, scale, to + k + i);
        if constexpr (Kind::has_zeros) sums[group] = sum;
      }
    });
  } else {
    std::int32_t top = 0;
    each_chunk([&](const float* values, std::int64_t, std::int64_t n) { top = std::max(top, largest_bits(values, n)); });
    const Scale<Kind> scale(top);
    std::fill_n(scales, depth.groups, scale.value);
    if constexpr (Kind::has_zeros) std::fill_n(sums, depth.groups, 0);
    each_chunk([&](const float* values, std::int64_t k, std::int64_t n) {
      static_assert(Kind::longest % chunk == 0 || !Kind::has_zeros);
      const std::int32_t sum = write_codes<Kind>(values, n, scale, to + k);
      if constexpr (Kind::has_zeros) sums[k / Kind::longest] += sum;
    });
  }
}

/// Encodes a tile of rows of x, through `rows_of_codes`, which has room for it.
template <class Kind, bool HasBlocks, class S>
void encode_tile(const View& x, std::int64_t first, int n, const Depth<Kind>& depth, std::int32_t zero, std::int32_t* rows_of_codes,
                 std::int32_t* codes, const Encoded& to) {
  std::int32_t* const lines = n == 1 ? codes : rows_of_codes;
  for (int r = 0; r < n; ++r) {
    auto* const line = reinterpret_cast<typename Kind::Code*>(lines + r * depth.all_steps);
    const S* const row = x.as<const S>() + (first + r) * x.strides[0];
    const std::int64_t group = (first + r) * depth.groups;
    encode_row<Kind, HasBlocks>(row, x.shape[1], depth, line, to.scales + group, to.zeros + group);
    if constexpr (Kind::has_zeros)
      for (std::int64_t i = group; i < group + depth.groups; ++i) to.zeros[i] *= -zero;
  }
  if (n > 1) gemm::pack_transposed(lines, depth.all_steps, n, depth.all_steps, n, codes);
}

/// Panel of output channels: codes, one lane word for each of (all_steps, panel), and scales (groups, panel).
struct Panel {
  std::int32_t* codes;
  float* scales;
  std::uint8_t* unpacked;  ///< temporary for unpacked rows of blocks
};

/// Transposes n lines of bytes, four a lane, into a panel. Pairs get, of each four bytes, the first and third, and then the second and
/// fourth, minus the zero point.
template <class Kind>
void pack_codes(const std::int32_t* lines, std::int64_t stride, int n, std::int64_t length, std::int32_t zero, std::int32_t* to) {
  const std::int64_t fours = length / 4;
  for (std::int64_t j = 0; j < fours; j += lanes) {
    const int count = static_cast<int>(std::min<std::int64_t>(lanes, fours - j));
    IntVector rows[2][lanes];
    for (int g = 0; g < 2; ++g) {
      for (int i = 0; i < lanes; ++i) {
        rows[g][i] = IntVector{};
        if (g * lanes + i >= n) continue;
        const std::int32_t* const line = lines + (g * lanes + i) * stride + j;
        if (count == lanes) std::memcpy(&rows[g][i], line, sizeof(IntVector));
        else std::memcpy(&rows[g][i], line, sizeof(std::int32_t) * static_cast<std::size_t>(count));
      }
      gemm::exchange<lanes / 2>(rows[g], std::make_integer_sequence<int, lanes>());
    }
    for (int k = 0; k < count; ++k)
      for (int g = 0; g < 2; ++g) {
        const IntVector four = rows[g][k];
        if constexpr (Kind::per_lane == 4) {
          *reinterpret_cast<IntVector*>(to + (j + k) * panel + g * lanes) = four;
        } else {
          const auto less = [&](IntVector pair) { return (IntVector)((ShortVector)pair - static_cast<std::int16_t>(zero)); };
          auto* const place = reinterpret_cast<IntVector*>(to + 2 * (j + k) * panel + g * lanes);
          place[0] = less(four & 0x00ff00ff);
          place[2] = less(four >> 8 & 0x00ff00ff);
        }
      }
  }
}

template <class Kind>
void pack_panel(const QuantizedRows& w, const Depth<Kind>& depth, std::int64_t first, int n, const Panel& to) {
  if (n < panel || depth.length == 0) std::fill_n(to.scales, depth.groups * panel, 0.0F);
  if (depth.length == 0) return;
  const auto* lines = reinterpret_cast<const std::int32_t*>(w.row(first) + 4);
  std::int64_t stride = w.bytes / 4;
  const auto unpack_rows = [&](auto format) {
    for (int i = 0; i < n; ++i)
      for (std::int64_t group = 0; group < depth.groups; ++group) {
        const std::uint8_t* const block = w.row(first + i) + group * block_bytes(format());
        to.scales[group * panel + i] = half_at(block);
        unpack_block(format(), block, to.unpacked + (i * depth.groups + group) * quant_block);
      }
    lines = reinterpret_cast<const std::int32_t*>(to.unpacked);
    stride = depth.length / 4;
  };
  if (w.format == QuantFormat::q8_0) unpack_rows(std::integral_constant<QuantFormat, QuantFormat::q8_0>());
  else if (w.format == QuantFormat::q4_0) unpack_rows(std::integral_constant<QuantFormat, QuantFormat::q4_0>());
  else
    for (int i = 0; i < n; ++i)
      for (std::int64_t group = 0; group < depth.groups; ++group) to.scales[group * panel + i] = float_at(w.row(first + i));
  pack_codes<Kind>(lines, stride, n, depth.length, zero_of(w.format), to.codes);
}

/// Operands and result of a tile: `y` (R, panel), with rows y_stride apart.
struct TileOperands {
  const std::int32_t* x;
  const std::int32_t* zeros;
  const float *scales, *bias;
  float* y;
  std::int64_t y_stride;
};

/// R rows of x times a panel, scaled, plus bias (panel). Without Grouped there is one group.
template <class Kind, int R, bool Grouped>
void multiply_tile(const Depth<Kind>& depth, const Panel& w, const TileOperands& tile) {
  FloatVector totals[Grouped ? R : 1][2] = {};
  const std::int32_t *weights = w.codes, *x = tile.x;
  IntVector products[R][2] = {};
  for (std::int64_t group = 0; group < depth.groups; ++group) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      products[r][0] = products[r][1] = IntVector{};
      if constexpr (Kind::has_zeros) products[r][0] = products[r][1] = IntVector{} + tile.zeros[r * depth.groups + group];
    }
    const std::int64_t steps = std::min(depth.steps, depth.all_steps - group * depth.steps);
    // Pointers to vectors, not memcpy: GCC copies two at once through memory, in halves, and a load of the whole then waits for them.
    for (std::int64_t step = 0; step < steps; ++step, weights += panel, x += R) {
      const IntVector first = *reinterpret_cast<const IntVector*>(weights), second = *reinterpret_cast<const IntVector*>(weights + lanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        products[r][0] = Kind::dot(products[r][0], first, x[r]);
        products[r][1] = Kind::dot(products[r][1], second, x[r]);
      }
    }
    if constexpr (Grouped) {
      const auto* const scales = reinterpret_cast<const FloatVector*>(w.scales + group * panel);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v)
          totals[r][v] += scales[v] * (tile.scales[r * depth.groups + group] * __builtin_convertvector(products[r][v], FloatVector));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      FloatVector value;
      if constexpr (Grouped) value = totals[r][v];
      else
        value = reinterpret_cast<const FloatVector*>(w.scales)[v] * (tile.scales[r] * __builtin_convertvector(products[r][v], FloatVector));
      value += reinterpret_cast<const FloatVector*>(tile.bias)[v];
      std::memcpy(tile.y + r * tile.y_stride + v * lanes, &value, sizeof value);
    }
}

template <class Kind>
using MultiplyTile = void (*)(const Depth<Kind>&, const Panel&, const TileOperands&);
template <class Kind, bool Grouped>
MultiplyTile<Kind> multiply_tile_for(std::int64_t rows) {
  static constexpr auto table = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<MultiplyTile<Kind>, sizeof...(I)>{multiply_tile<Kind, I + 1, Grouped>...};
  }(std::make_integer_sequence<int, max_rows(Grouped)>());
  return table[static_cast<std::size_t>(rows - 1)];
}

/// Columns of y of one panel, `n` of them from `first` on.
template <class Kind, class S>
void multiply_panel(const Depth<Kind>& depth, const Tiles& tiles, const Panel& w, const Encoded& x, const View& bias, const View& y,
                    std::int64_t first, int n) {
  alignas(64) float sums[gemm::max_height * panel], added[panel] = {};
  if (bias.data)
    for (int i = 0; i < n; ++i) added[i] = convert<float>(bias.as<const S>()[(first + i) * bias.strides[0]]);
  const std::int64_t columns = y.shape[1];
  for (std::int64_t i = 0; i < tiles.count; ++i) {
    const std::int64_t row = tiles.begin(i), rows = tiles.begin(i + 1) - row;
    TileOperands tile{x.codes + i * x.tile_size, x.zeros + row * depth.groups, x.scales + row * depth.groups, added, sums, panel};
    S* const to = y.as<S>() + row * columns + first;
    const auto multiply = depth.groups > 1 ? multiply_tile_for<Kind, true>(rows) : multiply_tile_for<Kind, false>(rows);
    if constexpr (std::is_same_v<S, float>)
      if (n == panel) {
        tile.y = to;
        tile.y_stride = columns;
        multiply(depth, w, tile);
        continue;
      }
    multiply(depth, w, tile);
    for (std::int64_t r = 0; r < rows; ++r) convert_run(sums + r * panel, to + r * columns, n);
  }
}

/// y = x w transposed + bias: see kernels::quantized_linear.
template <class Kind, bool HasBlocks, class S>
void multiply(const View& x, const QuantizedRows& w, const View& bias, const View& y) {
  const Depth<Kind> depth(w);
  const std::int64_t rows = x.shape[0];
  const int most = max_rows(depth.groups > 1);
  const Tiles tiles(rows, most);
  // A transpose writes up to one vector too much.
  const std::int64_t tile_size = round_up(std::min<std::int64_t>(rows, most) * depth.all_steps + lanes, 16);
  const std::int64_t encoders = std::clamp<std::int64_t>(rows * w.in / stream_grain, 1, std::min<std::int64_t>(num_threads(), tiles.count));
  const Scratch<std::int32_t> codes(tiles.count * tile_size, y.stream), lines(encoders * tile_size, y.stream);
  const Scratch<std::int32_t> zeros(rows * depth.groups, y.stream);
  const Scratch<float> scales(rows * depth.groups, y.stream);
  const Encoded encoded{codes.data(), tile_size, zeros.data(), scales.data()};
  share(tiles.count, encoders, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = tiles.begin(i);
      encode_tile<Kind, HasBlocks, S>(x, first, static_cast<int>(tiles.begin(i + 1) - first), depth, zero_of(w.format),
                                      lines.data() + thread * tile_size, encoded.codes + i * tile_size, encoded);
    }
  });
  const std::int64_t panels = ceil_div(w.out, panel);
  // Packing a weight takes about the time of the products of a few rows.
  const std::int64_t work = panels * panel * depth.length * (rows + 4);
  const std::int64_t threads = std::clamp<std::int64_t>(work / gemm::product_grain, 1, std::min<std::int64_t>(num_threads(), panels));
  const std::int64_t codes_size = round_up(depth.all_steps * panel, 16), scales_size = round_up(depth.groups * panel, 16);
  const std::int64_t unpacked_size = has_blocks(w.format) ? panel * depth.length : 0;
  const Scratch<std::int32_t> panel_codes(threads * codes_size, y.stream);
  const Scratch<float> panel_scales(threads * scales_size, y.stream);
  const Scratch<std::uint8_t> unpacked(threads * unpacked_size, y.stream);
  share(panels, threads, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
    const Panel own{panel_codes.data() + thread * codes_size, panel_scales.data() + thread * scales_size,
                    unpacked.data() + thread * unpacked_size};
    for (std::int64_t i = begin; i < end; ++i) {
      const int n = static_cast<int>(std::min<std::int64_t>(panel, w.out - i * panel));
      pack_panel(w, depth, i * panel, n, own);
      multiply_panel<Kind, S>(depth, tiles, own, encoded, bias, y, i * panel, n);
    }
  });
}

}  // namespace tern::integers
