#pragma once
#include "tensor/context.h"
#include "tensor/view.h"

namespace tern::gpu {

/// What happens to a product while it is still in registers.
enum class Epilogue : std::uint8_t {
  none,
  bias,       ///< each column of c gets the bias (m)
  bias_gelu,  ///< then gelu_tanh, and the value before it is written as well
};

/// Matrix products as cuBLAS counts, columns first: c (m, n) = a (m, k) b (k, n), `count` of them. All that the choice of an
/// algorithm depends on, but addresses.
struct Product {
  DType dtype = DType::f32;
  MatmulPrecision precision = MatmulPrecision::fp32;  ///< of float32
  Epilogue epilogue = Epilogue::none;
  Write write = Write::overwrite;
  bool a_transposed = false, b_transposed = false;  ///< (k, m) and (n, k) in memory
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_leading = 0, b_leading = 0, c_leading = 0;  ///< from column to column
  std::int64_t count = 1, a_step = 0, b_step = 0, c_step = 0;
};

struct ProductOperands {
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  void* before_gelu = nullptr;  ///< as c
};

/// Queues alpha times the products, by the algorithm that Note [Choice of algorithms] finds. False where cuBLASLt has none: nothing
/// was queued then.
bool multiply(const Product& product, const ProductOperands& at, double alpha, Stream stream);

}  // namespace tern::gpu
