#pragma once
#include <cstdint>

#include "ops/cpu/gemm.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/// Instructions of Note [Integer products], for the processor at hand.

namespace tern::integers {

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
#if defined(__AVX512VNNI__)
    return (IntVector)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(x));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (IntVector)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, _mm256_set1_epi32(x));
#elif defined(__AVX512F__)
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(_mm512_set1_epi32(x)));
    return sums;
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(weights), "x"(_mm256_set1_epi32(x)));
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

}  // namespace tern::integers
