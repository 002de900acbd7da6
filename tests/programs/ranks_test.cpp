// Trainings in several processes: tern-launch with either trainer.
#include "trainer/ranks.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "support.h"

using namespace tern::programs::test;
using tern::train::part_of, tern::train::RankPart, tern::train::rows_multiple;

namespace {

/// A tiny training of either program with dropout of each kind, whose batches do not divide: the last has two rows. A process that waits
/// ends after ten seconds.
Arguments recall_training(const fs::path& out, const Arguments& more = {}) {
  Arguments result{"train", "--out", out.string()};
  std::istringstream words(
      "--preset quick --device cpu --threads 1 --pairs 4 --train-examples 50 --valid-examples 10 --test-examples 10 --batch-size 16 "
      "--width "
      "16 --layers 1 --dropout 0.1 --branch-dropout 0.1 --schedule constant --warmup 0 --lr 0.01 --epochs 3 --clip 1 --rank-timeout 10");
  for (std::string word; words >> word;) result.push_back(word);
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

Arguments translate_training(const fs::path& data, const fs::path& out, const Arguments& more = {}) {
  Arguments all;
  std::istringstream words(
      "--device cpu --dropout 0.1 --attention-dropout -1 --batch-size 13 --batch-tokens 0 --accumulate 2 --updates 6 --epochs 3 --schedule "
      "constant --lr 0.01 --clip 1 --architecture encoder-decoder --positions rotary --prefix-lm True --restart-positions False "
      "--tied-head "
      "True --label-smoothing 0.1 --r-drop 0 --ema 0.5 --beam 1 --patience 0 --bleu-every 0 --test none --rank-timeout 10");
  for (std::string word; words >> word;) all.push_back(word);
  all.insert(all.end(), more.begin(), more.end());
  return train(data, out, all);
}

Result on_ranks(int count, const std::string& program, const Arguments& arguments, const Arguments& launcher = {}) {
  if (count == 1) return run(program, arguments);
  Arguments all{"-n", fmt::to_string(count), "--grace", "2"};
  all.insert(all.end(), launcher.begin(), launcher.end());
  all.push_back(program);
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run(launch, all);
}

void require_done(const Result& result) {
  INFO(result.err);
  REQUIRE(result.code == 0);
}

/// Arguments that let a run of so many updates an epoch go on to the end of the epoch that its last checkpoint stands in.
Arguments resume_to_epoch_end(const fs::path& run, int updates) {
  int last = 0;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
    last = std::max(last, std::stoi(entry.path().filename().string().substr(std::string("update-").size())));
  return {"train", "--resume", "--out", run.string(), "--device", "cpu", "--epochs", fmt::to_string(last / updates + 1)};
}

/// The losses of a log, of updates and epochs.
std::vector<double> losses_of(const fs::path& run) {
  std::vector<double> result;
  for (const Json& line : json_lines(run / "log.jsonl"))
    for (const char* key : {"loss", "train_loss", "valid_loss", "grad_norm"})
      if (line.contains(key)) result.push_back(line[key].get<double>());
  return result;
}

/// All of a model's file, one after the other.
std::vector<float> weights_of(const fs::path& run) {
  const std::string bytes = slurp(run / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::size_t first = sizeof header + header;
  std::vector<float> result((bytes.size() - first) / sizeof(float));
  std::memcpy(result.data(), bytes.data() + first, result.size() * sizeof(float));
  return result;
}

void check_close(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO(i);
    CHECK(std::abs(a[i] - b[i]) < 2e-4 * std::abs(a[i]));
  }
}

}  // namespace

TEST_CASE("A batch's rows are divided at multiples, and each part has a row") {
  for (const std::int64_t multiple : {1, 2, 4})
    for (const std::int64_t rows : {1, 3, 4, 17, 32, 50})
      for (const int size : {1, 2, 3, 4, 7}) {
        std::int64_t next = 0;
        for (int rank = 0; rank < size; ++rank) {
          const RankPart part = part_of(rows, multiple, rank, size);
          CHECK(part.rows.total == rows);
          if (part.is_empty) {
            CHECK((part.rows.first == 0 && part.rows.count == 1));
            continue;
          }
          CHECK(part.rows.first == next);
          CHECK(part.rows.first % multiple == 0);
          next += part.rows.count;
        }
        CHECK(next == rows);
      }
  CHECK(rows_multiple(102, 64, 128) == 1);
  CHECK(rows_multiple(51, 64, 128) == 4);  // 51 * 51 attention probabilities for a head
  CHECK(rows_multiple(50, 15, 30) == 2);
  CHECK(rows_multiple(8, 1, 1) == 1);
}

TEST_CASE("tern-recall has the same losses on 1, 2 and 4 ranks, to rounding, and bitwise from run to run") {
  const TempDirectory directory;
  require_done(on_ranks(1, recall, recall_training(directory / "1")));
  for (const int count : {2, 4}) {
    const fs::path out = directory / fmt::to_string(count);
    require_done(on_ranks(count, recall, recall_training(out)));
    INFO(count << " ranks");
    check_close(losses_of(directory / "1"), losses_of(out));
    CHECK(Json::parse(slurp(out / "summary.json"))["ranks"] == count);
  }
  require_done(on_ranks(2, recall, recall_training(directory / "again")));
  CHECK(slurp(directory / "again/model.safetensors") == slurp(directory / "2/model.safetensors"));
  CHECK(losses_of(directory / "again") == losses_of(directory / "2"));
}

TEST_CASE("tern-translate has the same losses on 1, 2 and 4 ranks, to rounding, with batches in parts") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  require_done(on_ranks(1, translate, translate_training(directory / "data", directory / "1")));
  for (const int count : {2, 4}) {
    const fs::path out = directory / fmt::to_string(count);
    require_done(on_ranks(count, translate, translate_training(directory / "data", out)));
    INFO(count << " ranks");
    check_close(losses_of(directory / "1"), losses_of(out));
  }
}

TEST_CASE("tern-translate with R-Drop has the same losses on 1, 2 and 4 ranks, to rounding, and bitwise from run to run") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  for (const char* architecture : {"encoder-decoder", "prefix-lm"}) {
    const Arguments more{"--architecture", architecture, "--dropout", "0.2", "--r-drop", "1"};
    const auto losses = [&](int count, const std::string& name) {
      const fs::path out = directory / (architecture + name);
      require_done(on_ranks(count, translate, translate_training(directory / "data", out, more)));
      return losses_of(out);
    };
    const std::vector<double> alone = losses(1, "1");
    for (const int count : {2, 4}) {
      INFO(architecture << " on " << count << " ranks");
      check_close(alone, losses(count, fmt::to_string(count)));
    }
    CHECK(losses(2, "again") == losses_of(directory / (architecture + std::string("2"))));
  }
}

TEST_CASE("A training goes on with another number of ranks") {
  const TempDirectory directory;
  const Arguments half{"--epochs", "2"};
  const auto resume = [&](const std::string& name, const char* epochs) {
    return Arguments{"train", "--resume",       "--out", (directory / name).string(), "--device", "cpu", "--threads", "1", "--epochs",
                     epochs,  "--rank-timeout", "10"};
  };
  require_done(on_ranks(1, recall, recall_training(directory / "whole")));
  for (const int before : {1, 2}) {
    const std::string name = fmt::to_string(before);
    require_done(on_ranks(before, recall, recall_training(directory / name, half)));
    require_done(on_ranks(3 - before, recall, resume(name, "3")));
    INFO("from " << before << " ranks");
    check_close(losses_of(directory / "whole"), losses_of(directory / name));
  }
  // Moments that are in parts on each rank are whole in the checkpoint, whether they were written or are read so.
  // So are weights.
  const auto sharded = [](Arguments arguments, const char* name) {
    arguments.insert(arguments.end(), {"--shard", name});
    return arguments;
  };
  for (const auto& [first, second] : {std::pair("optimizer", "gradients"), std::pair("parameters", "parameters")}) {
    require_done(on_ranks(2, recall, sharded(recall_training(directory / first, {"--epochs", "1"}), first)));
    require_done(on_ranks(1, recall, resume(first, "2")));
    require_done(on_ranks(3, recall, sharded(resume(first, "3"), second)));
    check_close(losses_of(directory / "whole"), losses_of(directory / first));
  }
}

TEST_CASE(
    "tern-recall train --gradient-sync --bucket-size-mb --shard --rank-timeout (each way gives the same gradients; one process "
    "alone takes them)") {
  const TempDirectory directory;
  require_done(on_ranks(2, recall, recall_training(directory / "bucketed", {"--epochs", "1"})));
  for (const char* sync : {"flat", "overlapped", "per-parameter"}) {
    require_done(on_ranks(2, recall, recall_training(directory / sync, {"--epochs", "1", "--gradient-sync", sync})));
    check_close(losses_of(directory / "bucketed"), losses_of(directory / sync));
  }
  require_done(on_ranks(2, recall, recall_training(directory / "small", {"--epochs", "1", "--bucket-size-mb", "0.001"})));
  check_close(losses_of(directory / "bucketed"), losses_of(directory / "small"));
  const auto deep = [&](const char* shard) {
    require_done(on_ranks(2, recall,
                          recall_training(directory / shard, {"--epochs", "1", "--train-examples", "16", "--width", "64", "--layers", "6",
                                                              "--batch-size", "4", "--bucket-size-mb", "0.05", "--shard", shard})));
    return losses_of(directory / shard);
  };
  const auto memory = [&](const char* shard) {
    double most = 0;
    for (const Json& line : json_lines(directory / shard / "log.jsonl")) most = std::max(most, line.value("memory_bytes", 0.0));
    return most;
  };
  const std::vector<double> whole = deep("none");
  for (const char* shard : {"optimizer", "gradients", "parameters"}) {
    INFO(shard);
    check_close(whole, deep(shard));
    CHECK(memory(shard) < 0.93 * memory("none"));
  }
  CHECK(memory("gradients") < 0.98 * memory("optimizer"));
  CHECK(memory("parameters") < 0.98 * memory("optimizer"));
  require_done(run(recall, recall_training(directory / "alone", {"--epochs", "1", "--gradient-sync", "flat", "--shard", "parameters"})));
  check_refused(run(recall, recall_training(directory / "no", {"--gradient-sync", "none"})), "--gradient-sync: expected", "tern-recall");
  check_refused(run(recall, recall_training(directory / "no", {"--bucket-size-mb", "0"})), "--bucket-size-mb: expected", "tern-recall");
  check_refused(run(recall, recall_training(directory / "no", {"--rank-timeout", "0"})), "--rank-timeout: expected", "tern-recall");

  // A rank that never comes is waited for so long, and no longer.
  const auto started = std::chrono::steady_clock::now();
  const Result alone = shell("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 TERN_STORE_DIR=" + (directory / "store").string() + " exec \"$0\" \"$@\"",
                             recall, recall_training(directory / "lost", {"--rank-timeout", "0.3"}));
  CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(8));
  CHECK(alone.code != 0);
  CHECK(contains(alone.err, "[parallel]"));
  CHECK_FALSE(fs::exists(directory / "lost"));
}

TEST_CASE("tern-translate train --gradient-sync --bucket-size-mb --shard --rank-timeout (as tern-recall's)") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  const auto out = [&](const char* name, const Arguments& more) {
    Arguments all{"--updates", "2", "--accumulate", "1"};
    all.insert(all.end(), more.begin(), more.end());
    require_done(on_ranks(2, translate, translate_training(directory / "data", directory / name, all)));
    return losses_of(directory / name);
  };
  check_close(out("small", {"--bucket-size-mb", "0.001"}), out("flat", {"--gradient-sync", "flat"}));
  const Arguments bf16{"--precision", "bf16", "--ema", "0", "--shard", "optimizer"};
  check_close(out("16-bits", {bf16.begin(), bf16.end() - 2}), out("16-bits-sharded", bf16));
  // The norm that gradients are clipped to is added up in another order.
  const std::vector<float> whole = weights_of(directory / "16-bits"), sharded = weights_of(directory / "16-bits-sharded");
  REQUIRE(whole.size() == sharded.size());
  std::size_t others = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) others += !(std::abs(whole[i] - sharded[i]) <= 1e-4f);
  CHECK(others == 0);
  // An average of weights that come and go, in two parts of a batch.
  check_close(out("ema", {"--ema", "0.9", "--accumulate", "2"}),
              out("ema-sharded", {"--ema", "0.9", "--accumulate", "2", "--shard", "parameters"}));
  const Result refused =
      on_ranks(2, translate, translate_training(directory / "data", directory / "no", {"--precision", "bf16", "--shard", "optimizer"}));
  CHECK(refused.code == 2);
  CHECK(contains(refused.err, "--shard optimizer: a process has the masters"));
  for (const char* flag : {"--gradient-sync", "--bucket-size-mb", "--rank-timeout", "--shard"})
    check_refused(run(translate, translate_training(directory / "data", directory / "no", {flag, "never"})),
                  flag + std::string(": expected"));
}

TEST_CASE("Rank 0 alone writes and prints, and an error of all ranks is each one's line") {
  const TempDirectory directory;
  const Result result = on_ranks(3, recall, recall_training(directory / "run", {"--epochs", "1"}), {"--output", "prefix"});
  require_done(result);
  CHECK(contains(result.out, "[0] training 4 updates of 16 examples at most on 3 processes of 1 CPU thread"));
  CHECK_FALSE(contains(result.out, "[1] "));
  CHECK_FALSE(contains(result.out, "[2] "));
  CHECK(json_lines(directory / "run/log.jsonl").size() == 5);  // four updates and a validation, once each

  // Different options on the ranks are no training.
  const Result mixed = shell("exec \"$0\" -n 2 sh -c 'exec \"$@\" --seed $((RANK + 1))' sh \"$@\"", launch, [&] {
    Arguments all = recall_training(directory / "mixed");
    all.insert(all.begin(), recall);
    return all;
  }());
  CHECK(mixed.code == 2);
  CHECK(contains(mixed.err, "has other options or data than another rank"));
  CHECK_FALSE(fs::exists(directory / "mixed"));
}

TEST_CASE("A signal to one rank or to the launcher stops all at one update, with a checkpoint") {
  for (const bool to_launcher : {true, false}) {
    const TempDirectory directory;
    const std::string in = directory / "in", out = directory / "out", err = directory / "err";
    spill(in, "");
    Arguments all{"-n", "2", "sh", "-c", "echo $$ >> " + (directory / "pids").string() + "; exec \"$0\" \"$@\"", recall};
    for (const std::string& word : recall_training(directory / "run", {"--epochs", "100000", "--train-examples", "400"}))
      all.push_back(word);
    const pid_t pid = start(launch, all, in, out, err);
    for (int i = 0; i < 1000 && !fs::exists(directory / "run/log.jsonl"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::istringstream pids(slurp(directory / "pids"));
    pid_t last = 0;
    for (pid_t each = 0; pids >> each;) last = each;
    ::kill(to_launcher ? pid : last, SIGTERM);
    CHECK(finish(pid) == 128 + SIGTERM);
    const std::string said = slurp(err);
    INFO(said);
    CHECK(contains(said, "tern-recall: stopped by SIGTERM at update "));
    CHECK(said.find("stopped by SIGTERM", said.find("stopped by SIGTERM") + 1) == std::string::npos);  // once
    CHECK(contains(said, "--resume goes on from"));
    CHECK_FALSE(contains(said, "[parallel]"));
    require_done(on_ranks(2, recall, resume_to_epoch_end(directory / "run", 25)));
  }
}

TEST_CASE("A rank that ends before it has come to the others ends their wait, with a line each") {
  const TempDirectory directory;
  Arguments all{"-n",  "3", "--output", "prefix", "sh", "-c", "if [ $RANK = 1 ]; then sleep 0.3; kill -9 $$; fi; exec \"$0\" \"$@\"",
                recall};
  for (const std::string& word : recall_training(directory / "run", {"--rank-timeout", "60"})) all.push_back(word);
  const auto started = std::chrono::steady_clock::now();
  const Result result = run(launch, all);
  CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(9));
  INFO(result.err);
  CHECK(result.code == 128 + SIGKILL);
  for (const char* rank : {"[0] ", "[2] "})
    CHECK(contains(result.err, rank + std::string("tern-recall: stopped by SIGTERM while it waited for the other processes\n")));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 3);
  CHECK_FALSE(fs::exists(directory / "run"));
}

TEST_CASE("A rank that dies ends the others with a line each, and the training goes on from its checkpoint") {
  const TempDirectory directory;
  const std::string in = directory / "in", out = directory / "out", err = directory / "err";
  spill(in, "");
  Arguments all{"-n",  "3", "--output", "prefix", "sh", "-c", "echo $RANK $$ >> " + (directory / "pids").string() + "; exec \"$0\" \"$@\"",
                recall};
  // tern-launch would kill what is left before this timeout.
  for (const std::string& word :
       recall_training(directory / "run", {"--epochs", "100000", "--checkpoint-every", "1", "--rank-timeout", "60"}))
    all.push_back(word);
  const pid_t pid = start(launch, all, in, out, err);
  for (int i = 0; i < 1000 && !fs::exists(directory / "run/log.jsonl"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::istringstream pids(slurp(directory / "pids"));
  int rank = 0;
  for (pid_t each = 0; pids >> rank >> each;)
    if (rank == 1) ::kill(each, SIGKILL);
  CHECK(finish(pid) == 128 + SIGKILL);
  const std::string said = slurp(err);
  INFO(said);
  CHECK(contains(said, "[0] tern-recall: [parallel] "));
  CHECK(contains(said, "--resume goes on from"));
  CHECK(contains(said, "[2] tern-recall: [parallel] "));
  CHECK(std::count(said.begin(), said.end(), '\n') == 3);
  require_done(on_ranks(2, recall, resume_to_epoch_end(directory / "run", 4)));
}
