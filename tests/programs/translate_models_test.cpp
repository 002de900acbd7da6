// The commands of tern-translate that take models and make others of them, and score: a case that begins with flags fails where one of them
// is ignored; every_flag_test.cpp reads the names.
#include "translate_reference.h"

using namespace tern;
using namespace tern::programs::test;

TEST_CASE("tern-translate decode --model --device (which model, on which device)") {
  const auto decode = [](const fs::path& model, const char* device) {
    return shell("echo Der Hund | CUDA_VISIBLE_DEVICES= \"$0\" \"$@\"", translate, {"decode", "--model", model, "--device", device});
  };
  const std::string one = decode(ran(training).path(), "cpu").out;
  CHECK(!one.empty());
  CHECK(one != decode(ran(training, "--seed 4 --updates 2").path(), "cpu").out);
  check_refused(decode(ran(training).path(), "cuda"), "--device cuda: ");
}

TEST_CASE("tern-translate average --out (the mean of runs, or of a run's checkpoints)") {
  const TempDirectory directory;
  const fs::path one = ran(training, "--checkpoint-every 1 --keep 3 --valid-every 1").path(), other = ran(training, "--updates 2").path();
  const auto average = [&](const Arguments& inputs) {
    const fs::path out = directory / "mean";
    done(run(translate, with({"average", "--out", out}, inputs)));
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
  CHECK(average({one, other}) == mean({weights_of(one), weights_of(other)}));
  CHECK(average({one}) == weights_of(one));

  Arguments files;
  std::vector<Weights> models;
  for (const auto& entry : fs::directory_iterator(one / "checkpoints")) {
    files.push_back(entry.path().string());
    models.emplace_back();
    for (const auto& [name, tensor] : io::load_safetensors(entry.path()).tensors)
      if (name.starts_with("model.")) models.back()[name.substr(6)] = tensor.to_vector<float>();
  }
  REQUIRE(files.size() == 3);
  CHECK(average(files) == mean(models));

  const std::string out = (directory / "none").string();
  check_refused(run(translate, {"average", "--out", out, one, ran(training, "--ff 16").path()}), "expected the model of");
  check_refused(run(translate, {"average", "--out", out, one / "tokenizer.json"}), "config.json: could not be read");
  CHECK(!fs::exists(out));
}

TEST_CASE("tern-translate quantise --format --out (in which bytes, and where to)") {
  const Ran one(training, "");
  const auto score = [&](const fs::path& model) {
    const std::string file = one.directory / "pair";
    spill(file, "Der Hund sieht den Mann .\n");
    return std::stod(
        run(translate, {"score-pairs", "--model", model.string(), "--src-file", file, "--tgt-file", file, "--device", "cpu"}).out);
  };
  const double exact = score(one.path());
  const auto bytes = [](const fs::path& model) { return double(fs::file_size(model / "model.safetensors")); };
  for (const auto& [format, slack] :
       std::vector<std::pair<std::string, double>>{{"int8", 0.02}, {"dynamic-int8", 0.03}, {"q8_0", 0.02}, {"q4_0", 0.3}}) {
    INFO(format);
    const fs::path out = one.path().string() + "-" + format;
    const Result result = done(run(translate, {"quantise", one.path().string() + "/", "--format", format}));
    CHECK(contains(result.out, fmt::format("{:.0f} bytes before, {:.0f} after", bytes(one.path()), bytes(out))));
    CHECK(json_of(out / "config.json")["quantization"] == format);
    const io::TensorFile file = io::load_safetensors(out / "model.safetensors");
    CHECK(file.tensors.at("head.weight").dtype() == DType::u8);
    CHECK(file.tensors.at("head.bias").dtype() == DType::f32);
    CHECK(bytes(out) < bytes(one.path()));
    if (format == "q4_0") CHECK(bytes(out) < bytes(one.path().string() + "-q8_0"));
    CHECK(std::abs(score(out) - exact) < slack * std::abs(exact));
    CHECK(score(out) != exact);
    CHECK(!run(translate, {"decode", "--model", out.string(), "--device", "cpu"}, "Der Hund\n").out.empty());
  }
  const std::string quantised = one.path().string() + "-q8_0", named = (one.directory / "named").string();
  REQUIRE(run(translate, {"quantise", one.path().string(), "--out", named}).code == 0);  // q8_0 is the default
  CHECK(slurp(fs::path(named) / "model.safetensors") == slurp(fs::path(quantised) / "model.safetensors"));

  check_refused(run(translate, {"quantise", one.path().string(), "--format", "q3"}), "expected int8, dynamic-int8, q8_0, q4_0 but got q3");
  check_refused(run(translate, {"quantise", quantised}), "is quantised already, to q8_0");
  check_refused(run(translate, {"quantise", one.path().string(), "--out", one.path().string()}), "is the run itself");
  check_refused(run(translate, {"quantise", (one.directory / "nowhere").string()}), "there is no such run directory");
  check_refused(run(translate, {"average", "--out", named, one.path().string(), quantised}), "is quantised");
  check_refused(run(translate, {"train", "--resume", "--out", quantised}), "holds no checkpoint to go on from");
  check_refused(Ran(training, "--config " + quantised).result, "there is no option \"quantization\"");
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
    return Json::parse(run(translate, with({"score", "--json", "--hyp", hyp, "--ref", ref}, more)).out);
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
