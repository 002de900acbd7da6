#include <fmt/format.h>

#include "attention_problem.h"
#include "catch.h"
#include "cuda/attention/attention.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

/// `shift` moves addresses and strides off the alignment of vectors.
void check_kernels(const AttentionCase& c, DType dtype) {
  INFO(fmt::format("{} {} T {} S {} D {} shift {}", name(dtype), c.name, c.queries, c.keys, c.head_dim, c.shift));
  const AttentionProblem problem(c, dtype);
  REQUIRE(gpu::has_mma_attention(problem.q.device(), problem.k.device(), problem.v.device(), problem.attention));
  check_attention(problem, dtype, gpu::mma_attention, gpu::mma_attention_grad);
}

}  // namespace

TEST_CASE("flash attention by mma is attention, gradients included, and the same in every run", "[cuda]") {
  int turn = 0;
  for (const std::int64_t d : {8, 16, 24, 32, 40, 64, 80, 96, 128, 192, 256})
    for (const std::int64_t length : {1, 31, 33, 64, 65, 100}) {
      const DType dtype = turn % 2 ? DType::f16 : DType::bf16;
      const int shift = turn % 3 == 0 ? 1 + turn % 7 : 0;
      const bool is_causal = turn % 5 == 1 || turn % 5 == 2 || turn % 5 == 4;
      check_kernels({.name = "mask",
                     .sequences = 3,
                     .queries = length,
                     .keys = length,
                     .heads = 2,
                     .kv_heads = 2,
                     .head_dim = d,
                     .causal = is_causal,
                     .has_prefix = turn % 5 == 2,
                     .has_padding = turn % 5 >= 3,
                     .shift = shift},
                    dtype);
      ++turn;
    }
}

TEST_CASE("flash attention by mma takes all heads and masks", "[cuda]") {
  for (const auto& [d, dtype] : {std::pair<std::int64_t, DType>{24, DType::bf16}, {64, DType::f16}, {128, DType::bf16}, {256, DType::f16}})
    for (const AttentionCase& c : {AttentionCase{"one", 1, 1, 1, 1, 1, d, true},
                                   {"full", 2, 100, 167, 2, 2, d},
                                   {"causal", 1, 161, 161, 4, 2, d, true},
                                   {"more queries than keys", 1, 167, 100, 2, 1, d, true},
                                   {"more keys than queries", 1, 66, 250, 2, 1, d, true},
                                   {"window", 1, 200, 200, 2, 2, d, true, 50},
                                   {"lengths", 3, 150, 150, 1, 1, d, false, 0, true},
                                   {"prefix", 3, 130, 150, 1, 1, d, true, 0, true, true},
                                   {"padding", 2, 100, 150, 2, 1, d, true, 0, false, false, true},
                                   {"dropout", 1, 100, 151, 2, 2, d, true, 0, false, false, false, false, 0.1},
                                   {"packed", 4, 150, 150, 2, 1, d, true, 0, false, false, false, true},
                                   {"short packed", 4, 60, 50, 2, 2, d, true, 0, false, false, false, true},
                                   {"bias", 2, 100, 150, 4, 2, d, false, 0, false, false, false, false, 0, true},
                                   {"bias and all", 3, 50, 60, 2, 2, d, true, 20, true, false, true, false, 0.2, true},
                                   {"odd strides", 2, 100, 150, 2, 1, d, true, 0, false, false, false, false, 0, false, 1},
                                   {"negative scale", 2, 100, 100, 2, 2, d, true, 0, false, false, false, false, 0, false, 0, -1},
                                   {"zero scale", 1, 40, 40, 2, 2, d, true, 0, false, false, false, false, 0, false, 0, 0}})
      check_kernels(c, dtype);
}

TEST_CASE("flash attention by mma says what it has no kernel for", "[cuda]") {
  const auto has = [](DType dtype, std::int64_t d) {
    const Twin q(dtype, {1, 16, 2, d});
    return gpu::has_mma_attention(q.device(), q.device(), q.device(), {});
  };
  CHECK(has(DType::bf16, 8));
  CHECK(has(DType::f16, 256));
  CHECK_FALSE(has(DType::f32, 64));
  CHECK_FALSE(has(DType::bf16, 60));
  CHECK_FALSE(has(DType::bf16, 264));
}

}  // namespace tern
