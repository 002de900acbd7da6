// tern-recall: what it writes, and that it repeats itself.
#include "support.h"

using namespace tern::programs::test;

namespace {

/// The arguments of a training that takes a moment; later ones override them.
Arguments small(const fs::path& out, const Arguments& more = {}) {
  return with(words_of("train --out " + out.string() +
                       " --threads 1 --pairs 6 --train-examples 64 --valid-examples 20 --test-examples 50 --layers 2 --width 16 --heads 2 "
                       "--epochs 2 --batch-size 24"),
              more);
}

}  // namespace

TEST_CASE("A table that is no sweep's is refused") {
  const TempDirectory directory;
  const std::string csv = (directory / "sweep.csv").string();
  spill(csv, "task,width\nrecall,64\n");
  check_refused(run(recall, {"plot", csv}), "expected the columns of tern-recall sweep", "tern-recall");
  spill(csv, "");
  check_refused(run(recall, {"plot", csv}), "expected at least one run", "tern-recall");
}

TEST_CASE("A recall training writes its files, the same for a seed") {
  const TempDirectory directory;
  for (const char* name : {"a", "b"}) {
    const Result result = done(run(recall, small(directory / name, {"--device", "cpu"})));
    CHECK(contains(result.out, "test accuracy "));
    CHECK(contains(result.out, "95% confidence"));
    CHECK(contains(result.out, "=>"));
  }
  std::vector<std::string> names;
  for (const auto& [name, content] : contents(directory / "a"))
    if (!name.starts_with("checkpoints/update-")) names.push_back(name);
  CHECK(fs::exists(directory / "a" / "checkpoints"));
  CHECK(names ==
        std::vector<std::string>{"config.json", "curves.svg", "events.out.tfevents", "log.jsonl", "model.safetensors", "summary.json"});
  CHECK(slurp(directory / "a" / "model.safetensors") == slurp(directory / "b" / "model.safetensors"));
  CHECK(log_of(directory / "a") == log_of(directory / "b"));

  const Json config = json_of(directory / "a" / "config.json"), summary = json_of(directory / "a" / "summary.json");
  CHECK(config["preset"] == "quick");
  CHECK(config["task"] == "recall");
  CHECK(config["width"] == 16);
  CHECK(config["causal"] == true);
  CHECK(summary["epochs"] == 2);
  CHECK(summary["updates"] == 6);
  CHECK(summary["test_answers"] == 50);
  CHECK(summary["test_accuracy_low"] <= summary["test_accuracy"]);
  CHECK(summary["test_accuracy"] <= summary["test_accuracy_high"]);
  const Json parts = summary["test_loss_by_target"];
  for (const char* name : {"key", "new_value", "known_value", "arrow", "question", "answer"}) CHECK(parts[name] > 0);
  CHECK(parts["all"].get<double>() == Approx(summary["test_loss"].get<double>()).epsilon(1e-5));
  CHECK(parts["all"] > summary["least_loss"]);
}

TEST_CASE("Two layers learn a small recall task in a second") {
  const TempDirectory directory;
  const Result result =
      done(run(recall, small(directory / "run", words_of("--pairs 12 --keys 4 --values 5 --width 32 --heads 1 --device cpu "
                                                         "--train-examples 4000 --valid-examples 300 --test-examples 1000 "
                                                         "--batch-size 32 --lr 0.004 --epochs 10 --target 0.99"))));
  const Json summary = json_of(directory / "run" / "summary.json");
  CHECK(summary["test_accuracy"] >= 0.98);
  CHECK(summary["epochs"] < 10);
  CHECK(summary["epoch_of_90_percent"] <= summary["epochs"]);
  CHECK(summary["seconds_to_90_percent"] <= summary["train_seconds"]);
  CHECK(contains(result.out, "90% were passed in epoch "));
}

TEST_CASE("A sweep writes a row a run, and a picture") {
  const TempDirectory directory;
  const fs::path out = directory / "sweep";
  done(run(recall, words_of("sweep --out " + out.string() +
                            " --layers 1,2 --seeds 1,2 --widths 16 --threads 1 --pairs 4 --train-examples 32 "
                            "--valid-examples 10 --test-examples 10 --epochs 1")));
  const std::string table = slurp(out / "sweep.csv");
  CHECK(std::count(table.begin(), table.end(), '\n') == 5);
  CHECK(contains(table, "task,layers,width,mlp,length,pairs,seed,params,accuracy,low,high,answers"));
  CHECK(contains(table, "\nrecall,2,16,2,10,4,2,"));
  const std::string picture = slurp(out / "recall.svg");
  CHECK(contains(picture, "<svg xmlns"));
  CHECK_FALSE(fs::exists(out / "recall-states.svg"));
  CHECK(contains(picture, "accuracy of the answer"));
  CHECK(!fs::exists(out / "mqar.svg"));

  // Tables of several sweeps become one picture each task, and what they say together is printed.
  const std::string head = table.substr(0, table.find(",mixer,lr,state,")) + "\n";
  const std::string rest = ",50,1,1,1,1,1,";  // answers, losses, epochs, updates, seconds
  spill(directory / "one.csv",
        head + "recall,1,64,2,102,50,1,9,0.27,0.26,0.28" + rest + "0,0\n" + "recall,2,64,2,102,50,1,9,0.95,0.9,1" + rest + "1,1\n");
  spill(directory / "two.csv", head + "recall,2,64,2,102,50,2,9,0.85,0.8,0.9" + rest + "0,0\n" + "recall,3,64,2,102,50,1,9,0.99,0.98,1" +
                                   rest + "1,1\n" + "mqar,2,64,2,64,4,1,9,1,0.9,1" + rest + "1,1\n");
  const Result both = done(run(recall, {"plot", (directory / "one.csv").string(), (directory / "two.csv").string()}));
  CHECK(contains(both.out, "width 64, MLP of 128, 50 pairs, by layers:"));
  CHECK(contains(both.out, "1: 27.00% (26.00 to 28.00)  2: 90.00% (85.00 to 95.00)  3: 99.00%"));
  CHECK(contains(both.out, "the fewest layers that reach 90% with every seed: 3"));
  CHECK(contains(both.out, "N 64, 4 pairs, 2 layers, by width:  64: 100.00%"));
  CHECK(fs::exists(directory / "mqar.svg"));
}

TEST_CASE("Two layers with weights set by hand recall everything") {
  const TempDirectory directory;
  for (const auto& [vocab, length] : {std::pair{"10", "12"}, {"20", "102"}, {"50", "12"}, {"20", "1002"}}) {
    Arguments arguments{"hardcoded", "--vocab", vocab, "--length", length, "--threads", "1", "--device", "cpu"};
    if (std::string(length) == "1002") arguments.insert(arguments.end(), {"--examples", "2"});
    const Result result = run(recall, arguments);
    INFO(result.out << result.err);
    CHECK(result.code == 0);
    CHECK(contains(result.out, ": 100.00%"));
    CHECK(!contains(result.out, "failed"));
  }
  const Arguments drawn{"hardcoded", "--vocab", "10", "--length", "12", "--out", (directory / "maps").string()};
  REQUIRE(run(recall, drawn).code == 0);
  const std::string picture = slurp(directory / "maps" / "v10-n12-layer2.svg");
  for (const char* part : {">Q<", ">K<", ">scores<", ">probabilities<", "12 x 32", ">k0<", ">=&gt;<", ">P<", ">T<", ">C<"})
    CHECK(contains(picture, part));
}
