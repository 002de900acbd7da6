// The programs' command line. Every refusal comes before anything is read or written.
#include <cstdlib>

#include "support.h"

using namespace tern::programs::test;

TEST_CASE("Help is given for every subcommand") {
  for (const std::string& program : {translate, bench}) {
    const Result result = run(program, {"--help"});
    CHECK(result.code == 0);
    CHECK(result.err.empty());
    CHECK(contains(result.out, "Subcommands:"));
  }
  const std::map<std::string, std::string> options = {{"train", "--use-fused-kernel"}, {"decode", "--model"}, {"score", "--hyp"}};
  for (const auto& [command, option] : options) {
    const Result result = run(translate, {command, "--help"});
    CHECK(result.code == 0);
    CHECK(contains(result.out, option));
  }
  CHECK(contains(run(translate, {"train", "--help"}).out, "classic 128)"));
  CHECK(contains(run(bench, {"step", "--help"}).out, "--batch"));
}

TEST_CASE("A mistake in the arguments is one line, and leaves nothing behind") {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{}, "expected a subcommand (train, decode, average, quantise, score,"},
      {{"trian"}, "got trian; did you mean train?"},
      {{"--bogus"}, "(tern-translate --help"},
      {{"train"}, "--data is required"},
      {{"train", "--dta", "x"}, "there is no option --dta; did you mean --data?"},
      {{"decode"}, "--model is required"},
      {{"decode", "--model", "nope", "extra"}, "unexpected argument extra"},
      {{"decode", "--model", "nope", "--batch-size", "0"}, "--batch-size: expected a whole number from 1 to 1000000 but got 0"},
      {{"decode", "--model", "nope", "--threads", "0"}, "--threads: expected a whole number from 1"},
      {{"decode", "--model"}, "--model: expected a value"},
      {{"score", "--hyp", "x"}, "--ref is required"},
      {{"score", "--hyp", "x", "--ref", "y", "--jsn"}, "did you mean --json?"},
  };
  for (const auto& [arguments, message] : cases) {
    const Result result = run(translate, arguments);
    check_refused(result, message);
    CHECK(result.out.empty());
  }
}

TEST_CASE("An option without its value is named, and not what follows it") {
  // As of --out $RUN where RUN is not set.
  check_refused(run(translate, {"train", "--data", "D", "--out", "--preset", "quick"}), "--out: expected a value but got --preset");
  check_refused(run(recall, {"sweep", "--out", "--seeds", "1"}), "--out: expected a value but got --seeds", "tern-recall");
  check_refused(run(translate, {"decode", "--model", ""}), "expected a run directory's path but got an empty one");
  check_refused(run(translate, {"train", "--resume", "--out", ""}), "expected a ");
}

TEST_CASE("Help that cannot be written is an error") {
  for (const char* what : {"--help", "--version", "step --help"}) {
    const Result result = shell(std::string("\"$0\" ") + what + " >/dev/full", bench);
    CHECK(result.code == 1);
    CHECK(result.err == "tern-bench: the output could not be written: No space left on device\n");
  }
}

TEST_CASE("A mistake in training's options is refused before data is read") {
  const TempDirectory directory;
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--epoch", "3"}, "there is no option --epoch; did you mean --epochs?"},
      {{"--epochs"}, "--epochs: expected a value"},
      {{"--epochs", "x"}, "--epochs: expected a whole number from 1 to 1000000 but got x"},
      {{"--epochs", "1e3"}, "got 1e3"},
      {{"--epochs", "2.5"}, "got 2.5"},
      {{"--epochs", "0"}, "--epochs: "},
      {{"--epochs", "-1"}, "--epochs: "},
      {{"--epochs="}, "--epochs: "},
      {{"--epochs", "99999999999999999999"}, "--epochs: "},
      {{"--updates", "-1"}, "--updates: "},
      {{"--batch-size", "0"}, "--batch-size: "},
      {{"--batch-size", "1000000000000000000"}, "--batch-size: "},
      {{"--lr", "0"}, "--lr: expected a number from 1e-12"},
      {{"--lr", "nan"}, "--lr: "},
      {{"--lr", "inf"}, "--lr: "},
      {{"--lr", "2e-3x"}, "--lr: "},
      {{"--beta2", "1"}, "--beta2: "},
      {{"--adam-eps", "-1"}, "--adam-eps: "},
      {{"--dropout", "1"}, "--dropout: "},
      {{"--label-smoothing", "1"}, "--label-smoothing: "},
      {{"--clip", "-1"}, "--clip: "},
      {{"--warmup", "-1"}, "--warmup: "},
      {{"--seed", "-1"}, "--seed: "},
      {{"--length", "3"}, "--length: expected a whole number from 4"},
      {{"--vocab", "258"}, "--vocab: expected a whole number from 259"},
      {{"--vocab", "100000000000"}, "--vocab: "},
      {{"--width", "1000000000000000000"}, "--width: "},
      {{"--width", "65536", "--layers", "1024", "--device", "cpu"}, "GB to train and this machine has"},
      {{"--width", "17"}, "--heads: expected a divisor of the width 17 but got 2"},
      {{"--layers", "0"}, "--layers: "},
      {{"--threads", "0"}, "--threads: expected a whole number from 1 to 1024 but got 0"},
      {{"--threads", "-1"}, "--threads: "},
      {{"--threads", "1000000"}, "--threads: "},
      {{"--schedule", "cosin"}, "did you mean cosine?"},
      {{"--init", "kaiming"}, "--init: expected default, gpt2, xavier but got kaiming"},
      {{"--preset", "clasic"}, "--preset: expected best, quick, classic but got clasic; did you mean classic?"},
      {{"--device", "tpu"}, "--device: expected cpu, cuda, cuda:N, auto but got tpu"},
      {{"--device", "cuda:x"}, "--device: expected cpu, cuda, cuda:N, auto but got cuda:x"},
      {{"--device", "cuda:-1"}, "--device: expected cpu, cuda, cuda:N, auto but got cuda:-1"},
      {{"--device", "cuda:99"}, "--device cuda:99: "},
      {{"--prefix-lm", "maybe"}, "--prefix-lm: expected True or False but got maybe"},
      {{"--src", ""}, "--src: expected a language"},
      {{"--src", "../de"}, "--src: expected a language"},
      {{"--tgt", "de"}, "--tgt: expected another language than the source's de"},
      {{"--out", ""}, "--out: "},
      {{"--data", ""}, "--data: "},
      {{"extra"}, "unexpected argument extra"},
      {{"--use-fused-kernel", "perhaps"}, "--use-fused-kernel: expected True or False but got perhaps"},
  };
  // The data does not exist: a message that names the option shows that nobody looked.
  for (const auto& [arguments, message] : cases) {
    const Result result = run(translate, train(directory / "data", directory / "run", arguments));
    check_refused(result, message);
    CHECK(result.out.empty());
    CHECK(directory.count() == 0);
  }
}

TEST_CASE("A GPU is asked for in vain where there is none") {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // for the programs: this one has no need of a GPU
  const TempDirectory directory;
  check_refused(run(translate, train(directory / "data", directory / "run", {"--device", "cuda"})), "--device cuda: ");
  check_refused(run(translate, {"decode", "--model", (directory / "run").string(), "--device", "cuda"}), "--device cuda: ");
  check_refused(run(bench, {"step", "--device", "cuda"}), "--device cuda: ", "tern-bench");
  CHECK(directory.count() == 0);
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_CASE("TF32 is refused on a CPU") {
  const TempDirectory directory;
  for (const std::string precision : {"tf32", "tf32x3"})
    check_refused(run(translate, train(directory / "data", directory / "run", {"--device", "cpu", "--precision", precision})),
                  "--precision " + precision + ": ");
  CHECK(directory.count() == 0);
}

TEST_CASE("Switches take a value, and the last of several counts") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  const auto config = [&](const Arguments& arguments) {
    const Result result = run(translate, train(directory / "data", directory / "run", arguments));
    INFO(result.err);
    REQUIRE(result.code == 0);
    return Json::parse(slurp(directory / "run" / "config.json"));
  };
  CHECK(config({"--prefix-lm", "--use-fused-kernel", "False"})["prefix_lm"] == true);
  CHECK(config({"--prefix-lm", "no", "--use-fused-kernel=false"})["prefix_lm"] == false);
  CHECK(config({"--updates", "1", "--updates", "2"})["updates"] == 2);
  const Json classic = config({"--preset", "classic", "--batch-size", "16", "--width", "16", "--layers", "1", "--device", "cpu"});
  CHECK(classic["preset"] == "classic");
  CHECK(classic["batch_size"] == 16);
  CHECK(classic["samples"] == 20000);
  CHECK(classic["use_fused_kernel"] == true);
  CHECK(config({"--use-fused-kernel", "no"})["use_fused_kernel"] == false);
}

TEST_CASE("The bench refuses what it cannot run") {
  const TempDirectory directory;
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{}, "expected a subcommand (step, memory, ops, attention, conv1d, count, comm, accounting, report)"},
      {{"step", "--model", "foo"}, "--model: expected mt, ar, small, medium, large, xl, 2.7B, 6.7B, 13B but got foo"},
      {{"step", "--batch", "0"}, "--batch: expected a whole number from 1"},
      {{"step", "--batch", "99999999999999999999"}, "--batch: "},
      {{"step", "--dropout", "1"}, "--dropout: "},
      {{"step", "--bach", "1"}, "did you mean --batch?"},
      {{"step", "--precision", "fp8"}, "--precision: expected fp32, tf32, tf32x3, bf16, fp16, autocast-bf16, autocast-fp16 but got fp8"},
      {{"step", "--precision", "tf32", "--device", "cpu"}, "--precision tf32: "},
      {{"step", "--precision", "tf32x3", "--device", "cpu"}, "--precision tf32x3: "},
      {{"step", "--json", (directory / "no" / "x").string()}, "could not be opened"},
      {{"ops", "--op", "softmax,foo"},
       "--op: expected softmax, layernorm, rmsnorm, residual_layernorm, xent, linear_xent, adamw, grad_norm, feed_forward but got foo"},
      {{"ops", "--op", ""}, "--op: expected softmax"},
      {{"ops", "--dtype", "fp8"}, "--dtype: expected fp32, bf16, fp16, fp64 but got fp8"},
      {{"ops", "--seconds", "0"}, "--seconds: "},
      {{"ops", "--json", (directory / "no" / "x").string()}, "could not be opened"},
      {{"conv1d", "--taps", "3,0"}, "--taps: expected a whole number from 1"},
      {{"conv1d", "--dtype", "fp8"}, "--dtype: expected fp32, fp16, bf16, fp64 but got fp8"},
      {{"count", "--device-name", "A1000"}, "--device-name: expected A100, T4, H100, H200, measured but got A1000"},
      {{"count", "--heads", "0"}, "--heads: expected a whole number from 1"},
  };
  for (const auto& [arguments, message] : cases) check_refused(run(bench, arguments), message, "tern-bench");
}

TEST_CASE("The bench measures single operators") {
  const TempDirectory directory;
  const fs::path file = directory / "ops.jsonl";
  const Arguments arguments{"ops",    "--op",       "layernorm,adamw,grad_norm", "--dtype", "fp32", "--device", "cpu", "--seconds", "1e-6",
                            "--json", file.string()};
  const Result result = run(bench, arguments);
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(contains(result.out, "layernorm_bwd"));
  CHECK(contains(result.out, "adamw"));
  CHECK(contains(result.out, "grad_norm"));
  const std::vector<Json> rows = json_lines(file);
  REQUIRE(rows.size() > 20);
  CHECK(rows[0]["op"] == "copy");
  for (const Json& row : rows) {
    CHECK(row["device"] == "cpu");
    CHECK(row["ms"] > 0.0);
    CHECK(row["of_copy"] > 0.0);
  }
}

TEST_CASE("The bench measures the depthwise convolution") {
  const TempDirectory directory;
  const fs::path file = directory / "conv.jsonl";
  const Result result =
      run(bench, {"conv1d", "--dtype", "fp32", "--taps", "3", "--device", "cpu", "--seconds", "1e-6", "--json", file.string()});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(contains(result.out, "8192"));
  const std::vector<Json> rows = json_lines(file);
  REQUIRE(rows.size() == 2 + 3 * 2 * 3);  // the roofs; of each shape, both ways, plain, fused and copy
  CHECK(rows[1]["tflops"] > 0.0);
  CHECK(rows[2]["op"] == "conv1d_fwd");
  CHECK(rows[2]["shape"] == Json::array({1, 1024, 1024, 3}));
}

TEST_CASE("The bench counts a transformer's parts") {
  const TempDirectory directory;
  const fs::path file = directory / "count.jsonl";
  const Result result = run(bench, {"count", "--batch", "16", "--length", "16384", "--width", "4096", "--heads", "32", "--bytes", "2",
                                    "--device-name", "A100", "--device", "cpu", "--json", file.string()});
  REQUIRE(result.code == 0);
  const std::vector<Json> rows = json_lines(file);
  REQUIRE(rows.size() == 8);
  CHECK(rows[5]["part"] == "MHA");
  CHECK(rows[5]["bound"] == "memory");
  CHECK(rows[7]["part"] == "MLP");
  CHECK(rows[7]["bound"] == "compute");
  CHECK(run(bench, {"count", "--device-name", "measured", "--device", "cpu"}).code == 0);
}

TEST_CASE("The bench prints its measurements and appends them as JSON") {
  const TempDirectory directory;
  const Arguments arguments{"step",
                            "--model",
                            "ar",
                            "--batch",
                            "1",
                            "--length",
                            "8",
                            "--vocab",
                            "100",
                            "--steps",
                            "2",
                            "--warmup",
                            "0",
                            "--threads",
                            "1",
                            "--device",
                            "cpu",
                            "--json",
                            (directory / "rows").string()};
  for (int i = 0; i < 2; ++i) CHECK(run(bench, arguments).code == 0);
  const std::vector<Json> rows = json_lines(directory / "rows");
  REQUIRE(rows.size() == 2);
  for (const char* key :
       {"model", "B", "T", "V", "p", "dtype", "impl", "device", "arch", "of_gemm", "step_ms", "burst_ms", "fwd_ms", "tok_s", "peak_gb"})
    CHECK(rows[1].contains(key));
  CHECK(rows[1]["step_ms"] > 0);
}
