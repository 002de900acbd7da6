#include "ops/kernels/quantized.h"

#include <bit>

#include "ops/cpu/gemm.h"

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace tern::kernels {

using namespace loops;

// Products with quantised weights. Note [Integer products]: rows of x become integers, x = scale (256 a + b) with a and b of 8 bits, or
// scale a alone for dynamic_int8, and an instruction of VNNI adds four products of an unsigned byte, the weight's, with a signed one, x's,
// to a 32-bit sum: twice the products of a float32 FMA in its time with both parts of x, four times with one. The sums of a block are
// exact, and what the weight's zero (128, or 8 of q4_0) adds to them is subtracted at their start; then they are scaled and added up in
// float32, in one order, so that a row of y does not depend on how many rows there are. Weights are packed as gemm.h packs its operands, a
// panel of two vectors of output channels by steps of four bytes of the depth, and turn into bytes there from whatever a format stores.
// Without VNNI, weights become float32 in parts that stay in the cache and go through gemm.h; dynamic_int8, whose value is that of
// integers, has plain vector code for the instruction.

namespace {

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
constexpr bool has_dot = true;
#else
constexpr bool has_dot = false;
#endif

constexpr int lanes_of_sums = gemm::lanes<std::int32_t>, panel = 2 * lanes_of_sums;
using IntVector = gemm::VectorOf<std::int32_t>::type;
using FloatVector = gemm::VectorOf<float>::type;

/// sums + the products of four unsigned bytes of `weights` with four signed ones of x.
[[gnu::always_inline]] inline IntVector dot(IntVector sums, IntVector weights, std::int32_t x) {
#if defined(__AVX512VNNI__)
  return (IntVector)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(x));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
  return (IntVector)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, _mm256_set1_epi32(x));
#else
  for (int byte = 0; byte < 4; ++byte) sums += (weights >> (8 * byte) & 255) * std::int32_t(std::int8_t(x >> (8 * byte)));
  return sums;
#endif
}

float half_at(const std::uint8_t* at) {
  f16 half;
  std::memcpy(&half, at, sizeof half);
#if defined(__F16C__) && defined(__AVX__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half.bits)));
#else
  return static_cast<float>(half);
#endif
}
float float_at(const std::uint8_t* at) {
  float value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// The 32 codes of a block as unsigned bytes, of which `zero_of` its format is 0.
void unpack_q8_0(const std::uint8_t* block, std::uint8_t* to) {
#pragma omp simd
  for (int i = 0; i < quant_block; ++i) to[i] = block[2 + i] ^ 0x80;
}
void unpack_q4_0(const std::uint8_t* block, std::uint8_t* to) {
#pragma omp simd
  for (int i = 0; i < quant_block / 2; ++i) {
    const std::uint8_t pair = block[2 + i];
    to[i] = pair & 15;
    to[i + quant_block / 2] = pair >> 4;
  }
}
constexpr std::int32_t zero_of(QuantFormat format) { return format == QuantFormat::q4_0 ? 8 : 128; }

/// A row's values, `in` of them.
template <class C>
void unpack_row(const QuantizedRows& w, std::int64_t row, C* to) {
  const std::uint8_t* from = w.row(row);
  const auto zero = static_cast<C>(zero_of(w.format));
  if (!has_blocks(w.format)) {
    const C scale = float_at(from);
#pragma omp simd
    for (std::int64_t i = 0; i < w.in; ++i) to[i] = scale * (static_cast<C>(from[4 + i]) - zero);
    return;
  }
  const auto unpack = w.format == QuantFormat::q8_0 ? unpack_q8_0 : unpack_q4_0;
  for (std::int64_t k = 0; k < w.in; k += quant_block, from += block_bytes(w.format)) {
    std::uint8_t codes[quant_block];
    unpack(from, codes);
    const C scale = half_at(from);
    const std::int64_t n = std::min(quant_block, w.in - k);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) to[k + i] = scale * (static_cast<C>(codes[i]) - zero);
  }
}

/// How the depth is cut: `groups` parts with a scale each, of `steps` times four weights, but for the last one.
struct Depth {
  explicit Depth(const QuantizedRows& w)
      : all_steps((has_blocks(w.format) ? gemm::round_up(w.in, quant_block) : gemm::round_up(w.in, 4)) / 4),
        // The sum of as many products of 255 and 127 is below 2^31.
        steps(has_blocks(w.format) ? quant_block / 4 : std::min<std::int64_t>(all_steps, 8192)),
        groups(steps > 0 ? (all_steps + steps - 1) / steps : 0) {}
  std::int64_t all_steps, steps, groups;
};

/// The rows of x as integers: row r, part p begins at codes + (r parts + p) 4 all_steps.
struct Codes {
  std::int8_t* codes;
  std::int32_t* zeros;  ///< (rows, groups, parts): what the weight's zero adds to a group's sum
  float* scales;        ///< (rows); NaN for a row that is not finite
};

/// One row of x: a part holds 8 bits of it, two parts 16.
template <class S>
void encode_row(const S* x, std::int64_t in, const Depth& depth, int parts, std::int32_t zero, const Codes& to, std::int64_t row) {
  alignas(64) float buffer[chunk];
  float top = 0, fault = 0;
  for (std::int64_t k = 0; k < in; k += chunk) {
    const std::int64_t n = std::min(chunk, in - k);
    const float* const values = load(x + k, 1, n, buffer);
#pragma omp simd reduction(max : top) reduction(+ : fault)
    for (std::int64_t i = 0; i < n; ++i) {
      const float magnitude = values[i] < 0 ? -values[i] : values[i];
      top = magnitude > top ? magnitude : top;
      fault += values[i] * 0;
    }
  }
  const bool is_finite = fault == 0;
  const float most = parts == 2 ? 32512.0F : 127.0F;
  const float factor = is_finite && top > 1e-30F ? most / top : 0.0F;
  to.scales[row] = is_finite ? top / most : std::numeric_limits<float>::quiet_NaN();
  const std::int64_t length = 4 * depth.all_steps;
  std::int8_t *const high = to.codes + row * parts * length, *const low = high + length;
  for (std::int64_t k = 0; k < in; k += chunk) {
    const std::int64_t n = std::min(chunk, in - k);
    const float* const values = load(x + k, 1, n, buffer);
    // A sum with 1.5 2^23 has the nearest whole number in its last bits. A row that is not finite gives zeros.
    constexpr float shift = 12582912.0F;
    const auto code = [&](std::int64_t i) {
      const float scaled = factor != 0 ? values[i] * factor : 0.0F;
      return std::bit_cast<std::int32_t>(scaled + shift) - std::bit_cast<std::int32_t>(shift);
    };
    if (parts == 1) {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) high[k + i] = static_cast<std::int8_t>(code(i));
      continue;
    }
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int32_t whole = code(i), upper = (whole + 128) >> 8;
      high[k + i] = static_cast<std::int8_t>(upper);
      low[k + i] = static_cast<std::int8_t>(whole - 256 * upper);
    }
  }
  for (int part = 0; part < parts; ++part) {
    std::int8_t* const codes = high + part * length;
    std::fill(codes + in, codes + length, std::int8_t{0});
    for (std::int64_t group = 0; group < depth.groups; ++group) {
      const std::int64_t begin = 4 * group * depth.steps, end = std::min(begin + 4 * depth.steps, length);
      std::int32_t sum = 0;
      for (std::int64_t k = begin; k < end; ++k) sum += codes[k];
      to.zeros[(row * depth.groups + group) * parts + part] = zero * sum;
    }
  }
}

/// A panel of output channels: codes (all_steps, panel) of four bytes, and scales (groups, panel).
struct Panel {
  std::int32_t* codes;
  float* scales;
  std::uint8_t* unpacked;  ///< rows of blocks on their way
};

void pack_panel(const QuantizedRows& w, const Depth& depth, std::int64_t first, int n, const Panel& to) {
  for (std::int64_t i = 0; i < depth.groups * panel; ++i) to.scales[i] = 0;
  const auto* lines = reinterpret_cast<const std::int32_t*>(w.row(first) + 4);
  std::int64_t stride = w.bytes / 4;
  if (has_blocks(w.format)) {
    const auto unpack = w.format == QuantFormat::q8_0 ? unpack_q8_0 : unpack_q4_0;
    for (int i = 0; i < n; ++i)
      for (std::int64_t group = 0; group < depth.groups; ++group) {
        const std::uint8_t* const block = w.row(first + i) + group * block_bytes(w.format);
        to.scales[group * panel + i] = half_at(block);
        unpack(block, to.unpacked + (i * depth.groups + group) * quant_block);
      }
    lines = reinterpret_cast<const std::int32_t*>(to.unpacked);
    stride = depth.all_steps;
  } else {
    for (int i = 0; i < n; ++i)
      for (std::int64_t group = 0; group < depth.groups; ++group) to.scales[group * panel + i] = float_at(w.row(first + i));
  }
  gemm::pack_transposed(lines, stride, n, depth.all_steps, panel, to.codes);
}

/// R rows of x times a panel: `sums` (R, panel), without the scales of x.
template <int R, int Parts>
void multiply_panel(const Depth& depth, const Panel& w, const std::int8_t* codes, const std::int32_t* zeros, float* sums) {
  const std::int64_t length = 4 * depth.all_steps;
  FloatVector totals[R][2] = {};
  for (std::int64_t group = 0; group < depth.groups; ++group) {
    IntVector products[R][Parts][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int part = 0; part < Parts; ++part)
        products[r][part][0] = products[r][part][1] = IntVector{} - zeros[(r * depth.groups + group) * Parts + part];
    const std::int64_t end = std::min((group + 1) * depth.steps, depth.all_steps);
    for (std::int64_t step = group * depth.steps; step < end; ++step) {
      IntVector weights[2];
      std::memcpy(weights, w.codes + step * panel, sizeof weights);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int part = 0; part < Parts; ++part) {
          std::int32_t x;
          std::memcpy(&x, codes + (r * Parts + part) * length + 4 * step, sizeof x);
          products[r][part][0] = dot(products[r][part][0], weights[0], x);
          products[r][part][1] = dot(products[r][part][1], weights[1], x);
        }
    }
    FloatVector scales[2];
    std::memcpy(scales, w.scales + group * panel, sizeof scales);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        FloatVector value = __builtin_convertvector(products[r][0][v], FloatVector);
        if constexpr (Parts == 2) value = 256.0F * value + __builtin_convertvector(products[r][1][v], FloatVector);
        totals[r][v] += scales[v] * value;
      }
  }
  std::memcpy(sums, totals, sizeof totals);
}

/// The rows of y of one panel, `n` columns from `first` on.
template <int Parts, class S>
void write_panel(const Depth& depth, const Panel& w, const Codes& x, const View& bias, const View& y, std::int64_t first, int n) {
  constexpr int most = 8 / Parts;  // as many rows as leave registers for the weights
  alignas(64) float sums[most * panel], added[panel] = {};
  if (bias.data)
    for (int i = 0; i < n; ++i) added[i] = convert<float>(bias.as<const S>()[(first + i) * bias.strides[0]]);
  const std::int64_t rows = y.shape[0];
  for (std::int64_t row = 0; row < rows;) {
    const std::int64_t rest = rows - row;
    const int count = rest >= most ? most : rest >= 4 ? 4 : rest >= 2 ? 2 : 1;
    const std::int8_t* const codes = x.codes + row * Parts * 4 * depth.all_steps;
    const std::int32_t* const zeros = x.zeros + row * Parts * depth.groups;
    if (count == most) multiply_panel<most, Parts>(depth, w, codes, zeros, sums);
    else if (count == 4) multiply_panel<4, Parts>(depth, w, codes, zeros, sums);
    else if (count == 2) multiply_panel<2, Parts>(depth, w, codes, zeros, sums);
    else multiply_panel<1, Parts>(depth, w, codes, zeros, sums);
    for (int r = 0; r < count; ++r) {
      float* const from = sums + r * panel;
      const float scale = x.scales[row + r];
#pragma omp simd
      for (int i = 0; i < panel; ++i) from[i] = from[i] * scale + added[i];
      convert_run(from, y.as<S>() + (row + r) * y.shape[1] + first, n);
    }
    row += count;
  }
}

/// See Note [Integer products].
template <int Parts, class S>
void multiply_integers(const View& x, const QuantizedRows& w, const View& bias, const View& y) {
  const Depth depth(w);
  const std::int64_t rows = x.shape[0], length = 4 * depth.all_steps;
  const Scratch<std::int8_t> codes(rows * Parts * length, y.stream);
  const Scratch<std::int32_t> zeros(rows * Parts * depth.groups, y.stream);
  const Scratch<float> scales(rows, y.stream);
  const Codes encoded{codes.data(), zeros.data(), scales.data()};
  parallel_units(rows, w.in, stream_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      encode_row(x.as<const S>() + r * x.strides[0], w.in, depth, Parts, zero_of(w.format), encoded, r);
  });
  const std::int64_t panels = (w.out + panel - 1) / panel;
  // Packing a weight takes about the time of some rows' products.
  const std::int64_t work = panels * panel * length * (rows + 4);
  const std::int64_t threads = std::clamp<std::int64_t>(work / gemm::product_grain, 1, std::min<std::int64_t>(num_threads(), panels));
  const std::int64_t codes_size = gemm::round_up(depth.all_steps * panel + lanes_of_sums, 16);
  const std::int64_t scales_size = gemm::round_up(depth.groups * panel, 16), unpacked_size = has_blocks(w.format) ? panel * length : 0;
  const Scratch<std::int32_t> panel_codes(threads * codes_size, y.stream);
  const Scratch<float> panel_scales(threads * scales_size, y.stream);
  const Scratch<std::uint8_t> unpacked(threads * unpacked_size, y.stream);
  share(panels, threads, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
    const Panel own{panel_codes.data() + thread * codes_size, panel_scales.data() + thread * scales_size,
                    unpacked.data() + thread * unpacked_size};
    for (std::int64_t i = begin; i < end; ++i) {
      const int n = static_cast<int>(std::min<std::int64_t>(panel, w.out - i * panel));
      pack_panel(w, depth, i * panel, n, own);
      write_panel<Parts, S>(depth, own, encoded, bias, y, i * panel, n);
    }
  });
}

/// The way of a processor without VNNI: parts of the weight become float32 and go through gemm.h.
template <class S>
void multiply_floats(const View& x, const QuantizedRows& w, const View& bias, const View& y) {
  constexpr std::int64_t part_elements = 1 << 16, step = gemm::breadth<float>;
  const std::int64_t rows = x.shape[0], in = w.in;
  const std::int64_t columns = std::max<std::int64_t>(step, part_elements / std::max<std::int64_t>(in, 1) / step * step);
  const Scratch<float> wide(rows * in, y.stream);
  for (std::int64_t r = 0; r < rows; ++r) convert_run(x.as<const S>() + r * x.strides[0], wide.data() + r * in, in);
  const std::int64_t parts = (w.out + columns - 1) / columns;
  const std::int64_t threads =
      std::clamp<std::int64_t>(rows * w.out * in / gemm::product_grain, 1, std::min<std::int64_t>(num_threads(), parts));
  const std::int64_t work_size = gemm::packed_size<float>({rows, columns, in});
  const Scratch<float> weights(threads * columns * in, y.stream), results(threads * rows * columns, y.stream);
  const Scratch<float> work(threads * gemm::round_up(work_size, 16), y.stream);
  share(parts, threads, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
    float *const values = weights.data() + thread * columns * in, *const sums = results.data() + thread * rows * columns;
    for (std::int64_t first = begin * columns; first < std::min(end * columns, w.out); first += columns) {
      const std::int64_t n = std::min(columns, w.out - first);
      for (std::int64_t i = 0; i < n; ++i) unpack_row(w, first + i, values + i * in);
      const gemm::Matrix<const float> left{wide.data(), in, 1}, right{values, 1, in};
      gemm::multiply<float, float>({rows, n, in}, 1, left, right, sums, n, false, work.data() + thread * gemm::round_up(work_size, 16));
      for (std::int64_t r = 0; r < rows; ++r) {
        float* const from = sums + r * n;
        if (bias.data)
          for (std::int64_t i = 0; i < n; ++i) from[i] += convert<float>(bias.as<const S>()[(first + i) * bias.strides[0]]);
        convert_run(from, y.as<S>() + r * w.out + first, n);
      }
    }
  });
}

}  // namespace

void quantized_linear(Cpu, const View& x, const QuantizedRows& w, const View& bias, const View& y) {
  if (y.numel() == 0) return;
  dispatch_floats(y.dtype, "quantized_linear", [&]<class S>() {
    if constexpr (!std::is_same_v<S, double>) {
      if (w.in == 0 || w.format == QuantFormat::dynamic_int8) multiply_integers<1, S>(x, w, bias, y);
      else if constexpr (has_dot) multiply_integers<2, S>(x, w, bias, y);
      else multiply_floats<S>(x, w, bias, y);
    }
  });
}

void dequantize(Cpu, const QuantizedRows& w, const View& ids, const View& y) {
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
