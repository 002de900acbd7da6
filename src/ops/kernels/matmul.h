#pragma once
#include "ops/kernels/pointwise.h"
#include "ops/kernels/reduce.h"
#include "tensor/context.h"
#include "tensor/dtype.h"
#include "tensor/kernel.h"

namespace tern::kernels {

/// c (..., M, N) = alpha * a (..., M, K) @ b (..., K, N), or added to c. Note [Matmul operands]: one floating dtype; a and b
/// have c's batch dimensions (stride 0 where broadcast) with any batch strides; within a matrix one of the last two
/// strides is 1 and the other at least the length of the unit-stride dimension (or the dimension has size <= 1); c's rows
/// are contiguous (last stride 1). Any size may be 0; K = 0 gives zeros. float32 is strict float32; 16-bit floats accumulate in float32.
struct Matmul {
  In a, b;
  InOut c;
  double alpha;
  Write write;
  void* addresses = nullptr;  ///< on a GPU, of a product that runs many times with these views: what write_addresses() has written
  void run(Cpu) const;
  void run(Cuda) const;
};
/// @{
/// Addresses of the matrices of a batch that has no one stride, which cuBLAS reads from memory: their size, 0 if the product needs none,
/// and the kernel that writes them to `addresses`. Without them each run writes them anew.
std::size_t address_bytes(Cuda, const Matmul& product);
void write_addresses(Cuda, const Matmul& product);
/// @}
/// c = a @ b of integers of one dtype, which wrap; shapes and strides as for Matmul. Only on the CPU.
struct IntegerMatmul {
  In a, b;
  Out c;
  void run(Cpu) const;
};
/// True if the device multiplies float32 in this precision rather than falling back to fp32.
inline bool has_matmul_precision(Cpu, MatmulPrecision precision, Device) { return precision == MatmulPrecision::fp32; }
bool has_matmul_precision(Cuda, MatmulPrecision precision, Device device);

/// y (M, N) = x (M, K) @ weight (N, K) transposed, plus bias (N), or no bias if bias.data is null. One floating dtype; x and weight as in
/// Note [Matmul operands], y contiguous, bias of any stride.
struct Linear {
  In x, weight, bias;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Linear as a matrix product and an addition, each run by `run(kernel)`: the fallback of the backends, and the reference of their tests.
template <class Run>
void plain_linear(const Run& run, const View& x, const View& weight, const View& bias, const View& y) {
  View transposed = weight;
  transposed.shape = {weight.shape[1], weight.shape[0]};
  transposed.strides = {weight.strides[1], weight.strides[0]};
  run(Matmul{x, transposed, y, 1, Write::overwrite});
  if (!bias.data) return;
  View row = bias;
  row.shape = y.shape;
  row.strides = {0, bias.strides[0]};
  run(Binary{functors::Add{}, y, row, y});
}

/// before (M, N) = linear(x, weight, bias), y (M, N) = gelu_tanh(before); operands as for linear, both results contiguous.
struct LinearGelu {
  In x, weight, bias;
  Out before, y;
  void run(Cpu) const;
  void run(Cuda) const;
};
/// True if y is gelu_tanh of `before` as it was written, bit for bit: a 16-bit epilogue applies GELU before it rounds.
inline bool is_gelu_of_written(Cpu, DType) { return true; }
inline bool is_gelu_of_written(Cuda, DType dtype) { return size_of(dtype) > 2; }

/// sums (N) = the column sums of g (M, N), contiguous, or those added to sums, of any stride: a bias gradient. Sums of 16-bit floats are in
/// float32. They may be left as partial sums in `deferred`.
struct ColumnSums {
  In g;
  InOut sums;
  Write write;
  DeferredSums* deferred = nullptr;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// dx (M, N) = g gelu_tanh'(x), and its column sums as in ColumnSums, or none if sums.data is null. All contiguous but sums; dx may be g.
struct GeluBiasGrad {
  In g, x;
  Out dx;
  InOut sums;
  Write write;
  DeferredSums* deferred = nullptr;
  void run(Cpu) const;
  void run(Cuda) const;
};

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
/// over blocks. A row of x that is not finite gives a row of NaN. CUDA takes 16-bit x, or few rows (has_quantized_linear), and does not
/// round x in any format.
struct QuantizedLinear {
  In x;
  QuantizedRows w;
  In bias;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};
bool has_quantized_linear(Cuda, const View& x);

/// y (N, in) = the rows of w selected by ids (N), i64 and contiguous, or the first N if ids.data is null. y is contiguous, of a floating
/// dtype. An id outside of [0, out) gives zeros on a GPU; on the CPU the caller checks ids.
struct Dequantize {
  QuantizedRows w;
  In ids;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};

}  // namespace tern::kernels
