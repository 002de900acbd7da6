// Options of tern-translate that say what a training reads, and where its other values come from: translate_flags_test.cpp's way.
#include <regex>

#include "translate_reference.h"

using namespace tern;
using namespace tern::programs::test;

TEST_CASE("tern-translate train --vocab (the size of the tokenizer and of the tables)") {
  Setting setting;
  setting.model.vocab = 290;
  check_training({"--vocab", "290"}, setting);
  CHECK(weights_of(Run({"--vocab", "290"}).path)["head.bias"].size() == 290);
}

TEST_CASE("tern-translate train --length (longer pairs are cut)") {
  Setting setting;
  setting.model.length = 14;
  check_training({"--length", "14"}, setting);
  CHECK(contains(Run({"--length", "14"}).result.out, "cut      "));
}

TEST_CASE("tern-translate train --word-limit (long pairs are left out)") {
  check_training({"--word-limit", "16"}, {.word_limit = 16});
  CHECK(contains(Run({"--word-limit", "16"}).result.out, " of 16 words or more left out)"));
}

TEST_CASE("tern-translate train --src --tgt --data (what is read)") {
  check_training({"--src", "en", "--tgt", "de"}, {.src = "en", .tgt = "de"});
  const Run run;
  const fs::path fewer = run.directory / "fewer", out = run.directory / "other";
  write_sentences(fewer, 12);
  REQUIRE(tern::programs::test::run(translate, arguments(run.data, out, {"--data", fewer.string()})).code == 0);
  Reference reference({}, fewer, out);
  CHECK(reference.pairs() == 12);
  check_equal(logged(out, "loss"), reference.train());
}

TEST_CASE("tern-translate train --teacher (what other runs translate is learned as well)") {
  const Run first, second({"--seed", "4", "--updates", "2"});
  const auto decode = [&](const fs::path& model, const std::string& lines) {
    return run(translate, {"decode", "--model", model.string(), "--device", "cpu"}, lines).out;
  };
  const fs::path more = first.directory / "more";
  write_sentences(more);
  const std::string sources = slurp(more / "train.de"), targets = slurp(more / "train.en");
  spill(more / "train.de", sources + sources);
  spill(more / "train.en", targets + decode(first.path, sources));
  const fs::path out = first.directory / "student";
  const Result result = run(translate, arguments(first.data, out, {"--teacher", first.path.string()}));
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(contains(result.out, "teacher  40 more pairs"));
  CHECK(slurp(out / "tokenizer.json") == slurp(first.path / "tokenizer.json"));
  Reference reference({}, more, out);
  CHECK(reference.pairs() == 80);
  check_equal(logged(out, "loss"), reference.train());

  const fs::path both = first.directory / "both";
  REQUIRE(run(translate, arguments(first.data, both, {"--teacher", first.path.string() + "," + second.path.string()})).code == 0);
  CHECK(logged(both, "loss") != logged(out, "loss"));
  const Run other({"--vocab", "300"}), turned({"--src", "en", "--tgt", "de"});
  const auto refused = [&](const Run& teacher, const char* message) {
    const std::string runs = first.path.string() + "," + teacher.path.string();
    const Result failed = run(translate, arguments(first.data, first.directory / "none", {"--teacher", runs}));
    CHECK(failed.code == 2);
    CHECK(contains(failed.err, message));
  };
  refused(other, "expected the tokenizer of the first teacher");
  refused(turned, "expected a translator from de to en but got one from en to de");
}

TEST_CASE("tern-translate train --preset (where values come from that are not given)") {
  const Run base;
  Arguments few{"train", "--data", base.data.string(), "--src", "de", "--tgt", "en"};
  std::istringstream words("--device cpu --threads 1 --width 16 --heads 2 --layers 2 --ff 24 --dropout 0 --vocab 320 --updates 2 --seed 3");
  for (std::string word; words >> word;) few.push_back(word);
  const auto trained = [&](const char* preset, const Arguments& more = {}) {
    const fs::path out = base.directory / preset;
    Arguments all = few;
    all.insert(all.end(), {"--preset", preset, "--out", out.string()});
    all.insert(all.end(), more.begin(), more.end());
    REQUIRE(run(translate, all).code == 0);
    return out;
  };
  // classic: rows of 40 tokens, the whole corpus in a batch, no prefix, Adam(0.02) with an epsilon of 3e-3, BLEU every fifth epoch.
  Setting classic{.optimizer = {.lr = 0.02, .beta2 = 0.999, .eps = 3e-3}, .prefix_lm = false, .restart_positions = false, .updates = 2};
  classic.model.layers = 2;  // with one, a prefix would not show
  Reference reference(classic, base.data, trained("classic"));
  check_equal(logged(base.directory / "classic", "loss"), reference.train());
  CHECK(distance(weights_of(base.directory / "classic"), reference.weights()) < 2e-5);
  const Arguments brief{"--length", "40", "--beam", "1"};
  check_equal(logged(trained("quick", brief), "lr"), {0.005 / 200, 0.005 * 2 / 200}, 1e-12);   // a warm-up of 200 updates
  check_equal(logged(trained("best", brief), "lr"), {0.002 / 1000, 0.002 * 2 / 1000}, 1e-12);  // of 1000

  // best and quick are one recipe in two sizes: of what was not given above, this alone differs.
  const auto config = [&](const char* preset) { return Json::parse(slurp(base.directory / preset / "config.json")); };
  const Json large = config("best"), small = config("quick");
  std::map<std::string, std::string> differ;
  for (const auto& [key, value] : large.items())
    if (value != small[key]) differ[key] = value.dump() + " " + small[key].dump();
  CHECK(differ == std::map<std::string, std::string>{{"preset", "\"best\" \"quick\""},
                                                     {"epochs", "40 5"},
                                                     {"batch_tokens", "4096 2048"},
                                                     {"lr", "0.002 0.005"},
                                                     {"schedule", "\"inverse-sqrt\" \"cosine\""},
                                                     {"warmup", "1000 200"},
                                                     {"r_drop", "1.0 0.0"},
                                                     {"ema", "0.999 0.99"}});
  CHECK(small["architecture"] == "encoder-decoder");
  const std::string help = std::regex_replace(run(translate, {"train", "--help"}).out, std::regex("\\s+"), " ");
  for (const char* shown : {"(best 256, quick 128, classic 256)", "(best 6, quick 3, classic 4)", "(best 1024, quick 512, classic 256)",
                            "(best 10000, quick 1500, classic 10000)", "(best 0.3, quick 0.1, classic 0.1)",
                            "(best 256, quick 256, classic 40)", "(best 5, quick 5, classic 1)"}) {
    INFO(shown);
    CHECK(contains(help, shown));
  }
}
