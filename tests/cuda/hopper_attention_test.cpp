#include "cuda/attention/hopper_attention.h"

#include "attention_problem.h"
#include "catch.h"
#include "skip.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

/// Whether the device has the kernels.
bool check(const AttentionCase& c, DType dtype) {
  INFO(name(dtype) << " " << c.name << ", D " << c.head_dim);
  const AttentionProblem problem(c, dtype);
  const View q = problem.q.device(), k = problem.k.device();
  if (!gpu::has_hopper_attention(q, k, problem.v.device(), q, problem.attention)) return false;
  REQUIRE(gpu::has_hopper_attention_grad(problem.g.device(), {q, k, problem.v.device(), {}}));
  check_attention(problem, dtype, gpu::hopper_attention, gpu::hopper_attention_grad);
  return true;
}

}  // namespace

TEST_CASE("flash attention by wgmma is attention, in every mask, and gives the same bits again", "[cuda]") {
  int taken = 0;
  for (const std::int64_t d : {64, 80, 128})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const AttentionCase& c : {AttentionCase{"one", 1, 1, 1, 1, 1, d, true},
                                     {"full", 2, 200, 333, 2, 2, d},
                                     {"causal", 2, 321, 321, 4, 2, d, true},
                                     {"more queries than keys", 1, 333, 200, 2, 1, d, true},
                                     {"more keys than queries", 1, 130, 500, 2, 1, d, true},
                                     {"window", 1, 400, 400, 2, 2, d, true, 100},
                                     {"lengths", 3, 300, 300, 2, 2, d, false, 0, true},
                                     {"prefix", 3, 260, 300, 1, 1, d, true, 77, true, true},
                                     {"padding", 2, 200, 300, 2, 1, d, true, 0, false, false, true},
                                     {"dropout", 1, 200, 301, 2, 2, d, true, 0, false, false, false, false, 0.1},
                                     {"packed", 4, 300, 300, 2, 1, d, true, 0, false, false, false, true}})
        taken += check(c, dtype);
  if (taken == 0) return test::skip("it needs a GPU of compute capability 9, and a build for sm_90a");
  CHECK(taken == 66);
}

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
