// Trainings in several processes: tern-launch with either trainer.
#include "trainer/ranks.h"

#include <chrono>
#include <cmath>

#include "flags.h"

using namespace tern::programs::test;
using tern::train::part_of, tern::train::RankPart, tern::train::rows_multiple;

namespace {

/// A tiny training of either program with dropout of each kind, whose batches do not divide: the last has two rows. A process that waits
/// ends after ten seconds.
Arguments recall_training(const fs::path& out, const Arguments& more = {}) {
  return with(words_of("train --out " + out.string() +
                       " --preset quick --device cpu --threads 1 --pairs 4 --train-examples 50 --valid-examples 10 --test-examples 10 "
                       "--batch-size 16 --width 16 --layers 1 --dropout 0.1 --branch-dropout 0.1 --schedule constant --warmup 0 --lr 0.01 "
                       "--epochs 3 --clip 1 --rank-timeout 10"),
              more);
}

Arguments translate_training(const fs::path& data, const fs::path& out, const Arguments& more = {}) {
  const std::string words =
      "--device cpu --dropout 0.1 --attention-dropout -1 --batch-size 13 --batch-tokens 0 --accumulate 2 --updates 6 --epochs 3 --schedule "
      "constant --lr 0.01 --clip 1 --architecture encoder-decoder --positions rotary --prefix-lm True --restart-positions False "
      "--tied-head True --label-smoothing 0.1 --r-drop 0 --ema 0.5 --beam 1 --patience 0 --bleu-every 0 --test none --rank-timeout 10";
  return train(data, out, with(words_of(words), more));
}

Result on_ranks(int count, const std::string& program, const Arguments& arguments, const Arguments& launcher = {}) {
  if (count == 1) return run(program, arguments);
  return run(launch, with(with(with({"-n", fmt::to_string(count), "--grace", "2"}, launcher), {program}), arguments));
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

TEST_CASE("A training has the same losses on 1, 2 and 4 ranks, to rounding, and bitwise from run to run") {
  for (const std::string kind : {"recall", "--architecture encoder-decoder", "--architecture encoder-decoder --dropout 0.2 --r-drop 1",
                                 "--architecture prefix-lm --dropout 0.2 --r-drop 1"}) {
    const TempDirectory directory;
    write_corpus(directory / "data");
    const auto trained = [&](int count, const std::string& name) {
      const fs::path out = directory / name;
      if (kind == "recall") done(on_ranks(count, recall, recall_training(out)));
      else done(on_ranks(count, translate, translate_training(directory / "data", out, words_of(kind))));
      CHECK(json_of(out / "summary.json").value("ranks", 1) == count);
      return losses_of(out);
    };
    const std::vector<double> alone = trained(1, "1");
    for (const int count : {2, 4}) {
      INFO(kind << " on " << count << " ranks");
      check_close(alone, trained(count, fmt::to_string(count)));
    }
    CHECK(trained(2, "again") == losses_of(directory / "2"));
    CHECK(slurp(directory / "again/model.safetensors") == slurp(directory / "2/model.safetensors"));
  }
}

TEST_CASE("A training goes on with another number of ranks") {
  const TempDirectory directory;
  const Arguments half{"--epochs", "2"};
  const auto resume = [&](const std::string& name, const char* epochs) {
    return Arguments{"train", "--resume",       "--out", (directory / name).string(), "--device", "cpu", "--threads", "1", "--epochs",
                     epochs,  "--rank-timeout", "10"};
  };
  done(on_ranks(1, recall, recall_training(directory / "whole")));
  for (const int before : {1, 2}) {
    const std::string name = fmt::to_string(before);
    done(on_ranks(before, recall, recall_training(directory / name, half)));
    done(on_ranks(3 - before, recall, resume(name, "3")));
    INFO("from " << before << " ranks");
    check_close(losses_of(directory / "whole"), losses_of(directory / name));
  }
  // Moments that are in parts on each rank are whole in the checkpoint, whether they were written or are read so.
  // So are weights.
  const auto sharded = [](Arguments arguments, const char* name) { return with(std::move(arguments), {"--shard", name}); };
  for (const auto& [first, second] : {std::pair("optimizer", "gradients"), std::pair("parameters", "parameters")}) {
    done(on_ranks(2, recall, sharded(recall_training(directory / first, {"--epochs", "1"}), first)));
    done(on_ranks(1, recall, resume(first, "2")));
    done(on_ranks(3, recall, sharded(resume(first, "3"), second)));
    check_close(losses_of(directory / "whole"), losses_of(directory / first));
  }
}

TEST_CASE(
    "tern-recall train --gradient-sync --bucket-size-mb --shard --rank-timeout (each way gives the same gradients; one process "
    "alone takes them)") {
  const TempDirectory directory;
  done(on_ranks(2, recall, recall_training(directory / "bucketed", {"--epochs", "1"})));
  for (const char* sync : {"flat", "overlapped", "per-parameter"}) {
    done(on_ranks(2, recall, recall_training(directory / sync, {"--epochs", "1", "--gradient-sync", sync})));
    check_close(losses_of(directory / "bucketed"), losses_of(directory / sync));
  }
  done(on_ranks(2, recall, recall_training(directory / "small", {"--epochs", "1", "--bucket-size-mb", "0.001"})));
  check_close(losses_of(directory / "bucketed"), losses_of(directory / "small"));
  const auto deep = [&](const char* shard) {
    done(on_ranks(2, recall,
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
  done(run(recall, recall_training(directory / "alone", {"--epochs", "1", "--gradient-sync", "flat", "--shard", "parameters"})));

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
    const Arguments all = with({"--updates", "2", "--accumulate", "1"}, more);
    done(on_ranks(2, translate, translate_training(directory / "data", directory / name, all)));
    return losses_of(directory / name);
  };
  check_close(out("small", {"--bucket-size-mb", "0.001"}), out("flat", {"--gradient-sync", "flat"}));
  const Arguments bf16{"--precision", "bf16", "--ema", "0", "--shard", "optimizer"};
  check_close(out("16-bits", {bf16.begin(), bf16.end() - 2}), out("16-bits-sharded", bf16));
  // The norm that gradients are clipped to is added up in another order.
  CHECK(distance(weights_of(directory / "16-bits"), weights_of(directory / "16-bits-sharded")) < 1e-4);
  // An average of weights that come and go, in two parts of a batch.
  check_close(out("ema", {"--ema", "0.9", "--accumulate", "2"}),
              out("ema-sharded", {"--ema", "0.9", "--accumulate", "2", "--shard", "parameters"}));
  const Result refused =
      on_ranks(2, translate, translate_training(directory / "data", directory / "no", {"--precision", "bf16", "--shard", "optimizer"}));
  CHECK(refused.code == 2);
  CHECK(contains(refused.err, "--shard optimizer: a process has the masters"));
}

TEST_CASE("Ranks that gather sharded moments for checkpoints do so at the same updates, whatever their clocks say") {
  const TempDirectory directory;
  done(on_ranks(2, recall,
                recall_training(directory / "run", {"--epochs", "120", "--layers", "1", "--dropout", "0", "--branch-dropout", "0",
                                                    "--valid-examples", "2", "--test-examples", "2", "--shard", "optimizer"})));
}

TEST_CASE("Compiled updates of several processes have the losses of those as written, unless gradients are sharded") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  const auto trained = [&](int count, const std::string& program, const std::string& name, const Arguments& more) {
    const fs::path out = directory / name;
    return program == recall ? on_ranks(count, recall, recall_training(out, more))
                             : on_ranks(count, translate, translate_training(directory / "data", out, more));
  };
  for (const std::string& program : {std::string(recall), std::string(translate)})
    for (const std::string shard : {"none", "optimizer"}) {
      const Arguments sharded{"--shard", shard};
      const std::string name = (program == recall ? "recall-" : "translate-") + shard;
      done(trained(2, program, name, sharded));
      const Result compiled = trained(2, program, name + "-compiled", with(sharded, {"--compile"}));
      done(compiled);
      INFO(compiled.out);
      check_close(losses_of(directory / name), losses_of(directory / (name + "-compiled")));
      const std::size_t at = compiled.out.find("which ran ");
      REQUIRE(at != std::string::npos);
      CHECK(std::stoi(compiled.out.substr(at + 10)) > 0);
    }
  for (const char* shard : {"gradients", "parameters"}) {
    const Result refused = trained(2, recall, "refused", {"--compile", "--shard", shard});
    CHECK(refused.code == 2);
    CHECK(contains(refused.err, "--compile: the memory of sharded " + std::string(shard) +
                                    " is at other addresses in each step; leave it out, or take --shard optimizer"));
    CHECK(refused.out.empty());
    CHECK_FALSE(fs::exists(directory / "refused"));
    done(trained(1, recall, shard, {"--compile", "--shard", shard, "--epochs", "1"}));  // nothing for one process alone
  }
}

TEST_CASE("Rank 0 alone writes and prints, and an error of all ranks is each one's line") {
  const TempDirectory directory;
  const Result result = on_ranks(3, recall, recall_training(directory / "run", {"--epochs", "1"}), {"--output", "prefix"});
  done(result);
  CHECK(contains(result.out, "[0] training 4 updates of 16 examples at most on 3 processes of 1 CPU thread"));
  CHECK_FALSE(contains(result.out, "[1] "));
  CHECK_FALSE(contains(result.out, "[2] "));
  CHECK(json_lines(directory / "run/log.jsonl").size() == 5);  // four updates and a validation, once each

  // Different options on the ranks are no training.
  const Result mixed = shell("exec \"$0\" -n 2 sh -c 'exec \"$@\" --seed $((RANK + 1))' sh \"$@\"", launch,
                             with({recall}, recall_training(directory / "mixed")));
  CHECK(mixed.code == 2);
  CHECK(contains(mixed.err, "has other options or data than another rank"));
  CHECK_FALSE(fs::exists(directory / "mixed"));
}

TEST_CASE("A signal to one rank or to the launcher stops all at one update, with a checkpoint") {
  for (const bool to_launcher : {true, false}) {
    const TempDirectory directory;
    const std::string err = directory / "err";
    Arguments all{"-n", "2", "sh", "-c", "echo $$ >> " + (directory / "pids").string() + "; exec \"$0\" \"$@\"", recall};
    for (const std::string& word : recall_training(directory / "run", {"--epochs", "100000", "--train-examples", "400"}))
      all.push_back(word);
    const pid_t pid = start(launch, all, "/dev/null", "/dev/null", err);
    CHECK(wait_until([&] { return fs::exists(directory / "run/log.jsonl"); }));
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
    done(on_ranks(2, recall, resume_to_epoch_end(directory / "run", 25)));
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
  CHECK(count_lines(result.err) == 3);
  CHECK_FALSE(fs::exists(directory / "run"));
}

TEST_CASE("A rank that dies ends the others with a line each, and the training goes on from its checkpoint") {
  const TempDirectory directory;
  const std::string err = directory / "err";
  Arguments all{"-n",  "3", "--output", "prefix", "sh", "-c", "echo $RANK $$ >> " + (directory / "pids").string() + "; exec \"$0\" \"$@\"",
                recall};
  // tern-launch would kill what is left before this timeout.
  for (const std::string& word :
       recall_training(directory / "run", {"--epochs", "100000", "--checkpoint-every", "1", "--rank-timeout", "60"}))
    all.push_back(word);
  const pid_t pid = start(launch, all, "/dev/null", "/dev/null", err);
  CHECK(wait_until([&] { return fs::exists(directory / "run/log.jsonl"); }));
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
  CHECK(count_lines(said) == 3);
  done(on_ranks(2, recall, resume_to_epoch_end(directory / "run", 4)));
}

namespace {

/// Each bandwidth follows from the time.
void are_collectives(const Ran& changed, const Ran&) {
  const std::vector<Json> found = changed.rows();
  REQUIRE(found.size() == 32);
  std::set<std::string> cases;
  for (const Json& each : found) {
    const auto ranks = each["ranks"].get<int>();
    const std::string op = each["op"], dtype = each["dtype"];
    cases.insert(op + dtype + std::to_string(ranks) + each["mb"].dump());
    CHECK(number_of(each, "ms") > 0);
    CHECK(each["calls"] == 3);
    const int size = dtype == "float32" ? 4 : 2, elements = static_cast<int>(number_of(each, "mb") * 1e6) / size;
    CHECK(each["bytes"] == elements / ranks * ranks * size);
    CHECK(number_of(each, "alg_gbs") == Approx(number_of(each, "bytes") / number_of(each, "ms") / 1e6).margin(2e-4));
    const double share = (ranks - 1.0) / ranks, factor = op == "broadcast" ? 1 : op == "all_reduce" ? 2 * share : share;
    CHECK(number_of(each, "bus_gbs") == Approx(factor * number_of(each, "alg_gbs")).margin(2e-4));
  }
  CHECK(cases.size() == 32);
  CHECK(found[0]["ranks"] == 2);
  CHECK(found[31]["ranks"] == 3);
  const std::string& out = changed.result.out;
  CHECK(out.find("collective") == out.rfind("collective"));  // one head
  const std::string table = slurp(changed.directory / "table.csv");
  CHECK(std::count(table.begin(), table.end(), '\n') == 33);
  CHECK(contains(table, "reduce_scatter,bfloat16,0.004,"));
}

std::vector<Json> buckets_of(const Ran& run) {
  std::vector<Json> found = run.rows();
  std::erase_if(found, [](const Json& each) { return each["what"] != "bucket"; });
  return found;
}
void are_buckets(const Ran& changed, const Ran&) {
  const std::vector<Json> found = buckets_of(changed);
  REQUIRE(found.size() == 2);
  CHECK(found[0]["threads"] == 2);
  CHECK(found[0]["buckets"] > found[1]["buckets"]);
  CHECK(found[0]["loss"] == found[1]["loss"]);
  for (const Json& each : found)
    for (const char* key : {"step_ms", "burst_ms", "alone_ms"}) CHECK(number_of(each, key) > 0);
  // 2 layers of 128 and 512, GPT-2's shape, with tables of 50 and 4 rows and a head: 410,112 parameters.
  CHECK(contains(changed.result.out, "0.4101 M parameters have s = 1.64 MB of gradients\n"));
  CHECK(contains(changed.result.out, "buckets of    0.1 MiB: a step took "));
}
void change_the_loss(const Ran& changed, const Ran& plain) { CHECK(buckets_of(changed).at(0)["loss"] != buckets_of(plain).at(0)["loss"]); }

}  // namespace

const std::vector<FlagTable>& tern::programs::test::comm_tables() {
  static const std::vector<FlagTable> tables{
      {{bench, "comm --seconds 0 --device cpu --json OUT/rows"},
       {{"--ranks 2,3 --op all_reduce,all_gather,reduce_scatter,broadcast --size-mb 0.001,0.004 --dtype fp32,bf16 --csv OUT/table.csv "
         "--plot OUT/plot.svg",
         both(are_collectives, writes("plot.svg", {"broadcast bfloat16, 3 ranks, "})), "--ranks 2 --size-mb 0.001"}},
       {{"", "expected several processes: tern-bench comm --ranks"}, {"--ranks 1", "--ranks: "}}},
      {{bench,
        "comm --ranks 2 --size-mb 0.01,2 --seconds 0 --device cpu --model ar --batch 1 --length 4 --vocab 50 --steps 1 --buckets 100 "
        "--json OUT/rows"},
       {{"--buckets 0.1,100 --threads 2", are_buckets},
        {"--batch 2", change_the_loss},
        {"--length 5", change_the_loss},
        {"--vocab 60", change_the_loss},
        {"--steps 2", change_the_loss},
        {"--model mt", change_the_loss}},
       {}},
      {{bench, "comm --ranks 2 --size-mb 0.01,2 --seconds 0 --device cpu --json OUT/rows"},
       {{"--parameters 3000000", says("\n3 M parameters have s = 12 MB of gradients\n")}},
       {}}};
  return tables;
}

TEST_CASE("tern-bench comm: each flag shows as its row says, and a wrong value is refused") {
  for (const FlagTable& table : comm_tables()) {
    check_flags(table);
    check_refusals(table.command, table.refusals);
  }
}

TEST_CASE("tern-bench comm --device of processes that a launcher has started: rank 0 prints") {
  const Command comm{launch, "-n 2 " + bench + " comm --size-mb 0.001,0.002 --seconds 0 --device cpu"};
  const std::string& out = ran(comm).result.out;
  CHECK(out.find("collective") == out.rfind("collective"));
  CHECK(count_lines(out) == 4);  // head, two sizes, and what follows from them
  CHECK(contains(out, "2 ranks: "));
  for (const char* command : {"comm --device cpu --ranks 2", "step --device cpu --ranks 2"}) {
    const Result again = Ran({launch, "-n 2 " + bench + " " + command}, "").result;
    CHECK(again.code == 2);
    CHECK(contains(again.err, "a launcher has started 2 processes already"));
  }
  const Result large = Ran({bench, "comm --ranks 2 --seconds 0 --device cpu --size-mb 1e6"}, "").result;  // 4 TB
  CHECK(large.code == 1);
  CHECK(contains(large.err, "out of memory: "));
  const Result gpu = shell("CUDA_VISIBLE_DEVICES= exec \"$0\" comm --ranks 2 --device cuda", bench);
  CHECK(gpu.code == 2);
  CHECK(contains(gpu.err, "--device cuda: "));
}

TEST_CASE("tern-bench step --profile of several ranks shows the first one's collectives") {
  const Ran& profiled = ran({bench,
                             "step --ranks 2 --batch 1 --length 4 --vocab 40 --steps 1 --profile 1 --out OUT/profile --model ar --dropout "
                             "0 --warmup 0 --threads 1 --device cpu"});
  const std::string table = slurp(profiled.directory / "profile/ops.md");
  CHECK(contains(table, "## Communication\n"));
  CHECK(contains(table, "\n| all_reduce | 2 | "));  // matrices, and vectors
  double sent = 0;
  const Json trace = json_of(profiled.directory / "profile/trace.json");
  for (const Json& event : trace["traceEvents"])
    if (event.value("cat", "") == "collective") {
      CHECK(event["name"] == "all_reduce");
      CHECK(event["dur"] > 0);
      sent += event["args"]["bytes"].get<double>();
    }
  CHECK(sent > 4 * 1000);  // a float32 gradient for each of the model's parameters
}
