// A training and what is done with it: the files of a run, decode and score.
#include <cmath>
#include <set>

#include "bytes.h"
#include "support.h"

using namespace tern::programs::test;
using tern::test::gzip;

namespace {

/// A run that most cases share, trained far enough to translate something.
struct Trained {
  TempDirectory directory;
  fs::path data = directory / "data", path = directory / "run";
  Result result;

  Trained() {
    write_corpus(data);
    result = run(translate, train(data, path, more()));
  }
  static Arguments more() { return {"--updates", "90", "--epochs", "90", "--batch-size", "16", "--lr", "0.02", "--bleu-every", "5"}; }
  static const Trained& get() {
    static const Trained trained;
    return trained;
  }
  Result decode(const std::string& input, const Arguments& extra = {}) const {
    return run(translate, with({"decode", "--model", path.string(), "--device", "cpu"}, extra), input);
  }
};

}  // namespace

TEST_CASE("A training writes its files") {
  const Trained& run = Trained::get();
  INFO(run.result.err);
  REQUIRE(run.result.code == 0);
  CHECK(contains(run.result.out, "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:tern-"));
  CHECK(contains(run.result.out, "chrF2|nrefs:1"));
  CHECK(contains(run.result.out, "Ten sentences"));

  std::vector<std::string> names;
  for (const auto& [name, content] : contents(run.path))
    if (!name.starts_with("checkpoints/")) names.push_back(name);
  CHECK(names == std::vector<std::string>{"config.json", "curves.svg", "events.out.tfevents", "log.jsonl", "model.safetensors",
                                          "summary.json", "tokenizer.json"});
  // The last one, and that of the best model where the time it took allowed for one there.
  CHECK(contents(run.path).contains("checkpoints/update-00000090.safetensors"));

  const Json summary = json_of(run.path / "summary.json"), config = json_of(run.path / "config.json");
  CHECK(summary["preset"] == "quick");
  CHECK(summary["use_fused_kernel"] == true);
  CHECK(summary["device"].is_string());
  CHECK(summary["epochs"] == 30);
  CHECK(summary["updates"] == 90);
  for (const char* key :
       {"params", "train_seconds", "tokens_per_second", "train_loss", "valid_loss", "valid_bleu", "test_bleu", "test_chrf"}) {
    INFO(key);
    REQUIRE(summary[key].is_number());
    CHECK(summary[key] > 0);
  }
  CHECK(config["width"] == 16);
  CHECK(config["lr"] == 0.02);
  CHECK(config["src"] == "de");
  CHECK(json_of(run.path / "tokenizer.json")["model"]["type"] == "BPE");
}

TEST_CASE("The log holds updates and epochs, and the loss falls") {
  const Trained& run = Trained::get();
  const std::vector<Json> log = json_lines(run.path / "log.jsonl");
  std::vector<double> loss, valid;
  std::set<double> norms;
  std::size_t bleu = 0;
  for (const Json& line : log) {
    if (line.contains("epoch")) {
      CHECK(line["epoch"] == valid.size() + 1);
      CHECK(line["update"] == loss.size());
      valid.push_back(line["valid_loss"]);
      bleu += line.contains("valid_bleu");
    } else {
      loss.push_back(line["loss"]);
      CHECK(line["update"] == loss.size());
      CHECK(line["lr"] >= 0);
      CHECK(line["grad_norm"] > 0);  // which clips
      CHECK(line["tokens_per_second"] > 0);
      CHECK(line["memory_bytes"] > 10'000);
      norms.insert(line["grad_norm"].get<double>());
    }
  }
  CHECK(loss.size() == 90);
  CHECK(norms.size() > 80);
  CHECK(valid.size() == 30);
  CHECK(bleu == 6);
  CHECK(valid.back() < valid.front() / 2);
  const Json summary = json_of(run.path / "summary.json");
  CHECK(summary["valid_loss"] == valid.back());
  CHECK(summary["valid_bleu"] == log.back()["valid_bleu"]);
  CHECK(summary["train_loss"].get<double>() == Approx((loss[87] + loss[88] + loss[89]) / 3).epsilon(1e-6));
}

TEST_CASE("The same seed gives the same run, and so does compressed data") {
  const Trained& first = Trained::get();
  const TempDirectory directory;
  fs::create_directory(directory / "data");
  for (const auto& [name, content] : contents(first.data)) {
    // "valid" may be called "val", and "test" may have a longer name.
    const std::string stored = (name[0] == 'v' ? "val" : name[1] == 'r' ? "train" : "test_2016") + name.substr(name.size() - 3);
    spill(directory / "data" / (stored + ".gz"), gzip(content));
  }
  REQUIRE(run(translate, train(directory / "data", directory / "run", Trained::more())).code == 0);
  for (const char* file : {"model.safetensors", "tokenizer.json"}) CHECK(slurp(directory / "run" / file) == slurp(first.path / file));
  CHECK(log_of(directory / "run") == log_of(first.path));
}

TEST_CASE("decode gives what train scored") {
  const Trained& first = Trained::get();
  const TempDirectory directory;
  const Result decoded = first.decode(slurp(first.data / "test.de"));
  REQUIRE(decoded.code == 0);
  CHECK(decoded.err.empty());
  CHECK(count_lines(decoded.out) == 12);
  spill(directory / "hyp", decoded.out);
  const Result scored = run(translate, {"score", "--json", "--hyp", directory / "hyp", "--ref", first.data / "test.en"});
  REQUIRE(scored.code == 0);
  const Json score = Json::parse(scored.out), summary = json_of(first.path / "summary.json");
  CHECK(score["bleu"] == summary["test_bleu"]);
  CHECK(score["chrf"] == summary["test_chrf"]);
  CHECK(score["bleu_signature"] == summary["bleu_signature"]);
  // Not only equal, but of a model that has learnt.
  CHECK(score["bleu"] > 5);
}

TEST_CASE("decode gives a line for a line") {
  const Trained& run = Trained::get();
  CHECK(run.decode("").out.empty());
  CHECK(run.decode("\n").out == "\n");
  const std::string line = run.decode("Der Hund\n").out;
  CHECK(run.decode("Der Hund").out == line);
  CHECK(run.decode("Der Hund\r\n").out == line);
  CHECK(run.decode("\nDer Hund\n\r\n").out == "\n" + line + "\n");
  const Result cut = run.decode("Der Hund\n" + std::string(5000, 'w') + "\n");
  CHECK(cut.code == 0);
  CHECK(count_lines(cut.out) == 2);
  CHECK(cut.err == "tern-translate: 1 of 2 lines were cut to the 38 tokens that the model has room for\n");
}

TEST_CASE("decode refuses what is not text, and writes the lines before it") {
  const Trained& run = Trained::get();
  const std::string good = "Der Hund\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {good + "gr\xFC\xDF\n", "standard input:2: expected UTF-8 but got byte 0xFC at byte 3"},
      {good + std::string("a\0b\n", 4), "standard input:2: expected text but got a NUL at byte 2"},
      {good + std::string((1 << 20) + 1, 'x'), "standard input:2: expected a line of at most 1048576 bytes"},
  };
  for (const auto& [input, message] : cases) {
    const Result result = run.decode(input);
    check_refused(result, message);
    CHECK(result.out == run.decode(good).out);
  }
}

TEST_CASE("decode and its standard streams") {
  const std::string model = Trained::get().path;
  const auto decode = [&](const char* script) { return shell(script, translate, {model}); };
  check_refused(decode("\"$0\" decode --model \"$1\" <&-"), "standard input: could not be read");
  check_refused(decode("\"$0\" decode --model \"$1\" < /"), "standard input: could not be read: Is a directory");
  for (const char* sink : {"> /dev/full", ">&-"}) {
    const Result result = decode((std::string("echo Hund | \"$0\" decode --model \"$1\" ") + sink).c_str());
    CHECK(result.code == 1);
    CHECK(result.err.rfind("tern-translate: ", 0) == 0);
    CHECK(count_lines(result.err) == 1);
  }
  const Result gone = decode("yes Hund | head -n 3000 | { \"$0\" decode --model \"$1\"; echo $? >&2; } | head -n 0");
  CHECK(gone.err == "tern-translate: the output could not be written: Broken pipe\n1\n");
}

TEST_CASE("score refuses files that do not belong together") {
  const TempDirectory directory;
  const std::string one = directory / "one", two = directory / "two", none = directory / "none", bad = directory / "bad";
  spill(one, "a b c d\n");
  spill(two, "a b c d\ne\n");
  spill(none, "");
  spill(bad, "gr\xFC\xDF\n");
  const auto score = [&](const std::string& hyp, const std::string& ref) {
    return run(translate, {"score", "--json", "--hyp", hyp, "--ref", ref});
  };
  check_refused(score(one, two), "expected as many translations as references but got 1 in " + one + " and 2 in " + two);
  check_refused(score(none, none), "none: expected at least one line");
  check_refused(score(bad, one), "bad:1: expected UTF-8");
  check_refused(score(one, directory / "nope"), "No such file or directory");
  check_refused(score(directory.path(), one), "it is not a regular file");
  const Json same = Json::parse(score(one, one).out);
  CHECK(same["bleu"].get<double>() == Approx(100));
  CHECK(same["chrf"].get<double>() == Approx(100));
  const Result full = shell("\"$0\" score --hyp \"$1\" --ref \"$1\" > /dev/full", translate, {one});
  CHECK(full.code == 1);
  CHECK(count_lines(full.err) == 1);
}

TEST_CASE("A loss that is not finite ends the training, and keeps the best epoch") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  // The rate rises until the weights overflow.
  const Result result = run(translate, train(directory / "data", directory / "run",
                                             {"--lr", "1e12", "--warmup", "20000", "--clip", "0", "--updates", "200", "--epochs", "200"}));
  INFO(result.err);
  CHECK(result.code == 1);
  CHECK(count_lines(result.err) == 1);
  CHECK(result.err.starts_with("tern-translate: the loss "));  // of an update, or of the validation behind it
  CHECK(contains(result.err, " of 200: train anew with a --lr below 1e+12, or with --clip 1; "));
  CHECK_FALSE(contains(result.err, "--resume"));  // which would come to the same update
  CHECK_FALSE(fs::exists(directory / "run" / "summary.json"));
  const std::vector<Json> log = json_lines(directory / "run" / "log.jsonl");
  std::int64_t best = 0;
  double least = INFINITY;
  for (const Json& line : log) {
    if (line.contains("epoch") && line["valid_loss"] < least) {
      best = line["epoch"];
      least = line["valid_loss"];
    }
    for (const auto& [key, value] : line.items()) CHECK(value.is_number());
  }
  REQUIRE(best > 0);
  CHECK(contains(result.err, fmt::format("keeps the model of epoch {}\n", best)));
  CHECK(run(translate, {"decode", "--model", directory / "run"}, "Der Hund\n").code == 0);
}
