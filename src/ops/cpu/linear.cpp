#include "ops/kernels/matmul.h"

namespace tern::kernels {

void linear(Cpu device, const View& x, const View& weight, const View& bias, const View& y) { plain_linear(device, x, weight, bias, y); }

}  // namespace tern::kernels
