#include "cuda/product.h"
#include "ops/kernels/matmul.h"

// A linear layer by cuBLASLt, whose epilogue adds the bias while the product is still in registers: the addition as a
// kernel of its own reads and writes y once more, which for a vocabulary of 10,000 is a sixth of the whole time. As in
// matmul.cu columns count first: y^T (N, M) = weight (N, K) x^T (K, M).
namespace tern::kernels {

using namespace gpu;

/// Row-major with rows that do not overlap: what cuBLASLt takes as it is.
static bool has_rows(const View& x) { return (x.strides[1] == 1 || x.shape[1] == 1) && x.strides[0] >= x.shape[1]; }

void linear(Cuda device, const View& x, const View& weight, const View& bias, const View& y) {
  const bool has_bias = bias.data != nullptr;
  if (y.numel() == 0 || x.shape[1] == 0 || !has_rows(x) || !has_rows(weight) || (has_bias && bias.strides[0] != 1 && bias.shape[0] != 1))
    return plain_linear(device, x, weight, bias, y);
  const Product product{.dtype = y.dtype, .precision = context().matmul_precision, .epilogue = has_bias ? Epilogue::bias : Epilogue::none,
                        .a_transposed = true, .m = y.shape[1], .n = y.shape[0], .k = x.shape[1], .a_leading = weight.strides[0],
                        .b_leading = x.strides[0], .c_leading = y.shape[1]};
  if (!multiply(product, {.a = weight.data, .b = x.data, .c = y.data, .bias = bias.data}, 1, y.stream))
    plain_linear(device, x, weight, bias, y);
}

}  // namespace tern::kernels
