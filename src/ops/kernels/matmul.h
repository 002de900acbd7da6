#pragma once
#include "ops/kernels/deferred_sums.h"
#include "ops/kernels/pointwise.h"
#include "tensor/context.h"
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

}  // namespace tern::kernels
