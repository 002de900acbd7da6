#pragma once
#include <cuda.h>

#include <cstddef>
#include <cstdint>

// What Hopper's matrix units and barriers are called in PTX; for code that is compiled for sm_90a alone.
namespace tern::gpu {

inline constexpr std::size_t swizzle_span = 1024;  ///< bytes of shared memory after which the swizzle of 128 bytes repeats

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

/// A barrier in shared memory that `count` arrivals open, again and again: its phases are told apart by their parity.
struct SharedBarrier {
  std::uint64_t state;

  __device__ void init(unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(&state)), "r"(count));
  }
  __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(&state)) : "memory"); }
  /// Arrives, and asks for so many bytes of copies before the phase is over.
  __device__ void expect(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(&state)), "r"(bytes) : "memory");
  }
  /// Until the phase of that parity is over; the one before the first is of parity 1.
  __device__ void wait(unsigned parity) {
    asm volatile(
        "{\n.reg .pred over;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n@over bra done;\nbra again;\ndone:\n}\n" ::
            "r"(shared_address(&state)),
        "r"(parity)
        : "memory");
  }
};

/// One of the barriers that hardware has, by number, for `threads` threads in whole warps; 0 is __syncthreads.
__device__ __forceinline__ void sync_named(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

/// Begins to bring the box of a tensor map that starts at element (inner, outer) to shared memory; what lies outside the tensor is zero.
/// The barrier gets its bytes.
__device__ __forceinline__ void copy_box_async(void* to, const CUtensorMap& map, int inner, int outer, SharedBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n" ::"r"(shared_address(to)),
      "l"(&map), "r"(inner), "r"(outer), "r"(shared_address(&barrier.state))
      : "memory");
}

/// Has a tensor map that is a kernel's parameter at hand for the copies to come.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) { asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory"); }

/// Shows what this thread wrote in shared memory to the matrix units.
__device__ __forceinline__ void show_to_matrix_units() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

/// Shows barriers that this thread has set up to the copy engine.
__device__ __forceinline__ void show_to_copies() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

/// Waits for all threads of a cluster, but those that have ended; what they wrote to shared memory before is then there to be read.
__device__ __forceinline__ void meet_in_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}
/// Begins to write a value at this place of the shared memory of a cluster's block; its barrier there gets 16 bytes.
__device__ __forceinline__ void send_in_cluster(const float4* place, float4 value, SharedBarrier& barrier, int block) {
  asm volatile(
      "{\n.reg .u32 there, signal;\nmapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 signal, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [signal];\n}\n" ::"r"(shared_address(place)),
      "r"(shared_address(&barrier.state)), "r"(block), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}

/// Writes 16 bytes at once: the compiler may take a plain assignment apart.
__device__ __forceinline__ void write_shared(float* place, float4 value) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared_address(place)), "f"(value.x), "f"(value.y), "f"(value.z),
               "f"(value.w)
               : "memory");
}

/// Changes how many registers each thread of a group of four warps has.
template <int count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(count));
}

/// A tile in shared memory as wgmma is told of it: rows of 128 bytes in the swizzle of 128 bytes, eight rows after 1024.
__device__ __forceinline__ std::uint64_t descriptor_of(const float* tile) {
  return std::uint64_t((shared_address(tile) & 0x3ffff) >> 4) | std::uint64_t(1) << 16 | std::uint64_t(swizzle_span >> 4) << 32 |
         std::uint64_t(1) << 62;
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
/// Until at most so many of this group's committed products are under way.
template <int groups>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(groups) : "memory");
}
/// Keeps the compiler from moving uses of registers that wgmma writes across.
template <int count>
__device__ __forceinline__ void hold(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// d (64, 128) = a (64, 8) b (128, 8)^T, or added to d, by the four warps of a group.
__device__ __forceinline__ void multiply_8(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred sums;\nsetp.ne.b32 sums, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, sums, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
        "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),
        "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)));
}

/// d (64, 80) = a (64, 8) b (80, 8)^T, or added to d, by the four warps of a group.
__device__ __forceinline__ void multiply_8(float (&d)[40], const std::uint32_t (&a)[4], std::uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred sums;\nsetp.ne.b32 sums, %45, 0;\nwgmma.mma_async.sync.aligned.m64n80k8.f32.tf32.tf32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39"
      "}, {%40, %41, %42, %43}, %44, sums, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds)));
}

#endif

}  // namespace tern::gpu
