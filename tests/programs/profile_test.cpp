// --profile: what it writes, of which steps, and that the training beside it is the same. every_flag_test.cpp reads the names of the cases.
#include "support.h"

using namespace tern::programs::test;

namespace {

/// The steps in a trace, and the ops with their passes.
struct Trace {
  explicit Trace(const fs::path& path) {
    const Json trace = json_of(path);
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      steps += event["cat"] == "step";
      if (event["cat"] == "op") ops[event["name"].get<std::string>() + " " + event["args"]["pass"].get<std::string>()] = event["args"];
      if (event["cat"] == "module") modules.insert({event["name"].get<std::string>(), 0});
    }
  }
  int steps = 0;
  std::map<std::string, Json> ops;
  std::map<std::string, int> modules;
};

void check_written(const fs::path& directory, int steps) {
  const Trace trace(directory / "trace.json");
  CHECK(trace.steps == steps);
  CHECK(trace.ops.count("linear forward") == 1);
  CHECK(trace.ops.count("linear backward") == 1);
  CHECK(trace.ops.count("adam optimizer") == 1);
  CHECK(trace.modules.count("blocks.0.attn.qkv") == 1);
  const std::string table = slurp(directory / "ops.md");
  CHECK(contains(table, steps == 1 ? "\nOne step on cpu: " : fmt::format("\n{} steps on cpu: ", steps)));
  CHECK(contains(table, "| linear | forward | "));
  CHECK(contains(table, "Measured on this machine: "));
  // The memory of a usual step, moments included.
  const std::string picture = slurp(directory / "memory.svg");
  for (const char* part : {"Memory of a training step, cpu", "parameters", "gradients", "optimizer", "activations"})
    CHECK(contains(picture, part));
}

std::vector<Json> losses(const fs::path& run) {
  std::vector<Json> result;
  for (const Json& line : json_lines(run / "log.jsonl"))
    if (line.contains("loss")) result.push_back(line["loss"]);
  return result;
}

Arguments recall_train(const fs::path& out, const Arguments& more) {
  return with(words_of("train --out " + out.string() +
                       " --device cpu --threads 1 --preset quick --train-examples 48 --valid-examples 12 "
                       "--test-examples 12 --layers 1 --width 16 --heads 2 --batch-size 8 --epochs 1"),
              more);
}

}  // namespace

TEST_CASE("tern-translate train --profile (so many updates after the first ones, beside a training that is the same)") {
  const TempDirectory directory;
  const fs::path data = directory / "data", plain = directory / "plain", out = directory / "run";
  write_corpus(data, 16);
  const Arguments updates{"--device", "cpu", "--updates", "6", "--batch-size", "16"};
  done(run(translate, train(data, plain, updates)));
  CHECK(!fs::exists(plain / "trace.json"));
  const Result result = done(run(translate, train(data, out, with(updates, {"--profile", "2"}))));
  CHECK(contains(result.out, "profile  2 steps of "));
  check_written(out, 2);
  CHECK(losses(out) == losses(plain));
  // Another run in its place has no profile, so that none is there.
  REQUIRE(run(translate, train(data, out, updates)).code == 0);
  CHECK(!fs::exists(out / "trace.json"));
  CHECK(!fs::exists(out / "ops.md"));
  CHECK(!fs::exists(out / "memory.svg"));
}

TEST_CASE("tern-recall train --profile (three updates without a number, and what there is of a short training)") {
  const TempDirectory directory;
  done(run(recall, recall_train(directory / "run", {"--profile"})));
  check_written(directory / "run", 3);
  done(run(recall, recall_train(directory / "short", {"--train-examples", "32", "--profile", "5"})));
  check_written(directory / "short", 1);
  const Result none = run(recall, recall_train(directory / "none", {"--train-examples", "16", "--profile", "5"}));
  REQUIRE(none.code == 0);
  CHECK(none.err == "tern-recall: --profile: the training ended within the 3 steps of its warm-up, and nothing was profiled\n");
  CHECK(!fs::exists(directory / "none" / "trace.json"));
}

TEST_CASE("tern-bench step --profile --out (the files of each case)") {
  const TempDirectory directory;
  const fs::path out = directory / "out";
  const Arguments words = words_of(
      "step --model ar --batch 1 --vocab 20 --threads 1 --warmup 0 --steps 1 --dropout 0 --device cpu --length 5 "
      "--profile 2 --json " +
      (directory / "rows").string() + " --out " + out.string());
  done(run(bench, words));
  check_written(out, 2);
  CHECK(json_lines(directory / "rows")[0]["profiled_ms"].get<double>() > 0);
  done(run(bench, with(words, {"--length", "5,6", "--forward-only"})));
  for (const char* name : {"ar-gpt2-fp32-B1-T5", "ar-gpt2-fp32-B1-T6"}) {
    const Trace trace(out / name / "trace.json");
    CHECK(trace.steps == 2);
    CHECK(trace.ops.count("linear forward") == 1);
    CHECK(trace.ops.count("linear backward") == 0);
  }
}
