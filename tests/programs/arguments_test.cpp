// The programs' command line. Every refusal comes before anything is read or written.
#include "flags.h"

using namespace tern::programs::test;

TEST_CASE("Help is given for every subcommand, with its presets' values") {
  for (const auto& [program, commands] : std::vector<std::pair<std::string, Arguments>>{
           {translate, {"train", "decode", "average", "quantise", "score"}},
           {bench, {"step", "loops", "memory", "ops", "attention", "mixers", "conv1d", "count", "comm", "accounting", "report"}},
           {recall, {"train", "sweep", "plot", "hardcoded"}}}) {
    const Result all = run(program, {"--help"});
    CHECK(all.code == 0);
    CHECK(all.err.empty());
    for (const std::string& command : commands) {
      CHECK(contains(all.out.substr(all.out.find("Subcommands:")), "\n  " + command + " "));
      const Result result = run(program, {command, "--help"});
      CHECK(result.code == 0);
      CHECK(result.err.empty());
    }
  }
  CHECK(contains(run(translate, {"train", "--help"}).out, "classic 128)"));
  CHECK(contains(run(recall, {"train", "--help"}).out, "quick 64, classic 256, mqar 64"));
}

TEST_CASE("A mistake in a command is one line, and leaves nothing behind") {
  const Command translator{translate, ""}, recaller{recall, ""}, bencher{bench, ""};
  check_refusals(translator, {{"", "expected a subcommand (train, decode, average, quantise, score,"},
                              {"trian", "got trian; did you mean train?"},
                              {"--bogus", "(tern-translate --help"},
                              {"train", "--data is required"},
                              {"train --dta x", "there is no option --dta; did you mean --data?"},
                              {"train --resume --out \"\"", "expected a "},
                              {"decode", "--model is required"},
                              {"decode --model \"\"", "expected a run directory's path but got an empty one"},
                              {"decode --model nope extra", "unexpected argument extra"},
                              {"decode --model nope --batch-size 0", "--batch-size: expected a whole number from 1 to 1000000 but got 0"},
                              {"decode --model nope --threads 0", "--threads: expected a whole number from 1"},
                              {"decode --model nope --device cuda", "--device cuda: "},
                              {"decode --model", "--model: expected a value"},
                              {"quantise runs/none --fromat q8_0", "did you mean --format?"},
                              {"score --hyp x", "--ref is required"},
                              {"score --hyp x --ref y --jsn", "did you mean --json?"}});
  check_refusals(recaller, {{"", "expected a subcommand (train, sweep, plot, hardcoded)"},
                            {"train", "--out is required"},
                            {"train --out", "--out: expected a value"},
                            {"hardcoded --vocab 10", "expected both or neither"},
                            {"plot OUT/sweep.csv", "could not be read"},
                            {"plot", "csv is required"}});
  check_refusals(bencher, {{"",
                            "expected a subcommand (step, compile, rules, loops, grade, memory, ops, attention, mixers, conv1d, count, "
                            "comm, accounting, report)"}});
}

TEST_CASE("Help that cannot be written is an error") {
  for (const char* what : {"--help", "--version", "step --help"}) {
    const Result result = shell(std::string("\"$0\" ") + what + " >/dev/full", bench);
    CHECK(result.code == 1);
    CHECK(result.err == "tern-bench: the output could not be written: No space left on device\n");
  }
}

TEST_CASE("Switches take a value, and the last of several counts") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  const auto config = [&](const Arguments& arguments) {
    done(run(translate, train(directory / "data", directory / "run", arguments)));
    return json_of(directory / "run" / "config.json");
  };
  CHECK(config({"--prefix-lm", "--use-fused-kernel", "False"})["prefix_lm"] == true);
  CHECK(config({"--prefix-lm", "no", "--use-fused-kernel=false"})["prefix_lm"] == false);
  CHECK(config({"--updates", "1", "--updates", "2"})["updates"] == 2);
  const Json classic = config({"--preset", "classic", "--batch-size", "16", "--width", "16", "--layers", "1", "--device", "cpu"});
  CHECK(classic["preset"] == "classic");
  CHECK(classic["batch_size"] == 16);
  CHECK(classic["samples"] == 20000);
  CHECK(classic["use_fused_kernel"] == true);
  CHECK(config({"--use-fused-kernel", "no"})["use_fused_kernel"] == false);
}
