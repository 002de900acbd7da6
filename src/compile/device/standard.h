#pragma once
// Names of the C++ standard library and of the toolkit's headers that generated kernels, and the headers that they include, need. NVRTC
// gets this under the names of those headers, so that a user's machine needs none of them.
#include "compile/device/integers.h"
#define INFINITY __builtin_bit_cast(float, 0x7f800000u)
typedef long int64_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;

namespace std {

using ::int16_t, ::int32_t, ::int64_t, ::int8_t, ::intptr_t, ::uint16_t, ::uint32_t, ::uint64_t, ::uint8_t, ::uintptr_t;
using size_t = unsigned long;

template <class T, T v> struct integral_constant {
  static constexpr T value = v;
};
template <class A, class B> inline constexpr bool is_same_v = false;
template <class A> inline constexpr bool is_same_v<A, A> = true;
template <class T> inline constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <class T>
inline constexpr bool is_integral_v =
    is_same_v<T, bool> || is_same_v<T, char> || is_same_v<T, signed char> || is_same_v<T, unsigned char> || is_same_v<T, short> ||
    is_same_v<T, unsigned short> || is_same_v<T, int> || is_same_v<T, unsigned> || is_same_v<T, long> || is_same_v<T, unsigned long> ||
    is_same_v<T, long long> || is_same_v<T, unsigned long long>;
template <class T> inline constexpr bool is_unsigned_v = is_integral_v<T> && T(-1) > T(0);
template <class T> inline constexpr bool is_signed_v = !is_unsigned_v<T> && (is_integral_v<T> || is_floating_point_v<T>);
template <class T> inline constexpr bool is_empty_v = __is_empty(T);
template <bool b, class A, class B> struct conditional {
  using type = A;
};
template <class A, class B> struct conditional<false, A, B> {
  using type = B;
};
template <bool b, class A, class B> using conditional_t = typename conditional<b, A, B>::type;
template <class... T> struct common_type {
  using type = decltype((T() + ...));
};
template <class... T> using common_type_t = typename common_type<T...>::type;

template <class T> struct make_unsigned {
  using type = T;
};
template <> struct make_unsigned<signed char> {
  using type = unsigned char;
};
template <> struct make_unsigned<short> {
  using type = unsigned short;
};
template <> struct make_unsigned<int> {
  using type = unsigned;
};
template <> struct make_unsigned<long> {
  using type = unsigned long;
};
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;

template <class To, class From> __host__ __device__ constexpr To bit_cast(const From& from) { return __builtin_bit_cast(To, from); }

template <class T> struct numeric_limits {
  static constexpr bool is_wide = sizeof(T) == 8;
  static __host__ __device__ constexpr T max() {
    if constexpr (is_same_v<T, float>) return 0x1.fffffep127f;
    else if constexpr (is_same_v<T, double>) return 0x1.fffffffffffffp1023;
    else return is_unsigned_v<T> ? T(-1) : T(make_unsigned_t<T>(-1) >> 1);
  }
  static __host__ __device__ constexpr T lowest() { return -max(); }
  static __host__ __device__ constexpr T min() { return is_unsigned_v<T> ? T(0) : T(-max() - 1); }  // of integers
  static __host__ __device__ constexpr T infinity() { return T(INFINITY); }
};

// Functions of a float are those of floats, as in <cmath>.
__device__ inline float exp(float x) { return ::expf(x); }
__device__ inline float exp2(float x) { return ::exp2f(x); }
__device__ inline float log(float x) { return ::logf(x); }
__device__ inline float log1p(float x) { return ::log1pf(x); }
__device__ inline float expm1(float x) { return ::expm1f(x); }
__device__ inline float tanh(float x) { return ::tanhf(x); }
__device__ inline float erf(float x) { return ::erff(x); }
__device__ inline float sin(float x) { return ::sinf(x); }
__device__ inline float cos(float x) { return ::cosf(x); }
__device__ inline float sqrt(float x) { return ::sqrtf(x); }
__device__ inline float fabs(float x) { return ::fabsf(x); }
__device__ inline float abs(float x) { return ::fabsf(x); }
__device__ inline float floor(float x) { return ::floorf(x); }
__device__ inline float ceil(float x) { return ::ceilf(x); }
__device__ inline float rint(float x) { return ::rintf(x); }
__device__ inline float pow(float x, float y) { return ::powf(x, y); }
__device__ inline float fmod(float x, float y) { return ::fmodf(x, y); }
__device__ inline float atan2(float x, float y) { return ::atan2f(x, y); }
__device__ inline float copysign(float x, float y) { return ::copysignf(x, y); }
__device__ inline double exp(double x) { return ::exp(x); }
__device__ inline double exp2(double x) { return ::exp2(x); }
__device__ inline double log(double x) { return ::log(x); }
__device__ inline double log1p(double x) { return ::log1p(x); }
__device__ inline double expm1(double x) { return ::expm1(x); }
__device__ inline double tanh(double x) { return ::tanh(x); }
__device__ inline double erf(double x) { return ::erf(x); }
__device__ inline double sin(double x) { return ::sin(x); }
__device__ inline double cos(double x) { return ::cos(x); }
__device__ inline double sqrt(double x) { return ::sqrt(x); }
__device__ inline double fabs(double x) { return ::fabs(x); }
__device__ inline double abs(double x) { return ::fabs(x); }
__device__ inline double floor(double x) { return ::floor(x); }
__device__ inline double ceil(double x) { return ::ceil(x); }
__device__ inline double rint(double x) { return ::rint(x); }
__device__ inline double pow(double x, double y) { return ::pow(x, y); }
__device__ inline double fmod(double x, double y) { return ::fmod(x, y); }
__device__ inline double atan2(double x, double y) { return ::atan2(x, y); }
__device__ inline double copysign(double x, double y) { return ::copysign(x, y); }

}  // namespace std

// The conversion that cuda/device/convert.cuh takes from cuda_fp16.h.
struct HalfBits {
  unsigned short bits;
};
__device__ inline HalfBits __ushort_as_half(unsigned short bits) { return {bits}; }
__device__ inline float __half2float(HalfBits x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}
