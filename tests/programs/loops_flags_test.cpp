// The flags of `tern-bench loops`: a row each, of what is printed and measured.
#include "flags.h"
#include "paths.h"

using namespace tern::programs::test;

namespace {

const std::string lessons = std::string(tern::test::source_directory) + "/study/loops/";

void is_plain_row(const Ran& changed, const Ran&) {
  const std::vector<Json> rows = changed.rows();
  REQUIRE(rows.size() == 1);
  CHECK(
      (rows[0]["op"] == "loops" && rows[0]["impl"] == "gelu" && rows[0]["line"] == 0 && rows[0]["text"] == "" && rows[0]["threads"] == 1));
  CHECK((number_of(rows[0], "ms") > 0 && number_of(rows[0], "of_copy") > 0 && number_of(rows[0], "error") < 1e-5));
  CHECK(contains(changed.result.out, "for i in 64:\n  y[i] = 0.5 * x[i]"));
}

/// A row and the program for each line, and its files.
void is_schedule(const Ran& changed, const Ran&) {
  const std::vector<Json> rows = changed.rows();
  REQUIRE(rows.size() == 2);
  CHECK((rows[1]["line"] == 1 && rows[1]["text"] == "at c compute e"));
  CHECK(contains(changed.result.out, "> at c compute e\nkernel softmax\n"));
  CHECK(contains(changed.result.out, "% of a copy, error "));
}
void are_files(const Ran& changed, const Ran&) {
  const fs::path made = changed.directory / "made";
  CHECK(contains(slurp(made / "softmax-1.txt"), "  for c in 5:\n    e[c] = exp(x[r, c] - m)\n    s += e[c]\n"));
  CHECK(contains(slurp(made / "softmax-1.cpp"), "extern \"C\" void loops_0("));
  CHECK(contains(slurp(made / "softmax-1.svg"), "for c in 5:"));
  CHECK(contains(slurp(made / "softmax-1.svg"), ">at c compute e<"));
  CHECK(fs::exists(made / "softmax-0.svg"));
}

}  // namespace

const FlagTable& tern::programs::test::loops_table() {
  static const std::string fused = "--kernel softmax --size 3,5 --schedule " + lessons + "softmax/cpu/1-fused.schedule";
  static const FlagTable table{{bench, "loops --kernel gelu --size 64 --seconds 1e-6 --threads 1 --device cpu --json OUT/rows"},
                               {{"", is_plain_row},
                                {"--kernel rms_norm --size 2,3", says("kernel rms_norm")},
                                {"--kernel matmul --size 4,4,4", says(" GFLOP/s, error ")},
                                {"--size 32", says("for i in 32:")},
                                {fused, is_schedule},
                                {"--threads 2", says("2 CPU threads")},
                                {"--out OUT/made", are_files, fused}},
                               {{"--kernel fft", "--kernel: expected gelu, matmul, rms_norm, softmax but got fft"},
                                {"--size 8,8", "expected sizes (N) of gelu, each from 1 to 2^28, but got (8, 8)"},
                                {"--size 0", "--size: "},
                                {"--schedule OUT/none", "could not be read"},
                                {"--schedule " + lessons + "softmax/cpu/1-fused.schedule",
                                 "1-fused.schedule:2: at c compute e: [loops] expected a tensor but there is no e"},
                                {"--schedule " + lessons + "../CMakeLists.txt", "CMakeLists.txt:3: expected split, fuse"},
                                {"--device cuda", "--device cuda: "},
                                {"--out /proc/none", "--out: "},
                                {"--json OUT/no/x", "could not be opened"}}};
  return table;
}

TEST_CASE("tern-bench: each flag of loops shows as its row says") { check_flags(loops_table()); }

TEST_CASE("tern-bench: a wrong value of loops is refused") { check_refusals(loops_table().command, loops_table().refusals); }

TEST_CASE("tern-bench loops: lessons of a GPU compute there what the interpreter does", "[cuda]") {
  for (const char* kernel : {"matmul", "softmax"})
    for (const auto& entry : fs::directory_iterator(lessons + kernel + "/gpu")) {
      INFO(entry.path().string());
      const std::string sizes = kernel[0] == 'm' ? "256,384,128" : "64,1024";
      // Each line's program is compared at a small odd size; a difference ends the command.
      const auto result = run(bench, {"loops", "--kernel", kernel, "--size", sizes, "--schedule", entry.path().string(), "--device", "cuda",
                                      "--seconds", "1e-6"});
      INFO(result.err);
      CHECK(result.code == 0);
      CHECK(contains(result.out, " ms, "));
    }
}
