#include "catch.h"
#include "cuda/attention/attention.h"
#include "skip.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

TEST_CASE("flash attention by wgmma says what it has no kernel for", "[cuda]") {
  const auto has = [](DType dtype, std::int64_t d, int shift, double scale) {
    const Shape shape{1, 16, 2, d};
    const Twin q(dtype, shape, contiguous_strides(shape), shift), y(dtype, shape);
    kernels::Attention attention;
    attention.scale = scale;
    return gpu::has_hopper_attention(q.device(), y.device(), y.device(), y.device(), attention);
  };
  if (!has(DType::bf16, 64, 0, 1)) return test::skip("it needs a GPU of compute capability 9, and a build for sm_90a");
  CHECK(has(DType::f16, 128, 0, 1));
  CHECK_FALSE(has(DType::f32, 64, 0, 1));
  CHECK_FALSE(has(DType::bf16, 136, 0, 1));
  CHECK_FALSE(has(DType::bf16, 60, 0, 1));
  CHECK_FALSE(has(DType::bf16, 64, 1, 1));  // an address that TMA does not take
  CHECK_FALSE(has(DType::bf16, 64, 0, -1));
}

}  // namespace tern
