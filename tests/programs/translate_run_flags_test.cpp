// Options of tern-translate that change what a run reads, scores, keeps and writes; and those of its other commands. Each case fails where
// its option is ignored; every_flag_test.cpp reads the names of the cases.
#include <regex>

#include "reference.h"
#include "translate_run.h"

using namespace tern;
using namespace tern::programs::test;

TEST_CASE("tern-translate train --dropout (in training, and in training alone)") {
  const Arguments still{"--lr", "1e-12"};  // the weights stay where they begin
  const Run without(still), with({"--lr", "1e-12", "--dropout", "0.5"});
  const std::vector<double> plain = logged(without.path, "loss"), dropped = logged(with.path, "loss");
  REQUIRE(plain.size() == 3);
  REQUIRE(dropped.size() == 3);
  CHECK(plain[0] == Approx(plain[1]).epsilon(1e-6));
  for (double loss : dropped) CHECK(std::abs(loss - plain[0]) > 1e-3);
  CHECK(std::abs(dropped[0] - dropped[1]) > 1e-4);
  check_equal(logged(with.path, "valid_loss"), logged(without.path, "valid_loss"));
}

TEST_CASE("tern-translate train --epochs --updates (how long)") {
  const Run epochs({"--updates", "0", "--epochs", "4", "--batch-size", "20"});
  CHECK(logged(epochs.path, "epoch") == std::vector<double>{1, 2, 3, 4});
  CHECK(summary_of(epochs.path)["updates"] == 8);
  const Run updates({"--updates", "5", "--epochs", "4", "--batch-size", "20"});
  CHECK(logged(updates.path, "epoch") == std::vector<double>{1, 2, 3});
  CHECK(summary_of(updates.path)["updates"] == 5);
}

TEST_CASE("tern-translate train --bleu-every (which epochs are scored)") {
  const auto scored = [](const Arguments& more) {
    Arguments options{"--updates", "0", "--epochs", "5"};
    options.insert(options.end(), more.begin(), more.end());
    const Run run(options);
    std::vector<double> epochs;
    for (const Json& line : json_lines(run.path / "log.jsonl"))
      if (line.contains("valid_bleu")) epochs.push_back(line["epoch"]);
    return epochs;
  };
  CHECK(scored({"--bleu-every", "0"}) == std::vector<double>{5});
  CHECK(scored({"--bleu-every", "2"}) == std::vector<double>{2, 4, 5});
}

TEST_CASE("tern-translate train --test (which sets are scored at the end)") {
  TempDirectory directory;
  const fs::path data = directory / "data";
  write_sentences(data);
  for (const char* side : {"de", "en"}) {
    fs::copy_file(data / fmt::format("valid.{}", side), data / fmt::format("test_b.{}", side));
    fs::copy_file(data / fmt::format("train.{}", side), data / fmt::format("more.{}", side));
  }
  const auto summary = [&](const Arguments& more) {
    const fs::path out = directory / "run";
    const Result result = run(translate, arguments(data, out, more));
    INFO(result.err);
    REQUIRE(result.code == 0);
    return summary_of(out);
  };
  const Json all = summary({}), one = summary({"--test", "test_b"}), two = summary({"--test", "more,test"}),
             none = summary({"--test", "none"});
  CHECK(all["tests"].size() == 2);
  CHECK(all["tests"]["test"]["bleu"] == all["test_bleu"]);
  CHECK(!one.contains("tests"));
  CHECK(one["test_chrf"] == all["tests"]["test_b"]["chrf"]);
  CHECK(two["tests"]["more"]["chrf"] == two["test_chrf"]);
  CHECK(two["tests"]["test"] == all["tests"]["test"]);
  CHECK(!none.contains("test_bleu"));
  CHECK(none.contains("valid_bleu"));
  for (const char* name : {"test", "test_b"})
    for (const char* side : {"de", "en"}) fs::remove(data / fmt::format("{}.{}", name, side));
  CHECK(!summary({}).contains("test_bleu"));
  check_refused(run(translate, arguments(data, directory / "other", {"--test", "test_c"})), "expected test_c.de");
  check_refused(run(translate, arguments(data, directory / "other", {"--test", "a,,b"})), "--test: expected names with one comma");
}

TEST_CASE("tern-translate train --beam --length-penalty (the search in test sets)") {
  // A model that has learned something, so that searches differ.
  const Arguments learned{"--updates", "40", "--lr", "0.01", "--adam-eps", "1e-9", "--epochs", "40", "--bleu-every", "0"};
  const auto summary = [&](const Arguments& more) {
    Arguments options = learned;
    options.insert(options.end(), more.begin(), more.end());
    return summary_of(Run(options).path);
  };
  const Json greedy = summary({}), wide = summary({"--beam", "4"}), longer = summary({"--beam", "4", "--length-penalty", "20"});
  CHECK(!greedy.contains("valid_beam_bleu"));
  CHECK(wide.contains("valid_beam_bleu"));
  CHECK(wide["valid_bleu"] == greedy["valid_bleu"]);  // validation is greedy
  CHECK(wide["test_chrf"] != greedy["test_chrf"]);
  CHECK(longer["test_chrf"] != wide["test_chrf"]);
}

TEST_CASE("tern-translate train --valid-every --patience (when the model is measured, and when that is enough)") {
  const Arguments short_epochs{"--updates", "0", "--epochs", "5", "--batch-size", "20"};  // two updates each
  const auto with = [&](const Arguments& more) {
    Arguments options = short_epochs;
    options.insert(options.end(), more.begin(), more.end());
    return options;
  };
  const auto measured = [](const Run& run) {
    std::vector<double> updates;
    for (const Json& line : json_lines(run.path / "log.jsonl"))
      if (line.contains("valid_bleu")) updates.push_back(line["update"]);
    return updates;
  };
  CHECK(measured(Run(with({"--valid-every", "3"}))) == std::vector<double>{3, 6, 9, 10});
  CHECK(measured(Run(with({"--bleu-every", "2"}))) == std::vector<double>{4, 8, 10});
  // Rounds of updates change no update.
  CHECK(weights_of(Run(with({"--valid-every", "10"})).path) == weights_of(Run(with({"--bleu-every", "5"})).path));
  // Weights that stay where they are get no better: the first score is the best one, and one or two more are waited for.
  CHECK(measured(Run(with({"--lr", "1e-12", "--bleu-every", "1", "--patience", "1"}))) == std::vector<double>{2, 4});
  CHECK(measured(Run(with({"--lr", "1e-12", "--valid-every", "1", "--patience", "2"}))) == std::vector<double>{1, 2, 3});
}

TEST_CASE("tern-translate train --precision (16 bits are coarser, by what they should be)") { check_precision<Run>(); }

TEST_CASE("tern-translate train --activation-checkpointing (the same weights from less memory)") {
  check_activation_checkpointing<Run>({"--layers", "4", "--dropout", "0.2", "--width", "32"});
}

TEST_CASE("tern-translate train --use-fused-kernel (other kernels round otherwise, and no more than that)") { check_fused_kernels<Run>(); }

TEST_CASE("tern-translate train --threads --device --out (on which processors, and where to)") {
  const Run run({"--threads", "3"});
  CHECK(contains(run.result.out, "on 3 CPU threads"));
  CHECK(fs::exists(run.path / "summary.json"));
  const Result refused =
      shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", translate, arguments(run.data, run.directory / "gpu", {"--device", "cuda"}));
  check_refused(refused, "--device cuda: ");
  CHECK(!fs::exists(run.directory / "gpu"));
}

TEST_CASE("tern-translate decode --model --device (which model, on which device)") {
  const Run one, other({"--seed", "8", "--updates", "1"});
  const auto decode = [](const fs::path& model) {
    return run(translate, {"decode", "--model", model.string(), "--device", "cpu"}, "Der Hund\n").out;
  };
  CHECK(!decode(one.path).empty());
  CHECK(decode(one.path) != decode(other.path));
  const Result refused =
      shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", translate, {"decode", "--model", one.path.string(), "--device", "cuda"});
  check_refused(refused, "--device cuda: ");
}

TEST_CASE("tern-translate average --out (the mean of runs, or of a run's checkpoints)") {
  const Run one({"--checkpoint-every", "1", "--keep", "3", "--valid-every", "1"}), other({"--updates", "2"});
  const auto average = [&](const Arguments& inputs) {
    const fs::path out = one.directory / "mean";
    Arguments all{"average", "--out", out.string()};
    all.insert(all.end(), inputs.begin(), inputs.end());
    const Result result = run(translate, all);
    INFO(result.err);
    REQUIRE(result.code == 0);
    CHECK(!run(translate, {"decode", "--model", out.string(), "--device", "cpu"}, "Der Hund\n").out.empty());
    return weights_of(out);
  };
  const auto mean = [](const std::vector<Weights>& models) {
    Weights result;
    for (const auto& [name, values] : models[0])
      for (std::size_t i = 0; i < values.size(); ++i) {
        double sum = 0;
        for (const Weights& model : models) sum += double(model.at(name)[i]);
        result[name].push_back(static_cast<float>(sum / double(models.size())));
      }
    return result;
  };
  CHECK(average({one.path.string(), other.path.string()}) == mean({weights_of(one.path), weights_of(other.path)}));
  CHECK(average({one.path.string()}) == weights_of(one.path));

  Arguments files;
  std::vector<Weights> models;
  for (const auto& entry : fs::directory_iterator(one.path / "checkpoints")) {
    files.push_back(entry.path().string());
    models.emplace_back();
    for (const auto& [name, tensor] : io::load_safetensors(entry.path()).tensors)
      if (name.starts_with("model.")) models.back()[name.substr(6)] = tensor.to_vector<float>();
  }
  REQUIRE(files.size() == 3);
  CHECK(average(files) == mean(models));

  const Run wider({"--ff", "32"});
  const std::string out = (one.directory / "none").string();
  check_refused(run(translate, {"average", "--out", out, one.path.string(), wider.path.string()}), "expected the model of");
  check_refused(run(translate, {"average", "--out", out, one.path.string() + "/tokenizer.json"}), "config.json: could not be read");
  CHECK(!fs::exists(out));
}

TEST_CASE("tern-translate quantise --format --out (in which bytes, and where to)") {
  const Run one;
  const auto score = [&](const fs::path& model) {
    const std::string file = one.directory / "pair";
    spill(file, "Der Hund sieht den Mann .\n");
    return std::stod(
        run(translate, {"score-pairs", "--model", model.string(), "--src-file", file, "--tgt-file", file, "--device", "cpu"}).out);
  };
  const double exact = score(one.path);
  const auto bytes = [](const fs::path& model) { return double(fs::file_size(model / "model.safetensors")); };
  for (const auto& [format, slack] :
       std::vector<std::pair<std::string, double>>{{"int8", 0.02}, {"dynamic-int8", 0.03}, {"q8_0", 0.02}, {"q4_0", 0.3}}) {
    INFO(format);
    const fs::path out = one.path.string() + "-" + format;
    const Result result = run(translate, {"quantise", one.path.string() + "/", "--format", format});
    INFO(result.err);
    REQUIRE(result.code == 0);
    CHECK(contains(result.out, fmt::format("{:.0f} bytes before, {:.0f} after", bytes(one.path), bytes(out))));
    CHECK(Json::parse(slurp(out / "config.json"))["quantization"] == format);
    const io::TensorFile file = io::load_safetensors(out / "model.safetensors");
    CHECK(file.tensors.at("head.weight").dtype() == DType::u8);
    CHECK(file.tensors.at("head.bias").dtype() == DType::f32);
    CHECK(bytes(out) < bytes(one.path));
    if (format == "q4_0") CHECK(bytes(out) < bytes(one.path.string() + "-q8_0"));
    CHECK(std::abs(score(out) - exact) < slack * std::abs(exact));
    CHECK(score(out) != exact);
    CHECK(!run(translate, {"decode", "--model", out.string(), "--device", "cpu"}, "Der Hund\n").out.empty());
  }
  const std::string quantised = one.path.string() + "-q8_0", named = (one.directory / "named").string();
  REQUIRE(run(translate, {"quantise", one.path.string(), "--out", named}).code == 0);  // q8_0 is the default
  CHECK(slurp(fs::path(named) / "model.safetensors") == slurp(fs::path(quantised) / "model.safetensors"));

  check_refused(run(translate, {"quantise", one.path.string(), "--format", "q3"}), "expected int8, dynamic-int8, q8_0, q4_0 but got q3");
  check_refused(run(translate, {"quantise", quantised}), "is quantised already, to q8_0");
  check_refused(run(translate, {"quantise", one.path.string(), "--out", one.path.string()}), "is the run itself");
  check_refused(run(translate, {"quantise", (one.directory / "nowhere").string()}), "there is no such run directory");
  check_refused(run(translate, {"average", "--out", named, one.path.string(), quantised}), "is quantised");
  check_refused(run(translate, {"train", "--resume", "--out", quantised}), "holds no checkpoint to go on from");
  check_refused(run(translate, arguments(one.data, named, {"--config", quantised})), "there is no option \"quantization\"");
  spill(fs::path(quantised) / "config.json", "{\"tern_run\": 2, \"quantization\": \"q3\"}");
  const Result changed = run(translate, {"decode", "--model", quantised, "--device", "cpu"}, "Der Hund\n");
  check_refused(changed, "config.json");
}

TEST_CASE("tern-translate score --hyp --ref --json --lowercase (what is compared, and how it is printed)") {
  const TempDirectory directory;
  const std::string hyp = directory / "hyp", ref = directory / "ref";
  spill(hyp, "The dog sees the old tree\n");
  spill(ref, "the dog sees the old tree and sleeps\n");
  const auto score = [&](const Arguments& more) {
    Arguments all{"score", "--json", "--hyp", hyp, "--ref", ref};
    all.insert(all.end(), more.begin(), more.end());
    return Json::parse(run(translate, all).out);
  };
  // The brevity penalty takes the hypothesis to be the shorter one: exp(1 - 8 / 6).
  CHECK(score({})["brevity_penalty"].get<double>() == Approx(std::exp(-1.0 / 3)));
  CHECK(score({"--hyp", ref, "--ref", hyp})["brevity_penalty"] == 1.0);
  CHECK(score({"--hyp", ref})["bleu"].get<double>() == Approx(100));
  CHECK(score({"--ref", hyp})["chrf"].get<double>() == Approx(100));
  CHECK(score({"--lowercase"})["bleu"].get<double>() == Approx(100 * std::exp(-1.0 / 3)));
  CHECK(score({})["bleu"] < score({"--lowercase"})["bleu"]);
  const Result plain = run(translate, {"score", "--hyp", hyp, "--ref", ref});
  CHECK(plain.out.rfind("BLEU|", 0) == 0);
}
