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

/// The search's table, what was measured in the database, and a schedule in the row.
void is_tuned(const Ran& changed, const Ran&) {
  CHECK(contains(changed.result.out, "| candidates | refused by the proof | wrong | measured | known | first ms | best ms | x |\n"));
  const std::vector<Json> rows = changed.rows(), database = json_lines(changed.directory / "times");
  REQUIRE(rows.size() == 1);
  CHECK((rows[0]["op"] == "tune" && rows[0]["impl"] == "gelu" && rows[0]["known"] == 0));
  CHECK((rows[0]["measured"] == database.size() && database.size() > 8));
  CHECK(number_of(rows[0], "ms") <= number_of(rows[0], "first_ms"));
  CHECK((database[0]["kernel"] == "gelu" && database[0]["device"] == "cpu" && database[0]["threads"] == 1));
  CHECK((database[0]["schedule"] == "" && number_of(database[0]["ms"], "4096") == number_of(rows[0], "first_ms")));
}
void is_another_search(const Ran& changed, const Ran& plain) {
  const auto schedules = [](const Ran& ran) {
    std::vector<Json> all;
    for (const Json& row : json_lines(ran.directory / "times")) all.push_back(row["schedule"]);
    return all;
  };
  CHECK(schedules(changed) != schedules(plain));
}
/// The model on the rows of a Xeon: what docs/how-compile-works.md says.
void is_ranking(const Ran& changed, const Ran&) {
  const std::vector<Json> rows = changed.rows();
  REQUIRE(rows.size() == 8);
  CHECK((rows[7]["impl"] == "all" && rows[7]["sizes"] == 42));
  CHECK(number_of(rows[7], "spearman") > 0.8);
  CHECK(number_of(rows[7], "spearman_of_kernel") > 0.6);
  CHECK(number_of(rows[7], "near_best") >= 38);
  CHECK(contains(changed.result.out, "| matmul | 6 | "));
}
void are_samples(const Ran& changed, const Ran&) {
  const std::vector<Json> database = json_lines(changed.directory / "times");
  REQUIRE(database.size() == 3);
  CHECK(contains(changed.result.out, "gelu: 3 schedules at 1 sizes, 1 CPU thread\n"));
  for (const Json& row : database) CHECK((row["ms"].size() == 1 && number_of(row["ms"], "64") > 0));
  CHECK(database[1]["schedule"] != database[2]["schedule"]);
}

}  // namespace

const FlagTable& tern::programs::test::loops_table() {
  static const std::string times =
      "--database " + std::string(tern::test::source_directory) + "/bench/results/2026-11-27-xeon-schedules.jsonl";
  static const std::string fused = "--kernel softmax --size 3,5 --schedule " + lessons + "softmax/cpu/1-fused.schedule";
  static const FlagTable table{
      {bench, "loops --kernel gelu --size 64 --seconds 1e-6 --threads 1 --device cpu --json OUT/rows"},
      {{"", is_plain_row},
       {"--kernel rms_norm --size 2,3", says("kernel rms_norm")},
       {"--kernel matmul --size 4,4,4", says(" GFLOP/s, error ")},
       {"--size 32", says("for i in 32:")},
       {fused, is_schedule},
       {"--threads 2", says("2 CPU threads")},
       {"--out OUT/made", are_files, fused},
       {"--tune 20", is_tuned, "--size 4096 --database OUT/times"},
       {"--seed 2", is_another_search, "--tune 20 --size 4096 --database OUT/times"},
       {"--sample 3", are_samples, "--database OUT/times"},
       {"--rank", is_ranking, times}},
      {{"--kernel fft", "--kernel: expected column_sum, gelu, layer_norm, matmul, rms_norm, softmax, transpose but got fft"},
       {"--size 8,8", "expected sizes (N) of gelu, each from 1 to 2^28, but got (8, 8)"},
       {"--size 0", "--size: "},
       {"--schedule OUT/none", "could not be read"},
       {"--schedule " + lessons + "softmax/cpu/1-fused.schedule",
        "1-fused.schedule:2: at c compute e: [loops] expected a tensor but there is no e"},
       {"--schedule " + lessons + "../CMakeLists.txt", "CMakeLists.txt:3: expected split, fuse"},
       {"--tune 1 --sample 2", "--sample"},
       {"--tune 1 --out OUT/made", "--out"},
       {"--sample 2", "--database"},
       {"--rank --database OUT/times", "could not be read"},
       {"--rank --threads 7 " + times, "schedules.jsonl: expected times of 7 CPU threads but it has none"},
       {"--tune 0", "--tune: "},
       {"--seed -1", "--seed: "},
       {"--tune 1 --database " + lessons + "../CMakeLists.txt", "CMakeLists.txt:1: "},
       {"--device cuda", "--device cuda: "},
       {"--out /proc/none", "--out: "},
       {"--json OUT/no/x", "could not be opened"}}};
  return table;
}

TEST_CASE("tern-bench: each flag of loops shows as its row says") { check_flags(loops_table()); }

TEST_CASE("tern-bench: a wrong value of loops is refused") { check_refusals(loops_table().command, loops_table().refusals); }

TEST_CASE("tern-bench loops --database: a line that is none ends the command before it measures") {
  const TempDirectory directory;
  const std::string path = (directory / "times").string();
  const auto said = [&](const std::string& line) {
    const std::string rows = R"({"kernel":"gelu","device":"cpu","threads":1,"schedule":"","ms":{"64":1}})"
                             "\n" +
                             line + "\n";
    std::ofstream(path) << rows;
    const auto result = run(bench, {"loops", "--kernel", "gelu", "--size", "64", "--tune", "1", "--database", path, "--device", "cpu"});
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(contains(result.err, "times:2: "));
    CHECK(slurp(path) == rows);
    return result.err;
  };
  const auto row = [](const std::string& changed) {
    return R"({"kernel":"gelu","device":"cpu","threads":1,"schedule":"split i by 8 -> i, v",)" + changed + "}";
  };
  CHECK(contains(said("{"), "JSON"));
  CHECK(contains(said(row(R"("seconds":1)")), "ms"));
  CHECK(contains(said(row(R"("ms":{"8,8":1})")), "expected sizes (N) of gelu"));
  CHECK(contains(said(row(R"("ms":{"eight":1})")), "eight"));
  CHECK(contains(said(row(R"("ms":{"8":0})")), "expected ms above 0 but got 0"));
  CHECK(contains(said(row(R"("ms":{"8":"1"})")), "8"));
  CHECK(contains(said(R"({"kernel":"fft","device":"cpu","threads":1,"schedule":"","ms":{"64":1}})"), "expected a kernel of"));
  CHECK(contains(said(R"({"kernel":"gelu","device":"cpu","threads":1,"schedule":"split i","ms":{"64":1}})"), "expected by"));
  CHECK(contains(said(R"({"kernel":"gelu","device":"cpu","threads":1,"schedule":"unroll z","ms":{"64":1}})"), "z"));
}

TEST_CASE("tern-bench loops --tune: what a compiler makes wrong is not chosen") {
  const std::string path = std::getenv("PATH");
  for (const auto& [wrong, said] :
       {std::pair{"s/y\\[/y[-1 + /", "a red zone is written"}, {"s/0\\.5/0.25/", "of element 0 of gelu but got"}}) {
    const TempDirectory directory;
    // A compiler that is right about the first program alone. The source is the last word.
    const fs::path compiler = directory / "c++";
    std::ofstream(compiler) << "#!/bin/sh\nfor source; do :; done\nif [ -e " << (directory / "first") << " ]; then sed -i '" << wrong
                            << "' \"$source\"; fi\n: > " << (directory / "first") << "\nPATH='" << path << "' exec c++ \"$@\"\n";
    fs::permissions(compiler, fs::perms::owner_all);
    const auto result =
        run("/usr/bin/env", {"PATH=" + directory.path().string() + ":" + path, bench, "loops", "--kernel", "gelu", "--size", "4096",
                             "--tune", "20", "--device", "cpu", "--seconds", "1e-6", "--json", (directory / "rows").string()});
    INFO(result.out << result.err);
    CHECK(result.code == 0);
    CHECK(contains(result.out, said));
    const std::vector<Json> rows = json_lines(directory / "rows");
    REQUIRE(rows.size() == 1);
    CHECK((rows[0]["measured"] == 1 && rows[0]["schedule"] == ""));
  }
}

TEST_CASE("tern-bench loops: lessons of a GPU compute there what the interpreter does", "[cuda]") {
  for (const char* kernel : {"matmul", "softmax", "rms_norm", "layer_norm", "column_sum", "transpose", "gelu"})
    for (const auto& entry : fs::directory_iterator(lessons + kernel + "/gpu")) {
      INFO(entry.path().string());
      const std::string sizes = kernel[0] == 'm' ? "256,384,128" : kernel[0] == 'g' ? "65536" : "64,1024";
      // Each line's program is compared at a small odd size; a difference ends the command.
      const auto result = run(bench, {"loops", "--kernel", kernel, "--size", sizes, "--schedule", entry.path().string(), "--device", "cuda",
                                      "--seconds", "1e-6"});
      INFO(result.err);
      CHECK(result.code == 0);
      CHECK(contains(result.out, " ms, "));
    }
}

TEST_CASE("tern-bench loops --tune: on a GPU the same seed and database give the same schedule", "[cuda]") {
  const TempDirectory directory;
  std::string found;
  for (const bool is_known : {false, true}) {
    const std::string file = (directory / (is_known ? "again" : "rows")).string();
    const auto result =
        run(bench, {"loops", "--kernel", "softmax", "--size", "2048,1024", "--schedule", lessons + "softmax/gpu/4-vectors.schedule",
                    "--tune", "300", "--device", "cuda", "--database", (directory / "times").string(), "--json", file});
    INFO(result.out << result.err);
    REQUIRE(result.code == 0);
    const std::vector<Json> rows = json_lines(file);
    REQUIRE(rows.size() == 1);
    CHECK(number_of(rows[0], is_known ? "known" : "measured") > 8);
    CHECK(number_of(rows[0], "ms") <= number_of(rows[0], "first_ms") + 1e-4);
    if (is_known) CHECK((rows[0]["measured"] == 0 && rows[0]["schedule"] == found));
    found = rows[0]["schedule"];
  }
}
