// Runs that go on: checkpoints of a directory, which run of it they belong to, and what changes when.
#include "catch.h"
#include "io/run_directory.h"
#include "ops/factory.h"
#include "support.h"

using namespace tern;
using namespace tern::io;
using namespace tern::io::test;

namespace {

std::vector<NamedTensor> one_tensor(double value) { return {{"w", full({}, value)}}; }

JsonObject config(const char* preset) { return JsonObject().set("preset", preset); }

/// A run with a tokenizer, three lines of log, checkpoints of updates 2 and 4, and a summary.
void write_run(const fs::path& path, double model = 1) {
  RunDirectory run = RunDirectory::create(path, config("first"));
  JsonLog log(run.log());
  for (int step = 1; step <= 3; ++step) log.write(JsonObject().set("step", step));
  run.write_tokenizer("tokens");
  run.save_checkpoint(2, one_tensor(model + 0.25), {{"at", "2"}});
  run.save_model(one_tensor(model));
  run.save_checkpoint(4, one_tensor(model + 0.5), {{"at", "4"}});
  run.write_summary(JsonObject().set("bleu", 1));
}
const std::string checkpoints_of_run = "checkpoints/update-00000002.safetensors checkpoints/update-00000004.safetensors ";
const std::string all_of_run = checkpoints_of_run + "config.json log.jsonl model.safetensors summary.json tokenizer.json";

std::vector<std::int64_t> updates(const fs::path& path) {
  std::vector<std::int64_t> result;
  for (const CheckpointFile& file : RunDirectory::require_checkpoints(path)) result.push_back(file.update);
  return result;
}

}  // namespace

TEST_CASE("A run that goes on takes the place of its earlier part") {
  const TempDirectory directory;
  const fs::path path = directory / "run";
  write_run(path);
  CHECK(names_in(path) == all_of_run);
  CHECK(updates(path) == std::vector<std::int64_t>{2, 4});
  const auto before = contents(path);
  {
    RunDirectory run = RunDirectory::resume(path);
    CHECK(!run.is_staged());
    CHECK(run.has_model());
    run.require_fits(RunDirectory::require_checkpoints(path).back());
    CHECK(contents(path) == before);
    run.restart(config("second"), 12);  // the first line has 11 bytes
    CHECK(slurp(run.log()) == "{\"step\":1}\n");
    CHECK(run.checkpoints() == path / "checkpoints");
    CHECK(run.tokenizer() == path / "tokenizer.json");
  }
  CHECK(contents(path) == before);  // no model, no change
  RunDirectory run = RunDirectory::resume(path);
  run.restart(config("second"), 22);
  JsonLog log(run.log());
  run.save_model(one_tensor(2));
  log.write(JsonObject().set("step", 9));
  run.save_checkpoint(6, one_tensor(3), {});
  run.prune_checkpoints(1, 2);
  CHECK(names_in(path) ==
        "checkpoints/update-00000002.safetensors checkpoints/update-00000006.safetensors config.json log.jsonl model.safetensors "
        "tokenizer.json");
  CHECK(slurp(path / "log.jsonl") == "{\"step\":1}\n{\"step\":2}\n{\"step\":9}\n");
  const RunDirectory found = RunDirectory::open(path);
  found.require_whole();
  CHECK(found.read_config().get_string("preset") == "second");
  CHECK(load_safetensors(found.model()).tensors.at("w").item() == 2);
}

TEST_CASE("A first part with a checkpoint goes on beside an earlier run, and without one is forgotten") {
  const TempDirectory directory;
  const fs::path path = directory / "run";
  write_run(path);
  const auto before = contents(path);
  {
    RunDirectory run = RunDirectory::create(path, config("other"));
    JsonLog(run.log()).write(JsonObject().set("step", 1));
  }
  CHECK(contents(path) == before);
  CHECK(updates(path) == std::vector<std::int64_t>{2, 4});
  {
    RunDirectory run = RunDirectory::create(path, config("other"));
    JsonLog(run.log()).write(JsonObject().set("step", 1));
    CHECK(run.save_checkpoint(1, one_tensor(5), {}).path == path / ".tern-staging/checkpoints/update-00000001.safetensors");
  }
  CHECK(updates(path) == std::vector<std::int64_t>{1});
  RunDirectory::open(path).require_whole();
  CHECK(RunDirectory::open(path).read_config().get_string("preset") == "first");
  {
    RunDirectory run = RunDirectory::resume(path);
    CHECK(run.is_staged());
    CHECK(run.keeps_earlier());
    run.restart(config("again"), 0);
    run.save_model(one_tensor(6));
  }
  CHECK(names_in(path) == "checkpoints/update-00000001.safetensors config.json log.jsonl model.safetensors");
  CHECK(slurp(path / "log.jsonl").empty());
  CHECK(RunDirectory::open(path).read_config().get_string("preset") == "again");
  // A new training forgets the part of another.
  {
    RunDirectory::create(path, config("third")).save_checkpoint(1, one_tensor(5), {});
  }
  {
    const RunDirectory run = RunDirectory::create(path, config("fourth"));
  }
  CHECK(!fs::exists(path / ".tern-staging"));
}

TEST_CASE("A run with checkpoints that is cut short while it takes its place is whole, wherever that was") {
  const TempDirectory directory;
  const std::vector<std::string> moved = {"config.json", "log.jsonl", "model.safetensors", "checkpoints"};
  for (std::size_t done = 0; done <= moved.size(); ++done)
    for (const bool old_is_removed : {false, true}) {
      INFO(done << old_is_removed);
      const fs::path path = directory / (std::to_string(done) + (old_is_removed ? "r" : "")), fresh = path.string() + "fresh";
      write_run(path);
      {
        RunDirectory run = RunDirectory::create(fresh, config("second"));
        JsonLog(run.log()).write(JsonObject().set("step", 7));
        run.save_checkpoint(1, one_tensor(8), {});
        run.save_model(one_tensor(2));
      }
      fs::rename(fresh, path / ".tern-complete");
      for (const char* name : {"summary.json", "tokenizer.json"}) spill(path / ".tern-complete" / (std::string(name) + ".removed"), "");
      if (old_is_removed && done < moved.size()) fs::remove(path / "checkpoints/update-00000002.safetensors");
      for (std::size_t i = 0; i < done; ++i) {
        fs::remove_all(path / moved[i]);
        fs::rename(path / ".tern-complete" / moved[i], path / moved[i]);
      }
      RunDirectory::open(path).require_whole();
      CHECK(RunDirectory::open(path).read_config().get_string("preset") == "second");
      CHECK(updates(path) == std::vector<std::int64_t>{1});
      if (old_is_removed) RunDirectory::create(path, config("third"));  // ends the move, and then does nothing
      const RunDirectory run = RunDirectory::resume(path);
      run.require_whole();
      CHECK(names_in(path) == "checkpoints/update-00000001.safetensors config.json log.jsonl model.safetensors");
      CHECK(run.read_config().get_string("preset") == "second");
      CHECK(load_safetensors(RunDirectory::require_checkpoints(path).back().path).tensors.at("w").item() == 8);
    }
}

TEST_CASE("A run without its config.json goes on, if its checkpoints are those of a run") {
  const TempDirectory directory;
  const fs::path path = directory / "run";
  write_run(path);
  fs::remove(path / "config.json");
  {
    RunDirectory run = RunDirectory::resume(path);
    CHECK_FALSE(run.has_config());
    run.restart(config("again"), 1000);
    CHECK(run.has_config());
    run.save_model(one_tensor(2));
  }
  CHECK(RunDirectory::open(path).read_config().get_string("preset") == "again");
  RunDirectory::open(path).require_whole();

  fs::remove(path / "config.json");
  save_safetensors(path / "checkpoints/update-00000009.safetensors", one_tensor(3));
  const auto before = contents(path);
  CHECK(file_error([&] { RunDirectory::resume(path); }) ==
        (path / "config.json").string() + ": is missing, and update-00000009.safetensors is no checkpoint of a run");
  CHECK(contents(path) == before);
}

TEST_CASE("What cannot go on is refused") {
  const TempDirectory directory;
  const auto fault = [](const fs::path& path) { return file_error([&] { RunDirectory::resume(path); }); };
  CHECK(fault(directory / "none").ends_with("none: there is no such run directory"));
  CHECK(!fs::exists(directory / "none"));
  const std::string without = ": holds no checkpoint to go on from: start the training without --resume";
  fs::create_directory(directory / "empty");
  CHECK(fault(directory / "empty").ends_with("empty" + without));
  const fs::path path = directory / "run";
  write_run(path);
  for (const char* name : {"update-.safetensors", "update-x.safetensors", "update--1.safetensors",
                           "update-99999999999999999999.safetensors", "notes.txt", ".update-00000009.safetensors.1.2.tmp"})
    spill(path / "checkpoints" / name, "x");
  CHECK(updates(path) == std::vector<std::int64_t>{2, 4});
  {
    const RunDirectory run = RunDirectory::resume(path);
    CHECK(!fs::exists(path / "checkpoints/.update-00000009.safetensors.1.2.tmp"));
    CHECK(fs::exists(path / "checkpoints/notes.txt"));
    CHECK(fault(path).ends_with(": another process writes a run there: wait until it ends, or name another directory"));
    spill(path / "tokenizer.json", "others");
    CHECK(file_error([&] { run.require_fits(RunDirectory::require_checkpoints(path).back()); })
              .ends_with(
                  "tokenizer.json: is not the one that update-00000004.safetensors was written with: it was changed, or is another run's"));
  }
  spill(path / "config.json", "{}");
  CHECK(fault(path).find("config.json") != std::string::npos);
  fs::remove_all(path / "checkpoints");
  CHECK(fault(path).ends_with("run" + without));
}
