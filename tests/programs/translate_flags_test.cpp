// Options of tern-translate that change what a training computes: its losses and weights are held against those of a training that is
// written out here. Each case fails where its option is ignored; every_flag_test.cpp reads the names of the cases.
#include "translate_reference.h"

using namespace tern;
using namespace tern::programs::test;

TEST_CASE("A training of the translator is the one that is written out here") { check_training({}, {}); }

TEST_CASE("tern-translate train --label-smoothing (training's loss alone is smoothed)") {
  check_training({"--label-smoothing", "0.3"}, {.label_smoothing = 0.3});
  const Run smoothed({"--label-smoothing", "0.3", "--r-drop", "1"}), plain;
  const std::string curves = slurp(smoothed.path / "curves.svg"), others = slurp(plain.path / "curves.svg");
  for (const char* name : {">training loss (label smoothing 0.3, R-Drop 1)<", ">validation loss (label smoothing)<", ">validation loss<"})
    CHECK(contains(curves, name));
  CHECK(contains(others, ">training loss<"));
  CHECK_FALSE(contains(others, "smoothing"));
}

TEST_CASE("tern-translate train --clip (the gradient's norm is bounded)") {
  check_training({"--clip", "0.1"}, {.optimizer = {.clip = 0.1}});
}

TEST_CASE("tern-translate train --beta2 --adam-eps (Adam's own numbers)") {
  check_training({"--beta2", "0.5"}, {.optimizer = {.beta2 = 0.5}});
  check_training({"--adam-eps", "0.1"}, {.optimizer = {.eps = 0.1}});
}

TEST_CASE("tern-translate train --lr --schedule --warmup (the rates of the updates)") {
  check_training({"--lr", "0.2"}, {.optimizer = {.lr = 0.2}});
  const auto check_rates = [](const Arguments& options, const std::vector<double>& factors) {
    const Run run(options);
    std::vector<double> rates;
    for (double factor : factors) rates.push_back(0.5 * factor);
    check_equal(logged(run.path, "lr"), rates, 1e-12);
  };
  const auto check = [&](const Arguments& options, const std::vector<double>& factors) {
    check_training(options, {.optimizer = {.factor = [&](int update) { return factors[std::size_t(update - 1)]; }}});
    check_rates(options, factors);
  };
  check({"--warmup", "4"}, {0.25, 0.5, 0.75});
  check({"--schedule", "cosine"}, {0.75, 0.25, 0});
  check({"--schedule", "inverse-sqrt", "--warmup", "2"}, {0.5, 1, std::sqrt(2.0 / 3)});
  check_rates({"--schedule", "linear"}, {2.0 / 3, 1.0 / 3, 0});
  check_rates({"--schedule", "wsd"}, {1, 1, 0});
  check_rates({"--schedule", "one-cycle", "--warmup", "1"}, {1, 0.5 + 2e-6, 4e-6});
}

TEST_CASE("tern-translate train --prefix-lm (source tokens see the whole source)") {
  // With one layer nothing that a target sees depends on what the source tokens saw.
  Setting setting;
  setting.model.layers = 2;
  check_training({"--layers", "2"}, setting);
  setting.prefix_lm = false;
  check_training({"--layers", "2", "--prefix-lm", "False"}, setting);
  const Run seen({"--layers", "2"}), hidden({"--layers", "2", "--prefix-lm", "False"});
  CHECK(distance(weights_of(seen.path), weights_of(hidden.path)) > 2e-4);
}

TEST_CASE("tern-translate train --restart-positions (a target counts from half the length)") {
  check_training({"--restart-positions", "False"}, {.restart_positions = false});
}

TEST_CASE("tern-translate train --pad-to-length (rows of one length are not sorted by it)") {
  const Arguments small{"--batch-size", "8"};
  check_training(small, {.batch_size = 8});
  check_training({"--batch-size", "8", "--pad-to-length", "False"}, {.pad_to_length = false, .batch_size = 8});
  const Run padded(small), sorted({"--batch-size", "8", "--pad-to-length", "False"});
  CHECK(distance(weights_of(padded.path), weights_of(sorted.path)) > 2e-4);
}

TEST_CASE("tern-translate train --samples --batch-size (pairs of an epoch, and of an update)") {
  check_training({"--samples", "12"}, {.samples = 12});
  check_training({"--batch-size", "16"}, {.batch_size = 16});
  const Run run({"--samples", "12", "--batch-size", "5", "--epochs", "2", "--updates", "0"});
  CHECK(logged(run.path, "update").back() == 6);
}

TEST_CASE("tern-translate train --seed (of the weights and of the order)") {
  check_training({"--seed", "4", "--batch-size", "16"}, {.seed = 4, .batch_size = 16});
}

TEST_CASE("tern-translate train --weight-decay (of the weights themselves)") {
  check_training({"--weight-decay", "0.05"}, {.optimizer = {.weight_decay = 0.05}});
}

TEST_CASE("tern-translate train --accumulate (an update of several batches is one of their union)") {
  check_training({"--batch-size", "8", "--accumulate", "3"}, {.batch_size = 24});
  const Run parts({"--batch-size", "8", "--accumulate", "3", "--updates", "0", "--epochs", "2"});
  CHECK(logged(parts.path, "update").back() == 4);  // 40 pairs are 24 and 16
  check_training({"--batch-size", "8", "--accumulate", "3", "--clip", "0.1"}, {.optimizer = {.clip = 0.1}, .batch_size = 24});
}

TEST_CASE("The recipe's steps on a GPU, recorded and replayed, are those of a CPU", "[cuda]") {
  const auto losses = [](const Arguments& more) {
    Arguments options{"--updates", "12", "--epochs", "12", "--lr", "0.05"};
    options.insert(options.end(), more.begin(), more.end());
    const Run run(options);
    std::vector<double> result = logged(run.path, "loss");
    for (double loss : logged(run.path, "valid_loss")) result.push_back(loss);
    return result;
  };
  const std::vector<Arguments> settings = {
      {"--batch-size", "8", "--accumulate", "3", "--clip", "0.5"},
      {"--architecture", "encoder-decoder", "--ema", "0.9", "--r-drop", "1", "--label-smoothing", "0.1", "--batch-tokens", "300",
       "--pad-to-length", "False"},
  };
  for (const Arguments& setting : settings) {
    INFO(setting[0]);
    Arguments gpu = setting;
    gpu.insert(gpu.end(), {"--device", "cuda"});
    check_equal(losses(gpu), losses(setting), 1e-3);
  }
}

TEST_CASE("tern-translate train --batch-tokens (pairs of similar length, as many as fit)") {
  check_training({"--batch-tokens", "400", "--pad-to-length", "False"}, {.batch_tokens = 400});
  const Run run({"--batch-tokens", "400", "--pad-to-length", "False"});
  CHECK(contains(run.result.out, "updates of 400 tokens"));
  Arguments both = arguments(run.data, run.directory / "other", {"--batch-tokens", "400"});
  check_refused(tern::programs::test::run(translate, both), "--pad-to-length: expected False with --batch-tokens");
  both.insert(both.end(), {"--pad-to-length", "False", "--batch-tokens", "30"});
  check_refused(tern::programs::test::run(translate, both), "--batch-tokens: expected as many as a pair may have");
}

TEST_CASE("tern-translate train --bpe-dropout (pairs are cut into other tokens in each epoch)") {
  check_training({"--bpe-dropout", "0.3"}, {.bpe_dropout = 0.3});
}

TEST_CASE("tern-translate train --r-drop (two passes that are to agree)") {
  // The draws of dropout are those of the reference, which begins with the same seed.
  const auto check = [](const char* alpha, double r_drop) {
    Setting setting{.r_drop = r_drop};
    setting.model.dropout = 0.2;
    check_training({"--dropout", "0.2", "--r-drop", alpha}, setting);
  };
  check("0", 0);
  check("2", 2);
}

TEST_CASE("tern-translate train --ema (the model is an average of its weights)") {
  check_training({"--ema", "0.99"}, {.ema = 0.99});
  check_training({"--ema", "0.15"}, {.ema = 0.15});
}

TEST_CASE("tern-translate train --architecture --encoder-layers (an encoder and a decoder)") {
  Setting setting{.is_encoder_decoder = true};
  check_training({"--architecture", "encoder-decoder", "--encoder-layers", "2"}, setting);
  setting.label_smoothing = 0.1;
  setting.model.tied_head = true;
  const auto more = [](const Arguments& options) {
    Arguments all{"--architecture", "encoder-decoder", "--encoder-layers", "2", "--label-smoothing", "0.1", "--tied-head"};
    all.insert(all.end(), options.begin(), options.end());
    return all;
  };
  setting.batch_tokens = 200;
  check_training(more({"--batch-tokens", "200", "--pad-to-length", "False"}), setting);
  setting.batch_tokens = 0;
  setting.r_drop = 1;
  setting.model.dropout = 0.1;
  check_training(more({"--r-drop", "1", "--dropout", "0.1"}), setting);
  const Run run({"--architecture", "encoder-decoder", "--encoder-layers", "3"});
  CHECK(contains(run.result.out, "3 + 1 layers"));
}

TEST_CASE("tern-translate train --attention-dropout --activation-dropout (where dropout is)") {
  const auto losses = [](const Arguments& more) {
    Arguments still{"--lr", "1e-12", "--updates", "2"};
    still.insert(still.end(), more.begin(), more.end());
    const Run run(still);
    std::vector<double> result = logged(run.path, "loss");
    result.push_back(logged(run.path, "valid_loss").back());
    return result;
  };
  const std::vector<double> plain = losses({});
  for (const char* flag : {"--attention-dropout", "--activation-dropout"}) {
    INFO(flag);
    const std::vector<double> dropped = losses({flag, "0.5"});
    CHECK(std::abs(dropped[0] - plain[0]) > 1e-5);
    CHECK(std::abs(dropped[0] - dropped[1]) > 1e-5);
    CHECK(dropped[2] == Approx(plain[2]).epsilon(1e-9));
  }
  Setting setting;
  setting.model.dropout = 0.3;
  setting.model.attention_dropout = 0;
  check_training({"--dropout", "0.3", "--attention-dropout", "0"}, setting);
}

TEST_CASE("tern-translate train --positions (how the model knows them)") {
  Setting setting{.restart_positions = false};
  setting.model.positions = nn::Positions::rotary;
  check_training({"--positions", "rotary", "--restart-positions", "False"}, setting);
  setting.model.positions = nn::Positions::sinusoidal;
  check_training({"--positions", "sinusoidal", "--restart-positions", "False"}, setting);
  const TempDirectory directory;
  check_refused(run(translate, arguments(directory / "data", directory / "run", {"--positions", "rotary"})),
                "--restart-positions: expected False with rotary positions");
}

TEST_CASE("tern-translate train --width --layers --heads --ff --tied-head --init (the model)") {
  const Setting plain;
  const std::vector<std::pair<Arguments, std::function<void(nn::DecoderLMOptions&)>>> cases = {
      {{"--width", "24"}, [](auto& model) { model.width = 24; }},
      {{"--layers", "2"}, [](auto& model) { model.layers = 2; }},
      {{"--heads", "4"}, [](auto& model) { model.heads = 4; }},
      {{"--ff", "16"}, [](auto& model) { model.ff = 16; }},
      {{"--tied-head"}, [](auto& model) { model.tied_head = true; }},
      {{"--init", "gpt2"}, [](auto& model) { model.initialization = nn::Initialization::gpt2; }},
      {{"--init", "xavier"}, [](auto& model) { model.initialization = nn::Initialization::xavier; }},
  };
  for (const auto& [options, change] : cases) {
    INFO(options[0]);
    Setting setting = plain;
    change(setting.model);
    check_training(options, setting);
  }
}
