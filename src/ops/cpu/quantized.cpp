#include "ops/cpu/integer_products.h"

// Products with quantised weights. Those of several rows are Note [Integer products]; that of one row stands here.
//
// y = x w transposed + bias for one row of x, and blocks of q8_0 and q4_0: a token of a text that is decoded alone. Its time is that of
// reading the weights, so that nothing of them is packed (Note [Integer products] packs panels, which pays from a few rows on): the bytes
// of a block go from memory into a register and into a dot product.
//
//   a tile of `lanes` output channels     block 0   block 1  ...
//     row 0                              [d|codes] [d|codes]
//     row 1                              [d|codes] [d|codes]         a step: one block of each row, its dot products with x's
//     ...                                    |                        block as lanes of partial sums, folded to one vector of sums
//                                        sums (lanes) -> float, times d and x's scale, added to totals (lanes)
//
// Sums of a block are exact, and blocks are added in the order and by the operations of multiply_tile: y has the bits that it has among
// other rows. While a tile is multiplied, the bytes of the next are fetched into the L2 cache: its rows are read as `lanes` streams, which
// the hardware's prefetcher alone does not follow.
namespace tern::integers {

namespace {

#if defined(__AVX512BW__) || (defined(__AVX2__) && defined(__F16C__))
constexpr bool has_row_product = true;

/// Codes of a block of each of lanes / 8 rows, 32 bytes each, as unsigned bytes: unpack_block in registers.
template <QuantFormat Format>
[[gnu::always_inline]] inline IntVector load_blocks(const std::uint8_t* first, [[maybe_unused]] const std::uint8_t* second) {
  const auto codes = [](const std::uint8_t* block) { return reinterpret_cast<const __m128i*>(block + 2); };
#if defined(__AVX512BW__)
  if constexpr (Format == QuantFormat::q8_0) {
    const auto load = [&](const std::uint8_t* block) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2)); };
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(load(first)), load(second), 1);
    return (IntVector)_mm512_xor_si512(both, _mm512_set1_epi8(char(0x80)));
  } else {
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(codes(first))), _mm_loadu_si128(codes(second)), 1);
    const __m512i twice =
        _mm512_permutex_epi64(_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(both)), 0xe4);
    const __m512i halves = _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
    return (IntVector)_mm512_and_si512(halves, _mm512_set1_epi8(15));
  }
#else
  if constexpr (Format == QuantFormat::q8_0) {
    const __m256i block = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first + 2));
    return (IntVector)_mm256_xor_si256(block, _mm256_set1_epi8(char(0x80)));
  } else {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(codes(first)));
    return (IntVector)_mm256_and_si256(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
  }
#endif
}

/// The 32 codes of a block of x, once for each row of a vector.
[[gnu::always_inline]] inline IntVector load_codes(const std::int32_t* codes) {
  const __m256i block = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
#if defined(__AVX512BW__)
  return (IntVector)_mm512_broadcast_i64x4(block);
#else
  return (IntVector)block;
#endif
}

template <int... Lane>
[[gnu::always_inline]] inline IntVector fold_pairs(IntVector a, IntVector b, std::integer_sequence<int, Lane...>) {
  // Of each four lanes: a0 + a2, b0 + b2, a1 + a3, b1 + b3.
  return __builtin_shufflevector(a, b, (Lane / 4 * 4 + Lane % 4 / 2 + Lane % 2 * lanes)...) +
         __builtin_shufflevector(a, b, (Lane / 4 * 4 + Lane % 4 / 2 + 2 + Lane % 2 * lanes)...);
}
template <int... Lane>
[[gnu::always_inline]] inline IntVector fold_fours(IntVector ab, IntVector cd, std::integer_sequence<int, Lane...>) {
  // Of each four lanes: the sums of a, b, c and d.
  return __builtin_shufflevector(ab, cd, (Lane / 4 * 4 + Lane % 2 + Lane % 4 / 2 * lanes)...) +
         __builtin_shufflevector(ab, cd, (Lane / 4 * 4 + Lane % 2 + 2 + Lane % 4 / 2 * lanes)...);
}
template <int... Lane>
[[gnu::always_inline]] inline IntVector fold_eights(IntVector low, IntVector high, std::integer_sequence<int, Lane...>) {
  // Of each eight lanes: the sums of four rows from `low`, then those of four rows from `high`.
  return __builtin_shufflevector(low, high, (Lane / 8 * 8 + Lane % 4 + Lane % 8 / 4 * lanes)...) +
         __builtin_shufflevector(low, high, (Lane / 8 * 8 + Lane % 4 + 4 + Lane % 8 / 4 * lanes)...);
}

/// Of eight vectors, each with eight lanes of row i in its first half (and of row i + 8 in its second), the sums of the rows.
[[gnu::always_inline]] inline IntVector fold_rows(const IntVector* v) {
  constexpr auto all = std::make_integer_sequence<int, lanes>();
  const IntVector low = fold_fours(fold_pairs(v[0], v[1], all), fold_pairs(v[2], v[3], all), all);
  const IntVector high = fold_fours(fold_pairs(v[4], v[5], all), fold_pairs(v[6], v[7], all), all);
  return fold_eights(low, high, all);
}

/// Scales of the blocks at base + offsets, one a row.
[[gnu::always_inline]] inline FloatVector load_scales(const std::uint8_t* base, IntVector offsets) {
#if defined(__AVX512BW__)
  const __m512i words = _mm512_i32gather_epi32((__m512i)offsets, base, 1);
  return (FloatVector)_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
#else
  const __m256i words =
      _mm256_and_si256(_mm256_i32gather_epi32(reinterpret_cast<const int*>(base), (__m256i)offsets, 1), _mm256_set1_epi32(0xffff));
  return (FloatVector)_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#endif
}

/// Outputs of the tile of rows [first, first + n), n <= lanes, of w.
template <QuantFormat Format>
FloatVector multiply_rows(const QuantizedRows& w, std::int64_t first, int n, const Encoded& x, std::int64_t groups) {
  constexpr std::int64_t step = block_bytes(Format);
  const std::uint8_t* rows[lanes];
  IntVector offsets;
  for (int i = 0; i < lanes; ++i) {
    const int row = std::min(i, n - 1);  // a row that is missing repeats the last one
    rows[i] = w.row(first + row);
    offsets[i] = static_cast<std::int32_t>(row * w.bytes);
  }
  const std::uint8_t* const base = rows[0];
  const std::uint8_t* ahead = base + lanes * w.bytes;
  FloatVector totals = {};
  for (std::int64_t group = 0; group < groups; ++group) {
    const IntVector codes = load_codes(x.codes + group * (quant_block / 4));
    IntVector sums[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const std::int64_t at = group * step;
      sums[i] = Bytes::dot(IntVector{}, load_blocks<Format>(rows[i] + at, rows[i + (lanes - 8)] + at), codes);
    }
    for (std::int64_t line = 0; line < lanes * step; line += 64) __builtin_prefetch(ahead + line, 0, 2);
    ahead += lanes * step;
    const IntVector products = fold_rows(sums) + x.zeros[group];
    totals += load_scales(base + group * step, offsets) * (x.scales[group] * __builtin_convertvector(products, FloatVector));
  }
  return totals;
}

/// True if multiply_row takes the product; else multiply does. One block is not added to others there, and is rounded otherwise.
bool takes_row(const View& x, const QuantizedRows& w) {
  return x.shape[0] == 1 && has_blocks(w.format) && w.in > quant_block && w.bytes * lanes <= std::numeric_limits<std::int32_t>::max();
}

template <QuantFormat Format, class S>
void multiply_row(const View& x, const QuantizedRows& w, const View& bias, const View& y) {
  const Depth<Bytes> depth(w);
  const Scratch<std::int32_t> codes(depth.all_steps + lanes, y.stream), zeros(depth.groups, y.stream);
  const Scratch<float> scales(depth.groups, y.stream);
  const Encoded encoded{codes.data(), depth.all_steps, zeros.data(), scales.data()};
  encode_tile<Bytes, true, S>(x, 0, 1, depth, zero_of(Format), nullptr, codes.data(), encoded);
  const std::int64_t tiles = ceil_div(w.out, std::int64_t{lanes});
  const std::int64_t threads =
      std::clamp<std::int64_t>(w.out * depth.length / gemm::product_grain, 1, std::min<std::int64_t>(num_threads(), tiles));
  share(tiles, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i * lanes;
      const int n = static_cast<int>(std::min<std::int64_t>(lanes, w.out - first));
      FloatVector added = {};
      if (bias.data)
        for (int k = 0; k < n; ++k) added[k] = convert<float>(bias.as<const S>()[(first + k) * bias.strides[0]]);
      const FloatVector value = multiply_rows<Format>(w, first, n, encoded, depth.groups) + added;
      alignas(64) float values[lanes];
      std::memcpy(values, &value, sizeof value);
      convert_run(values, y.as<S>() + first, n);
    }
  });
}

#else
constexpr bool has_row_product = false;
[[maybe_unused]] bool takes_row(const View&, const QuantizedRows&) { return false; }
template <QuantFormat Format, class S>
void multiply_row(const View&, const QuantizedRows&, const View&, const View&) {}
#endif

}  // namespace

}  // namespace tern::integers

namespace tern::kernels {

using namespace loops;

namespace {

/// Dequantizes a row of `in` values.
template <class C>
void unpack_row(const QuantizedRows& w, std::int64_t row, C* to) {
  const std::uint8_t* from = w.row(row);
  const auto zero = static_cast<C>(integers::zero_of(w.format));
  if (!has_blocks(w.format)) {
    const C scale = integers::float_at(from);
#pragma omp simd
    for (std::int64_t i = 0; i < w.in; ++i) to[i] = scale * (static_cast<C>(from[4 + i]) - zero);
    return;
  }
  for (std::int64_t k = 0; k < w.in; k += quant_block, from += block_bytes(w.format)) {
    std::uint8_t codes[quant_block];
    integers::unpack_block(w.format, from, codes);
    const C scale = integers::half_at(from);
    const std::int64_t n = std::min(quant_block, w.in - k);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) to[k + i] = scale * (static_cast<C>(codes[i]) - zero);
  }
}

}  // namespace

void QuantizedLinear::run(Cpu) const {
  if (y.numel() == 0) return;
  dispatch_floats(y.dtype, "quantized_linear", [&]<class S>() {
    if constexpr (!std::is_same_v<S, double>) {
      integers::with_vnni([&]<bool Vnni>() {
        if constexpr (Vnni && integers::has_row_product) {
          if (integers::takes_row(x, w))
            return w.format == QuantFormat::q8_0 ? integers::multiply_row<QuantFormat::q8_0, S>(x, w, bias, y)
                                                 : integers::multiply_row<QuantFormat::q4_0, S>(x, w, bias, y);
        }
        if (has_blocks(w.format)) integers::multiply<integers::EightBits<Vnni>, true, S>(x, w, bias, y);
        else if (w.format == QuantFormat::dynamic_int8) integers::multiply<integers::EightBits<Vnni>, false, S>(x, w, bias, y);
        else integers::multiply<integers::SixteenBits<Vnni>, false, S>(x, w, bias, y);
      });
    }
  });
}

void Dequantize::run(Cpu) const {
  if (y.numel() == 0) return;
  const std::int64_t count = y.numel() / w.in;
  dispatch_floats(y.dtype, "dequantize", [&]<class S>() {
    using C = compute_t<S>;
    const Scratch<C> values(num_threads() * w.in, y.stream);
    share(count, std::clamp<std::int64_t>(y.numel() / stream_grain, 1, num_threads()),
          [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
            C* const row = values.data() + thread * w.in;
            for (std::int64_t i = begin; i < end; ++i) {
              unpack_row(w, ids.data ? ids.as<const std::int64_t>()[i] : i, row);
              convert_run(row, y.as<S>() + i * w.in, w.in);
            }
          });
  });
}

}  // namespace tern::kernels
