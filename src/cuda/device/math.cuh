#pragma once
#include <cmath>
#include <cstdint>

// Fast math: float functions by the GPU's special-function unit, and rounding to TF32. Doubles use the exact functions.
namespace tern::gpu {

inline constexpr float log2_e = 1.44269504088896340736f;

/// Note [Large scores]: the exponent of 2^(s a - m a) is one multiply-add, with m a rounded. The error cancels in the division by the sum,
/// since it is the same for all scores of a row, unless it is so large that the power overflows. From this size on scores are first
/// multiplied by a, and rounded like the maximum.
inline constexpr float large_score = 0x1p30f;

/// 2^x within 2 units in the last place; a result that would be denormal is 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// e^x; for floats by exp2_approx, so its relative error grows with |x|. Subtract logits before multiplying by log2(e): the result is then
/// as accurate for large logits as for small ones.
__device__ __forceinline__ float exp_approx(float x) { return exp2_approx(x * log2_e); }
__device__ __forceinline__ double exp_approx(double x) { return exp(x); }

/// 1 / x within one unit in the last place; 0 where that would be denormal.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// s = sigmoid(2u) = 0.5 (1 + tanh u) for the u of gelu_tanh(x) = x s, where `square` is x x. Two instructions of the special-function unit
/// and few others: a derivative takes 10 instructions, and 40 with __expf and __fdividef, which handle denormals.
__device__ __forceinline__ float gelu_tanh_sigmoid(float x, float square) {
  constexpr float linear = -2 * 0.79788456080286535588f * log2_e, cubic = 0.044715f * linear;
  return reciprocal_approx(1 + exp2_approx(x * (linear + cubic * square)));
}
/// gelu_tanh'(x) = s + x s (1 - s) 2u'.
__device__ __forceinline__ float gelu_tanh_derivative(float x) {
  constexpr float linear = 2 * 0.79788456080286535588f, cubic = 3 * 0.044715f * linear;
  const float square = x * x, s = gelu_tanh_sigmoid(x, square), part = x * s;
  return s + (part - part * s) * (linear + cubic * square);  // this order avoids 0 * inf where the square is large
}

/// silu(x) = x s(x) with the sigmoid s; its derivative is s + x s (1 - s).
__device__ __forceinline__ float silu_approx(float x) { return __fdividef(x, 1 + __expf(-x)); }
__device__ __forceinline__ double silu_approx(double x) { return x / (1 + exp(-x)); }
__device__ __forceinline__ float silu_derivative(float x) {
  const float s = __fdividef(1, 1 + __expf(-x));
  return s * (1 + x * (1 - s));
}
__device__ __forceinline__ double silu_derivative(double x) {
  const double s = 1 / (1 + exp(-x));
  return s * (1 + x * (1 - s));
}

// TF32 has the exponent of a float and 10 of its 23 explicit mantissa bits. Tensor cores truncate: they ignore the 13 lower bits.

/// x rounded to nearest, ties away from zero, by the conversion instruction.
__device__ __forceinline__ float round_to_tf32(float x) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

/// x plus half a unit of TF32's last place, so that the tensor core's truncation rounds it: an integer addition, while the conversion
/// instruction has a quarter of its throughput.
__device__ __forceinline__ float add_half_tf32_ulp(float x) {
  constexpr std::uint32_t half = 1u << 12;
  return fabsf(x) < INFINITY ? __uint_as_float(__float_as_uint(x) + half) : x;
}

/// x minus its truncation to TF32, rounded to TF32: the small part of 3xTF32.
__device__ __forceinline__ float tf32_residual(float x) { return round_to_tf32(x - __uint_as_float(__float_as_uint(x) & 0xffffe000u)); }
__device__ __forceinline__ float4 tf32_residual(float4 x) {
  return {tf32_residual(x.x), tf32_residual(x.y), tf32_residual(x.z), tf32_residual(x.w)};
}

}  // namespace tern::gpu
