#pragma once
#include "cuda/product.h"

namespace tern::gpu {

/// Note [Three TF32 products]
/// A float x is large + rest + e, where large is x in TF32's 11 bits, rest is x - large in as many, and e is below 2^-21 x. Then
/// a b = large large + large rest + rest large to within float32's own error, and tensor cores do the three in less than half of the time
/// that the one takes without them. Two things decide whether the sum is as exact as SGEMM's. Tensor cores cut off what they add where
/// float32 rounds, and always towards zero, so that a sum of thousands drifts (measured at a depth of 10,000, with the parts laid side by
/// side for one product of cuBLAS: 1e-4 against SGEMM's 1e-6): only a depth of 32 is summed there, the small products first, and those
/// sums are added in float32. And the parts are made where they are needed, in registers and shared memory: written to memory, those of a
/// gradient of logits alone would take as long as the product. An infinite operand gives NaN, as its rest is none.

/// Whether the device has multiply_in_parts for a product, and it is faster there than multiply.
bool has_product_in_parts(const Product& product, const ProductOperands& at, Stream stream);
/// multiply, by three TF32 products.
void multiply_in_parts(const Product& product, const ProductOperands& at, double alpha, Stream stream);

}  // namespace tern::gpu
