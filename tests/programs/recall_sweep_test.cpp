// tern-recall sweep and plot: a sweep's runs are train's, with the options of recall_flags_test.cpp.
#include "flags.h"

using namespace tern::programs::test;

namespace {

/// The rows of a sweep's table.
std::vector<std::map<std::string, std::string>> rows_of(const Ran& sweep) {
  std::vector<std::map<std::string, std::string>> rows;
  std::istringstream table(slurp(sweep.directory / "sweep/sweep.csv"));
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
  return rows;
}

std::vector<std::string> column(const Ran& sweep, const char* name) {
  std::vector<std::string> values;
  for (const auto& row : rows_of(sweep)) values.push_back(row.at(name));
  return values;
}

/// The words of train as those of a sweep, which takes a list of rates.
std::string of_sweep(std::string words) {
  if (const std::size_t at = words.find("--lr "); at != std::string::npos) words.replace(at, 4, "--lrs");
  return words;
}

const Command& training() { return recall_train().command; }
/// Lists are those of the cases.
Command sweeping() { return {recall, "sweep --out OUT/sweep " + of_sweep(training().words.substr(training().words.find("--device")))}; }
Command sweep_of_mqar() { return {recall, sweeping().words.substr(0, sweeping().words.find("--keys"))}; }

}  // namespace

TEST_CASE(
    "tern-recall sweep --task --preset --use-fused-kernel --precision --pairs --keys --values --vocab --train-examples --valid-examples "
    "--test-examples --heads --mlp --mixer --window --norm --positions --dropout --branch-dropout --tied-head --causal --init --loss "
    "--epochs --batch-size "
    "--beta2 --weight-decay --schedule --warmup --clip --target --patience (each run is train's with the same options)") {
  const std::string lists = "--layers 1 --seeds 2 --widths 16 ";
  std::map<std::string, std::string> plain;
  for (const std::string change : {"",
                                   "--use-fused-kernel True",
                                   "--precision bf16",
                                   "--pairs 7",
                                   "--keys 4",
                                   "--values 5",
                                   "--train-examples 30",
                                   "--test-examples 41",
                                   "--heads 4",
                                   "--mlp 3",
                                   "--mixer gla",
                                   "--mixer window --window 2",
                                   "--norm rms",
                                   "--positions learned",
                                   "--dropout 0.4",
                                   "--branch-dropout 0.4",
                                   "--tied-head True",
                                   "--causal False",
                                   "--init gpt2",
                                   "--loss answer",
                                   "--epochs 3",
                                   "--batch-size 16",
                                   "--lr 0.02",
                                   "--beta2 0.5",
                                   "--weight-decay 5",
                                   "--schedule cosine",
                                   "--warmup 5",
                                   "--clip 0.01",
                                   "--preset classic",
                                   "--target 0.01 --epochs 9 --valid-examples 200",
                                   "--valid-examples 1 --target 0.02 --epochs 9",
                                   "--patience 1 --epochs 20 --lr 0.1"}) {
    INFO(change);
    const Ran& sweep = ran(sweeping(), lists + of_sweep(change));
    const Json summary = ran(training(), change).summary();
    REQUIRE(rows_of(sweep).size() == 1);
    const auto row = rows_of(sweep)[0];
    if (change.empty()) plain = row;
    else if (change[2] == 'u') CHECK(contains(sweep.result.out, "fused kernels"));  // six digits do not show more
    else CHECK(std::pair(row.at("train_loss"), row.at("test_loss")) != std::pair(plain.at("train_loss"), plain.at("test_loss")));
    CHECK(std::stoll(row.at("epochs")) == summary["epochs"]);
    CHECK(std::stod(row.at("train_loss")) == Approx(summary["train_loss"].get<double>()).epsilon(1e-5));
    CHECK(std::stod(row.at("test_loss")) == Approx(summary["test_loss"].get<double>()).epsilon(1e-5));
  }
  // The length of multi-query recall is of a list.
  const auto losses = [&](const char* vocab) {
    return column(ran(sweep_of_mqar(), lists + "--lengths 48 --task mqar --preset mqar --pairs 3 --vocab " + vocab), "test_loss");
  };
  CHECK(losses("32") != losses("40"));
  CHECK(losses("32")[0] != plain.at("test_loss"));
}

TEST_CASE("tern-recall sweep --layers --widths --seeds --lengths --out --threads --device (the runs of a grid)") {
  const Ran& sweep = ran(sweeping(), "--threads 3 --epochs 1 --layers 1,2 --widths 8,16 --seeds 4,5");
  CHECK(column(sweep, "layers") == std::vector<std::string>{"1", "1", "1", "1", "2", "2", "2", "2"});
  CHECK(column(sweep, "width") == std::vector<std::string>{"8", "8", "16", "16", "8", "8", "16", "16"});
  CHECK(column(sweep, "seed") == std::vector<std::string>{"4", "5", "4", "5", "4", "5", "4", "5"});
  CHECK(contains(sweep.result.out, "on 3 CPU threads"));
  const std::vector<std::string> params = column(sweep, "params"), losses = column(sweep, "test_loss");
  CHECK(std::set(params.begin(), params.end()).size() == 4);
  CHECK(std::set(losses.begin(), losses.end()).size() == 8);
  const Ran& lengths = ran(sweep_of_mqar(),
                           "--task mqar --preset mqar --vocab 32 --epochs 1 --pairs 1 --layers 1 --widths 8 --seeds 1 "
                           "--lengths 16,32");
  CHECK(column(lengths, "length") == std::vector<std::string>{"16", "32"});
  CHECK(column(lengths, "pairs") == std::vector<std::string>{"1", "2"});
}

TEST_CASE("tern-recall sweep --mixer --lrs (models of several mixers, each with rates until one is right)") {
  const std::string grid = "--task mqar --preset mqar --vocab 32 --epochs 1 --layers 2 --widths 8 --heads 1 --seeds 1 --lengths 16 ";
  const Ran& sweep = ran(sweep_of_mqar(), grid + "--lrs 0.01,0.02 --mixer gla --mixer conv,attention --target 0.9");
  CHECK(column(sweep, "mixer") == std::vector<std::string>{"gla", "gla", "conv+attention", "conv+attention"});
  CHECK(column(sweep, "lr") == std::vector<std::string>{"0.01", "0.02", "0.01", "0.02"});
  const std::vector<std::string> losses = column(sweep, "test_loss");
  CHECK(std::set(losses.begin(), losses.end()).size() == 4);
  // In f32: of two layers a state (8, 8); the last three tokens of a convolution of 4 taps, and keys and values of 16 tokens.
  CHECK(column(sweep, "state") == std::vector<std::string>{"512", "512", "1120", "1120"});
  const fs::path path = sweep.directory / "sweep";
  const std::string maps = slurp(path / "mqar.svg"), states = slurp(path / "mqar-states.svg");
  for (const char* text : {">gla<", ">conv+attention<", ">N 16, 1 pair<", ">8<"}) CHECK(contains(maps, text));
  CHECK(contains(states, "log2 of the state"));

  // A rate that reaches the target is the last.
  const Ran& solved = ran(sweep_of_mqar(), grid + "--lrs 0.01,0.02,0.03 --mixer gla --target 1e-9 --vocab 4");
  CHECK(column(solved, "lr").size() == 1);
  const std::vector<std::string> all = column(ran(sweep_of_mqar(), grid + "--mixer all"), "mixer");
  CHECK(all.size() == 15);
  CHECK(all.front() == "attention");
  CHECK(std::set(all.begin(), all.end()).size() == all.size());

  // Of the rates, the best is shown.
  std::string table = slurp(path / "sweep.csv");
  const fs::path csv = sweep.directory / "rates.csv";
  table.resize(table.find('\n') + 1);
  for (const char* row :
       {"0.25,0.2,0.3,9,1,1,1,1,1,0,0,gla,0.1,8", "0.75,0.7,0.8,9,1,1,1,1,1,0,0,gla,0.2,8", "0.5,0.4,0.6,9,1,1,1,1,1,0,0,gla,0.3,8"})
    table += std::string("mqar,2,8,0,16,1,1,9,") + row + "\n";
  spill(csv, table);
  CHECK(contains(done(run(recall, {"plot", csv.string()})).out, "8: 75.00% (70.00 to 80.00)"));
}

TEST_CASE("tern-recall plot --out (where the picture goes)") {
  const Ran& sweep = ran(sweeping(), "--layers 1 --seeds 2 --widths 16 ");
  const fs::path path = sweep.directory / "sweep", csv = path / "sweep.csv", other = sweep.directory / "pictures" / "deep";
  const std::string drawn = slurp(path / "recall.svg");
  fs::remove(path / "recall.svg");
  REQUIRE(run(recall, {"plot", csv.string(), "--out", other.string()}).code == 0);
  CHECK(slurp(other / "recall.svg") == drawn);
  CHECK(!fs::exists(path / "recall.svg"));
  REQUIRE(run(recall, {"plot", csv.string()}).code == 0);
  CHECK(slurp(path / "recall.svg") == drawn);
}
