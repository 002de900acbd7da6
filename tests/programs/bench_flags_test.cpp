// The options of tern-bench change what is measured or counted: each case fails where its option is ignored. every_flag_test.cpp reads
// the names of the cases.
#include <set>

#include "support.h"

using namespace tern::programs::test;

namespace {

/// The rows of a call.
std::vector<Json> rows_of(const Arguments& arguments, std::string* out = nullptr) {
  const TempDirectory directory;
  const fs::path file = directory / "rows";
  Arguments all = arguments;
  all.insert(all.end(), {"--json", file.string()});
  const Result result = run(bench, all);
  INFO(result.err);
  REQUIRE(result.code == 0);
  if (out) *out = result.out;
  return json_lines(file);
}

void check_gpu_is_refused(const char* command) {
  const Result refused = shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", bench, {command, "--device", "cuda"});
  check_refused(refused, "--device cuda: ", "tern-bench");
}

}  // namespace

TEST_CASE("tern-bench count --batch --length --width --heads --bytes --device-name --json (the counts themselves)") {
  const auto row = [](const Arguments& more, const std::string& part) {
    Arguments all{"count", "--batch", "2", "--length", "64", "--width", "32", "--heads", "4", "--bytes", "2", "--device-name", "A100"};
    all.insert(all.end(), more.begin(), more.end());
    for (const Json& candidate : rows_of(all))
      if (candidate["part"] == part) return candidate;
    FAIL("no part " << part);
    return Json();
  };
  const auto flops = [&](const Arguments& more, const char* part) { return row(more, part)["flops"].get<double>(); };
  // The MLP D -> 4 D -> D: 16 B N D^2 operations. Scores: one number for each head, query and key.
  CHECK(flops({}, "MLP") == Approx(16.0 * 2 * 64 * 32 * 32).epsilon(0.05));
  CHECK(flops({"--batch", "6"}, "MLP") == Approx(3 * flops({}, "MLP")));
  CHECK(flops({"--length", "128"}, "MLP") == Approx(2 * flops({}, "MLP")));
  CHECK(flops({"--width", "64"}, "MLP") > 3.5 * flops({}, "MLP"));
  CHECK(flops({"--heads", "8"}, "softmax") == Approx(2 * flops({}, "softmax")));
  CHECK(row({"--bytes", "4"}, "softmax")["bytes"].get<double>() == Approx(2 * row({}, "softmax")["bytes"].get<double>()));
  // 2 bytes an element; what memory bounds takes its bytes over the bandwidth.
  for (const auto& [name, bandwidth] : std::map<std::string, double>{{"A100", 2.039e12}, {"T4", 3.2e11}}) {
    const Json softmax = row({"--device-name", name}, "softmax");
    CHECK(softmax["bound"] == "memory");
    CHECK(softmax["ms"].get<double>() == Approx(softmax["bytes"].get<double>() / bandwidth * 1e3));
  }
}

TEST_CASE("tern-bench count --of --taps (the convolution's counts)") {
  const auto rows = [](const char* taps) {
    return rows_of(
        {"count", "--of", "conv1d", "--batch", "1", "--length", "8192", "--width", "8192", "--taps", taps, "--device-name", "T4"});
  };
  const std::vector<Json> three = rows("3");
  REQUIRE(three.size() == 4);
  CHECK(three[3]["part"] == "depthwise convolution");
  CHECK(three[3]["flops"] == 402653184);
  CHECK(three[3]["K"] == 3);
  CHECK(three[2]["bytes"].get<double>() == Approx(2 * three[3]["bytes"].get<double>()).epsilon(1e-2));
  CHECK(rows("6")[3]["flops"].get<double>() == Approx(2 * three[3]["flops"].get<double>()));
}

TEST_CASE("tern-bench count --roofline (the picture has the device's roofs and the parts)") {
  const TempDirectory directory;
  const fs::path picture = directory / "roofline.svg";
  const auto draw = [&](const std::string& device) {
    rows_of({"count", "--of", "conv1d", "--batch", "1", "--length", "64", "--width", "64", "--device-name", device, "--roofline",
             picture.string()});
    return slurp(picture);
  };
  const std::string t4 = draw("T4");
  CHECK(contains(t4, "Roofline of T4: 65 TFLOP/s, 320 GB/s"));
  for (const char* part : {"roofs", "convolution, padded", "both", "depthwise convolution"}) CHECK(contains(t4, part));
  CHECK_FALSE(contains(t4, ">padding<"));  // which computes nothing
  CHECK(contains(draw("A100"), "Roofline of A100"));
  const Result refused = run(bench, {"count", "--device-name", "T4", "--roofline", (directory / "no" / "x.svg").string()});
  check_refused(refused, (directory / "no").string(), "tern-bench");
}

TEST_CASE("tern-bench count --threads --device (of the device that is measured)") {
  const Result result = run(bench, {"count", "--device-name", "measured", "--threads", "3", "--device", "cpu"});
  CHECK(contains(result.out, "3 CPU threads, measured"));
  const Result refused =
      shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", bench, {"count", "--device-name", "measured", "--device", "cuda"});
  check_refused(refused, "--device cuda: ", "tern-bench");
}

TEST_CASE("tern-bench step --activation-checkpointing (the same losses from less memory)") {
  const std::vector<Json> rows = rows_of({"step",
                                          "--model",
                                          "ar",
                                          "--batch",
                                          "32",
                                          "--length",
                                          "64",
                                          "--vocab",
                                          "50",
                                          "--steps",
                                          "2",
                                          "--warmup",
                                          "0",
                                          "--threads",
                                          "1",
                                          "--device",
                                          "cpu",
                                          "--use-fused-kernel",
                                          "--activation-checkpointing",
                                          "none,selective,full"});
  REQUIRE(rows.size() == 3);
  for (const Json& row : rows) CHECK(row["loss"] == rows[0]["loss"]);
  CHECK(rows[1]["peak_gb"] < rows[0]["peak_gb"]);
  CHECK(rows[2]["peak_gb"] < rows[1]["peak_gb"]);
  CHECK(rows[0]["impl"] == "tern-fused");
  CHECK(rows[2]["impl"] == "tern-fused-full-checkpointing");
}

TEST_CASE(
    "tern-bench step --model --arch --precision --batch --length --vocab --dropout --warmup --steps --use-fused-kernel --threads --json "
    "--device (the loss of the last step is of this model, these tokens and so many updates)") {
  const auto measured = [](const Arguments& more, std::string* out = nullptr) {
    Arguments all{"step"};
    std::istringstream words(
        "--model ar --arch gpt2 --precision fp32 --batch 2 --length 6 --vocab 50 --dropout 0 --warmup 0 --steps 1 --threads 1 --device cpu "
        "--use-fused-kernel False");
    for (std::string word; words >> word;) all.push_back(word);
    all.insert(all.end(), more.begin(), more.end());
    const std::vector<Json> rows = rows_of(all, out);
    REQUIRE(rows.size() == 1);
    return rows[0];
  };
  std::string out;
  const Json plain = measured({}, &out);
  CHECK(measured({})["loss"] == plain["loss"]);
  CHECK(plain["loss"] > 1.0);
  CHECK(plain["loss"] < 10.0);
  CHECK(contains(out, "1 CPU thread,"));
  for (const Arguments& change : std::vector<Arguments>{{"--model", "mt"},
                                                        {"--arch", "llama"},
                                                        {"--precision", "bf16"},
                                                        {"--precision", "autocast-bf16"},
                                                        {"--precision", "autocast-fp16"},
                                                        {"--batch", "3"},
                                                        {"--length", "7"},
                                                        {"--vocab", "60"},
                                                        {"--dropout", "0.5"},
                                                        {"--warmup", "1"},
                                                        {"--steps", "2"}}) {
    INFO(change[0]);
    CHECK(measured(change)["loss"] != plain["loss"]);
  }
  for (const auto& [flag, value] :
       std::vector<std::pair<const char*, const char*>>{{"--model", "mt"}, {"--arch", "llama"}, {"--vocab", "60"}}) {
    INFO(flag);
    CHECK(measured({flag, value})["params"] != plain["params"]);
  }
  // The parts are those of the step, and each has its spread.
  const double parts =
      plain["fwd_mean_ms"].get<double>() + plain["backward_mean_ms"].get<double>() + plain["optimizer_mean_ms"].get<double>();
  CHECK(parts > 0);
  for (const char* part : {"step", "fwd", "backward", "optimizer"}) CHECK(plain[std::string(part) + "_deviation_ms"] == 0);  // of one
  measured({"--threads", "3"}, &out);
  CHECK(contains(out, "3 CPU threads,"));
  check_gpu_is_refused("step");
}

TEST_CASE("tern-bench step --model --precision --length --batch take lists (a row for each combination)") {
  const std::vector<Json> rows = rows_of({"step", "--model", "ar,mt", "--precision", "fp32,bf16", "--batch", "1,2", "--length", "3,5",
                                          "--vocab", "40", "--warmup", "0", "--steps", "1", "--threads", "1", "--device", "cpu"});
  REQUIRE(rows.size() == 16);
  std::set<std::string> cases;
  for (const Json& row : rows)
    cases.insert(row["model"].get<std::string>() + row["dtype"].get<std::string>() + row["B"].dump() + row["T"].dump());
  CHECK(cases.size() == 16);
  CHECK(rows[0]["model"] == "ar");
  CHECK(rows[15]["model"] == "mt");
}

TEST_CASE("tern-bench step --forward-only (no gradients, no optimizer's state, no step)") {
  const auto row = [](const char* forward_only) {
    const std::vector<Json> rows =
        rows_of({"step", "--model", "ar", "--batch",   "1", "--length", "4",   "--vocab",        "40",        "--dropout", "0", "--warmup",
                 "0",    "--steps", "2",  "--threads", "1", "--device", "cpu", "--forward-only", forward_only});
    REQUIRE(rows.size() == 1);
    return rows[0];
  };
  const Json forward = row("True"), step = row("False");
  CHECK(forward["pass"] == "forward");
  CHECK(step["pass"] == "step");
  CHECK_FALSE(forward.contains("optimizer_ms"));
  // Weights against weights, gradients and two moments.
  CHECK(forward["peak_gb"].get<double>() < 0.5 * step["peak_gb"].get<double>());
  CHECK(forward["loss"] != step["loss"]);
}

TEST_CASE("tern-bench step shows a case without memory as a row, and goes on") {
  const TempDirectory directory;
  const fs::path file = directory / "rows";
  const Result result = shell("ulimit -v 3000000; exec \"$0\" \"$@\"", bench,
                              {"step", "--model", "xl,ar", "--batch", "1", "--length", "4", "--vocab", "40", "--warmup", "0", "--steps",
                               "1", "--threads", "1", "--device", "cpu", "--json", file.string()});
  INFO(result.err);
  CHECK(result.code == 0);
  const std::vector<Json> rows = json_lines(file);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["error"] == "out of memory");
  CHECK(rows[1].contains("step_ms"));
}

namespace {

/// The rows of `tern-bench memory`, in a directory that is given back too: a tiny model, but for what `more` says.
std::vector<Json> memory_rows(const TempDirectory& out, const Arguments& more) {
  Arguments all{"memory",
                "--model",
                "ar",
                "--batch",
                "2",
                "--length",
                "8",
                "--vocab",
                "40",
                "--dropout",
                "0",
                "--warmup",
                "0",
                "--threads",
                "1",
                "--device",
                "cpu",
                "--out",
                (out / "made").string(),
                "--json",
                (out / "rows").string()};
  all.insert(all.end(), more.begin(), more.end());
  const Result result = run(bench, all);
  INFO(result.err);
  REQUIRE(result.code == 0);
  return json_lines(out / "rows");
}

double number_of(const Json& row, const std::string& key) { return row[key].get<double>(); }

}  // namespace

TEST_CASE("tern-bench memory --model --length --precision --pass --out --json (lists: a row and a picture for each combination)") {
  const TempDirectory out;
  const std::vector<Json> rows = memory_rows(out, {"--length", "3,8", "--precision", "fp32,bf16", "--model", "ar,mt"});
  REQUIRE(rows.size() == 16);
  for (const Json& row : rows) {
    double sum = 0;
    for (const char* category : {"parameters", "gradients", "optimizer", "activations", "workspace", "before"})
      sum += number_of(row, std::string(category) + "_bytes");
    CHECK(sum == number_of(row, "peak_bytes"));
    CHECK(sum == number_of(row, "allocator_peak_bytes"));
    const bool is_step = row["pass"] == "step";
    CHECK((number_of(row, "gradients_bytes") > 0) == is_step);
    CHECK((number_of(row, "optimizer_bytes") > 0) == is_step);
    CHECK((number_of(row, "saved_bytes") > 0) == is_step);
    const double width = row["model"] == "ar" ? 128 : 256, size = row["dtype"] == "fp32" ? 4 : 2;
    CHECK(number_of(row, "residual_stream_bytes") == 2 * number_of(row, "T") * width * size);
    const std::string name = row["model"].get<std::string>() + "-T" + std::to_string(row["T"].get<int>()) + "-" +
                             row["dtype"].get<std::string>() + "-" + row["pass"].get<std::string>();
    CHECK(fs::file_size(out / "made" / (name + ".pickle")) > 1000);
    CHECK(contains(slurp(out / "made" / (name + ".svg")), "peak "));
    CHECK(contains(slurp(out / "made" / "memory.md"), name));
  }
}

TEST_CASE("tern-bench memory --arch --batch --vocab --dropout --warmup --use-fused-kernel --threads --stacks --device (what is measured)") {
  const auto row = [](const Arguments& more, std::string* report = nullptr) {
    const TempDirectory out;
    Arguments all{"--pass", "step"};
    all.insert(all.end(), more.begin(), more.end());
    const Json result = memory_rows(out, all).at(0);
    if (report) *report = slurp(out / "made" / "memory.md");
    return result;
  };
  std::string report, with_stacks;
  const Json plain = row({}, &report);
  CHECK(row({"--batch", "6"})["residual_stream_bytes"] == 3 * number_of(plain, "residual_stream_bytes"));
  CHECK(number_of(row({"--vocab", "4000"}), "parameters_bytes") > 2 * number_of(plain, "parameters_bytes"));
  CHECK(row({"--dropout", "0.1"})["loss"] != plain["loss"]);  // its mask is drawn again for backward, and takes no memory
  CHECK(number_of(row({"--use-fused-kernel"}), "saved_bytes") < number_of(plain, "saved_bytes"));
  CHECK(row({"--arch", "llama"})["saved_bytes"] != plain["saved_bytes"]);
  // The first step makes the moments; a later one finds them.
  CHECK(number_of(row({"--warmup", "1"}), "begin_bytes") > 1.9 * number_of(plain, "begin_bytes"));
  CHECK(contains(report, "1 CPU thread,"));
  CHECK_FALSE(contains(report, "```"));
  row({"--stacks", "--threads", "2"}, &with_stacks);
  CHECK(contains(with_stacks, "2 CPU threads,"));
  CHECK(contains(with_stacks, "```"));
  check_gpu_is_refused("memory");
}

TEST_CASE("tern-bench memory --activation-checkpointing (a list: the same loss from fewer activations)") {
  const TempDirectory out;
  const std::vector<Json> rows = memory_rows(out, {"--pass", "step", "--batch", "32", "--length", "64", "--use-fused-kernel",
                                                   "--activation-checkpointing", "none,selective,full"});
  REQUIRE(rows.size() == 3);
  for (int i : {1, 2}) {
    CHECK(rows[i]["loss"] == rows[0]["loss"]);
    CHECK(number_of(rows[i], "activations_bytes") < number_of(rows[i - 1], "activations_bytes"));
  }
  CHECK(rows[2]["impl"] == "tern-fused-full-checkpointing");
  CHECK(fs::exists(out / "made" / "ar-T64-fp32-step-full-checkpointing.svg"));
}

TEST_CASE("tern-bench memory --limit (memory that runs out is a row with a picture, and the next case is measured)") {
  const TempDirectory out;
  const std::vector<Json> rows = memory_rows(out, {"--length", "4096,8", "--pass", "forward", "--limit", "0.3"});
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["error"] == "out of memory");
  CHECK(number_of(rows[0], "parameters_bytes") > 1e6);
  CHECK(contains(slurp(out / "made" / "memory.md"), "| ar-T4096-fp32-forward | out of memory"));
  CHECK_FALSE(rows[1].contains("error"));
  CHECK(rows[1]["allocator_peak_bytes"] == rows[1]["peak_bytes"]);
}

TEST_CASE("tern-bench ops --op --dtype --threads --json --device (what is measured)") {
  std::string out;
  const std::vector<Json> rows =
      rows_of({"ops", "--op", "grad_norm", "--dtype", "fp64", "--seconds", "1e-6", "--threads", "2", "--device", "cpu"}, &out);
  REQUIRE(rows.size() == 2);
  CHECK(rows[1]["op"] == "grad_norm");
  CHECK(rows[1]["dtype"] == "float64");
  CHECK(rows[1]["threads"] == 2);
  CHECK(contains(out, "2 CPU threads: a copy moves"));
  check_gpu_is_refused("ops");
}

TEST_CASE("tern-bench attention --sweep --impl --dtype --lengths --widths --threads --json --device (what is measured)") {
  const auto measured = [](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"attention", "--lengths", "3,8", "--seconds", "1e-6", "--threads", "2", "--device", "cpu"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return rows_of(arguments);
  };
  const std::vector<Json> rows = measured({"--sweep", "batch", "--widths", "4", "--dtype", "fp64", "--impl", "fused"});
  REQUIRE(rows.size() == 2 * 3);
  for (const Json& row : rows) {
    CHECK(row["impl"] == "tern-fused");
    CHECK(row["dtype"] == "float64");
    CHECK(row["threads"] == 2);
    CHECK(row["causal"] == false);
    CHECK(row["shape"][0] == 8);
    CHECK(row["shape"][3] == 4);
  }
  CHECK(rows[0]["op"] == "attention_fwd");
  CHECK(rows[5]["op"] == "attention_fwd_bwd");
  CHECK(rows[5]["shape"][2] == 8);
  // The result of 8 x 8 rows of 4, and a number for each query: no scores.
  CHECK(rows[5]["kept_mib"].get<double>() < 0.01);
  const std::vector<Json> long_rows = measured({"--sweep", "length"});
  REQUIRE(long_rows.size() == 4 * 2 * 2 * 3);
  CHECK(long_rows[0]["causal"] == true);
  CHECK(long_rows[0]["shape"][0] == 1);
  CHECK(long_rows[0]["impl"] == "tern-plain");
  check_gpu_is_refused("attention");
}

TEST_CASE("tern-bench attention --sweep masks: every row's mask is applied, and its pairs of query and key are counted") {
  const std::vector<Json> rows = rows_of(
      {"attention", "--sweep", "masks", "--lengths", "24", "--widths", "6", "--dtype", "fp64", "--seconds", "1e-6", "--device", "cpu"});
  const std::vector<std::string> forms = {"causal", "grouped", "queries", "lengths", "prefix", "window", "dropout", "packed", "rope"};
  REQUIRE(rows.size() == forms.size() * 2 * 3);
  std::map<std::string, double> pairs;
  const double causal = rows[0]["mean_square"].get<double>();
  for (std::size_t i = 0; i < forms.size(); ++i) {
    INFO(forms[i]);
    const Json *const plain = &rows[6 * i], *const fused = plain + 3;
    for (std::size_t pass = 0; pass < 3; ++pass) {
      for (const Json* row : {plain + pass, fused + pass}) {
        CHECK((*row)["mask"] == forms[i]);
        CHECK((*row)["op"] == rows[pass]["op"]);
        CHECK((*row)["gflop"].get<double>() == Approx(fused[0]["gflop"].get<double>() * std::vector<double>{1, 2.5, 3.5}[pass]));
        const auto rate = [](const Json& one) { return one["gflop"].get<double>() / one["ms"].get<double>(); };
        CHECK((*row)["of_causal"].get<double>() == Approx(rate(*row) / rate(rows[pass + (row >= fused ? 3 : 0)])).epsilon(0.02));
      }
    }
    // The rows' numbers are drawn from one seed: a mask that is not applied leaves the result of causal attention.
    CHECK(fused[0]["mean_square"].get<double>() == Approx(plain[0]["mean_square"].get<double>()).epsilon(1e-12));
    if (i > 0) CHECK(fused[0]["mean_square"].get<double>() != Approx(causal).epsilon(1e-6));
    const auto& shape = fused[0]["shape"];
    CHECK(shape[2] == 24);
    CHECK(shape[3] == 6);
    pairs[forms[i]] = fused[0]["gflop"].get<double>() * 1e9 / (4 * 6 * shape[1].get<double>()) / shape[0].get<double>();
  }
  CHECK(pairs["causal"] == Approx(24 * 25 / 2));
  for (const char* same : {"grouped", "dropout", "rope"}) CHECK(pairs[same] == Approx(pairs["causal"]));
  CHECK(pairs["queries"] == Approx(24 * 25 / 2 - 12 * 13 / 2));  // the last 12 rows of the triangle
  CHECK(pairs["window"] == Approx(6 * 7 / 2 + 18 * 6));          // 6 keys, after a triangle
  CHECK(pairs["lengths"] < pairs["causal"]);                     // at least all queries and 12 keys
  CHECK(pairs["lengths"] >= 12 * 13 / 2 + 12 * 12);
  CHECK(pairs["prefix"] > pairs["causal"]);  // at most a square of 12 beside the triangle
  CHECK(pairs["prefix"] <= 24 * 25 / 2 + 12 * 11 / 2);
  CHECK(pairs["packed"] < pairs["causal"]);
  // On average a sequence has a fourth of the tokens, and a fourth of the pairs is the least that four sequences can have.
  CHECK(pairs["packed"] >= 4 * 6 * 7 / 2);
}

TEST_CASE("tern-bench conv1d --dtype --taps --layout --threads --json --device (what is measured)") {
  const std::vector<Json> rows =
      rows_of({"conv1d", "--dtype", "fp64", "--taps", "1", "--layout", "first", "--seconds", "1e-6", "--threads", "2", "--device", "cpu"});
  REQUIRE(rows.size() == 2 + 3 * 2 * 3);
  for (std::size_t i = 2; i < rows.size(); ++i) {
    CHECK(rows[i]["op"].get<std::string>().rfind("conv1d_first_", 0) == 0);
    CHECK(rows[i]["dtype"] == "float64");
    CHECK(rows[i]["shape"][3] == 1);
    CHECK(rows[i]["threads"] == 2);
  }
  check_gpu_is_refused("conv1d");
}

TEST_CASE("tern-bench accounting (the course's numbers)") {
  const Result result = run(bench, {"accounting"});
  CHECK(result.code == 0);
  CHECK(contains(result.out, "126 blocks of two matrices 16384 x 53248: 219.85 B parameters\n"));
  CHECK(contains(result.out, "3.518 TB, the memory of 44 devices of 80 GB\n"));
  CHECK(contains(result.out, "C / (Y W M_X) = 319.4 tokens a device: 320, 20480 in all\n"));
  CHECK(contains(result.out, "Y is below"));
}

TEST_CASE(
    "tern-bench accounting --model --arch --vocab --length --width --ff --layers --parameters --ranks --memory-gb --fsdp --tensor-parallel "
    "--fsdp-axes --tensor-axes --bandwidth --flops --json (what is counted)") {
  const auto row = [](const Arguments& more, const std::string& what) {
    Arguments all{"accounting"};
    all.insert(all.end(), more.begin(), more.end());
    for (const Json& candidate : rows_of(all))
      if (candidate["what"] == what) return candidate;
    FAIL("no row " << what);
    return Json();
  };
  const auto parameters = [&](const Arguments& more) { return row(more, "model")["parameters"].get<double>(); };
  const double blocks = 126.0 * 2 * 16384 * 53248;
  CHECK(parameters({}) == blocks);
  CHECK(parameters({"--width", "8192"}) == blocks / 2);
  CHECK(parameters({"--ff", "106496"}) == blocks * 2);
  CHECK(parameters({"--layers", "63"}) == blocks / 2);
  CHECK(parameters({"--parameters", "1000"}) == 1000);
  // GPT-2 small, whose head is a matrix of its own here.
  const double small = parameters({"--model", "small"});
  CHECK(small == 124439808 + 768.0 * 50257);
  CHECK(parameters({"--model", "small", "--vocab", "50258"}) == small + 2 * 768);
  CHECK(parameters({"--model", "small", "--length", "1025"}) == small + 768);
  CHECK(parameters({"--model", "small", "--arch", "llama"}) < small);
  CHECK(row({"--memory-gb", "95"}, "model")["devices"] == 38);

  const Json first = row({"--parameters", "1000", "--ranks", "4"}, "state");
  CHECK(first["ranks"] == 4);
  CHECK(first["after_step_bytes"] == 16000);
  CHECK(rows_of({"accounting", "--ranks", "2,3"}).size() == 1 + 2 * 4 + 1);

  const auto tokens = [&](const Arguments& more, const char* key) { return row(more, "mesh")[key].get<double>(); };
  const double here = tokens({}, "tokens_per_device");
  CHECK(tokens({"--fsdp", "32"}, "tokens") == 2 * tokens({}, "tokens"));
  CHECK(tokens({"--tensor-parallel", "8"}, "tokens_per_device") == Approx(here / 2));
  CHECK(tokens({"--fsdp-axes", "1"}, "tokens_per_device") == Approx(here * 2));
  CHECK(tokens({"--tensor-axes", "2"}, "most_tensor_parallel") == Approx(2 * tokens({}, "most_tensor_parallel")));
  CHECK(tokens({"--bandwidth", "3.6e11"}, "tokens_per_device") == Approx(here / 2));
  CHECK(tokens({"--flops", "9.2e14"}, "tokens_per_device") == Approx(here * 2));
  CHECK(contains(run(bench, {"accounting", "--tensor-parallel", "32"}).out, "Y is above"));
}
