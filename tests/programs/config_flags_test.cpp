// --config of the two trainers, and --version.
#include <tern/version.h>

#include <regex>

#include "paths.h"
#include "support.h"

using namespace tern::programs::test;

namespace {

Json config_of(const fs::path& run) { return json_of(run / "config.json"); }

/// A training of tern-recall that takes a moment, whose options come from a file but for these.
Result train_recall(const fs::path& out, const fs::path& config, const Arguments& more = {}) {
  return run(recall, with({"train", "--device", "cpu", "--threads", "1", "--out", out.string(), "--config", config.string()}, more));
}

constexpr const char* small_recall =
    R"({"pairs": 5, "train_examples": 48, "valid_examples": 20, "test_examples": 30, "layers": 1, "width": 16, "heads": 2, "epochs": 2,
        "batch_size": 24, "lr": 0.5, "clip": 0, "causal": false, "norm": "rms"})";

}  // namespace

TEST_CASE("tern-recall train --config (values between the preset's and the command line's)") {
  const TempDirectory directory;
  const fs::path file = spill(directory / "some.json", small_recall);
  done(train_recall(directory / "a", file, {"--preset", "quick", "--epochs", "1", "--norm", "layer"}));
  const Json config = config_of(directory / "a"), given = Json::parse(small_recall);
  for (const auto& [key, value] : given.items())
    if (key != "epochs" && key != "norm") CHECK(config[key] == value);
  CHECK(config["epochs"] == 1);
  CHECK(config["norm"] == "layer");
  CHECK(config["beta2"] == 0.98);  // of quick
  CHECK(json_lines(directory / "a" / "log.jsonl").size() == 3);

  // A configuration that a run wrote is read whole, by the file's name or the run's.
  for (const fs::path& whole : {directory / "a" / "config.json", directory / "a"}) {
    REQUIRE(train_recall(directory / "b", whole).code == 0);
    CHECK(config_of(directory / "b") == config);
    CHECK(slurp(directory / "b" / "model.safetensors") == slurp(directory / "a" / "model.safetensors"));
  }
}

TEST_CASE("A configuration may name the preset and the task") {
  const TempDirectory directory;
  const fs::path file = spill(directory / "mqar.json", R"({"task": "mqar", "pairs": 2, "length": 16, "vocab": 32, "train_examples": 40,
      "valid_examples": 20, "test_examples": 20, "width": 16, "epochs": 1})");
  REQUIRE(train_recall(directory / "a", file).code == 0);
  CHECK(config_of(directory / "a")["preset"] == "mqar");
  CHECK(config_of(directory / "a")["weight_decay"] == 0.1);
  spill(file, R"({"preset": "mqar", "pairs": 2, "length": 16, "vocab": 32, "train_examples": 40, "valid_examples": 20, "test_examples": 20,
                  "width": 16, "epochs": 1, "layers": 1})");
  REQUIRE(train_recall(directory / "b", file).code == 0);
  CHECK(config_of(directory / "b")["task"] == "mqar");
  REQUIRE(train_recall(directory / "c", file, {"--preset", "quick", "--task", "recall", "--heads", "2"}).code == 0);
  CHECK(config_of(directory / "c")["preset"] == "quick");
  CHECK(config_of(directory / "c")["task"] == "recall");
  CHECK(config_of(directory / "c")["layers"] == 1);
  CHECK(config_of(directory / "c")["weight_decay"] == 0.01);
}

TEST_CASE("tern-translate train --config (values between the preset's and the command line's)") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  const fs::path file = spill(directory / "some.json", R"({"preset": "quick", "src": "de", "tgt": "en", "vocab": 320, "length": 40,
      "width": 16, "layers": 1, "heads": 2, "ff": 16, "dropout": 0, "batch_size": 64, "updates": 3, "warmup": 1, "seed": 5})");
  const auto trained = [&](const fs::path& out, const Arguments& more) {
    done(run(translate,
             with({"train", "--device", "cpu", "--threads", "1", "--data", directory / "data", "--config", file, "--out", out}, more)));
    return config_of(out);
  };
  const Json config = trained(directory / "a", {"--updates", "2"});
  CHECK(config["seed"] == 5);
  CHECK(config["warmup"] == 1);
  CHECK(config["updates"] == 2);
  CHECK(config["tied_head"] == true);  // of quick
  const Json turned = trained(directory / "b", {"--src", "en", "--tgt", "de", "--updates", "1"});
  CHECK(turned["src"] == "en");
  CHECK(turned["tgt"] == "de");
}

TEST_CASE("A mistake in a configuration is one line, and leaves nothing behind") {
  const TempDirectory directory;
  const fs::path file = directory / "c.json", out = directory / "run";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"epoch": 3})", "there is no option \"epoch\"; did you mean epochs?"},
      {R"({"zzzzzzzzzz": 3})", "there is no option \"zzzzzzzzzz\""},
      {R"({"epochs": "3"})", "expected the key \"epochs\" to be an integer but got \"3\""},
      {R"({"epochs": 2.5})", "expected the key \"epochs\" to be an integer but got 2.5"},
      {R"({"lr": true})", "expected the key \"lr\" to be a number but got true"},
      {R"({"causal": 1})", "expected the key \"causal\" to be true or false but got 1"},
      {R"({"norm": 1})", "expected the key \"norm\" to be a string but got 1"},
      {R"({"epochs": 0})", "epochs: expected a whole number from 1 to 1000000 but got 0"},
      {R"({"preset": "fast"})", "preset: expected quick, classic, mqar but got fast"},
      {R"({"lr": 1, "lr": 2})", "lr"},
      {R"([1])", "expected a JSON object but got array"},
      {R"({"lr": )", "c.json"},
  };
  for (const auto& [text, message] : cases) {
    spill(file, text);
    const Result result = train_recall(out, file);
    check_refused(result, message, "tern-recall");
    CHECK(contains(result.err, "c.json"));
    CHECK(!fs::exists(out));
  }
  check_refused(train_recall(out, directory / "none.json"), "none.json", "tern-recall");
  check_refused(run(translate, {"train", "--data", "x", "--out", out.string(), "--config", spill(file, R"({"src": "de"})").string()}),
                "--tgt is required");
}

TEST_CASE("Programs say their version, whether CUDA is built in, and which processors they are for") {
  const std::string project = slurp(fs::path(tern::test::source_directory) / "CMakeLists.txt");
  std::smatch found;
  REQUIRE(std::regex_search(project, found, std::regex("project\\(tern VERSION ([0-9.]+)")));
  for (const std::string& program : {translate, recall, lm, bench}) {
    const Result result = run(program, {"--version"});
    CHECK(result.code == 0);
    CHECK(result.err.empty());
    CHECK(result.out == fmt::format("{} {}, built {} CUDA, {}\n", fs::path(program).filename().string(), found[1].str(),
                                    tern::built_with_cuda ? "with" : "without", tern::cpu_variant()));
    CHECK(found[1].str() == tern::version());
    CHECK(contains(run(program, {"--help"}).out, "--version"));
  }
}
