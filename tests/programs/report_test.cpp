// tern-bench report: tables of rows, the figures in them from the rows alone.
#include <fstream>
#include <regex>

#include "support.h"

using namespace tern::programs::test;

namespace {

Result report(const std::string& rows) {
  const TempDirectory directory;
  std::ofstream(directory / "rows.jsonl") << rows;
  return run(bench, {"report", (directory / "rows.jsonl").string()});
}

/// A row of tern-bench step whose forward pass takes `fwd` ms, and whose backward pass and whole step 2 and 4 times that.
std::string step_row(const std::string& dtype, const std::string& impl, int warmup, double fwd, double gib) {
  Json row = {{"model", "mt"},  {"arch", "gpt2"},     {"B", 2},     {"T", 40},         {"V", 50},      {"p", 0.1},         {"dtype", dtype},
              {"impl", impl},   {"pass", "step"},     {"steps", 3}, {"device", "cpu"}, {"threads", 2}, {"warmup", warmup}, {"tok_s", 1000},
              {"peak_gb", gib}, {"burst_ms", 4 * fwd}};
  for (const auto& [part, factor] :
       std::vector<std::pair<std::string, double>>{{"fwd", 1}, {"backward", 2}, {"optimizer", 1}, {"step", 4}}) {
    row[part + "_ms"] = row[part + "_mean_ms"] = factor * fwd;
    row[part + "_deviation_ms"] = factor * fwd / 10;
  }
  return row.dump() + "\n";
}

std::string out_of_memory_row() {
  return R"({"model":"xl","arch":"gpt2","B":2,"T":40,"V":50,"p":0.1,"dtype":"fp32","impl":"tern-plain","pass":"step","warmup":5,)"
         R"("device":"cpu","threads":2,"error":"out of memory"})"
         "\n";
}

}  // namespace

TEST_CASE("tern-bench report shows steps with their spread, and what ran out of memory") {
  const Result result = report(step_row("fp32", "tern-plain", 5, 8, 1) + out_of_memory_row());
  CHECK(result.code == 0);
  CHECK(contains(result.out,
                 "| mt | 40 | 2 | fp32 | tern-plain | step | 5 | 8.00 ± 0.800 | 16.0 ± 1.60 | 8.00 ± 0.800 | 32.0 ± 3.20 | "
                 "1000 | 1 |\n"));
  CHECK(contains(result.out, "| xl | 40 | 2 | fp32 | tern-plain | step | 5 | out of memory | - |"));
  CHECK(contains(result.out, "The backward pass takes 2.00 times the forward pass."));
  CHECK(contains(result.out, "A step's standard deviation is 10.0% of its mean."));
}

TEST_CASE("tern-bench report shows what precision, kernels, checkpointing and a warm-up change") {
  const std::string rows = step_row("bf16", "tern-fused", 5, 2, 0.5) + step_row("fp32", "tern-plain", 5, 8, 1) +
                           step_row("fp32", "tern-fused", 5, 4, 1) + step_row("fp32", "tern-fused-full-checkpointing", 5, 5, 0.25) +
                           step_row("fp32", "tern-fused", 0, 12, 1);
  const std::string out = report(rows).out;
  CHECK(contains(out, "| mt B 2 T 40 bf16 tern-fused step | bf16 | fp32 | 0.500x | 0.500x | 0.500x | 0.500x |"));
  CHECK(contains(out, "| mt B 2 T 40 fp32 tern step | fused | plain | 0.500x | 0.500x | 0.500x | 1.00x |"));
  CHECK(contains(out, "| mt B 2 T 40 fp32 tern-fused step | full | none | 1.25x | 1.25x | 1.25x | 0.250x |"));
  CHECK(contains(out, "| mt B 2 T 40 fp32 tern-fused step | 5 | 0 | 0.333x | 0.333x | 0.333x | 1.00x |"));
}

TEST_CASE("tern-bench report shows attention with what is kept for backward, and ops on average over shapes") {
  const std::string out =
      report(
          R"({"op":"attention_fwd","shape":[8,1,256,16],"causal":true,"mask":"causal","dtype":"float32","impl":"tern-plain","device":"cpu","ms":0.5,"kept_mib":18.75,"peak_mib":30})"
          "\n"
          R"({"op":"attention_bwd","shape":[8,1,256,16],"causal":true,"mask":"causal","dtype":"float32","impl":"tern-plain","device":"cpu","ms":1.25,"kept_mib":18.75,"peak_mib":30})"
          "\n"
          R"({"op":"attention_fwd_bwd","shape":[8,1,65536,16],"causal":true,"mask":"causal","dtype":"float32","impl":"tern-plain","device":"cpu","error":"out of memory"})"
          "\n"
          R"({"op":"softmax_fwd","shape":[4,4],"dtype":"float32","impl":"tern-plain","device":"cpu","ms":6})"
          "\n"
          R"({"op":"softmax_fwd","shape":[4,4],"dtype":"float32","impl":"tern-fused","device":"cpu","ms":2})"
          "\n"
          R"({"op":"softmax_fwd","shape":[4,8],"dtype":"float32","impl":"tern-plain","device":"cpu","ms":5})"
          "\n"
          R"({"op":"softmax_fwd","shape":[4,8],"dtype":"float32","impl":"tern-fused","device":"cpu","ms":1})"
          "\n")
          .out;
  CHECK(contains(out, "| (8, 1, 256, 16) | causal | float32 | tern-plain | 0.500 | 1.25 |  | 18.8 | 30.0 |"));
  CHECK(contains(out, "| (8, 1, 65536, 16) | causal | float32 | tern-plain | - | - | out of memory | - | - |"));
  CHECK(contains(out, "| softmax_fwd | float32 | cpu | 2 | 4.00x | 3.00 to 5.00 |"));
}

TEST_CASE("tern-bench report refuses files without rows of its own") {
  check_refused(run(bench, {"report", "/nonexistent/rows.jsonl"}), "/nonexistent/rows.jsonl: ", "tern-bench");
  check_refused(report("{\"a\":1}\n"), "expected rows of tern-bench step, attention or ops", "tern-bench");
  check_refused(report("{\"a\":1}\nnonsense\n"), "rows.jsonl:2: expected valid JSON", "tern-bench");
  check_refused(run(bench, {"report"}), "ROWS", "tern-bench");
}

TEST_CASE("tern-bench report --roofline (measured convolutions, ours and peers', under the roofs of ours)") {
  const TempDirectory directory;
  const fs::path rows = directory / "rows.jsonl", peers = directory / "peers.jsonl", picture = directory / "roofline.svg";
  const std::string ours = R"({"op":"copy","shape":[8],"dtype":"float32","impl":"tern","device":"cpu","ms":1,"gbs":50})"
                           "\n"
                           R"({"op":"product","shape":[8,8,8],"dtype":"float32","impl":"tern","device":"cpu","ms":1,"tflops":0.25})"
                           "\n"
                           R"({"op":"conv1d_fwd","shape":[1,1024,1024,4],"dtype":"float32","impl":"tern-fused","device":"cpu","ms":0.5})"
                           "\n"
                           R"({"op":"conv1d_bwd","shape":[1,1024,1024,4],"dtype":"float16","impl":"tern-fused","device":"cpu","ms":0.5})"
                           "\n";
  // A peer's copy is not a roof: it would be the higher one.
  std::ofstream(peers) << R"({"op":"copy","shape":"1Gi","dtype":"float32","impl":"torch","ms":1,"gbs":99})"
                       << "\n"
                       << R"({"op":"conv1d_fwd","shape":[1,1024,1024,4],"dtype":"float32","impl":"eager","device":"cpu","ms":5})"
                       << "\n";
  std::ofstream(rows) << ours;
  const Result drawn = run(bench, {"report", rows.string(), peers.string(), "--roofline", picture.string()});
  CHECK(drawn.code == 0);
  const std::string svg = slurp(picture);
  CHECK(contains(svg, "Depthwise convolutions, forward (cpu): 0.25 TFLOP/s, 50 GB/s"));
  CHECK(contains(svg, ">tern, float32</text>"));
  CHECK(contains(svg, ">PyTorch, eager, float32</text>"));
  CHECK_FALSE(contains(svg, "float16"));  // of which there is a backward pass alone
  // The axis of TFLOP/s goes from 0.001 to 1 over 258: 2 x 4 x 2^20 FLOP in 0.5 ms are 0.016777 TFLOP/s, and in 5 ms a tenth.
  std::smatch ours_at, peers_at;
  REQUIRE(std::regex_search(svg, ours_at, std::regex("cy=\"([0-9.]+)\"[^>]*><title>\\(1, 1024, 1024, 4\\): 0.5 ms")));
  REQUIRE(std::regex_search(svg, peers_at, std::regex("d=\"M[0-9.]+ ([0-9.]+)h7[^>]*><title>\\(1, 1024, 1024, 4\\): 5 ms")));
  CHECK(std::stod(peers_at[1]) + 3.5 - std::stod(ours_at[1]) == Approx(86).margin(0.2));  // a power of ten

  std::ofstream(rows) << ours.substr(0, ours.find("\n") + 1);
  check_refused(run(bench, {"report", rows.string(), "--roofline", picture.string()}), "--roofline: expected rows of tern-bench conv1d",
                "tern-bench");
}
