// Every option of tern-recall does what it says: each case fails where its option is ignored. A training's losses, scores and weights are
// held against those of a training that is written out here. every_flag_test.cpp reads the names of the cases.
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

/// A training as the options of `arguments()` have it; a case changes what its option is to change.
struct Setting {
  ReferenceOptimizer optimizer{.lr = 0.01, .beta2 = 0.98, .eps = 1e-8, .weight_decay = 0.01};
  recall::Task task{.pairs = 5, .keys = 6, .values = 7};
  nn::DecoderLMOptions model{
      .width = 16, .layers = 1, .heads = 2, .ff = 32, .dropout = 0, .positions = nn::Positions::rotary, .head_bias = false};
  std::uint64_t seed = 2;
  std::int64_t train = 48, valid = 20, test = 30;
  bool causal = true, answers_alone = false;
  std::size_t batch_size = 24;
  std::uint64_t epochs = 2;
};

Arguments arguments(const fs::path& out, const Arguments& more) {
  Arguments result{"train", "--out", out.string()};
  std::istringstream words(
      "--device cpu --threads 1 --precision fp32 --use-fused-kernel False --preset quick --pairs 5 --train-examples 48 --valid-examples 20 "
      "--test-examples 30 --layers 1 --width 16 --heads 2 --epochs 2 --batch-size 24 --lr 0.01 --schedule constant --warmup 0 --clip 0 "
      "--seed 2");
  for (std::string word; words >> word;) result.push_back(word);
  const auto has = [&](const char* flag) { return std::find(more.begin(), more.end(), flag) != more.end(); };
  if (!has("mqar"))
    for (const char* word : {"--keys", "6", "--values", "7"}) result.push_back(word);
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

class Reference {
 public:
  explicit Reference(const Setting& setting)
      : data(recall::make_data_set(setting.task, setting.seed, setting.train, setting.valid, setting.test)), setting_(setting) {
    setting_.model.vocab = setting.task.ids();
    setting_.model.length = setting.task.columns();
    manual_seed(setting.seed);
    model = nn::DecoderLM(setting_.model);
  }

  /// The loss of each update; the model is trained.
  std::vector<double> train() {
    ReferenceAdam adam(model, setting_.optimizer);
    std::vector<double> losses;
    std::optional<std::pair<double, double>> best;
    nn::DecoderLM kept;
    for (std::uint64_t epoch = 0; epoch < setting_.epochs; ++epoch) {
      for (const auto& picks :
           text::fixed_batches(text::epoch_order(std::size_t(setting_.train), setting_.seed, epoch), setting_.batch_size))
        losses.push_back(adam.update(loss(data.train, picks)));
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
    return right / static_cast<double>(examples.count * examples.answers);
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

  Setting setting_;
  PlainKernels kernels_;  ///< as arguments() have it
};

/// A run of the program, and what it said.
struct Run {
  TempDirectory directory;
  fs::path path = directory / "run";
  Result result;

  explicit Run(const Arguments& more = {}) : result(run(program, arguments(path, more))) {
    INFO(result.err);
    REQUIRE(result.code == 0);
  }
};

/// Trains with the options, and checks every loss, score and weight against the setting's. The plain setting leads elsewhere, so that an
/// option without effect shows.
void check_training(const Arguments& options, const Setting& setting) {
  static const Run plain;
  const Run run(options);
  Reference reference(setting);
  check_equal(logged(run.path, "loss"), reference.train(), 2e-5);
  const Json summary = summary_of(run.path);
  check_equal({logged(run.path, "valid_loss").back(), summary["test_loss"]}, {reference.valid_loss, reference.loss(reference.data.test)},
              1e-4);
  check_equal({logged(run.path, "valid_accuracy").back(), summary["test_accuracy"]},
              {reference.valid_accuracy, reference.accuracy(reference.data.test)});
  CHECK(summary["test_answers"] == setting.test * setting.task.answers());
  CHECK(distance(weights_of(run.path), weights_of(reference.model)) < 2e-5);
  if (!options.empty()) CHECK(logged(run.path, "loss") != logged(plain.path, "loss"));
}

using Change = std::function<void(Setting&)>;
void check_training(const std::vector<std::pair<Arguments, Change>>& cases) {
  for (const auto& [options, change] : cases) {
    INFO(options[0] << " " << options[1]);
    Setting setting;
    change(setting);
    check_training(options, setting);
  }
}

}  // namespace

TEST_CASE("A training of recall is the one that is written out here") { check_training(Arguments{}, Setting{}); }

TEST_CASE("tern-recall train --pairs --keys --values --train-examples --seed --batch-size --epochs (the data and their order)") {
  check_training({{{"--pairs", "7"}, [](Setting& s) { s.task.pairs = 7; }},
                  {{"--keys", "4"}, [](Setting& s) { s.task.keys = 4; }},
                  {{"--values", "5"}, [](Setting& s) { s.task.values = 5; }},
                  {{"--train-examples", "30"}, [](Setting& s) { s.train = 30; }},
                  {{"--seed", "5"}, [](Setting& s) { s.seed = 5; }},
                  {{"--batch-size", "16"}, [](Setting& s) { s.batch_size = 16; }},
                  {{"--epochs", "3"}, [](Setting& s) { s.epochs = 3; }}});
}

TEST_CASE("tern-recall train --valid-examples --test-examples (what is measured)") {
  Reference reference(Setting{.valid = 33, .test = 41});
  const std::vector<double> losses = reference.train();
  const Run run({"--valid-examples", "33", "--test-examples", "41"});
  check_equal(logged(run.path, "loss"), losses, 2e-5);
  const double of_33 = logged(run.path, "valid_accuracy").back() * 33;
  CHECK(of_33 == Approx(std::round(of_33)).margin(1e-6));
  CHECK(logged(run.path, "valid_loss").back() == Approx(reference.loss(reference.data.valid)).epsilon(1e-4));
  CHECK(summary_of(run.path)["test_answers"] == 41);
  CHECK(summary_of(run.path)["test_loss"].get<double>() == Approx(reference.loss(reference.data.test)).epsilon(1e-4));
}

TEST_CASE("tern-recall train --layers --width --heads --mlp --norm --positions --tied-head --init (the model)") {
  check_training({{{"--layers", "2"}, [](Setting& s) { s.model.layers = 2; }},
                  {{"--width", "24"}, [](Setting& s) { s.model.width = 24, s.model.ff = 48; }},
                  {{"--heads", "4"}, [](Setting& s) { s.model.heads = 4; }},
                  {{"--mlp", "3"}, [](Setting& s) { s.model.ff = 48; }},
                  {{"--mlp", "0"}, [](Setting& s) { s.model.ff = 0; }},
                  {{"--norm", "rms"}, [](Setting& s) { s.model.norm = nn::NormKind::rms; }},
                  {{"--norm", "none"}, [](Setting& s) { s.model.norm = nn::NormKind::none; }},
                  {{"--positions", "learned"}, [](Setting& s) { s.model.positions = nn::Positions::learned; }},
                  {{"--positions", "none"}, [](Setting& s) { s.model.positions = nn::Positions::none; }},
                  {{"--tied-head", "True"}, [](Setting& s) { s.model.tied_head = true; }},
                  {{"--init", "gpt2"}, [](Setting& s) { s.model.initialization = nn::Initialization::gpt2; }}});
}

TEST_CASE("tern-recall train --causal (a token sees what follows it, or does not)") {
  check_training({{{"--causal", "False"}, [](Setting& s) { s.causal = false; }}});
}

TEST_CASE("tern-recall train --loss (over all tokens, or the answer alone)") {
  check_training({{{"--loss", "answer"}, [](Setting& s) { s.answers_alone = true; }}});
}

TEST_CASE("tern-recall train --lr --beta2 --weight-decay --clip (the optimizer)") {
  check_training({{{"--lr", "0.02"}, [](Setting& s) { s.optimizer.lr = 0.02; }},
                  {{"--beta2", "0.5"}, [](Setting& s) { s.optimizer.beta2 = 0.5; }},
                  {{"--weight-decay", "5"}, [](Setting& s) { s.optimizer.weight_decay = 5; }}});
  // Adam's steps have the gradient's size in them where that changes from update to update: a bound makes all of one size.
  check_training({{{"--clip", "0.01"}, [](Setting& s) { s.optimizer.clip = 0.01; }}});
}

TEST_CASE("tern-recall train --schedule --warmup (the rates of the updates)") {
  const auto check_rates = [](const Arguments& options, const std::vector<double>& factors) {
    INFO(options[1]);
    std::vector<double> rates;
    for (double factor : factors) rates.push_back(0.01 * factor);
    check_equal(logged(Run(options).path, "lr"), rates, 1e-12);
  };
  const auto check = [&](const Arguments& options, const std::vector<double>& factors) {
    INFO(options[1]);
    Setting setting;
    setting.optimizer.factor = [&](int update) { return factors[std::size_t(update - 1)]; };
    check_training(options, setting);
    check_rates(options, factors);
  };
  const double third = 0.5 * (1 + std::cos(std::acos(-1.0) / 4));
  check({"--schedule", "cosine"}, {third, 0.5, 1 - third, 0});
  check({"--schedule", "cosine-epoch"}, {1, 1, 0.5, 0.5});
  check({"--warmup", "5"}, {0.2, 0.4, 0.6, 0.8});
  check_rates({"--schedule", "linear"}, {0.75, 0.5, 0.25, 0});
  check_rates({"--schedule", "wsd", "--warmup", "2"}, {0.5, 1, 1, 0});
  check_rates({"--schedule", "one-cycle", "--warmup", "2"}, {0.52, 1, 0.5 + 2e-6, 4e-6});
}

TEST_CASE("tern-recall train --task --length --vocab (multi-query recall)") {
  const Arguments mqar{"--task", "mqar", "--preset", "mqar", "--pairs", "3", "--length", "16", "--vocab", "32"};
  Setting setting;
  setting.task = {.is_mqar = true, .pairs = 3, .length = 16, .vocab = 32};
  setting.answers_alone = true;
  setting.optimizer.beta2 = 0.999;
  setting.optimizer.weight_decay = 0.1;
  setting.model.ff = 0;
  setting.model.tied_head = true;
  check_training(mqar, setting);
  for (const auto& [flag, value] : std::vector<std::pair<const char*, const char*>>{{"--length", "20"}, {"--vocab", "40"}}) {
    INFO(flag);
    Arguments options = mqar;
    options.insert(options.end(), {flag, value});
    Setting changed = setting;
    (std::string(flag) == "--length" ? changed.task.length : changed.task.vocab) = std::stoll(value);
    check_training(options, changed);
  }
}

TEST_CASE("tern-recall train --preset (where values come from that are not given)") {
  const TempDirectory directory;
  const auto rates = [&](const char* preset) {
    const fs::path out = directory / preset;
    Arguments all{"train", "--out", out.string(), "--preset", preset};
    std::istringstream words(
        "--device cpu --threads 1 --width 8 --layers 1 --heads 1 --train-examples 64 --valid-examples 5 --test-examples 5 --epochs 2");
    for (std::string word; words >> word;) all.push_back(word);
    REQUIRE(run(program, all).code == 0);
    return logged(out, "lr");
  };
  check_equal(rates("quick"), {0.002 / 100, 0.002 * 2 / 100, 0.002 * 3 / 100, 0.002 * 4 / 100}, 1e-12);
  check_equal(rates("classic"), {5e-4, 5e-4, 2.5e-4, 2.5e-4}, 1e-12);
  check_equal(rates("mqar"), {0.001 / 200, 0.001 * 2 / 200, 0.001 * 3 / 200, 0.001 * 4 / 200}, 1e-12);
}

TEST_CASE("tern-recall train --dropout --branch-dropout (in training, and in training alone)") {
  const Run without({"--lr", "1e-12"});  // the weights stay where they begin
  for (const char* flag : {"--dropout", "--branch-dropout"}) {
    INFO(flag);
    const Run with({"--lr", "1e-12", flag, "0.5"});
    const std::vector<double> plain = logged(without.path, "loss"), dropped = logged(with.path, "loss");
    REQUIRE(dropped.size() == plain.size());
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(std::abs(dropped[i] - plain[i]) > 1e-4);
    check_equal(logged(with.path, "valid_loss"), logged(without.path, "valid_loss"));
  }
  // They act in different places: with both, there is more of it than with one.
  CHECK(logged(Run({"--dropout", "0.5"}).path, "loss") != logged(Run({"--branch-dropout", "0.5"}).path, "loss"));
}

TEST_CASE("tern-recall train --target (training stops there)") {
  const Run run({"--target", "0.02", "--epochs", "30"}), whole({"--epochs", "30", "--target", "0"});
  CHECK(logged(whole.path, "epoch").size() == 30);
  const std::vector<double> reached = logged(run.path, "valid_accuracy");
  CHECK(reached.size() < 30);
  CHECK(reached.back() >= 0.02);
  for (std::size_t i = 0; i + 1 < reached.size(); ++i) CHECK(reached[i] < 0.02);
}

TEST_CASE("tern-recall train --precision (16 bits are coarser, by what they should be)") { check_precision<Run>(); }

TEST_CASE("tern-recall train --activation-checkpointing (the same weights from less memory)") {
  check_activation_checkpointing<Run>({"--layers", "4", "--branch-dropout", "0.2"});
}
TEST_CASE("tern-recall train --use-fused-kernel (other kernels round otherwise, and no more than that)") { check_fused_kernels<Run>(); }

TEST_CASE("tern-recall train --threads --device --out (on which processors, and where to)") {
  const Run run({"--threads", "3"});
  CHECK(contains(run.result.out, "on 3 CPU threads"));
  CHECK(fs::exists(run.path / "summary.json"));
  const fs::path out = run.directory / "gpu";
  const Result refused = shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", program, arguments(out, {"--device", "cuda"}));
  check_refused(refused, "--device cuda: ", "tern-recall");
  CHECK(!fs::exists(out));
}

namespace {

struct Sweep {
  TempDirectory directory;
  fs::path path = directory / "sweep";
  Result result;
  std::vector<std::map<std::string, std::string>> rows;  ///< of its table

  /// The arguments of a training, as far as a sweep takes them.
  explicit Sweep(const Arguments& more, const Arguments& lists = {"--layers", "1", "--seeds", "2", "--widths", "16"}) {
    Arguments all{"sweep", "--out", path.string()};
    all.insert(all.end(), lists.begin(), lists.end());
    const Arguments of_training = arguments(path, more);
    for (std::size_t i = 3; i < of_training.size(); i += 2)
      if (of_training[i] != "--layers" && of_training[i] != "--width" && of_training[i] != "--seed")
        all.insert(all.end(), {of_training[i], of_training[i + 1]});
    result = run(program, all);
    INFO(result.err);
    REQUIRE(result.code == 0);
    std::istringstream table(slurp(path / "sweep.csv"));
    std::vector<std::string> names;
    for (std::string line; std::getline(table, line);) {
      std::vector<std::string> cells;
      std::istringstream row(line);
      for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
      if (names.empty()) {
        names = cells;
        continue;
      }
      rows.emplace_back();
      for (std::size_t i = 0; i < names.size(); ++i) rows.back()[names[i]] = cells.at(i);
    }
  }
  std::vector<std::string> column(const char* name) const {
    std::vector<std::string> values;
    for (const auto& row : rows) values.push_back(row.at(name));
    return values;
  }
};

}  // namespace

TEST_CASE(
    "tern-recall sweep --task --preset --use-fused-kernel --precision --pairs --keys --values --vocab --train-examples --valid-examples "
    "--test-examples --heads --mlp --norm --positions --dropout --branch-dropout --tied-head --causal --init --loss --epochs --batch-size "
    "--lr --beta2 --weight-decay --schedule --warmup --clip --target (each run is train's with the same options)") {
  const std::vector<Arguments> changes = {{},
                                          {"--use-fused-kernel", "True"},
                                          {"--precision", "bf16"},
                                          {"--pairs", "6"},
                                          {"--keys", "5"},
                                          {"--values", "5"},
                                          {"--train-examples", "40"},
                                          {"--test-examples", "44"},
                                          {"--heads", "4"},
                                          {"--mlp", "1"},
                                          {"--norm", "rms"},
                                          {"--positions", "learned"},
                                          {"--dropout", "0.4"},
                                          {"--branch-dropout", "0.4"},
                                          {"--tied-head", "True"},
                                          {"--causal", "False"},
                                          {"--init", "gpt2"},
                                          {"--loss", "answer"},
                                          {"--epochs", "3"},
                                          {"--batch-size", "12"},
                                          {"--lr", "0.02"},
                                          {"--beta2", "0.5"},
                                          {"--weight-decay", "9"},
                                          {"--schedule", "cosine"},
                                          {"--warmup", "3"},
                                          {"--clip", "0.01"},
                                          {"--preset", "classic"},
                                          {"--target", "0.01", "--epochs", "9", "--valid-examples", "200"},
                                          {"--valid-examples", "1", "--target", "0.02", "--epochs", "9"},
                                          {"--task", "mqar", "--preset", "mqar", "--pairs", "3", "--vocab", "32"}};
  std::map<std::string, std::string> plain;
  for (const Arguments& change : changes) {
    INFO(fmt::format("{}", fmt::join(change, " ")));
    const bool is_mqar = !change.empty() && change[1] == "mqar";
    const Run train(change);
    const Sweep sweep(change, is_mqar ? Arguments{"--seeds", "2", "--widths", "16", "--layers", "1", "--lengths", "48"}
                                      : Arguments{"--layers", "1", "--seeds", "2", "--widths", "16"});
    REQUIRE(sweep.rows.size() == 1);
    const Json summary = summary_of(train.path);
    const auto& row = sweep.rows[0];
    if (change.empty()) plain = row;
    else if (change[0] == "--use-fused-kernel") CHECK(contains(sweep.result.out, "fused kernels"));  // six digits do not show more
    else CHECK(std::pair(row.at("train_loss"), row.at("test_loss")) != std::pair(plain.at("train_loss"), plain.at("test_loss")));
    CHECK(std::stoll(row.at("epochs")) == summary["epochs"]);
    if (is_mqar) continue;  // its length follows from a list
    CHECK(std::stod(row.at("train_loss")) == Approx(summary["train_loss"].get<double>()).epsilon(1e-5));
    CHECK(std::stod(row.at("test_loss")) == Approx(summary["test_loss"].get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("tern-recall sweep --layers --widths --seeds --lengths --out --threads --device (the runs of a grid)") {
  const Sweep sweep({"--threads", "3", "--epochs", "1"}, {"--layers", "1,2", "--widths", "8,16", "--seeds", "4,5"});
  CHECK(sweep.column("layers") == std::vector<std::string>{"1", "1", "1", "1", "2", "2", "2", "2"});
  CHECK(sweep.column("width") == std::vector<std::string>{"8", "8", "16", "16", "8", "8", "16", "16"});
  CHECK(sweep.column("seed") == std::vector<std::string>{"4", "5", "4", "5", "4", "5", "4", "5"});
  CHECK(contains(sweep.result.out, "on 3 CPU threads"));
  std::vector<std::string> params = sweep.column("params"), losses = sweep.column("test_loss");
  for (std::vector<std::string>* column : {&params, &losses}) {
    std::sort(column->begin(), column->end());
    column->erase(std::unique(column->begin(), column->end()), column->end());
  }
  CHECK(params.size() == 4);
  CHECK(losses.size() == 8);
  const Arguments mqar{"--task", "mqar", "--preset", "mqar", "--vocab", "32", "--epochs", "1", "--pairs", "1"};
  const Sweep lengths(mqar, {"--layers", "1", "--widths", "8", "--seeds", "1", "--lengths", "16,32"});
  CHECK(lengths.column("length") == std::vector<std::string>{"16", "32"});
  CHECK(lengths.column("pairs") == std::vector<std::string>{"1", "2"});
  const Result refused = shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", program,
                               {"sweep", "--out", (sweep.directory / "gpu").string(), "--device", "cuda"});
  check_refused(refused, "--device cuda: ", "tern-recall");
}

TEST_CASE("tern-recall plot --out (where the picture goes)") {
  const Sweep sweep({"--epochs", "1"});
  const fs::path csv = sweep.path / "sweep.csv", other = sweep.directory / "pictures";
  const std::string drawn = slurp(sweep.path / "recall.svg");
  fs::remove(sweep.path / "recall.svg");
  REQUIRE(run(program, {"plot", csv.string(), "--out", other.string()}).code == 0);
  CHECK(slurp(other / "recall.svg") == drawn);
  CHECK(!fs::exists(sweep.path / "recall.svg"));
  REQUIRE(run(program, {"plot", csv.string()}).code == 0);
  CHECK(slurp(sweep.path / "recall.svg") == drawn);
}

TEST_CASE("tern-recall hardcoded --vocab --length --examples --seed --out --device (sizes, examples and pictures)") {
  const TempDirectory directory;
  const auto said = [&](const Arguments& more) {
    Arguments all{"hardcoded", "--device", "cpu", "--vocab", "10", "--length", "12", "--examples", "7"};
    all.insert(all.end(), more.begin(), more.end());
    const Result result = run(program, all);
    INFO(result.err);
    CHECK(result.code == 0);
    return result.out;
  };
  const std::string plain = said({});
  CHECK(contains(plain, "V  10  N    12  width    32"));
  CHECK(contains(plain, "in 7 examples"));
  CHECK(contains(said({"--vocab", "12"}), "V  12  N    12  width    36"));
  CHECK(contains(said({"--length", "14"}), "V  10  N    14  width    34"));
  CHECK(contains(said({"--examples", "9"}), "in 9 examples"));
  CHECK(said({"--seed", "4"}) != plain);  // other examples repeat other numbers of keys
  said({"--out", (directory / "maps").string()});
  CHECK(fs::exists(directory / "maps" / "v10-n12-layer1.svg"));
  const Result refused = shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", program, {"hardcoded", "--device", "cuda"});
  check_refused(refused, "--device cuda: ", "tern-recall");
}
