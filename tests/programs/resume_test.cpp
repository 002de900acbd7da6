// Trainings that go on from a checkpoint are bitwise those that were never ended, and a checkpoint that is not right is refused.
#include "support.h"

using namespace tern;
using namespace tern::programs::test;

namespace {

/// A tiny training of a program, with all that has a state: dropout, and the loss scale of fp16.
struct Program {
  std::string path, name, measure;
  std::function<Arguments(const fs::path& data, const fs::path& out)> train;
};

const Program trainers[] = {
    {translate, "tern-translate", "valid_loss",
     [](const fs::path& data, const fs::path& out) {
       return train(data, out,
                    words_of("--preset quick --device cpu --dropout 0.1 --batch-size 16 --epochs 100 --schedule constant --lr 0.01"));
     }},
    {recall, "tern-recall", "valid_accuracy",
     [](const fs::path&, const fs::path& out) {
       return words_of("train --out " + out.string() +
                       " --preset quick --device cpu --threads 1 --pairs 4 --train-examples 64 --valid-examples 10 --test-examples 10 "
                       "--batch-size 16 --width 16 --layers 1 --dropout 0.1 --schedule constant --lr 0.01");
     }},
    {lm, "tern-lm", "valid_loss", [](const fs::path& data, const fs::path& out) {
       const fs::path tokens = data.parent_path() / "tokens";
       if (!fs::exists(tokens)) write_tokens(data, tokens);
       return words_of("train --data " + tokens.string() + " --out " + out.string() +
                       " --preset tiny --device cpu --threads 1 --batch-size 4 --width 16 --layers 1 --heads 2 --length 8 --dropout 0.1 "
                       "--warmup 0 --schedule constant --lr 0.01 --valid-every 4");
     }}};

Arguments resume(const fs::path& out, const Arguments& more = {}) {
  return with({"train", "--resume", "--out", out.string(), "--device", "cpu", "--threads", "1"}, more);
}

void check_same(const fs::path& a, const fs::path& b) {
  for (const char* file : {"model.safetensors", "config.json"}) {
    INFO(file);
    CHECK(slurp(a / file) == slurp(b / file));
  }
  CHECK(log_of(a) == log_of(b));
  Json summaries[] = {json_of(a / "summary.json"), json_of(b / "summary.json")};
  for (Json& summary : summaries)
    for (const char* key :
         {"data_seconds", "train_seconds", "total_seconds", "tokens_per_second", "examples_per_second", "seconds_to_90_percent"})
      summary.erase(key);
  CHECK(summaries[0] == summaries[1]);
}

std::vector<std::string> checkpoints_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code gone;  // a training moves its directory when it has a first model
  for (fs::directory_iterator entry(directory, gone), end; !gone && entry != end; entry.increment(gone))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// A corpus, the program's training of 13 updates, four an epoch, and one that was to have 6.
struct Runs {
  const Program& program;
  const TempDirectory directory;
  const fs::path data = directory / "data", whole = directory / "whole", part = directory / "part";
  const Arguments end;  ///< of the training of 13 updates; recall's is one of 12

  explicit Runs(const Program& of, const Arguments& more = {})
      : program(of), end(of.path == recall ? Arguments{"--epochs", "3"} : Arguments{"--updates", "13"}) {
    write_corpus(data, 64);
    done(run(program.path, with(with(program.train(data, whole), more), end)));
    done(run(program.path, with(with(program.train(data, part), more),
                                program.path == recall ? Arguments{"--epochs", "1"} : Arguments{"--updates", "6"})));
  }
  Result go_on(const Arguments& more = {}) const { return run(program.path, resume(part, with(more, end))); }
};

void check_resumes(const Program& program, const Arguments& device = {}) {
  for (const char* precision : {"fp32", "fp16"}) {
    INFO(precision);
    const Runs runs(program, with({"--precision", precision}, device));
    const Result result = done(runs.go_on(device));
    CHECK(contains(result.out, "resumed  from update "));
    CHECK(contains(result.out, " s since --resume; the run is in "));
    check_same(runs.whole, runs.part);
    done(runs.go_on(device));  // one that is done gives what it gave
    check_same(runs.whole, runs.part);
  }
}

/// Killed wherever that is, with a schedule that ends with the training.
void check_killed(const Program& program, const Arguments& end) {
  const TempDirectory directory;
  const fs::path data = directory / "data", whole = directory / "whole", part = directory / "part";
  write_corpus(data, 64);
  const Arguments all = with({"--schedule", "cosine", "--checkpoint-every", "3", "--keep", "2"}, end);
  done(run(program.path, with(program.train(data, whole), all)));
  for (const int signal : {SIGKILL, SIGTERM}) {
    INFO(signal);
    fs::remove_all(part);
    const pid_t child = start(program.path, with(program.train(data, part), all), "/dev/null", "/dev/null", directory / "err");
    // The first model makes a run of it; before, it is being staged.
    CHECK(wait_until([&] {
      return (signal == SIGTERM && !checkpoints_in(part / ".tern-staging/checkpoints").empty()) ||
             !checkpoints_in(part / "checkpoints").empty() || fs::exists(part / "summary.json");
    }));
    ::kill(child, signal);
    const int code = finish(child);
    CHECK((code == 0 || code == 128 + signal));
    const std::string said = slurp(directory / "err");
    INFO(said);
    // One that had come to its end says nothing any more.
    if (signal == SIGTERM && code != 0 && !fs::exists(part / "summary.json")) CHECK(contains(said, "; --resume goes on from "));
    const Result result = done(run(program.path, resume(part)));
    CHECK_FALSE(contains(result.out, "schedule"));
    check_same(whole, part);
    CHECK(checkpoints_in(part / "checkpoints").size() <= 3);
    CHECK(!fs::exists(part / ".tern-staging"));
  }
}

/// How the options that a run is kept by act: by what is there at its end.
void check_options(const Program& program) {
  const TempDirectory directory;
  const fs::path data = directory / "data", out = directory / "run";
  write_corpus(data, 64);
  const Arguments end = program.path == recall ? Arguments{"--epochs", "3"} : Arguments{"--updates", "12"};
  done(run(program.path, with(with(program.train(data, out), end), {"--checkpoint-every", "5", "--keep", "3"})));
  const Json summary = json_of(out / "summary.json");
  CHECK(checkpoints_in(out / "checkpoints") ==
        std::vector<std::string>{"update-00000005.safetensors", "update-00000010.safetensors", "update-00000012.safetensors"});
  // A run that goes on keeps them, unless it is told otherwise.
  const Arguments more = program.path == recall ? Arguments{"--epochs", "5"} : Arguments{"--updates", "20"};
  done(run(program.path, resume(out, with(more, {"--keep", "1"}))));
  const std::vector<std::string> left = checkpoints_in(out / "checkpoints");
  CHECK(left.back() == "update-00000020.safetensors");
  CHECK(left.size() <= 2);  // the newest, and the best model's
  if (left.size() == 2)
    CHECK(left[0] == fmt::format("update-{:08}.safetensors", json_of(out / "summary.json")["best_epoch"].get<int>() * 4));
}

}  // namespace

TEST_CASE("A training with averages, drawn tokens, batches in parts and rounds of updates goes on bitwise") {
  const Runs runs(trainers[0], {"--architecture", "encoder-decoder", "--ema", "0.99", "--bpe-dropout", "0.2", "--r-drop", "1",
                                "--pad-to-length", "False", "--batch-tokens", "200", "--accumulate", "2", "--valid-every", "5"});
  done(runs.go_on());
  check_same(runs.whole, runs.part);
}

TEST_CASE("A training goes on bitwise with compiled updates, or without") {
  for (const Program& program : trainers) {
    INFO(program.name);
    const Runs written(program), compiled(program, {"--compile"});
    CHECK(contains(done(written.go_on({"--compile"})).out, "each step compiled"));
    done(compiled.go_on());
    check_same(written.whole, written.part);
    check_same(written.whole, compiled.part);
  }
}

TEST_CASE("tern-translate train --resume (a training that goes on is bitwise one that was never ended)") { check_resumes(trainers[0]); }
TEST_CASE("tern-recall train --resume (a training that goes on is bitwise one that was never ended)") { check_resumes(trainers[1]); }
TEST_CASE("tern-lm train --resume (a training that goes on is bitwise one that was never ended)") { check_resumes(trainers[2]); }
TEST_CASE("A translator's training on a GPU goes on bitwise", "[cuda]") { check_resumes(trainers[0], {"--device", "cuda"}); }
TEST_CASE("A recall training on a GPU goes on bitwise", "[cuda]") { check_resumes(trainers[1], {"--device", "cuda"}); }
TEST_CASE("A translator's training that was killed goes on bitwise") { check_killed(trainers[0], {"--updates", "60"}); }
TEST_CASE("A recall training that was killed goes on bitwise") { check_killed(trainers[1], {"--epochs", "15"}); }
TEST_CASE("A language model's training that was killed goes on bitwise") { check_killed(trainers[2], {"--updates", "60"}); }
TEST_CASE("A language model's training on a GPU goes on bitwise", "[cuda]") { check_resumes(trainers[2], {"--device", "cuda"}); }
TEST_CASE("A recall training whose positions have no table goes on, however long its inputs are") {
  const TempDirectory directory;
  const fs::path out = directory / "run";
  done(run(recall, with(trainers[1].train({}, out), {"--positions", "rotary", "--pairs", "50", "--epochs", "1"})));
  done(run(recall, resume(out, {"--epochs", "2"})));
}
TEST_CASE("tern-translate train --checkpoint-every --keep (which checkpoints there are)") { check_options(trainers[0]); }
TEST_CASE("tern-recall train --checkpoint-every --keep (which checkpoints there are)") { check_options(trainers[1]); }
TEST_CASE("tern-lm train --checkpoint-every --keep (which checkpoints there are)") { check_options(trainers[2]); }

TEST_CASE("A schedule that ends with the training says that its end has moved") {
  const Runs runs(trainers[0], {"--schedule", "cosine"});
  CHECK(contains(runs.go_on().out, "schedule the rate fell to 0 by update 6 and now falls to 0 by update 13"));
}

TEST_CASE("A training that goes on has waited for a better model as long as before its end") {
  const TempDirectory directory;
  write_corpus(directory / "data", 32);
  // Weights that stay where they are: no epoch after the first is better, and five are waited for.
  const auto start = [&](const fs::path& out, const char* epochs) {
    done(run(translate, train(directory / "data", out,
                              {"--preset", "quick", "--device", "cpu", "--batch-size", "32", "--epochs", epochs, "--updates", "0",
                               "--schedule", "constant", "--lr", "1e-12", "--bleu-every", "1", "--patience", "5"})));
  };
  const auto measured = [](const fs::path& out) {
    std::vector<double> epochs;
    for (const Json& line : json_lines(out / "log.jsonl"))
      if (line.contains("valid_bleu")) epochs.push_back(line["epoch"]);
    return epochs;
  };
  start(directory / "whole", "12");
  start(directory / "parts", "4");
  done(run(translate, resume(directory / "parts", {"--epochs", "12"})));
  // A model that says nothing right is no best one; whether this one does hangs on the last bits of its scores.
  const std::vector<double> whole = measured(directory / "whole");
  CHECK((whole.size() == 5 || whole.size() == 6));
  CHECK(measured(directory / "parts") == whole);
}

TEST_CASE("The model that is kept and tested is the best one") {
  const TempDirectory directory;
  write_corpus(directory / "data", 32);
  const fs::path out = directory / "run";
  // A rate that is too large for the end: the loss goes up and down.
  done(run(translate, train(directory / "data", out,
                            {"--preset", "quick", "--device", "cpu", "--batch-size", "32", "--epochs", "24", "--updates", "24",
                             "--schedule", "constant", "--lr", "0.1", "--clip", "0"})));
  std::vector<double> losses;
  for (const Json& line : json_lines(out / "log.jsonl"))
    if (line.contains("valid_loss")) losses.push_back(line["valid_loss"]);
  REQUIRE(losses.size() == 24);
  const auto least = std::min_element(losses.begin(), losses.end());
  REQUIRE(least + 1 != losses.end());
  const Json summary = json_of(out / "summary.json");
  CHECK(summary["best_epoch"] == least - losses.begin() + 1);
  CHECK(summary["valid_loss"] == *least);
  CHECK(io::load_safetensors_metadata(out / "model.safetensors").at("epoch") == std::to_string(least - losses.begin() + 1));
  const std::string best = fmt::format("update-{:08}.safetensors", least - losses.begin() + 1);
  const auto weights = io::load_safetensors(out / "model.safetensors").tensors;
  const auto kept = io::load_safetensors(out / "checkpoints" / checkpoints_in(out / "checkpoints").back()).tensors;
  for (const auto& [name, tensor] : weights) CHECK(kept.at("best." + name).to_vector<float>() == tensor.to_vector<float>());
  // It is the one that the last lines of the log are not of.
  CHECK(kept.at("model.tokens.weight").to_vector<float>() != weights.at("tokens.weight").to_vector<float>());
}

TEST_CASE("A run that goes on refuses what does not fit, and leaves it as it is") {
  const Runs runs(trainers[0]);
  const fs::path checkpoint = runs.part / "checkpoints/update-00000006.safetensors";
  const auto before = contents(runs.part);
  const auto check = [&](const Result& result, const std::string& part) {
    check_refused(result, part);
    auto after = contents(runs.part);
    CHECK(after == before);
  };
  check(run(translate, resume(runs.part, {"--lr", "0.5"})), "--lr 0.5: the run has 0.01, and goes on with it");
  check(run(translate, resume(runs.part, {"--preset", "classic"})), "--preset classic: the run has quick");
  check(run(translate, resume(runs.part, {"--updates", "5"})), "6 updates are done, which is more than the 5 that");
  check(run(translate, resume(runs.directory / "none")), "none: there is no such run directory");
  check(run(translate, resume(runs.data)), "data: holds no checkpoint to go on from: start the training without --resume");
  check(run(recall, resume(runs.part)).code == 2 ? run(translate, resume(runs.part, {"--seed", "9"})) : Result{}, "--seed 9: the run has");
  check_refused(run(recall, resume(runs.part)), "expected a checkpoint of tern-recall but got one of tern-translate", "tern-recall");

  const std::string text = slurp(runs.data / "train.en");
  spill(runs.data / "train.en", "x" + text);
  check(runs.go_on(), "data: is not the data that " + runs.part.string() + " was trained on");
  spill(runs.data / "train.en", text);
  fs::rename(runs.data, runs.directory / "moved");
  check(runs.go_on(), "data: ");
  done(runs.go_on({"--data", (runs.directory / "moved").string()}));
  check_same(runs.whole, runs.part);
}

TEST_CASE("A run with a damaged part says which it is, and what is left to go on from") {
  const Runs runs(trainers[0]);
  const auto check = [&](const fs::path& file, const std::string& bytes, const std::string& part) {
    const std::string good = fs::exists(file) ? slurp(file) : "";
    spill(file, bytes);
    const auto before = contents(runs.part);
    check_refused(runs.go_on(), part);
    CHECK(contents(runs.part) == before);
    if (good.empty()) fs::remove(file);
    else spill(file, good);
  };
  const std::string left = "; remove it, and --resume goes on from update-00000006.safetensors";
  const fs::path newer = runs.part / "checkpoints/update-00000007.safetensors", config = runs.part / "config.json";
  std::string changed = slurp(runs.part / "checkpoints/update-00000006.safetensors");
  changed[changed.size() - 9] ^= 1;
  check(newer, "", "update-00000007.safetensors: expected a safetensors file of at least 8 bytes but got 0" + left);
  check(newer, changed, left);
  check(config, slurp(config).substr(0, 40), "config.json: expected valid JSON but got an error at byte ");
}

TEST_CASE("A run that has lost its config.json goes on with the options of its checkpoint, and says so") {
  for (const Program& program : trainers) {
    INFO(program.name);
    const Runs runs(program);
    fs::remove(runs.part / "config.json");
    const Result result = done(runs.go_on());
    CHECK(result.err.starts_with(fmt::format("{}: {}: is missing; training goes on with the options in update-", program.name,
                                             (runs.part / "config.json").string())));
    check_same(runs.whole, runs.part);
    CHECK_FALSE(contains(runs.go_on().err, "is missing"));
  }
}

TEST_CASE("A checkpoint of the wrong kind is refused, and leaves the run as it is") {
  const Runs runs(trainers[0]);
  const fs::path checkpoint = runs.part / "checkpoints/update-00000006.safetensors";
  const std::string good = slurp(checkpoint);
  const auto check = [&](const std::string& bytes, const std::string& part) {
    spill(checkpoint, bytes);
    const auto before = contents(runs.part);
    check_refused(runs.go_on(), part);
    CHECK(contents(runs.part) == before);
  };
  check("", "update-00000006.safetensors: ");
  check(good.substr(0, 5), "update-00000006.safetensors: ");
  check(good.substr(0, good.size() / 2), "update-00000006.safetensors: ");
  check(good.substr(0, good.size() - 1), "update-00000006.safetensors: ");
  std::string changed = good;
  changed[good.size() - 9] ^= 1;
  check(changed, "is damaged, or was changed: its checksum is ");

  const io::TensorFile file = io::load_safetensors([&] {
    spill(checkpoint, good);
    return checkpoint;
  }());
  const auto rewritten = [&](const std::function<void(std::map<std::string, Tensor>&, io::Metadata&)>& change) {
    auto tensors = file.tensors;
    io::Metadata metadata = file.metadata;
    change(tensors, metadata);
    std::vector<NamedTensor> named;
    for (const auto& [name, tensor] : tensors) named.push_back({name, tensor});
    io::save_safetensors(runs.directory / "changed", named, metadata);
    return slurp(runs.directory / "changed");
  };
  const auto replaced = [](std::string& text, const std::string& from, const std::string& to) {
    REQUIRE(contains(text, from));
    text.replace(text.find(from), from.size(), to);
  };
  const std::string weight = "optimizer.m.tokens.weight";
  REQUIRE(file.tensors.contains(weight));
  check(rewritten([&](auto& tensors, auto&) { tensors[weight] = tensors.at("loop.loss_sum"); }), "\"" + weight + "\": expected shape ");
  check(rewritten([&](auto& tensors, auto&) { tensors.erase(weight); }), "does not fit the model: it lacks \"" + weight + "\"");
  check(rewritten([&](auto& tensors, auto&) { tensors["more"] = tensors.at("loop.loss_sum"); }), "the model lacks \"more\"");
  check(rewritten([](auto&, auto& metadata) { metadata.erase("numbers"); }), "is no checkpoint: its metadata lacks the key \"numbers\"");
  check(rewritten([](auto&, auto& metadata) { metadata.erase(io::checksum_key); }), "lacks the key \"tern.crc32\"");
  check(rewritten([](auto&, auto& metadata) { metadata["numbers"] = "{"; }), "update-00000006.safetensors");
  check(rewritten([](auto&, auto& metadata) { metadata["numbers"] = "{}"; }), "expected the key \"loop\" to be an object");
  check(rewritten([](auto&, auto& metadata) { metadata["keep"] = "-1"; }), "keep: expected a whole number");
  check(rewritten([&](auto&, auto& metadata) { replaced(metadata["config"], "\"width\":16", "\"width\":32"); }), ": ");
  check(rewritten([&](auto&, auto& metadata) { replaced(metadata["config"], "\"width\":16", "\"width\":65536"); }), ": ");
  check(rewritten([&](auto&, auto& metadata) { replaced(metadata["config"], "\"layers\":1", "\"layers\":\"x\""); }), "layers");
  check(rewritten([&](auto&, auto& metadata) { replaced(metadata["numbers"], "\"epoch\":2", "\"epoch\":-2"); }), "got epoch -2");
  check(rewritten([&](auto&, auto& metadata) { replaced(metadata["numbers"], "\"epoch\":2", "\"epoch\":9223372036854775807"); }),
        "got epoch 9223372036854775807");
  check(rewritten([&](auto&, auto& metadata) { replaced(metadata["numbers"], "\"steps\":2", "\"steps\":99"); }),
        "expected 0 to 6 but got 99");
  const std::string tokenizer = slurp(runs.part / "tokenizer.json");
  spill(runs.part / "tokenizer.json", tokenizer + "\n");
  check(good, "tokenizer.json: is not the one that update-00000006.safetensors was written with");
  spill(runs.part / "tokenizer.json", tokenizer);
  done(runs.go_on());
  check_same(runs.whole, runs.part);
}
