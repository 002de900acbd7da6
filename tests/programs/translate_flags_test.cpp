// The flags of tern-translate train: a row each.
#include <regex>

#include "translate_reference.h"

using namespace tern;
using namespace tern::programs::test;

namespace {

/// The values of a key in the lines of the log that have a score.
Seen scored(const char* key, const std::vector<double>& values) {
  return [=](const Ran& changed, const Ran&) {
    std::vector<double> found;
    for (const Json& line : json_lines(changed.path() / "log.jsonl"))
      if (line.contains("valid_bleu")) found.push_back(line[key]);
    CHECK(found == values);
  };
}
/// Epochs of the log, and updates of the summary.
Seen lasts(const std::vector<double>& epochs, int updates) {
  return [=](const Ran& changed, const Ran&) {
    CHECK(changed.log("epoch") == epochs);
    CHECK(changed.summary()["updates"] == updates);
  };
}
Seen model(const std::function<void(nn::DecoderLMOptions&)>& change) {
  return trains([=](Setting& s) { change(s.model); });
}
/// A rate for each of the three updates, in the log and in the weights.
Seen follows(const std::vector<double>& factors) {
  return both(trains([=](Setting& s) { s.optimizer.factor = [=](int update) { return factors[std::size_t(update - 1)]; }; }),
              rates(0.5, factors));
}
void is_unlike_greedy(const Ran& changed, const Ran& plain) {
  CHECK_FALSE(plain.summary().contains("valid_beam_bleu"));
  CHECK(changed.summary().contains("valid_beam_bleu"));
  CHECK(changed.summary()["valid_bleu"] == plain.summary()["valid_bleu"]);  // validation is greedy
  CHECK(changed.summary()["test_chrf"] != plain.summary()["test_chrf"]);
}

// With one layer nothing that a target sees depends on what the source tokens saw.
const std::string two_layers = "--layers 2", eights = "--batch-size 8", thirds = "--batch-size 8 --accumulate 3",
                  still = "--lr 1e-12",                              // the weights stay where they begin
    short_epochs = "--updates 0 --epochs 5 --batch-size 20",         // two updates each
    learned = "--updates 40 --lr 0.01 --adam-eps 1e-9 --epochs 40",  // enough that searches differ
    encoder = "--architecture encoder-decoder --encoder-layers 2", smoothed = encoder + " --label-smoothing 0.1 --tied-head",
                  deep = "--layers 4 --dropout 0.2 --width 32";

void is_smoothed(Setting& s) {
  s.is_encoder_decoder = s.model.tied_head = true;
  s.label_smoothing = 0.1;
}

std::vector<Flag> flags_of_training() {
  return {
      {"", trains([](Setting&) {})},
      {"--label-smoothing 0.3", trains([](Setting& s) { s.label_smoothing = 0.3; })},
      {"--clip 0.1", trains([](Setting& s) { s.optimizer.clip = 0.1; })},
      {"--beta2 0.5", trains([](Setting& s) { s.optimizer.beta2 = 0.5; })},
      {"--adam-eps 0.1", trains([](Setting& s) { s.optimizer.eps = 0.1; })},
      {"--weight-decay 0.05", trains([](Setting& s) { s.optimizer.weight_decay = 0.05; })},
      {"--lr 0.2", trains([](Setting& s) { s.optimizer.lr = 0.2; })},
      {"--warmup 4", follows({0.25, 0.5, 0.75})},
      {"--schedule cosine", follows({0.75, 0.25, 0})},
      {"--schedule inverse-sqrt", follows({0.5, 1, std::sqrt(2.0 / 3)}), "--warmup 2"},
      {"--schedule linear", rates(0.5, {2.0 / 3, 1.0 / 3, 0})},
      {"--schedule wsd", rates(0.5, {1, 1, 0})},
      {"--schedule one-cycle", rates(0.5, {1, 0.5 + 2e-6, 4e-6}), "--warmup 1"},
      {"--prefix-lm False", trains([](Setting& s) { s.model.layers = 2, s.prefix_lm = false; }), two_layers},
      {"--restart-positions False", trains([](Setting& s) { s.restart_positions = false; })},
      {"--pad-to-length False", trains([](Setting& s) { s.pad_to_length = false, s.batch_size = 8; }), eights},
      {"--batch-size 16", trains([](Setting& s) { s.batch_size = 16; })},
      {"--samples 12", trains([](Setting& s) { s.samples = 12; })},
      {"--samples 12", lasts({1, 2}, 6), "--batch-size 5 --epochs 2 --updates 0"},
      {"--seed 4", trains([](Setting& s) { s.seed = 4, s.batch_size = 16; }), "--batch-size 16"},
      // An update of several batches is one of their union.
      {"--accumulate 3", trains([](Setting& s) { s.batch_size = 24; }), eights},
      {"--accumulate 3", lasts({1, 2}, 4), eights + " --updates 0 --epochs 2"},  // 40 pairs are 24 and 16
      {"--clip 0.1", trains([](Setting& s) { s.batch_size = 24, s.optimizer.clip = 0.1; }), thirds},
      {"--batch-tokens 400", both(trains([](Setting& s) { s.batch_tokens = 400; }), says("updates of 400 tokens")),
       "--pad-to-length False"},
      {"--bpe-dropout 0.3", trains([](Setting& s) { s.bpe_dropout = 0.3; })},
      {"--ema 0.99", trains([](Setting& s) { s.ema = 0.99; })},
      {"--ema 0.15", trains([](Setting& s) { s.ema = 0.15; })},
      // The draws of dropout are those of the reference, which begins with the same seed.
      {"--dropout 0.2", model([](auto& m) { m.dropout = 0.2; })},
      {"--dropout 0.5", acts_in_training_alone, still},
      {"--attention-dropout 0", model([](auto& m) { m.dropout = 0.3, m.attention_dropout = 0; }), "--dropout 0.3"},
      {"--attention-dropout 0.5", acts_in_training_alone, still},
      {"--activation-dropout 0.5", acts_in_training_alone, still},
      {"--r-drop 2", trains([](Setting& s) { s.r_drop = 2, s.model.dropout = 0.2; }), "--dropout 0.2"},
      {"--architecture encoder-decoder", trains([](Setting& s) { s.is_encoder_decoder = true; }), "--encoder-layers 2"},
      {"--encoder-layers 3", says("3 + 1 layers"), encoder},
      {"--batch-tokens 200", trains([](Setting& s) {
         is_smoothed(s);
         s.batch_tokens = 200;
       }),
       smoothed + " --pad-to-length False"},
      {"--r-drop 1", trains([](Setting& s) {
         is_smoothed(s);
         s.r_drop = 1, s.model.dropout = 0.1;
       }),
       smoothed + " --dropout 0.1"},
      {"--positions rotary", trains([](Setting& s) { s.restart_positions = false, s.model.positions = nn::Positions::rotary; }),
       "--restart-positions False"},
      {"--positions sinusoidal", trains([](Setting& s) { s.restart_positions = false, s.model.positions = nn::Positions::sinusoidal; }),
       "--restart-positions False"},
  };
}

std::vector<Flag> flags_of_the_model_and_the_run() {
  return {
      {"--width 24", model([](auto& m) { m.width = 24; })},
      {"--layers 2", model([](auto& m) { m.layers = 2; })},
      {"--heads 4", model([](auto& m) { m.heads = 4; })},
      {"--ff 16", model([](auto& m) { m.ff = 16; })},
      {"--tied-head", model([](auto& m) { m.tied_head = true; })},
      {"--init gpt2", model([](auto& m) { m.initialization = nn::Initialization::gpt2; })},
      {"--init xavier", model([](auto& m) { m.initialization = nn::Initialization::xavier; })},
      {"--vocab 290",
       both(model([](auto&) {}), [](const Ran& changed, const Ran&) { CHECK(changed.weights()["head.bias"].size() == 290); })},
      {"--length 14", both(model([](auto& m) { m.length = 14; }), says("cut      "))},
      {"--word-limit 16", both(trains([](Setting& s) { s.word_limit = 16; }), says(" of 16 words or more left out)"))},
      {"--src en --tgt de", trains([](Setting& s) { s.src = "en", s.tgt = "de"; })},
      {"--epochs 4", lasts({1, 2, 3, 4}, 8), "--updates 0 --batch-size 20"},
      {"--updates 5", lasts({1, 2, 3}, 5), "--epochs 4 --batch-size 20"},
      {"--bleu-every 2", scored("epoch", {2, 4, 5}), "--updates 0 --epochs 5"},
      {"--bleu-every 0", scored("epoch", {5}), "--updates 0 --epochs 5"},
      {"--valid-every 3", scored("update", {3, 6, 9, 10}), short_epochs},
      {"--valid-every 10", [](const Ran& changed, const Ran& plain) { CHECK(changed.weights() == plain.weights()); }, short_epochs},
      // Weights that stay where they are get no better: the first score is the best one, and one or two more are waited for.
      {"--patience 1", scored("update", {2, 4}), short_epochs + " --lr 1e-12 --bleu-every 1"},
      {"--patience 2", scored("update", {1, 2, 3}), short_epochs + " --lr 1e-12 --valid-every 1"},
      {"--beam 4", is_unlike_greedy, learned},
      {"--length-penalty 20",
       [](const Ran& changed, const Ran& plain) { CHECK(changed.summary()["test_chrf"] != plain.summary()["test_chrf"]); },
       learned + " --beam 4"},
      {"--precision bf16", rounds_by(8e-3)},
      {"--precision fp16", rounds_by(1e-3)},
      {"--use-fused-kernel True", fuses},
      {"--activation-checkpointing selective", saves_memory, deep},
      {"--activation-checkpointing full", saves_memory, deep + " --activation-checkpointing selective"},
      // A last batch of fewer rows, validations between updates, and what a step keeps on the device: rate, norm, scale, average.
      {"--compile", runs_programs,
       "--dropout 0.2 --batch-size 8 --accumulate 3 --updates 0 --epochs 8 --schedule cosine --clip 0.5 --ema 0.5 --precision fp16"},
      {"--compile", runs_programs, "--dropout 0.2 --batch-size 26 --updates 0 --epochs 8 --activation-checkpointing full"},
      {"--threads 3", says("on 3 CPU threads")},
  };
}

std::vector<Refusal> refusals() {
  return {
      {"--epoch 3", "there is no option --epoch; did you mean --epochs?"},
      {"--epochs", "--epochs: expected a value"},
      {"--epochs x", "--epochs: expected a whole number from 1 to 1000000 but got x"},
      {"--epochs 1e3", "got 1e3"},
      {"--epochs 2.5", "got 2.5"},
      {"--epochs 0", "--epochs: "},
      {"--epochs -1", "--epochs: "},
      {"--epochs=", "--epochs: "},
      {"--epochs 99999999999999999999", "--epochs: "},
      {"--updates -1", "--updates: "},
      {"--batch-size 0", "--batch-size: "},
      {"--batch-size 1000000000000000000", "--batch-size: "},
      {"--lr 0", "--lr: expected a number from 1e-12"},
      {"--lr nan", "--lr: "},
      {"--lr inf", "--lr: "},
      {"--lr 2e-3x", "--lr: "},
      {"--beta2 1", "--beta2: "},
      {"--beta2 1e-320", "--beta2: expected a number from 0 to "},  // too small for the arithmetic
      {"--adam-eps -1", "--adam-eps: "},
      {"--adam-eps 1e-400", "--adam-eps: expected a number from 0 to "},
      {"--dropout 1", "--dropout: "},
      {"--dropout 1e-320", "--dropout: expected a number from 0 to "},
      {"--label-smoothing 1", "--label-smoothing: "},
      {"--label-smoothing 1e-400", "--label-smoothing: expected a number from 0 to "},
      {"--clip -1", "--clip: "},
      {"--clip 1e-320", "--clip: expected a number from 0 to "},
      {"--warmup -1", "--warmup: "},
      {"--seed -1", "--seed: "},
      {"--length 3", "--length: expected a whole number from 4"},
      {"--vocab 258", "--vocab: expected a whole number from 259"},
      {"--vocab 100000000000", "--vocab: "},
      {"--width 1000000000000000000", "--width: "},
      {"--width 65536 --layers 1024", "GB to train and this machine has"},
      {"--width 17", "--heads: expected a divisor of the width 17 but got 2"},
      {"--layers 0", "--layers: "},
      {"--threads 0", "--threads: expected a whole number from 1 to 1024 but got 0"},
      {"--threads -1", "--threads: "},
      {"--threads 1000000", "--threads: "},
      {"--schedule cosin", "did you mean cosine?"},
      {"--init kaiming", "--init: expected default, gpt2, xavier but got kaiming"},
      {"--preset clasic", "--preset: expected best, quick, classic but got clasic; did you mean classic?"},
      {"--device tpu", "--device: expected cpu, cuda, cuda:N, auto but got tpu"},
      {"--device cuda:x", "--device: expected cpu, cuda, cuda:N, auto but got cuda:x"},
      {"--device cuda:-1", "--device: expected cpu, cuda, cuda:N, auto but got cuda:-1"},
      {"--device cuda:99", "--device cuda:99: "},
      {"--device cuda", "--device cuda: "},
      {"--precision tf32", "--precision tf32: "},
      {"--precision tf32x3", "--precision tf32x3: "},
      {"--prefix-lm maybe", "--prefix-lm: expected True or False but got maybe"},
      {"--use-fused-kernel perhaps", "--use-fused-kernel: expected True or False but got perhaps"},
      {"--positions rotary", "--restart-positions: expected False with rotary positions"},
      {"--batch-tokens 400", "--pad-to-length: expected False with --batch-tokens"},
      {"--batch-tokens 30 --pad-to-length False", "--batch-tokens: expected as many as a pair may have"},
      {"--src \"\"", "--src: expected a language"},
      {"--src ../de", "--src: expected a language"},
      {"--tgt de", "--tgt: expected another language than the source's de"},
      {"--test a,,b", "--test: expected names with one comma"},
      {"--out \"\"", "--out: "},
      {"--out /proc/none", "/proc/none: the directory could not be made"},
      {"--out --preset quick", "--out: expected a value but got --preset"},  // as of --out $RUN where RUN is not set
      {"--data \"\"", "--data: "},
      {"extra", "unexpected argument extra"},
      {"--gradient-sync never", "--gradient-sync: expected"},
      {"--bucket-size-mb never", "--bucket-size-mb: expected"},
      {"--rank-timeout never", "--rank-timeout: expected"},
      {"--shard never", "--shard: expected"},
  };
}

}  // namespace

const FlagTable& tern::programs::test::translate_train() {
  static const FlagTable table = [] {
    FlagTable all{training, flags_of_training(), refusals()};
    for (const Flag& flag : flags_of_the_model_and_the_run()) all.flags.push_back(flag);
    return all;
  }();
  return table;
}

TEST_CASE("tern-translate train: each flag shows as its row says") { check_flags(translate_train()); }

TEST_CASE("tern-translate train: a wrong value is refused before data is read") { check_refusals(training, translate_train().refusals); }

TEST_CASE("A picture of curves names what the losses have in them") {
  const std::string curves = slurp(ran(training, "--label-smoothing 0.3 --r-drop 1").path() / "curves.svg"),
                    others = slurp(ran(training).path() / "curves.svg");
  for (const char* name : {">training loss (label smoothing 0.3, R-Drop 1)<", ">validation loss (label smoothing)<", ">validation loss<"})
    CHECK(contains(curves, name));
  CHECK(contains(others, ">training loss<"));
  CHECK_FALSE(contains(others, "smoothing"));
}

TEST_CASE("The recipe's steps on a GPU, recorded and replayed, are those of a CPU", "[cuda]") {
  const auto losses = [](const std::string& more) {
    const Ran& run = ran(training, "--updates 12 --epochs 12 --lr 0.05 " + more);
    std::vector<double> result = run.log("loss");
    for (double loss : run.log("valid_loss")) result.push_back(loss);
    return result;
  };
  for (const std::string setting : {"--batch-size 8 --accumulate 3 --clip 0.5",
                                    "--architecture encoder-decoder --ema 0.9 --r-drop 1 --label-smoothing 0.1 --batch-tokens 300 "
                                    "--pad-to-length False"}) {
    INFO(setting);
    check_equal(losses(setting + " --device cuda"), losses(setting), 1e-3);
  }
}

TEST_CASE("tern-translate train --data --out (what is read, and where to)") {
  const TempDirectory directory;
  write_corpus(directory / "fewer", 12, 4);
  const Ran& fewer = ran(training, "--data " + (directory / "fewer").string());
  trains([](Setting&) {}, directory / "fewer")(fewer, ran(training));
  CHECK(fs::exists(fewer.path() / "summary.json"));
}

TEST_CASE("tern-translate train --test (which sets are scored at the end)") {
  const TempDirectory directory;
  const fs::path data = directory / "data";
  write_corpus(data, 40, 4);
  for (const char* side : {"de", "en"}) {
    fs::copy_file(data / fmt::format("valid.{}", side), data / fmt::format("test_b.{}", side));
    fs::copy_file(data / fmt::format("train.{}", side), data / fmt::format("more.{}", side));
  }
  const auto summary = [&](const std::string& test) { return Ran(training, "--data DATA " + test, data).summary(); };
  const Json all = summary(""), one = summary("--test test_b"), two = summary("--test more,test"), none = summary("--test none");
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
  CHECK(!summary("").contains("test_bleu"));
  check_refused(Ran(training, "--test test_c", data).result, "expected test_c.de");
}

TEST_CASE("tern-translate train --teacher (what other runs translate is learned as well)") {
  const Ran &first = ran(training), &second = ran(training, "--seed 4 --updates 2");
  const std::string runs = "--teacher " + first.path().string();
  const TempDirectory directory;
  const fs::path more = directory / "more";
  write_corpus(more, 40, 4);
  const std::string sources = slurp(more / "train.de");
  spill(more / "train.de", sources + sources);
  spill(more / "train.en",
        slurp(more / "train.en") + run(translate, {"decode", "--model", first.path().string(), "--device", "cpu"}, sources).out);
  const Ran& student = ran(training, runs);
  CHECK(contains(student.result.out, "teacher  40 more pairs"));
  CHECK(slurp(student.path() / "tokenizer.json") == slurp(first.path() / "tokenizer.json"));
  Reference reference({}, more, student.path());
  CHECK(reference.pairs() == 80);
  check_equal(student.log("loss"), reference.train());
  CHECK(ran(training, runs + "," + second.path().string()).log("loss") != student.log("loss"));
  const auto refused = [&](const char* teacher, const char* message) {
    check_refused(Ran(training, runs + "," + ran(training, teacher).path().string()).result, message);
  };
  refused("--vocab 290", "expected the tokenizer of the first teacher");
  refused("--src en --tgt de", "expected a translator from de to en but got one from en to de");
}

TEST_CASE("tern-translate train --preset (where values come from that are not given)") {
  const Command few{translate,
                    "train --data DATA --src de --tgt en --out OUT/run --device cpu --threads 1 --width 16 --heads 2 --layers 2 "
                    "--ff 24 --dropout 0 --vocab 320 --updates 2 --seed 3"};
  // classic: rows of 40 tokens, the whole corpus in a batch, no prefix, Adam(0.02) with an epsilon of 3e-3, BLEU every fifth epoch.
  Setting classic{
      .optimizer = {{.lr = 0.02, .eps = 3e-3, .weight_decay = 0}}, .prefix_lm = false, .restart_positions = false, .updates = 2};
  classic.model.layers = 2;  // with one, a prefix would not show
  const Ran& run_of_classic = ran(few, "--preset classic");
  Reference reference(classic, sentences(), run_of_classic.path());
  check_equal(run_of_classic.log("loss"), reference.train());
  CHECK(distance(run_of_classic.weights(), reference.weights()) < 2e-5);
  const Ran &quick = ran(few, "--length 40 --beam 1 --preset quick"), &best = ran(few, "--length 40 --beam 1 --preset best");
  check_equal(quick.log("lr"), {0.005 / 200, 0.005 * 2 / 200}, 1e-12);   // a warm-up of 200 updates
  check_equal(best.log("lr"), {0.002 / 1000, 0.002 * 2 / 1000}, 1e-12);  // of 1000

  // best and quick are one recipe in two sizes: of what was not given above, this alone differs.
  const Json large = json_of(best.path() / "config.json"), small = json_of(quick.path() / "config.json");
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
