// The tables, on a profile whose numbers are known.
#include "profile/op_table.h"

#include "message.h"
#include "profile/profiler.h"
#include "support.h"

using namespace tern;
using namespace tern::profile;

namespace {

/// A step of 10 ms: in 6 ms of forward a product in an attention module that takes 4, and an exp of its softmax that takes 1; then 3 ms of
/// backward with 1 ms of recompute in its one op.
Profile known() {
  Profile profile;
  profile.names = {"", "step", "forward", "backward", "recompute", "matmul", "exp"};
  profile.modules = {{}, {"attn", "MultiHeadAttention"}, {"blocks.0.ff", "Linear"}};
  profile.end = 12'000'000;
  const auto add = [&](Kind kind, std::int64_t begin, std::int64_t end, std::uint32_t parent, std::uint32_t name, std::uint32_t pass,
                       std::uint32_t module, double flops, double bytes) {
    Span span;
    span.kind = kind, span.begin = begin * 1000, span.end = end * 1000, span.parent = parent, span.name = name, span.pass = pass;
    span.module = module, span.flops = flops, span.bytes = bytes, span.is_product = flops > 0;
    profile.spans.push_back(span);
  };
  add(Kind::step, 1000, 11000, none, 1, 0, 0, 0, 0);
  add(Kind::pass, 1000, 7000, 0, 2, 2, 0, 0, 0);
  add(Kind::kernel, 2000, 6000, 3, 5, 2, 1, 8e9, 0);
  add(Kind::op, 2000, 6000, 1, 5, 2, 1, 0, 2e6);
  add(Kind::op, 6000, 7000, 1, 6, 2, 1, 0, 4e6);
  add(Kind::kernel, 6000, 7000, 4, 6, 2, 1, 0, 0);
  add(Kind::pass, 7000, 10000, 0, 3, 3, 0, 0, 0);
  add(Kind::op, 7000, 10000, 6, 5, 3, 2, 0, 0);
  add(Kind::pass, 8000, 9000, 7, 4, 4, 2, 0, 0);
  add(Kind::op, 8000, 9000, 8, 6, 4, 2, 0, 0);
  add(Kind::kernel, 8000, 9000, 9, 6, 4, 2, 0, 0);
  add(Kind::inner, 9000, 10000, 7, 5, 3, 2, 0, 0);
  add(Kind::kernel, 9000, 10000, 11, 5, 3, 2, 3e9, 0);
  add(Kind::op, 11500, 12000, none, 6, 0, 0, 0, 0);  // after the step
  return profile;
}

}  // namespace

TEST_CASE("Communication counts as hidden where a thread goes on, or other kernels run on the GPU") {
  Profile profile = known();
  profile.names.push_back("all_reduce");
  const auto name = static_cast<std::uint32_t>(profile.names.size() - 1);
  profile.collectives.push_back({.name = name, .begin = 0, .end = 4'000'000, .waited = 1'000'000, .bytes = 3e6});
  profile.collectives.push_back({.name = name, .begin = 5'000'000, .end = 6'000'000, .waited = 2'000'000, .bytes = 1e6});  // late to begin
  const auto kernel = [&](const char* what, std::int64_t begin, std::int64_t end, std::uint32_t stream) {
    DeviceRecord& record = profile.device_records.emplace_back();
    record.name = what, record.begin = begin, record.end = end, record.stream = stream;
  };
  kernel("ncclDevKernel_AllGather_RING_LL", 100, 200, 2);  // beside the first two, which meet, but for 10 at its end
  kernel("gemm", 50, 150, 1);
  kernel("norm", 150, 190, 1);
  kernel("ncclDevKernel_AllGather_RING_LL", 300, 400, 2);  // beside nothing but 20 in the midst
  kernel("adam", 340, 360, 1);
  kernel(copy_to_peer, 500, 600, 3);  // by a copy engine, half of it beside another kernel
  profile.device_records.back().bytes = 5e6;
  kernel("gemm", 550, 700, 1);
  const std::vector<CollectiveRow> rows = collective_rows(profile);
  REQUIRE(rows.size() == 3);
  CHECK((rows[2].op == copy_to_peer && rows[2].calls == 1 && rows[2].total_ns == 100 && rows[2].exposed_ns == 50 && rows[2].bytes == 5e6));
  CHECK((rows[0].op == "all_reduce" && rows[0].calls == 2 && rows[0].total_ns == 5'000'000 && rows[0].exposed_ns == 2'000'000));
  CHECK(rows[0].bytes == 4e6);
  CHECK((rows[1].op == "ncclDevKernel_AllGather_RING_LL" && rows[1].calls == 2 && rows[1].total_ns == 200 && rows[1].exposed_ns == 90));
  CHECK(contains(op_table(profile), "| all_reduce | 2 | 5.000 | 2.000 | 60.0% | 4"));
}

TEST_CASE("Rows of ops and passes have the times, calls and counts of their spans") {
  const Profile profile = known();
  CHECK(profile.wall() == 10'000'000);
  const std::vector<OpRow> rows = op_rows(profile);
  REQUIRE(rows.size() == 4);
  CHECK((rows[0].op == "matmul" && rows[0].pass == "forward" && rows[0].calls == 1 && rows[0].host_ns == 4'000'000));
  CHECK((rows[0].flops == 8e9 && rows[0].bytes == 2e6 && rows[0].product_ns == 4'000'000));
  CHECK((rows[1].op == "matmul" && rows[1].pass == "backward" && rows[1].host_ns == 2'000'000 && rows[1].flops == 3e9));
  const std::vector<PassRow> passes = pass_rows(profile);
  REQUIRE(passes.size() == 4);
  CHECK((passes[0].pass == "forward" && passes[0].host_ns == 6'000'000 && passes[0].op_ns == 5'000'000));
  CHECK((passes[0].kernels == 2 && passes[0].kernel_ns == 5'000'000 && passes[0].product_ns == 4'000'000));
  CHECK((passes[1].pass == "backward" && passes[1].host_ns == 2'000'000 && passes[1].op_ns == 2'000'000 && passes[1].kernels == 1));
  CHECK((passes[2].pass == "recompute" && passes[2].host_ns == 1'000'000));
  CHECK((passes[3].pass.empty() && passes[3].host_ns == 1'000'000));
}

TEST_CASE("Inside attention softmax stands beside the products") {
  const AttentionTime time = attention_time(known(), "forward");
  CHECK(time.product_ns == 4'000'000);
  CHECK(time.softmax_ns == 1'000'000);
  CHECK(time.other_ns == 0);
  CHECK(attention_time(known(), "backward").product_ns == 0);  // of another module
}

TEST_CASE("The table shows rates, and what a roofline allows of them") {
  const std::string table = op_table(known(), {.flops = 4e12, .bytes = 1e10});
  INFO(table);
  // 8 GFLOP in 4 ms are 2 TFLOP/s, half of what the machine reaches; 4 MB in 1 ms are 4 of 10 GB/s.
  CHECK(contains(table, "| matmul | forward | 1 | 4.000 | 40.0% | 8 | 2 | 2 | 0.5 | 50.0% |"));
  CHECK(contains(table, "| exp | forward | 1 | 1.000 | 10.0% | - | 4 | - | 4 | 40.0% |"));
  CHECK(contains(table, "| forward | 6.000 | 60.0% | 5.000 | 1.000 | 2 | 5.000 | 80.0% |"));
  CHECK(contains(table, "| (no pass) | 1.000 | 10.0% | 0.000 | 1.000 | 0 | 0.000 | - |"));
  CHECK(contains(table, "| sum | 10.000 | 100.0% | 8.000 | 2.000 | 4 | 7.000 | 71.4% |"));
  CHECK(contains(table, "| forward | 4.000 | 1.000 | 25.0% | 0.000 | 0.000 |"));
  CHECK(contains(table, "| blocks.0.ff | Linear | - | 1.000 | 1.000 |"));
  CHECK(contains(table, "| blocks | - | - | 1.000 | 1.000 |"));
  CHECK(contains(table, "80.0% of the wall time"));
  CHECK(contains(op_table(known()), "| matmul | forward | 1 | 4.000 | 40.0% | 8 | 2 | 2 | 0.5 | - |"));
  CHECK(contains(op_table(Profile{.names = {""}, .modules = {{}}}), "# Where the time went"));
}

TEST_CASE("A GPU's kernels are the times of a table where there are some") {
  Profile profile = known();
  const auto work = [&](const char* name, std::int64_t us, std::uint32_t op, std::uint32_t pass, std::uint32_t module) {
    DeviceRecord record;
    record.begin = 2'000'000, record.end = 2'000'000 + us * 1000, record.name = name, record.op = op, record.pass = pass;
    record.module = module;
    profile.device_records.push_back(record);
  };
  work("nvjet_hsh_64", 2000, 5, 2, 1);
  work("softmax.cu: exp_rows", 1500, 6, 2, 1);
  const std::vector<PassRow> passes = pass_rows(profile);
  CHECK((passes[0].kernel_ns == 3'500'000 && passes[0].product_ns == 2'000'000 && passes[0].kernels == 2));
  CHECK(attention_time(profile, "forward").softmax_ns == 1'500'000);
  const std::string table = op_table(profile, {.flops = 8e12, .bytes = 1e10});
  INFO(table);
  CHECK(contains(table, "| matmul | forward | 1 | 4.000 | 2.000 | 57.1% | 8 | 2 | 4 | 1 | 50.0% |"));
  CHECK(contains(table, "- forward: most time in nvjet_hsh_64 (1 calls); of those that are no GEMM, in softmax.cu: exp_rows (1 calls)"));
}

TEST_CASE("Names of kernels are made readable") {
  CHECK(profile::detail::readable_kernel_name("nvjet_hsh_128x256_64x4") == "nvjet_hsh_128x256_64x4");
  CHECK(profile::detail::readable_kernel_name(
            "_ZN4tern3gpu48_GLOBAL__N__8a50d3d7_15_graph_inputs_cu_de91bdcb15copy_all_inputsENS0_11InputCopiesE") ==
        "graph_inputs.cu: copy_all_inputs");
  CHECK(profile::detail::readable_kernel_name("_ZN7cutlass6KernelI5AlphaEEvT_") == "cutlass::Kernel");
  CHECK(profile::detail::is_product_kernel("nvjet_hsh_64"));
  CHECK(profile::detail::is_product_kernel("tf32_gemm.cu: multiply"));
  CHECK_FALSE(profile::detail::is_product_kernel("optimizer.cu: update_all"));
}
