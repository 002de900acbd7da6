// tern-recall: what it refuses, what it writes, and that it repeats itself.
#include <cstdlib>

#include "support.h"

using namespace tern::programs::test;

namespace {

/// The arguments of a training that takes a moment; later ones override them.
Arguments small(const fs::path& out, const Arguments& more = {}) {
  Arguments result{"train", "--out", out.string()};
  std::istringstream words(
      "--threads 1 --pairs 6 --train-examples 64 --valid-examples 20 --test-examples 50 --layers 2 --width 16 --heads 2 "
      "--epochs 2 --batch-size 24");
  for (std::string word; words >> word;) result.push_back(word);
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

/// The log without what depends on the machine's speed.
std::vector<Json> losses(const fs::path& path) {
  std::vector<Json> log = json_lines(path / "log.jsonl");
  for (Json& line : log) {
    line.erase("seconds");
    line.erase("examples_per_second");
    line.erase("memory_bytes");
  }
  return log;
}

}  // namespace

TEST_CASE("Recall gives help for every subcommand") {
  const std::map<std::string, std::string> options = {
      {"train", "quick 64, classic 256, mqar 64"}, {"sweep", "--seeds"}, {"plot", "--out"}, {"hardcoded", "--vocab"}};
  for (const auto& [command, option] : options) {
    const Result result = run(recall, {command, "--help"});
    CHECK(result.code == 0);
    CHECK(result.err.empty());
    CHECK(contains(result.out, option));
  }
}

TEST_CASE("A mistake in recall's arguments is one line, and leaves nothing behind") {
  const TempDirectory directory;
  const std::vector<std::pair<Arguments, std::string>> trainings = {
      {{"--layer", "3"}, "there is no option --layer; did you mean --layers?"},
      {{"--layers", "0"}, "--layers: expected a whole number from 1 to 1024 but got 0"},
      {{"--heads", "3"}, "--heads: expected a divisor of the width 16 but got 3"},
      {{"--width", "17", "--heads", "17"}, "--positions: rotary ones turn pairs"},
      {{"--mlp", "-1"}, "--mlp: "},
      {{"--norm", "batch"}, "--norm: expected layer, rms, none but got batch"},
      {{"--positions", "sine"}, "--positions: expected learned, rotary, none but got sine"},
      {{"--causal", "perhaps"}, "--causal: expected True or False but got perhaps"},
      {{"--loss", "answers"}, "--loss: expected all, answer but got answers; did you mean answer?"},
      {{"--task", "copy"}, "--task: expected recall, mqar but got copy"},
      {{"--preset", "fast"}, "--preset: expected quick, classic, mqar but got fast"},
      {{"--target", "1.5"}, "--target: expected a number from 0 to 1 but got 1.5"},
      {{"--lr", "nan"}, "--lr: "},
      {{"--dropout", "1"}, "--dropout: "},
      {{"--test-examples", "0"}, "--test-examples: "},
      {{"--task", "mqar", "--pairs", "17"}, "--pairs: expected at most a quarter of the length 64 but got 17"},
      {{"--task", "mqar", "--vocab", "8"}, "--pairs: expected at most 3 keys"},
      {{"--task", "mqar", "--loss", "all"}, "--loss: mqar asks for answers alone"},
      {{"--task", "mqar", "--keys", "3"}, "--keys: expected --task recall, which alone has it, but got mqar"},
      {{"--length", "64"}, "--length: expected --task mqar, which alone has it, but got recall"},
      {{"--pairs", "1", "--keys", "1", "--values", "2"}, "give too few"},
      {{"--precision", "tf32", "--device", "cpu"}, "--precision tf32: "},
      {{"--precision", "tf32x3", "--device", "cpu"}, "--precision tf32x3: "},
      {{"--width", "65536", "--layers", "1024", "--device", "cpu"}, "GB to train and this machine has"},
      {{"--out", ""}, "--out: "},
  };
  for (const auto& [arguments, message] : trainings) {
    const Result result = run(recall, small(directory / "run", arguments));
    check_refused(result, message, "tern-recall");
    CHECK(result.out.empty());
    CHECK(directory.count() == 0);
  }
  const std::string out = (directory / "out").string(), csv = (directory / "sweep.csv").string();
  const std::vector<std::pair<Arguments, std::string>> others = {
      {{}, "expected a subcommand (train, sweep, plot, hardcoded)"},
      {{"train"}, "--out is required"},
      {{"sweep", "--out", out, "--layers", "1,x"}, "--layers: expected a whole number from 1 to 1024 but got x"},
      {{"sweep", "--out", out, "--layers", "1,"}, "--layers: expected a whole number from 1 to 1024 but got \"\""},
      {{"sweep", "--out", out, "--lengths", "64"}, "--lengths: expected --task mqar"},
      {{"sweep", "--out", out, "--widths", "64,65"}, "--heads: expected a divisor of the width 65"},
      {{"sweep", "--out", out, "--seed", "1"}, "did you mean --seeds?"},
      {{"plot", csv}, "could not be read"},
      {{"plot"}, "csv is required"},
      {{"train", "--out"}, "--out: expected a value"},
      {{"train", "--out", "/proc/none"}, "/proc/none: the directory could not be made"},
      {{"sweep", "--out", "/proc/none"}, "/proc/none: the directory could not be made"},
      {{"hardcoded", "--out", "/proc/none"}, "--out: /proc/none could not be made"},
      {{"hardcoded", "--vocab", "10"}, "expected both or neither"},
      {{"hardcoded", "--vocab", "10", "--length", "13"}, "--length: expected an even number"},
      {{"hardcoded", "--vocab", "2", "--length", "12"}, "--vocab: expected a whole number from 3"},
  };
  for (const auto& [arguments, message] : others) {
    check_refused(run(recall, arguments), message, "tern-recall");
    CHECK(directory.count() == 0);
  }
  spill(csv, "task,width\nrecall,64\n");
  check_refused(run(recall, {"plot", csv}), "expected the columns of tern-recall sweep", "tern-recall");
  spill(csv, "");
  check_refused(run(recall, {"plot", csv}), "expected at least one run", "tern-recall");
}

TEST_CASE("Recall finds no GPU where there is none") {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // for the programs: this one has no need of a GPU
  const TempDirectory directory;
  check_refused(run(recall, small(directory / "run", {"--device", "cuda"})), "--device cuda: ", "tern-recall");
  check_refused(run(recall, {"hardcoded", "--device", "cuda"}), "--device cuda: ", "tern-recall");
  CHECK(directory.count() == 0);
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_CASE("A recall training writes its files, the same for a seed") {
  const TempDirectory directory;
  for (const char* name : {"a", "b"}) {
    const Result result = run(recall, small(directory / name, {"--device", "cpu"}));
    INFO(result.err);
    REQUIRE(result.code == 0);
    CHECK(contains(result.out, "test accuracy "));
    CHECK(contains(result.out, "95% confidence"));
    CHECK(contains(result.out, "=>"));
  }
  std::vector<std::string> names;
  for (const auto& [name, content] : contents(directory / "a"))
    if (!name.starts_with("checkpoints/update-")) names.push_back(name);
  CHECK(fs::exists(directory / "a" / "checkpoints"));
  CHECK(names ==
        std::vector<std::string>{"config.json", "curves.svg", "events.out.tfevents", "log.jsonl", "model.safetensors", "summary.json"});
  CHECK(slurp(directory / "a" / "model.safetensors") == slurp(directory / "b" / "model.safetensors"));
  CHECK(losses(directory / "a") == losses(directory / "b"));

  const Json config = Json::parse(slurp(directory / "a" / "config.json")), summary = Json::parse(slurp(directory / "a" / "summary.json"));
  CHECK(config["preset"] == "quick");
  CHECK(config["task"] == "recall");
  CHECK(config["width"] == 16);
  CHECK(config["causal"] == true);
  CHECK(summary["epochs"] == 2);
  CHECK(summary["updates"] == 6);
  CHECK(summary["test_answers"] == 50);
  CHECK(summary["test_accuracy_low"] <= summary["test_accuracy"]);
  CHECK(summary["test_accuracy"] <= summary["test_accuracy_high"]);
  const Json parts = summary["test_loss_by_target"];
  for (const char* name : {"key", "new_value", "known_value", "arrow", "question", "answer"}) CHECK(parts[name] > 0);
  CHECK(parts["all"].get<double>() == Approx(summary["test_loss"].get<double>()).epsilon(1e-5));
  CHECK(parts["all"] > summary["least_loss"]);

  REQUIRE(run(recall, small(directory / "c", {"--seed", "2"})).code == 0);
  CHECK(slurp(directory / "a" / "model.safetensors") != slurp(directory / "c" / "model.safetensors"));
}

TEST_CASE("Every switch of recall trains") {
  const TempDirectory directory;
  const std::vector<Arguments> cases = {
      {"--mlp", "0", "--norm", "none", "--positions", "none", "--causal", "False"},
      {"--positions", "learned", "--tied-head", "--norm", "rms", "--dropout", "0.1", "--branch-dropout", "0.1", "--init", "gpt2"},
      {"--preset", "classic", "--loss", "answer", "--weight-decay", "0", "--clip", "1", "--schedule", "constant"},
      {"--task", "mqar", "--pairs", "4", "--length", "24", "--vocab", "64", "--heads", "1"},
      {"--precision", "bf16", "--device", "cpu"},
      {"--precision", "fp16", "--device", "cpu"},
  };
  for (Arguments arguments : cases) {
    std::map<bool, double> loss;
    for (const bool fused : {false, true}) {
      arguments.insert(arguments.end(), {"--use-fused-kernel", fused ? "True" : "False"});
      const Result result = run(recall, small(directory / "run", arguments));
      INFO(result.err << fmt::format("{}", fmt::join(arguments, " ")));
      REQUIRE(result.code == 0);
      CHECK(contains(result.out, "least possible") == contains(slurp(directory / "run" / "config.json"), "\"loss\": \"all\""));
      loss[fused] = Json::parse(slurp(directory / "run" / "summary.json"))["test_loss"];
    }
    INFO(fmt::format("{}", fmt::join(arguments, " ")));
    CHECK(loss[true] == Approx(loss[false]).epsilon(0.02));
  }
}

TEST_CASE("Training stops at its target") {
  const TempDirectory directory;
  const Result result = run(recall, small(directory / "run", {"--target", "0.0001", "--epochs", "50", "--valid-examples", "200"}));
  REQUIRE(result.code == 0);
  CHECK(Json::parse(slurp(directory / "run" / "summary.json"))["epochs"] < 10);
}

TEST_CASE("Two layers learn a small recall task in a second") {
  const TempDirectory directory;
  const Result result = run(
      recall,
      small(directory / "run",
            {"--pairs",  "12",    "--keys",           "4",    "--values",         "5",   "--width",         "32",   "--heads",      "1",
             "--device", "cpu",   "--train-examples", "4000", "--valid-examples", "300", "--test-examples", "1000", "--batch-size", "32",
             "--lr",     "0.004", "--epochs",         "10",   "--target",         "0.99"}));
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  const Json summary = Json::parse(slurp(directory / "run" / "summary.json"));
  CHECK(summary["test_accuracy"] >= 0.98);
  CHECK(summary["epochs"] < 10);
  CHECK(summary["epoch_of_90_percent"] <= summary["epochs"]);
  CHECK(summary["seconds_to_90_percent"] <= summary["train_seconds"]);
  CHECK(contains(result.out, "90% were passed in epoch "));
}

TEST_CASE("A sweep writes a row a run, and pictures that plot draws again") {
  const TempDirectory directory;
  const fs::path out = directory / "sweep";
  Arguments arguments = {"sweep", "--out", out.string(), "--layers", "1,2", "--seeds", "1,2", "--widths", "16"};
  std::istringstream words("--threads 1 --pairs 4 --train-examples 32 --valid-examples 10 --test-examples 10 --epochs 1");
  for (std::string word; words >> word;) arguments.push_back(word);
  const Result result = run(recall, arguments);
  INFO(result.err);
  REQUIRE(result.code == 0);
  const std::string table = slurp(out / "sweep.csv");
  CHECK(std::count(table.begin(), table.end(), '\n') == 5);
  CHECK(contains(table, "task,layers,width,mlp,length,pairs,seed,params,accuracy,low,high,answers"));
  CHECK(contains(table, "\nrecall,2,16,2,10,4,2,"));
  const std::string picture = slurp(out / "recall.svg");
  CHECK(contains(picture, "<svg xmlns"));
  CHECK(contains(picture, "accuracy of the answer"));
  CHECK(!fs::exists(out / "mqar.svg"));

  const fs::path again = directory / "again" / "deep";
  const Result drawn = run(recall, {"plot", (out / "sweep.csv").string(), "--out", again.string()});
  REQUIRE(drawn.code == 0);
  CHECK(slurp(again / "recall.svg") == picture);

  // Tables of several sweeps become one picture each task, and what they say together is printed.
  const std::string head = table.substr(0, table.find('\n') + 1);
  const std::string rest = ",50,1,1,1,1,1,";  // answers, losses, epochs, updates, seconds
  spill(directory / "one.csv",
        head + "recall,1,64,2,102,50,1,9,0.27,0.26,0.28" + rest + "0,0\n" + "recall,2,64,2,102,50,1,9,0.95,0.9,1" + rest + "1,1\n");
  spill(directory / "two.csv", head + "recall,2,64,2,102,50,2,9,0.85,0.8,0.9" + rest + "0,0\n" + "recall,3,64,2,102,50,1,9,0.99,0.98,1" +
                                   rest + "1,1\n" + "mqar,2,64,2,64,4,1,9,1,0.9,1" + rest + "1,1\n");
  const Result both = run(recall, {"plot", (directory / "one.csv").string(), (directory / "two.csv").string()});
  INFO(both.err << both.out);
  REQUIRE(both.code == 0);
  CHECK(contains(both.out, "width 64, MLP of 128, 50 pairs, by layers:"));
  CHECK(contains(both.out, "1: 27.00% (26.00 to 28.00)  2: 90.00% (85.00 to 95.00)  3: 99.00%"));
  CHECK(contains(both.out, "the fewest layers that reach 90% with every seed: 3"));
  CHECK(contains(both.out, "N 64, 4 pairs, 2 layers, by width:  64: 100.00%"));
  CHECK(fs::exists(directory / "mqar.svg"));
}

TEST_CASE("Two layers with weights set by hand recall everything") {
  const TempDirectory directory;
  for (const auto& [vocab, length] : {std::pair{"10", "12"}, {"20", "102"}, {"50", "12"}, {"20", "1002"}}) {
    Arguments arguments{"hardcoded", "--vocab", vocab, "--length", length, "--threads", "1", "--device", "cpu"};
    if (std::string(length) == "1002") arguments.insert(arguments.end(), {"--examples", "2"});
    const Result result = run(recall, arguments);
    INFO(result.out << result.err);
    CHECK(result.code == 0);
    CHECK(contains(result.out, ": 100.00%"));
    CHECK(!contains(result.out, "failed"));
  }
  const Arguments drawn{"hardcoded", "--vocab", "10", "--length", "12", "--out", (directory / "maps").string()};
  REQUIRE(run(recall, drawn).code == 0);
  const std::string picture = slurp(directory / "maps" / "v10-n12-layer2.svg");
  for (const char* part : {">Q<", ">K<", ">scores<", ">probabilities<", "12 x 32", ">k0<", ">=&gt;<", ">P<", ">T<", ">C<"})
    CHECK(contains(picture, part));
}
