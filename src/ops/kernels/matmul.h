#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// c (..., M, N) = alpha * a (..., M, K) @ b (..., K, N), or added to c. Note [Matmul operands]: one floating dtype; a and b
/// have c's batch dimensions (stride 0 where broadcast) with any batch strides; within a matrix one of the last two
/// strides is 1 and the other at least the length of the unit-stride dimension (or the dimension has size <= 1); c's rows
/// are contiguous (last stride 1). Any size may be 0; K = 0 gives zeros. float32 is strict float32; 16-bit floats accumulate in float32.
void matmul(Cpu, const View& a, const View& b, const View& c, double alpha, Write write);
void matmul(Cuda, const View& a, const View& b, const View& c, double alpha, Write write);

}  // namespace tern::kernels
