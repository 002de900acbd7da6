#pragma once
#include "ops/kernels/pointwise.h"
#include "ops/kernels/reduce.h"
#include "tensor/context.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace tern::kernels {

/// c (..., M, N) = alpha * a (..., M, K) @ b (..., K, N), or added to c. Note [Matmul operands]: one floating dtype; a and b
/// have c's batch dimensions (stride 0 where broadcast) with any batch strides; within a matrix one of the last two
/// strides is 1 and the other at least the length of the unit-stride dimension (or the dimension has size <= 1); c's rows
/// are contiguous (last stride 1). Any size may be 0; K = 0 gives zeros. float32 is strict float32; 16-bit floats accumulate in float32.
void matmul(Cpu, const View& a, const View& b, const View& c, double alpha, Write write);
void matmul(Cuda, const View& a, const View& b, const View& c, double alpha, Write write);
/// c = a @ b of integers of one dtype, which wrap; shapes and strides as for matmul. Only on the CPU.
void integer_matmul(Cpu, const View& a, const View& b, const View& c);
/// True if the device multiplies float32 in this precision rather than falling back to fp32.
inline bool has_matmul_precision(Cpu, MatmulPrecision precision, Device) { return precision == MatmulPrecision::fp32; }
bool has_matmul_precision(Cuda, MatmulPrecision precision, Device device);

/// y (M, N) = x (M, K) @ weight (N, K) transposed, plus bias (N), or no bias if bias.data is null. One floating dtype; x and weight as in
/// Note [Matmul operands], y contiguous, bias of any stride.
void linear(Cpu, const View& x, const View& weight, const View& bias, const View& y);
void linear(Cuda, const View& x, const View& weight, const View& bias, const View& y);

/// linear as a matrix product and an addition: the fallback of the backends, and the reference of their tests.
template <class Tag>
void plain_linear(Tag device, const View& x, const View& weight, const View& bias, const View& y) {
  View transposed = weight;
  transposed.shape = {weight.shape[1], weight.shape[0]};
  transposed.strides = {weight.strides[1], weight.strides[0]};
  matmul(device, x, transposed, y, 1, Write::overwrite);
  if (!bias.data) return;
  View row = bias;
  row.shape = y.shape;
  row.strides = {0, bias.strides[0]};
  binary(device, functors::Add{}, y, row, y);
}

/// before (M, N) = linear(x, weight, bias), y (M, N) = gelu_tanh(before); operands as for linear, both results contiguous.
void linear_gelu(Cpu, const View& x, const View& weight, const View& bias, const View& before, const View& y);
void linear_gelu(Cuda, const View& x, const View& weight, const View& bias, const View& before, const View& y);
/// True if y is gelu_tanh of `before` as it was written, bit for bit: a 16-bit epilogue applies GELU before it rounds.
inline bool is_gelu_of_written(Cpu, DType) { return true; }
inline bool is_gelu_of_written(Cuda, DType dtype) { return size_of(dtype) > 2; }

/// sums (N) = the column sums of g (M, N), contiguous, or those added to sums, of any stride: a bias gradient. Sums of 16-bit floats are in
/// float32. They may be left as partial sums in `deferred`.
void column_sums(Cpu, const View& g, const View& sums, Write write, DeferredSums* deferred = nullptr);
void column_sums(Cuda, const View& g, const View& sums, Write write, DeferredSums* deferred = nullptr);

/// dx (M, N) = g gelu_tanh'(x), and its column sums as in column_sums, or none if sums.data is null. All contiguous but sums; dx may be g.
void gelu_bias_grad(Cpu, const View& g, const View& x, const View& dx, const View& sums, Write write, DeferredSums* deferred = nullptr);
void gelu_bias_grad(Cuda, const View& g, const View& x, const View& dx, const View& sums, Write write, DeferredSums* deferred = nullptr);

/// Quantized weight (out, in) as kernels take it: its rows, one after the other.
struct QuantizedRows {
  const std::uint8_t* data;
  QuantFormat format;
  std::int64_t out, in;
  TERN_HOST_DEVICE const std::uint8_t* row(std::int64_t i) const { return data + i * bytes; }
  std::int64_t bytes = row_bytes(format, in);  ///< bytes of a row
};

/// y (M, out) = x (M, in) @ w transposed, plus bias (out), or no bias if bias.data is null. x and y of one of f32, bf16 and f16, x's rows
/// contiguous, y contiguous, bias of any stride. x is rounded as in ops/quantize.h; sums are exact integers within a block, and float32
/// over blocks. A row of x that is not finite gives a row of NaN.
void quantized_linear(Cpu, const View& x, const QuantizedRows& w, const View& bias, const View& y);
/// For 16-bit x, or few rows: see has_quantized_linear. x is not rounded in any format.
void quantized_linear(Cuda, const View& x, const QuantizedRows& w, const View& bias, const View& y);
bool has_quantized_linear(Cuda, const View& x);

/// y (N, in) = the rows of w selected by ids (N), i64 and contiguous, or the first N if ids.data is null. y is contiguous, of a floating
/// dtype. An id outside of [0, out) gives zeros on a GPU; on the CPU the caller checks ids.
void dequantize(Cpu, const QuantizedRows& w, const View& ids, const View& y);
void dequantize(Cuda, const QuantizedRows& w, const View& ids, const View& y);

}  // namespace tern::kernels
