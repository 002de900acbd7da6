// tern-bench in several processes: collectives, and data parallel steps. Each case fails where its option is ignored.
#include <set>

#include "support.h"

using namespace tern::programs::test;

namespace {

/// With a limit, as a rank that waits for another would wait for long.
Result bounded(const std::string& program, const Arguments& arguments) {
  Arguments all{"60", program};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run("/usr/bin/timeout", all);
}

Arguments with(Arguments all, const Arguments& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::int64_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

double number_of(const Json& row, const char* key) { return row[key].get<double>(); }

}  // namespace

TEST_CASE("tern-bench comm --op --size-mb --dtype --ranks --json --csv --plot (a row for each, whose bandwidths follow from the time)") {
  const TempDirectory directory;
  const Result result = bounded(bench, {"comm", "--ranks", "2,3", "--op", "all_reduce,all_gather,reduce_scatter,broadcast", "--size-mb",
                                        "0.001,0.004", "--dtype", "fp32,bf16", "--seconds", "0", "--device", "cpu", "--json",
                                        directory / "rows", "--csv", directory / "table.csv", "--plot", directory / "plot.svg"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const std::vector<Json> rows = json_lines(directory / "rows");
  REQUIRE(rows.size() == 32);
  std::set<std::string> cases;
  for (const Json& row : rows) {
    const auto ranks = row["ranks"].get<int>();
    const std::string op = row["op"], dtype = row["dtype"];
    cases.insert(op + dtype + std::to_string(ranks) + row["mb"].dump());
    CHECK(number_of(row, "ms") > 0);
    CHECK(row["calls"] == 3);
    const int size = dtype == "float32" ? 4 : 2, elements = static_cast<int>(number_of(row, "mb") * 1e6) / size;
    CHECK(row["bytes"] == elements / ranks * ranks * size);
    CHECK(number_of(row, "alg_gbs") == Approx(number_of(row, "bytes") / number_of(row, "ms") / 1e6).margin(2e-4));
    const double share = (ranks - 1.0) / ranks, factor = op == "broadcast" ? 1 : op == "all_reduce" ? 2 * share : share;
    CHECK(number_of(row, "bus_gbs") == Approx(factor * number_of(row, "alg_gbs")).margin(2e-4));
  }
  CHECK(cases.size() == 32);
  CHECK(rows[0]["ranks"] == 2);
  CHECK(rows[31]["ranks"] == 3);
  CHECK(lines(result.out) >= 33);
  CHECK(result.out.find("collective") == result.out.rfind("collective"));  // one head
  const std::string table = slurp(directory / "table.csv");
  CHECK(lines(table) == 33);
  CHECK(contains(table, "reduce_scatter,bfloat16,0.004,"));
  const std::string plot = slurp(directory / "plot.svg");
  CHECK(contains(plot, "broadcast bfloat16, 3 ranks, "));
}

TEST_CASE(
    "tern-bench comm --model --parameters --buckets --batch --length --vocab --steps --threads (the best buckets, and measured ones)") {
  const auto bucket_rows = [](const Arguments& more, std::string* out = nullptr) {
    const TempDirectory directory;
    const Result result = bounded(bench, with({"comm",     "--ranks", "2",       "--size-mb", "0.01,2",  "--seconds", "0",
                                               "--device", "cpu",     "--model", "ar",        "--batch", "1",         "--length",
                                               "4",        "--vocab", "50",      "--steps",   "1",       "--json",    directory / "rows"},
                                              more));
    INFO(result.err);
    REQUIRE(result.code == 0);
    if (out) *out = result.out;
    std::vector<Json> rows = json_lines(directory / "rows");
    std::erase_if(rows, [](const Json& row) { return row["what"] != "bucket"; });
    return rows;
  };
  std::string out;
  const std::vector<Json> rows = bucket_rows({"--buckets", "0.1,100", "--threads", "2"}, &out);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["threads"] == 2);
  CHECK(rows[0]["buckets"] > rows[1]["buckets"]);
  CHECK(rows[0]["loss"] == rows[1]["loss"]);
  for (const Json& row : rows)
    for (const char* key : {"step_ms", "burst_ms", "alone_ms"}) CHECK(number_of(row, key) > 0);
  // 2 layers of 128 and 512, GPT-2's shape, with tables of 50 and 4 rows and a head: 410,112 parameters.
  CHECK(contains(out, "0.4101 M parameters have s = 1.64 MB of gradients\n"));
  CHECK(contains(out, "buckets of    0.1 MiB: a step took "));
  for (const Arguments& change :
       std::vector<Arguments>{{"--batch", "2"}, {"--length", "5"}, {"--vocab", "60"}, {"--steps", "2"}, {"--model", "mt"}}) {
    INFO(change[0]);
    const std::vector<Json> other = bucket_rows(with({"--buckets", "100"}, change));
    REQUIRE(other.size() == 1);
    CHECK(other[0]["loss"] != rows[0]["loss"]);
  }
  CHECK(bucket_rows({"--parameters", "3000000"}, &out).empty());
  CHECK(contains(out, "\n3 M parameters have s = 12 MB of gradients\n"));
}

TEST_CASE("tern-bench comm --device of processes that a launcher has started: rank 0 prints") {
  const Arguments comm{"comm", "--size-mb", "0.001,0.002", "--seconds", "0", "--device", "cpu"};
  const Result result = bounded(launch, with({"-n", "2", bench}, comm));
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(result.out.find("collective") == result.out.rfind("collective"));
  CHECK(lines(result.out) == 4);  // head, two sizes, and what follows from them
  CHECK(contains(result.out, "2 ranks: "));
  const Result again = bounded(launch, with(with({"-n", "2", bench}, comm), {"--ranks", "2"}));
  CHECK(again.code == 2);
  CHECK(contains(again.err, "--ranks: a launcher has started 2 processes already"));
  check_refused(bounded(bench, comm), "expected several processes: tern-bench comm --ranks", "tern-bench");
  check_refused(bounded(bench, with(comm, {"--ranks", "1"})), "--ranks: ", "tern-bench");
  const Result large = bounded(bench, with(comm, {"--ranks", "2", "--size-mb", "1e6"}));  // 4 TB
  CHECK(large.code == 1);
  CHECK(contains(large.err, "out of memory: "));
  const Result gpu =
      shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", "/usr/bin/timeout", {"60", bench, "comm", "--ranks", "2", "--device", "cuda"});
  CHECK(gpu.code == 2);
  CHECK(contains(gpu.err, "--device cuda: "));
}

TEST_CASE(
    "tern-bench step --ranks --gradient-sync --bucket-size-mb --reduce-dtype --shard (each rank its own batch, gradients as asked for, "
    "its part of the state alone)") {
  const auto measured = [](const Arguments& more) {
    const TempDirectory directory;
    const Result result = bounded(bench, with({"step",    "--model",   "ar",        "--batch",  "2",        "--length", "6",
                                               "--vocab", "50",        "--dropout", "0",        "--warmup", "0",        "--steps",
                                               "2",       "--threads", "1",         "--device", "cpu",      "--json",   directory / "rows"},
                                              more));
    INFO(result.err);
    REQUIRE(result.code == 0);
    CHECK(contains(result.out, "  loss "));
    CHECK(result.out.find("  loss ") == result.out.rfind("  loss "));  // of rank 0 alone
    const std::vector<Json> rows = json_lines(directory / "rows");
    REQUIRE(rows.size() == 1);
    return rows[0];
  };
  const Json one = measured({"--ranks", "1"});
  CHECK_FALSE(one.contains("ranks"));
  CHECK_FALSE(one.contains("alone_ms"));

  const Json two = measured({"--ranks", "2"});
  CHECK(two["ranks"] == 2);
  CHECK(two["loss"] != one["loss"]);
  CHECK(number_of(two, "loss") == Approx(number_of(one, "loss")).epsilon(0.2));
  CHECK(number_of(two, "alone_ms") > 0);
  CHECK(two["collectives"] == 1 + 1);  // matrices, and vectors

  const Json flat = measured({"--ranks", "2", "--gradient-sync", "flat"});
  CHECK(flat["collectives"] == 1);
  CHECK(flat["loss"] == two["loss"]);
  CHECK_FALSE(two.contains("shard"));
  // Of 16 bytes a parameter, as `accounting` counts them.
  for (const auto& [name, bytes] :
       {std::pair("optimizer", 8 + 8 / 2.0), std::pair("gradients", 4 + 12 / 2.0), std::pair("parameters", 16 / 2.0)}) {
    const Json sharded = measured({"--ranks", "2", "--shard", name});
    INFO(name);
    CHECK(sharded["shard"] == name);
    CHECK(number_of(sharded, "loss") == Approx(number_of(two, "loss")).epsilon(1e-6));
    CHECK(number_of(sharded, "optimizer_bytes") == Approx(number_of(two, "optimizer_bytes") / 2).epsilon(0.01));
    CHECK(number_of(sharded, "state_bytes") == Approx(number_of(two, "state_bytes") * bytes / 16).epsilon(0.02));
  }
  CHECK(measured({"--ranks", "2", "--shard", "none"})["state_bytes"] == two["state_bytes"]);
  const Json lowered = measured({"--ranks", "2", "--bucket-size-mb", "0.2", "--reduce-dtype", "bf16"});
  CHECK(lowered["collectives"] > 2);
  CHECK(lowered["loss"] != two["loss"]);
  CHECK(number_of(lowered, "loss") == Approx(number_of(two, "loss")).epsilon(1e-3));
}

TEST_CASE("tern-bench step of several ranks: the first one's profile, forward alone, and mistakes") {
  const TempDirectory directory;
  const Arguments step{"step",    "--ranks", "2",        "--model", "ar",      "--batch", "1",        "--length", "4",
                       "--vocab", "40",      "--warmup", "0",       "--steps", "1",       "--device", "cpu"};
  const Result profiled = bounded(bench, with(step, {"--profile", "1", "--out", directory / "profile"}));
  INFO(profiled.err);
  CHECK(profiled.code == 0);
  const std::string table = slurp(directory / "profile" / "ops.md");
  CHECK(contains(table, "## Communication\n"));
  CHECK(contains(table, "\n| all_reduce | 2 | "));  // matrices, and vectors
  const Json trace = Json::parse(slurp(directory / "profile" / "trace.json"));
  double sent = 0;
  for (const Json& event : trace["traceEvents"])
    if (event.value("cat", "") == "collective") {
      CHECK(event["name"] == "all_reduce");
      CHECK(number_of(event, "dur") > 0);
      sent += number_of(event["args"], "bytes");
    }
  CHECK(sent > 4 * 1000);  // a float32 gradient for each of the model's parameters
  const Result forward = bounded(bench, with(step, {"--forward-only", "--json", directory / "rows"}));
  CHECK(forward.code == 0);
  CHECK_FALSE(json_lines(directory / "rows").at(0).contains("alone_ms"));
  check_refused(bounded(bench, with(step, {"--json", directory / "no" / "rows"})), "--json ", "tern-bench");
  const Result launched = bounded(launch, with({"-n", "2", bench}, step));
  CHECK(launched.code == 2);
  CHECK(contains(launched.err, "a launcher has started 2 processes already"));
}
