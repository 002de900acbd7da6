#pragma once
#include <cstdint>
#include <type_traits>

#include "cuda/device/convert.cuh"

// Tensor cores of Ampere and later GPUs, one function for each instruction: ldmatrix loads fragments from shared memory to registers,
// mma.sync multiplies them, one warp at a time. Hopper's wgmma is in wgmma.cuh; tiles of fragments are in fragment.cuh.
//
// A fragment is the part of a matrix that one lane holds. With group = lane / 4 and member = lane % 4, the accumulator c (16, 8) is
// distributed like this, two adjacent elements of a row in a lane:
//
//                          columns 0, 1     2, 3        4, 5        6, 7
//     row group     (8)    lane 4 group     + 1         + 2         + 3        elements c[0], c[1]
//     row group + 8 (8)    the same lanes                                      elements c[2], c[3]
//
// A left operand of 16 bits, a (16, 16), is two such accumulators side by side, with a pair of elements in a register: the rounded result
// of one product is the left operand of the next without any shuffle. b (16, 8), transposed, is one half of that.
namespace tern::gpu {

/// Loads four 8 x 16-byte matrices. Lane l supplies the shared-memory address of row l % 8 of matrix l / 8, and gets, of each matrix, 4
/// bytes: number l % 4 of row l / 4.
__device__ __forceinline__ void ldmatrix(unsigned (&to)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
/// The same with each matrix, of 16-bit elements, transposed.
__device__ __forceinline__ void ldmatrix_trans(unsigned (&to)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

/// Inverse of ldmatrix: from registers to rows in shared memory (sm_90).
__device__ __forceinline__ void stmatrix(unsigned row, const unsigned (&from)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(row), "r"(from[0]), "r"(from[1]), "r"(from[2]),
               "r"(from[3])
               : "memory");
#endif
}

/// c (16, 8) += a (16, 16) b (16, 8) of f16 or bf16.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, bf16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// c (16, 8) += a (16, 8) b (8, 8) of floats that are truncated to TF32. A lane has a[group][member], a[group + 8][member], then both with
/// member + 4; b[member][group] and b[member + 4][group].
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&c)[4], const float (&a)[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

}  // namespace tern::gpu
