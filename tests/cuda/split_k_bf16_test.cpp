#include "cuda/gemm/split_k_bf16.h"

#include <cstring>

#include "catch.h"
#include "ops/kernels/matmul.h"
#include "twin.h"

using namespace tern;
using namespace tern::cuda_test;

namespace {

struct Size {
  std::int64_t rows, columns, depth;
};

gpu::Product product_of(DType dtype, const Size& size, Write write, std::int64_t gap) {
  gpu::Product p;
  p.dtype = dtype;
  p.write = write;
  p.b_transposed = true;
  p.m = size.columns;
  p.n = size.rows;
  p.k = size.depth;
  p.a_leading = (size.columns + 7) / 8 * 8 + gap;
  p.b_leading = (size.rows + 7) / 8 * 8 + gap;
  p.c_leading = size.columns + gap;
  return p;
}

}  // namespace

TEST_CASE("products whose depth is split within clusters agree with the CPU, and give the same bits again", "[cuda]") {
  for (DType dtype : {DType::bf16, DType::f16})
    for (const Size& size :
         {Size{1, 1, 64}, {31, 33, 65}, {64, 64, 100}, {65, 63, 1000}, {130, 200, 5000}, {256, 256, 5120}, {384, 40, 4097}, {8, 1025, 777}})
      for (Write write : {Write::overwrite, Write::accumulate})
        for (std::int64_t gap : {0, 8}) {
          INFO(name(dtype) << " (" << size.rows << ", " << size.columns << ", " << size.depth << "), gap " << gap);
          const gpu::Product p = product_of(dtype, size, write, gap);
          Twin left(dtype, {size.depth, size.rows}, {p.b_leading, 1}), right(dtype, {size.depth, size.columns}, {p.a_leading, 1});
          Twin c(dtype, {size.rows, size.columns}, {p.c_leading, 1});
          left.randomize(1, -1, 1).upload();
          right.randomize(2, -1, 1).upload();
          c.randomize(3, -1, 1).upload();
          gpu::ProductOperands at;
          at.a = right.device().data;
          at.b = left.device().data;
          at.c = c.device().data;
          if (!gpu::has_deep_product(p, at, gpu_stream)) {
            // Devices before sm_90.
            WARN("not on this device");
            continue;
          }
          Twin again(dtype, {size.rows, size.columns}, {p.c_leading, 1});
          again.randomize(3, -1, 1).upload();
          gpu::multiply_deep(p, at, c.device().data, 0.5, gpu_stream);
          gpu::ProductOperands other = at;
          other.c = again.device().data;
          gpu::multiply_deep(p, other, again.device().data, 0.5, gpu_stream);
          const View x = left.host();
          View turned = x;
          turned.shape = {size.rows, size.depth};
          turned.strides = {1, p.b_leading};
          kernels::matmul(Cpu{}, turned, right.host(), c.host(), 0.5, write);
          CHECK(c.difference(tolerance(dtype)) == "");
          CHECK(c.download() == again.download());
        }
}

TEST_CASE("only deep products of 16-bit floats at whole words are taken", "[cuda]") {
  const Size size{64, 64, 640};
  alignas(16) static char memory[32];
  gpu::ProductOperands at;
  at.a = at.b = at.c = memory;
  const auto has = [&](auto&& change) {
    gpu::Product p = product_of(DType::bf16, size, Write::overwrite, 0);
    gpu::ProductOperands operands = at;
    change(p, operands);
    return gpu::has_deep_product(p, operands, gpu_stream);
  };
  if (!has([](auto&, auto&) {})) return;  // before sm_90
  CHECK_FALSE(has([](gpu::Product& p, auto&) { p.dtype = DType::f32; }));
  CHECK_FALSE(has([](gpu::Product& p, auto&) { p.a_transposed = true; }));
  CHECK_FALSE(has([](gpu::Product& p, auto&) { p.b_transposed = false; }));
  CHECK_FALSE(has([](gpu::Product& p, auto&) { p.k = 63; }));
  CHECK_FALSE(has([](gpu::Product& p, auto&) { p.count = 2; }));
  CHECK_FALSE(has([](gpu::Product& p, auto&) { p.a_leading = 66; }));
  CHECK_FALSE(has([](gpu::Product& p, auto&) { p.epilogue = gpu::Epilogue::bias; }));
  CHECK_FALSE(has([](auto&, gpu::ProductOperands& operands) { operands.b = memory + 2; }));
}
