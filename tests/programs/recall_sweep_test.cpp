// tern-recall sweep and plot: a sweep's runs are train's, with the options of recall_flags_test.cpp.
#include "flags.h"

using namespace tern::programs::test;

namespace {

/// The rows of a table.
std::vector<std::map<std::string, std::string>> rows_of(const fs::path& csv) {
  std::vector<std::map<std::string, std::string>> rows;
  std::istringstream table(slurp(csv));
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

std::vector<std::map<std::string, std::string>> rows_of(const Ran& sweep) { return rows_of(sweep.directory / "sweep/sweep.csv"); }

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
Command sweep_of_mqar() {
  std::string words = sweeping().words.substr(0, sweeping().words.find("--keys"));
  const std::string pairs = "--pairs 5 ";
  return {recall, words.erase(words.find(pairs), pairs.size())};
}

}  // namespace

TEST_CASE(
    "tern-recall sweep --task --preset --use-fused-kernel --compile --precision --pairs --keys --values --vocab --train-examples "
    "--valid-examples "
    "--test-examples --heads --mlp --mixer --window --norm --positions --dropout --branch-dropout --tied-head --causal --init --loss "
    "--epochs --batch-size "
    "--beta2 --weight-decay --schedule --warmup --clip --target --patience --gain (each run is train's with the same options)") {
  const std::string lists = "--layers 1 --seeds 2 --widths 16 ";
  std::map<std::string, std::string> plain;
  for (const std::string change : {"",
                                   "--use-fused-kernel True",
                                   "--compile",
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
                                   "--patience 1 --epochs 20 --lr 0.1",
                                   "--patience 3 --gain 0.5 --epochs 20"}) {
    INFO(change);
    const Ran& sweep = ran(sweeping(), lists + of_sweep(change));
    const Json summary = ran(training(), change).summary();
    REQUIRE(rows_of(sweep).size() == 1);
    const auto row = rows_of(sweep)[0];
    if (change.empty()) plain = row;
    else if (change == "--use-fused-kernel True") CHECK(contains(sweep.result.out, "fused kernels"));  // six digits do not show more
    else if (change == "--compile") CHECK(contains(sweep.result.out, "each step compiled"));
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
                           "--task mqar --preset mqar --vocab 32 --epochs 1 --layers 1 --widths 8 --seeds 1 "
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
  for (const char* row : {"0.25,0.2,0.3,9,1,1,1,1,1,0,0,gla,0.1,8,none,none", "0.75,0.7,0.8,9,1,1,1,1,1,0,0,gla,0.2,8,none,none",
                          "0.5,0.4,0.6,9,1,1,1,1,1,0,0,gla,0.3,8,none,none"})
    table += std::string("mqar,2,8,0,16,1,1,9,") + row + "\n";
  spill(csv, table);
  CHECK(contains(done(run(recall, {"plot", csv.string()})).out, "8: 75.00% (70.00 to 80.00)"));
}

TEST_CASE("tern-recall sweep --pairs (of each length, of all, or of recall)") {
  const std::string grid = "--epochs 1 --layers 1 --widths 8 --seeds 1 ", mqar = grid + "--task mqar --preset mqar --vocab 32 --heads 1 ";
  CHECK(column(ran(sweep_of_mqar(), mqar + "--lengths 16,32 --pairs 2,3"), "pairs") == std::vector<std::string>{"2", "3"});
  CHECK(column(ran(sweep_of_mqar(), mqar + "--lengths 16,32 --pairs 2"), "pairs") == std::vector<std::string>{"2", "2"});
  CHECK(column(ran(sweeping(), grid + "--pairs 3,4"), "length") == std::vector<std::string>{"8", "10"});
}

/// Four models. Of those that reach the target with their first rate, as the first does, there is no second run.
static const std::string several =
    "--task mqar --preset mqar --vocab 32 --train-examples 300 --layers 1 --heads 1 --seeds 1 --lengths 16,48 --widths 8 --mixer attention "
    "--mixer gla --lrs 0.03,1e-9 --target 0.2 --epochs 2 ";

TEST_CASE("tern-recall sweep --harder (accuracies on longer examples, in the table and the pictures)") {
  const std::string task = "--task mqar --preset mqar --vocab 64 --heads 1 --pairs 4 --harder ";
  const Ran& sweep = ran(sweep_of_mqar(), task + "--layers 1 --widths 16 --seeds 2 --lengths 16 --lrs 0.02 --mixer attention --mixer conv");
  const Command& train = recall_tables()[0].command;  // without keys and values
  const Json summary = ran(train, task + "--length 16 --lr 0.02").summary();
  CHECK(std::stod(column(sweep, "twice")[0]) == Approx(summary["test_accuracy_twice_as_long"].get<double>()).epsilon(1e-5));
  CHECK(std::stod(column(sweep, "four_times")[0]) == Approx(summary["test_accuracy_four_times_as_long"].get<double>()).epsilon(1e-5));
  CHECK(column(ran(sweep_of_mqar(), several), "twice")[0] == "none");
  for (const char* size : {"N 16, 4 pairs", "N 32, 8 pairs", "N 64, 16 pairs"}) {
    CHECK(contains(sweep.result.out, size));
    CHECK(contains(slurp(sweep.directory / "sweep/mqar.svg"), std::string(">") + size + "<"));
  }
  const fs::path csv = sweep.directory / "known.csv";
  std::string table = slurp(sweep.directory / "sweep/sweep.csv");
  table.resize(table.find('\n') + 1);
  for (const char* row : {"gla,0.1,8,0.5,0.25", "conv,0.1,8,none,none"})
    table += std::string("mqar,2,8,0,16,4,1,9,1,1,1,9,1,1,1,1,1,0,0,") + row + "\n";
  spill(csv, table);
  const std::string shown = done(run(recall, {"plot", csv.string()})).out;
  CHECK(contains(shown, fmt::format("\ngla {:>16}{:>16}{:>17}\n", "100.00", "50.00", "25.00")));
  CHECK(contains(shown, fmt::format("\nconv{:>16}{:>16}{:>17}\n", "100.00", "-", "-")));
  // The axis of states of 8 bytes begins at 3.
  CHECK(contains(slurp(sweep.directory / "mqar-states.svg"), ">3<"));
  CHECK_FALSE(contains(slurp(sweep.directory / "mqar-states.svg"), ">0<"));
}

/// A table without its times.
static std::string without_seconds(const fs::path& csv) {
  std::string text;
  for (const auto& row : rows_of(csv)) {
    for (const auto& [name, value] : row)
      if (!name.starts_with("seconds")) text += name + " " + value + ", ";
    text += "\n";
  }
  return text;
}

TEST_CASE("tern-recall sweep --jobs (models trained at once: the same table, in the same order)") {
  const Ran &one = ran(sweep_of_mqar(), several), &three = ran(sweep_of_mqar(), several + "--jobs 3");
  CHECK(rows_of(one).size() > 4);
  CHECK(rows_of(one).size() < 8);
  CHECK(without_seconds(three.directory / "sweep/sweep.csv") == without_seconds(one.directory / "sweep/sweep.csv"));
  for (const char* picture : {"sweep/mqar.svg", "sweep/mqar-states.svg"})
    CHECK(slurp(three.directory / picture) == slurp(one.directory / picture));
  CHECK(contains(three.result.out, "8 runs on 3 jobs, each on 1 CPU thread"));
  CHECK_FALSE(contains(one.result.out, "jobs"));
}

TEST_CASE("A sweep by several jobs goes on from what is there, in the order of its runs") {
  const Ran& whole = ran(sweep_of_mqar(), several);
  const fs::path part = whole.directory / "part";
  fs::create_directories(part);
  fs::copy_file(whole.directory / "sweep/sweep.json", part / "sweep.json");
  std::istringstream lines(slurp(whole.directory / "sweep/sweep.csv"));
  std::string head, third;
  std::getline(lines, head);
  for (int i = 0; i < 3; ++i) std::getline(lines, third);
  spill(part / "sweep.csv", head + "\n" + third + "\n");
  Arguments arguments = {"sweep", "--out", part.string()};
  std::istringstream words(sweep_of_mqar().words.substr(sweep_of_mqar().words.find("--device")) + several + "--jobs 2");
  for (std::string word; words >> word;) arguments.push_back(word);
  CHECK(contains(done(run(recall, arguments)).out, "; 1 are done"));
  CHECK(contains(slurp(part / "sweep.csv"), third));
  CHECK(without_seconds(part / "sweep.csv") == without_seconds(whole.directory / "sweep/sweep.csv"));
}

TEST_CASE("A sweep by several jobs ends with the first error") {
  // Of a rate that no float survives.
  Ran broken(sweep_of_mqar(), several + "--jobs 2 --lrs 1e12 --clip 0 --precision fp32");
  CHECK(broken.result.code == 1);
  CHECK(contains(broken.result.err, "stopped being finite"));
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

TEST_CASE("A sweep by several jobs on a GPU has the table of one", "[cuda]") {
  const std::string on_gpu = several + "--device cuda ";
  const Ran &one = ran(sweep_of_mqar(), on_gpu), &three = ran(sweep_of_mqar(), on_gpu + "--jobs 3");
  CHECK(without_seconds(three.directory / "sweep/sweep.csv") == without_seconds(one.directory / "sweep/sweep.csv"));
}
