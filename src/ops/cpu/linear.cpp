#include "ops/cpu/loops.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/reduce.h"

namespace tern::kernels {

void linear(Cpu device, const View& x, const View& weight, const View& bias, const View& y) { plain_linear(device, x, weight, bias, y); }

void linear_gelu(Cpu device, const View& x, const View& weight, const View& bias, const View& before, const View& y) {
  linear(device, x, weight, bias, before);
  unary(device, functors::GeluTanh{}, before, y);
}

void column_sums(Cpu device, const View& g, const View& sums, Write write, DeferredSums*) {
  View row = sums;
  row.shape = {1, sums.shape[0]};
  row.strides = {0, sums.strides[0]};
  if (write == Write::overwrite) return reduce(device, Reduce::sum, g, row, 1);
  const loops::Scratch<std::byte> memory(sums.shape[0] * static_cast<std::int64_t>(size_of(sums.dtype)), sums.stream);
  View added = row;
  added.data = memory.data();
  added.strides = {0, 1};
  reduce(device, Reduce::sum, g, added, 1);
  binary(device, functors::Add{}, row, added, row);
}

void gelu_bias_grad(Cpu device, const View& g, const View& x, const View& dx, const View& sums, Write write, DeferredSums*) {
  unary_grad(device, functors::GeluTanh{}, g, x, x, dx);
  if (sums.data) column_sums(device, dx, sums, write);
}

}  // namespace tern::kernels
