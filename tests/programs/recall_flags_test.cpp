// The flags of tern-recall: a row each for train; a sweep's runs are train's. Losses, scores and weights are held against a plain loop.
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "recall/data_set.h"
#include "reference.h"
#include "text/batching.h"

using namespace tern;
using namespace tern::programs::test;
using tern::recall::Examples;

static const std::string& program = tern::programs::test::recall;

namespace {

/// Words of a training that takes a moment, and of a sweep, which has lists for the rest.
const std::string small =
    "--device cpu --threads 1 --precision fp32 --use-fused-kernel False --preset quick --pairs 5 --train-examples 48 --valid-examples 20 "
    "--test-examples 30 --heads 2 --epochs 2 --batch-size 24 --lr 0.01 --schedule constant --warmup 0 --clip 0 ";
const Command base{program, "train --out OUT/run --layers 1 --width 16 --seed 2 " + small};
const Command training{program, base.words + "--keys 6 --values 7"};

/// What `training` says; a row changes what its flag is to change.
struct Setting {
  ReferenceOptimizer optimizer{{.lr = 0.01, .beta2 = 0.98, .weight_decay = 0.01}};
  recall::Task task{.pairs = 5, .keys = 6, .values = 7};
  nn::DecoderLMOptions model{
      .width = 16, .layers = 1, .heads = 2, .ff = 32, .dropout = 0, .positions = nn::Positions::rotary, .head_bias = false};
  std::uint64_t seed = 2;
  std::int64_t train = 48, valid = 20, test = 30;
  bool causal = true, answers_alone = false;
  std::size_t batch_size = 24;
  std::uint64_t epochs = 2;
};

class Reference {
 public:
  explicit Reference(const Setting& setting)
      : data(recall::make_data_set(setting.task, setting.seed, setting.train, setting.valid, setting.test)), setting_(setting) {
    setting_.model.vocab = setting.task.ids();
    setting_.model.length = (setting.task.harder ? 4 : 1) * setting.task.columns();
    manual_seed(setting.seed);
    model = nn::DecoderLM(setting_.model);
  }

  /// The loss of each update; the model is trained.
  std::vector<double> train() {
    PlainLoop loop(model, setting_.optimizer);
    std::vector<double> losses;
    std::optional<std::pair<double, double>> best;
    nn::DecoderLM kept;
    for (std::uint64_t epoch = 0; epoch < setting_.epochs; ++epoch) {
      for (const auto& picks :
           text::fixed_batches(text::epoch_order(std::size_t(setting_.train), setting_.seed, epoch), setting_.batch_size))
        losses.push_back(loop.update(loss(data.train, picks)));
      valid_loss = loss(data.valid);
      valid_accuracy = accuracy(data.valid);
      if (const std::pair rank(valid_accuracy, -valid_loss); !best || rank > *best) {
        best = rank;
        kept = nn::clone(model);
      }
    }
    model = kept;
    return losses;
  }
  double loss(const Examples& examples) const {
    const NoGrad unrecorded;
    return loss(examples, all(examples)).item<double>();
  }
  /// The share of answers that are right.
  double accuracy(const Examples& examples) const {
    const NoGrad unrecorded;
    const std::vector<std::int64_t> guesses = argmax(logits(examples, all(examples))).to_vector<std::int64_t>();
    double right = 0;
    for (std::int64_t row = 0; row < examples.count; ++row)
      for (std::int64_t i = 0; i < examples.answers; ++i) {
        const auto at = static_cast<std::size_t>(row * examples.columns + examples.answer_columns[std::size_t(row * examples.answers + i)]);
        right += guesses[at] == examples.targets[at];
      }
    return right / answers(examples);
  }
  double answers(const Examples& examples) const {
    if (!setting_.task.harder) return static_cast<double>(examples.count * examples.answers);
    return static_cast<double>(std::ranges::count_if(examples.targets, [](std::int64_t target) { return target >= 0; }));
  }

  recall::DataSet data;
  nn::DecoderLM model;                        ///< after train(): of the epoch with the best accuracy, and the least loss among these
  double valid_loss = 0, valid_accuracy = 0;  ///< after the last epoch

 private:
  static std::vector<std::size_t> all(const Examples& examples) {
    std::vector<std::size_t> picks;
    for (std::int64_t i = 0; i < examples.count; ++i) picks.push_back(std::size_t(i));
    return picks;
  }
  /// (rows * columns, vocab)
  Tensor logits(const Examples& examples, const std::vector<std::size_t>& picks) const {
    std::vector<std::int64_t> ids;
    for (std::size_t pick : picks)
      for (std::int64_t c = 0; c < examples.columns; ++c)
        ids.push_back(examples.inputs[pick * std::size_t(examples.columns) + std::size_t(c)]);
    const Tensor input = Tensor::from(ids, {std::int64_t(picks.size()), examples.columns});
    return flatten(model.forward(input, {.causal = setting_.causal}), 0, 1);
  }
  /// The mean over all targets, or over those of the answers.
  Tensor loss(const Examples& examples, const std::vector<std::size_t>& picks) const {
    std::vector<std::int64_t> targets;
    for (std::size_t pick : picks)
      for (std::int64_t c = 0; c < examples.columns; ++c) {
        bool counts = !setting_.answers_alone;
        for (std::int64_t i = 0; i < examples.answers; ++i)
          counts |= examples.answer_columns[pick * std::size_t(examples.answers) + std::size_t(i)] == c;
        targets.push_back(counts ? examples.targets[pick * std::size_t(examples.columns) + std::size_t(c)] : -100);
      }
    return cross_entropy(logits(examples, picks), Tensor::from(targets, {std::int64_t(targets.size())}));
  }

  PlainKernels plain_;  ///< as the program's
  Setting setting_;
};

/// The losses, scores and weights of the setting's training. Those of the plain one are others.
Seen trains(const std::function<void(Setting&)>& change) {
  return [=](const Ran& changed, const Ran& plain) {
    Setting setting;
    change(setting);
    Reference reference(setting);
    check_equal(changed.log("loss"), reference.train(), 2e-5);
    const Json summary = changed.summary();
    check_equal({changed.log("valid_loss").back(), summary["test_loss"]}, {reference.valid_loss, reference.loss(reference.data.test)},
                1e-4);
    check_equal({changed.log("valid_accuracy").back(), summary["test_accuracy"]},
                {reference.valid_accuracy, reference.accuracy(reference.data.test)});
    CHECK(summary["test_answers"] == reference.answers(reference.data.test));
    if (setting.task.harder)
      check_equal({summary["test_accuracy_twice_as_long"], summary["test_accuracy_four_times_as_long"]},
                  {reference.accuracy(reference.data.longer.at(0)), reference.accuracy(reference.data.longer.at(1))});
    CHECK(distance(changed.weights(), weights_of(reference.model)) < 2e-5);
    if (&changed == &plain) return;
    CHECK((changed.log("loss") != plain.log("loss") || changed.log("valid_loss") != plain.log("valid_loss") ||
           summary["test_loss"] != plain.summary()["test_loss"]));
  };
}
Seen model(const std::function<void(nn::DecoderLMOptions&)>& change) {
  return trains([=](Setting& s) { change(s.model); });
}
/// A rate for each of the four updates, in the log and in the weights.
Seen follows(const std::vector<double>& factors) {
  return both(trains([=](Setting& s) { s.optimizer.factor = [=](int update) { return factors[std::size_t(update - 1)]; }; }),
              rates(0.01, factors));
}
Seen trains_mqar(const std::function<void(recall::Task&)>& change = [](recall::Task&) {}) {
  return trains([=](Setting& s) {
    s.task = {.is_mqar = true, .pairs = 3, .length = 16, .vocab = 32};
    s.answers_alone = s.model.tied_head = true;
    s.optimizer.beta2 = 0.999;
    s.optimizer.weight_decay = 0.1;
    s.model.ff = 0;
    change(s.task);
  });
}
/// Losses of fused kernels, where roundings add up.
void trains_alike(const Ran& changed, const Ran& plain) {
  CHECK(changed.summary()["test_loss"].get<double>() == Approx(plain.summary()["test_loss"].get<double>()).epsilon(0.02));
}
void ends_at_target(const Ran& changed, const Ran& plain) {
  CHECK(plain.log("epoch").size() == 30);
  const std::vector<double> reached = changed.log("valid_accuracy");
  CHECK(reached.size() < 30);
  CHECK(reached.back() >= 0.02);
  for (std::size_t i = 0; i + 1 < reached.size(); ++i) CHECK(reached[i] < 0.02);
}

/// Two epochs after the best one, as losses and accuracies say.
void ends_without_progress(const Ran& changed, const Ran& plain) {
  CHECK(plain.log("epoch").size() == 30);
  const std::vector<double> losses = changed.log("valid_loss"), reached = changed.log("valid_accuracy");
  std::size_t best = 0;
  for (std::size_t i = 1; i < losses.size(); ++i)
    if (std::pair(reached[i], -losses[i]) > std::pair(reached[best], -losses[best])) best = i;
  CHECK(losses.size() == best + 3);
}

/// Two epochs after the last one that was a fiftieth better than the best before it.
void ends_without_gain(const Ran& changed, const Ran& plain) {
  const std::vector<double> reached = changed.log("valid_accuracy");
  CHECK(plain.log("epoch").size() > reached.size());
  double best = 0;
  std::size_t since = 0;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    CHECK(since < 2);
    ++since;
    if (reached[i] >= best + 0.02) best = reached[i], since = 0;
  }
  CHECK(since == 2);
}

const double third = 0.5 * (1 + std::cos(std::acos(-1.0) / 4));
const std::string still = "--lr 1e-12",  // the weights stay where they begin
    deep = "--layers 4 --branch-dropout 0.2", mqar = "--preset mqar --task mqar --pairs 3 --length 16 --vocab 32";

}  // namespace

const FlagTable& tern::programs::test::recall_train() {
  static const FlagTable table{
      training,
      {
          {"", trains([](Setting&) {})},
          {"--compile", runs_programs, "--dropout 0.1 --branch-dropout 0.1 --batch-size 20 --epochs 6 --schedule cosine --clip 1"},
          {"--pairs 7", trains([](Setting& s) { s.task.pairs = 7; })},
          {"--keys 4", trains([](Setting& s) { s.task.keys = 4; })},
          {"--values 5", trains([](Setting& s) { s.task.values = 5; })},
          {"--train-examples 30", trains([](Setting& s) { s.train = 30; })},
          {"--valid-examples 33", trains([](Setting& s) { s.valid = 33; })},
          {"--test-examples 41", trains([](Setting& s) { s.test = 41; })},
          {"--seed 5", trains([](Setting& s) { s.seed = 5; })},
          {"--batch-size 16", trains([](Setting& s) { s.batch_size = 16; })},
          {"--epochs 3", trains([](Setting& s) { s.epochs = 3; })},
          {"--layers 2", model([](auto& m) { m.layers = 2; })},
          {"--width 24", model([](auto& m) { m.width = 24, m.ff = 48; })},
          {"--heads 4", model([](auto& m) { m.heads = 4; })},
          {"--mlp 3", model([](auto& m) { m.ff = 48; })},
          {"--mlp 0", model([](auto& m) { m.ff = 0; })},
          {"--mixer conv", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::conv}}; })},
          {"--mixer hyena", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::hyena}}; })},
          {"--mixer h3", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::h3}}; })},
          {"--mixer rwkv4", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::rwkv4}}; })},
          {"--mixer rwkv7", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::rwkv7}}; })},
          {"--mixer mamba", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::mamba}}; })},
          {"--mixer based", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::based}}; })},
          {"--mixer linear", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::linear}}; })},
          {"--mixer retnet", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::retnet}}; })},
          {"--mixer gla", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::gla}}; })},
          {"--mixer mamba2", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::mamba2}}; })},
          {"--mixer deltanet", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::deltanet}}; })},
          {"--mixer gated-deltanet", model([](auto& m) { m.mixers = {{.kind = nn::MixerKind::gated_deltanet}}; })},
          {"--mixer conv,attention --layers 3", model([](auto& m) { m.layers = 3, m.mixers = {{.kind = nn::MixerKind::conv}, {}}; })},
          {"--mixer attention,window --layers 2 --window 3",
           model([](auto& m) { m.layers = 2, m.mixers = {{}, {.kind = nn::MixerKind::window, .window = 3}}; })},
          {"--norm rms", model([](auto& m) { m.norm = nn::NormKind::rms; })},
          {"--norm none", model([](auto& m) { m.norm = nn::NormKind::none; })},
          {"--positions learned", model([](auto& m) { m.positions = nn::Positions::learned; })},
          {"--positions none", model([](auto& m) { m.positions = nn::Positions::none; })},
          {"--tied-head True", model([](auto& m) { m.tied_head = true; })},
          {"--init gpt2", model([](auto& m) { m.initialization = nn::Initialization::gpt2; })},
          {"--causal False", trains([](Setting& s) { s.causal = false; })},
          {"--loss answer", trains([](Setting& s) { s.answers_alone = true; })},
          {"--lr 0.02", trains([](Setting& s) { s.optimizer.lr = 0.02; })},
          {"--beta2 0.5", trains([](Setting& s) { s.optimizer.beta2 = 0.5; })},
          {"--weight-decay 5", trains([](Setting& s) { s.optimizer.weight_decay = 5; })},
          // Adam's steps have the gradient's size in them where that changes from update to update: a bound makes all of one size.
          {"--clip 0.01", trains([](Setting& s) { s.optimizer.clip = 0.01; })},
          {"--schedule cosine", follows({third, 0.5, 1 - third, 0})},
          {"--schedule cosine-epoch", follows({1, 1, 0.5, 0.5})},
          {"--warmup 5", follows({0.2, 0.4, 0.6, 0.8})},
          {"--schedule linear", rates(0.01, {0.75, 0.5, 0.25, 0})},
          {"--schedule wsd", rates(0.01, {0.5, 1, 1, 0}), "--warmup 2"},
          {"--schedule one-cycle", rates(0.01, {0.52, 1, 0.5 + 2e-6, 4e-6}), "--warmup 2"},
          {"--dropout 0.5", acts_in_training_alone, still},
          {"--branch-dropout 0.5", acts_in_training_alone, still},
          // They act in different places.
          {"--dropout 0.5 --branch-dropout 0",
           [](const Ran& changed, const Ran& plain) { CHECK(changed.log("loss") != plain.log("loss")); }, "--branch-dropout 0.5"},
          {"--target 0.02", ends_at_target, "--epochs 30"},
          {"--patience 2", ends_without_progress, "--epochs 30 --lr 0.1"},
          {"--gain 0.02", ends_without_gain, "--patience 2 --epochs 30 --lr 0.001"},
          {"--precision bf16", rounds_by(8e-3)},
          {"--precision fp16", rounds_by(1e-3)},
          {"--use-fused-kernel True", fuses},
          {"--use-fused-kernel True", trains_alike, "--mlp 0 --norm none --positions none --causal False"},
          {"--use-fused-kernel True", trains_alike, "--positions learned --tied-head --norm rms --init gpt2"},
          {"--use-fused-kernel True", trains_alike, "--preset classic --dropout 0 --loss answer --precision bf16"},
          {"--use-fused-kernel True", trains_alike, "--precision fp16"},
          {"--loss all", says("least possible"), "--loss answer"},
          {"--activation-checkpointing selective", saves_memory, deep},
          {"--activation-checkpointing full", saves_memory, deep + " --activation-checkpointing selective"},
          {"--threads 3", says("on 3 CPU threads")},
      },
      {
          {"--layer 3", "there is no option --layer; did you mean --layers?"},
          {"--layers 0", "--layers: expected a whole number from 1 to 1024 but got 0"},
          {"--heads 3", "--heads: expected a divisor of the width 16 but got 3"},
          {"--width 17 --heads 17", "--positions: rotary ones turn pairs"},
          {"--mlp -1", "--mlp: "},
          {"--mixer perceiver",
           "--mixer: expected attention, window, conv, h3, hyena, rwkv4, rwkv7, mamba, mamba2, based, linear, retnet, gla, deltanet, "
           "gated-deltanet but got perceiver"},
          {"--mixer gla,", "--mixer: expected attention, window"},
          {"--mixer gla --causal False", "--mixer: expected attention with causal False but got gla"},
          {"--window 0", "--window: expected a whole number from 1 to 100000 but got 0"},
          {"--norm batch", "--norm: expected layer, rms, none but got batch"},
          {"--positions sine", "--positions: expected learned, rotary, none but got sine"},
          {"--causal perhaps", "--causal: expected True or False but got perhaps"},
          {"--loss answers", "--loss: expected all, answer but got answers; did you mean answer?"},
          {"--task copy", "--task: expected recall, mqar but got copy"},
          {"--preset fast", "--preset: expected quick, classic, mqar but got fast"},
          {"--patience -1", "--patience: expected a whole number from 0 to 1000000 but got -1"},
          {"--target 1.5", "--target: expected a number from 0 to 1 but got 1.5"},
          {"--gain -1", "--gain: expected a number from 0 to 1 but got -1"},
          {"--lr nan", "--lr: "},
          {"--dropout 1", "--dropout: "},
          {"--test-examples 0", "--test-examples: "},
          {"--length 64", "--length: expected --task mqar, which alone has it, but got recall"},
          {"--harder", "--harder: expected --task mqar, which alone has it, but got recall"},
          {"--task mqar", "--keys: expected --task recall, which alone has it, but got mqar"},
          {"--pairs 1 --keys 1 --values 2", "give too few"},
          {"--precision tf32", "--precision tf32: "},
          {"--precision tf32x3", "--precision tf32x3: "},
          {"--width 65536 --layers 1024", "GB to train and this machine has"},
          {"--out \"\"", "--out: "},
          {"--out /proc/none", "/proc/none: the directory could not be made"},
          {"--device cuda", "--device cuda: "},
          {"--gradient-sync none", "--gradient-sync: expected"},
          {"--bucket-size-mb 0", "--bucket-size-mb: expected"},
          {"--rank-timeout 0", "--rank-timeout: expected"},
          {"--profile 0", "--profile: "},
      }};
  return table;
}

const std::vector<FlagTable>& tern::programs::test::recall_tables() {
  static const std::vector<FlagTable> tables{
      {base,  // without the keys and values that mqar has not
       {{mqar, trains_mqar()},
        {"--length 20", trains_mqar([](recall::Task& task) { task.length = 20; }), mqar},
        {"--vocab 40", trains_mqar([](recall::Task& task) { task.vocab = 40; }), mqar},
        {"--harder", trains_mqar([](recall::Task& task) { task.harder = true; }), mqar}},
       {{"--task mqar --pairs 17 --length 64", "--pairs: expected at most a quarter of the length 64 but got 17"},
        {"--task mqar --vocab 8 --pairs 4 --length 64", "--pairs: expected at most 3 keys"},
        {"--task mqar --harder --length 64 --vocab 32 --pairs 4",
         "--pairs: expected at most 15 keys, half the vocabulary, but got 16 in the"},
        {"--task mqar --harder --length 12 --pairs 3", "--length: expected 16 or more with harder but got 12"},
        {"--task mqar --loss all", "--loss: mqar asks for answers alone"}}},
      {{program,
        "train --out OUT/run --device cpu --threads 1 --width 8 --layers 1 --heads 1 --train-examples 64 --valid-examples 5 "
        "--test-examples 5 --epochs 2"},
       {{"--preset quick", rates(0.002 / 100, {1, 2, 3, 4})},
        {"--preset classic", rates(5e-4, {1, 1, 0.5, 0.5})},
        {"--preset mqar", rates(0.001 / 200, {1, 2, 3, 4})}},
       {}},
      {{program, "sweep --out OUT/sweep --device cpu"},
       {},
       {{"--layers 1,x", "--layers: expected a whole number from 1 to 1024 but got x"},
        {"--layers 1,", "--layers: expected a whole number from 1 to 1024 but got \"\""},
        {"--lengths 64", "--lengths: expected --task mqar"},
        {"--widths 64,65", "--heads: expected a divisor of the width 65"},
        {"--seed 1", "did you mean --seeds?"},
        {"--lr 1", "did you mean --lrs?"},
        {"--lrs 0.1,0", "--lrs: expected a number from 1e-12"},
        {"--task mqar --lengths 64,128 --pairs 4,8,16", "--pairs: expected one for each of 2 lengths, or one for all, but got 3"},
        {"--task mqar --lengths 64 --pairs 17", "--pairs: expected at most a quarter of the length 64 but got 17"},
        {"--jobs 0", "--jobs: expected a whole number from 1"},
        {"--mixer gla --mixer perceiver", "--mixer: expected attention, window"},
        {"--mixer all --causal False", "--mixer: expected attention with causal False but got window"},
        {"--patience x", "--patience: "},
        {"--out --seeds 1", "--out: expected a value but got --seeds"},
        {"--out /proc/none", "/proc/none: the directory could not be made"},
        {"--device cuda", "--device cuda: "}}},
      {{program, "hardcoded --device cpu --vocab 10 --length 12 --examples 7"},
       {{"--vocab 12", says("V  12  N    12  width    36")},
        {"--length 14", says("V  10  N    14  width    34")},
        {"--examples 9", says("in 9 examples")},
        {"--seed 4", [](const Ran& changed, const Ran& plain) { CHECK(changed.result.out != plain.result.out); }},
        {"--out OUT/maps", [](const Ran& changed, const Ran&) { CHECK(fs::exists(changed.directory / "maps/v10-n12-layer1.svg")); }}},
       {{"--out /proc/none", "--out: /proc/none could not be made"},
        {"--length 13", "--length: expected an even number"},
        {"--vocab 2", "--vocab: expected a whole number from 3"},
        {"--device cuda", "--device cuda: "}}}};
  return tables;
}

TEST_CASE("tern-recall train: each flag shows as its row says") { check_flags(recall_train()); }

TEST_CASE("tern-recall: each flag of multi-query recall and each preset shows as its row says") {
  for (const FlagTable& table : recall_tables()) check_flags(table);
}

TEST_CASE("tern-recall: a wrong value is refused before anything is written") {
  check_refusals(training, recall_train().refusals);
  for (const FlagTable& table : recall_tables()) check_refusals(table.command, table.refusals);
}
