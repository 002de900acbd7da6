// The flags of tern-bench: a row each, of what is measured and counted. --device cuda is refused where there is no GPU.
#include "flags.h"

using namespace tern::programs::test;

namespace {

/// The only row, and that of the plain run.
Seen row(const std::function<void(const Json& changed, const Json& plain)>& check) {
  return [=](const Ran& changed, const Ran& plain) {
    const Rows found = changed.rows();
    REQUIRE(found.size() == 1);
    check(found[0], plain.rows().at(0));
  };
}
/// Keys whose values are others than the plain run's.
Seen changes(const std::vector<const char*>& keys) {
  return row([=](const Json& changed, const Json& plain) {
    for (const char* key : keys) CHECK(changed.at(key) != plain.at(key));
  });
}
Seen is(const char* key, const Json& value) {
  return row([=](const Json& changed, const Json& plain) {
    CHECK(changed.at(key) == value);
    CHECK(plain.value(key, Json()) != value);
  });
}
/// A number of the row that names a part, and how many times the plain run's it is.
Seen times(const char* part, const char* key, double factor, double epsilon = 1e-5) {
  return [=](const Ran& changed, const Ran& plain) {
    const auto number = [&](const Ran& run) {
      for (const Json& each : run.rows())
        if (each.value("part", each.value("what", "")) == part) return number_of(each, key);
      FAIL("no row of " << part);
      return 0.0;
    };
    CHECK(number(changed) == Approx(factor * number(plain)).epsilon(epsilon));
  };
}
/// Each row with fewer of these bytes than the one before it, and the same loss.
Seen saves(const char* key) {
  return rows([=](const Rows& found) {
    REQUIRE(found.size() == 3);
    for (std::size_t i : {1, 2}) {
      CHECK(found[i]["loss"] == found[0]["loss"]);
      CHECK(found[i][key] < found[i - 1][key]);
    }
    CHECK(found[0]["impl"] == "tern-fused");
    CHECK(found[2]["impl"] == "tern-fused-full-checkpointing");
  });
}

const std::string ar = "--model ar --dropout 0 --warmup 0 --threads 1 --device cpu --json OUT/rows ", checkpointed = "none,selective,full";
const Refusal no_gpu{"--device cuda", "--device cuda: "};

void are_all_combinations(const Rows& found) {
  std::set<std::string> cases;
  for (const Json& each : found)
    cases.insert(each["model"].get<std::string>() + each["dtype"].get<std::string>() + each["B"].dump() + each["T"].dump());
  CHECK(found.size() == 16);
  CHECK(cases.size() == 16);
  CHECK(found.at(0)["model"] == "ar");
  CHECK(found.at(15)["model"] == "mt");
}

/// Of a step: its parts, each with its spread.
void is_a_step(const Json& step, const Json&) {
  CHECK((step["loss"] > 1.0 && step["loss"] < 10.0));
  CHECK(number_of(step, "fwd_mean_ms") + number_of(step, "backward_mean_ms") + number_of(step, "optimizer_mean_ms") > 0);
  for (const char* part : {"step", "fwd", "backward", "optimizer"}) CHECK(step[std::string(part) + "_deviation_ms"] == 0);  // of one
  for (const char* key : {"model", "B", "T", "V", "p", "dtype", "impl", "device", "arch", "of_gemm", "burst_ms", "tok_s", "peak_gb"})
    CHECK(step.contains(key));
  CHECK_FALSE(step.contains("ranks"));
  CHECK_FALSE(step.contains("alone_ms"));
}

/// The same loss, by a program that the report names.
Seen is_compiled() {
  return [](const Ran& changed, const Ran& plain) {
    CHECK(changed.rows().at(0)["loss"] == plain.rows().at(0)["loss"]);
    says("compiled  1 program")(changed, plain);
    says("(i64 (2, 6), i64 (2, 6)): ")(changed, plain);
  };
}

void is_forward_alone(const Json& forward, const Json& step) {
  CHECK(forward["pass"] == "forward");
  CHECK(step["pass"] == "step");
  CHECK_FALSE(forward.contains("optimizer_ms"));
  CHECK(number_of(forward, "peak_gb") < 0.5 * number_of(step, "peak_gb"));  // weights against weights, gradients and two moments
  CHECK(forward["loss"] != step["loss"]);
}

/// Of several ranks against one, whose batch is another.
void is_of_two(const Json& two, const Json& one) {
  CHECK(two["ranks"] == 2);
  CHECK(two["loss"] != one["loss"]);
  CHECK(number_of(two, "loss") == Approx(number_of(one, "loss")).epsilon(0.2));
  CHECK(number_of(two, "alone_ms") > 0);
  CHECK(two["collectives"] == 1 + 1);  // matrices, and vectors
  CHECK_FALSE(two.contains("shard"));
}
/// Of 16 bytes a parameter, as `accounting` counts them, so many are left.
Seen shards(const char* name, double bytes) {
  return row([=](const Json& sharded, const Json& whole) {
    CHECK(sharded["shard"] == name);
    CHECK(number_of(sharded, "loss") == Approx(number_of(whole, "loss")).epsilon(1e-6));
    CHECK(number_of(sharded, "optimizer_bytes") == Approx(number_of(whole, "optimizer_bytes") / 2).epsilon(0.01));
    CHECK(number_of(sharded, "state_bytes") == Approx(number_of(whole, "state_bytes") * bytes / 16).epsilon(0.02));
  });
}

void are_pictures_of_memory(const Ran& changed, const Ran&) {
  const Rows found = changed.rows();
  REQUIRE(found.size() == 16);
  for (const Json& each : found) {
    double sum = 0;
    for (const char* category : {"parameters", "gradients", "optimizer", "activations", "workspace", "before"})
      sum += number_of(each, std::string(category) + "_bytes");
    CHECK(sum == number_of(each, "peak_bytes"));
    CHECK(sum == number_of(each, "allocator_peak_bytes"));
    for (const char* kept : {"gradients_bytes", "optimizer_bytes", "saved_bytes"})
      CHECK((number_of(each, kept) > 0) == (each["pass"] == "step"));
    const double width = each["model"] == "ar" ? 128 : 256, size = each["dtype"] == "fp32" ? 4 : 2;
    CHECK(number_of(each, "residual_stream_bytes") == 2 * number_of(each, "T") * width * size);
    const std::string name = fmt::format("{}-T{}-{}-{}", each["model"].get<std::string>(), each["T"].get<int>(),
                                         each["dtype"].get<std::string>(), each["pass"].get<std::string>());
    CHECK(fs::file_size(changed.directory / ("made/" + name + ".pickle")) > 1000);
    CHECK(contains(slurp(changed.directory / ("made/" + name + ".svg")), "peak "));
    CHECK(contains(slurp(changed.directory / "made/memory.md"), name));
  }
}

void ran_out(const Ran& changed, const Ran&) {
  const Rows found = changed.rows();
  REQUIRE(found.size() == 2);
  CHECK(found[0]["error"] == "out of memory");
  CHECK(number_of(found[0], "parameters_bytes") > 1e6);
  CHECK(contains(slurp(changed.directory / "made/memory.md"), "| ar-T4096-fp32-forward | out of memory"));
  CHECK_FALSE(found[1].contains("error"));
  CHECK(found[1]["allocator_peak_bytes"] == found[1]["peak_bytes"]);
}

void are_fused_attention(const Rows& found) {
  REQUIRE(found.size() == 2 * 3);
  for (const Json& each : found) {
    CHECK(each["impl"] == "tern-fused");
    CHECK(each["dtype"] == "float64");
    CHECK(each["threads"] == 2);
    CHECK(each["causal"] == false);
    CHECK(each["shape"][0] == 8);
    CHECK(each["shape"][3] == 4);
  }
  CHECK(found[0]["op"] == "attention_fwd");
  CHECK(found[5]["op"] == "attention_fwd_bwd");
  CHECK(found[5]["shape"][2] == 8);
  CHECK(number_of(found[5], "kept_mib") < 0.01);  // the result of 8 x 8 rows of 4, and a number for each query: no scores
}

/// Every row's mask is applied, and its pairs of query and key are counted.
void are_masks(const Rows& found) {
  const std::vector<std::string> forms = {"causal", "grouped", "queries", "lengths", "prefix", "window", "dropout", "packed", "rope"};
  REQUIRE(found.size() == forms.size() * 2 * 3);
  std::map<std::string, double> pairs;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    INFO(forms[i]);
    const Json *const plain = &found[6 * i], *const fused = plain + 3;
    for (std::size_t pass = 0; pass < 3; ++pass) {
      for (const Json* each : {plain + pass, fused + pass}) {
        CHECK((*each)["mask"] == forms[i]);
        CHECK((*each)["op"] == found[pass]["op"]);
        CHECK(number_of(*each, "gflop") == Approx(number_of(*fused, "gflop") * std::vector<double>{1, 2.5, 3.5}[pass]));
        const auto rate = [](const Json& one) { return number_of(one, "gflop") / number_of(one, "ms"); };
        CHECK(number_of(*each, "of_causal") == Approx(rate(*each) / rate(found[pass + (each >= fused ? 3 : 0)])).epsilon(0.02));
      }
    }
    // The rows' numbers are drawn from one seed: a mask that is not applied leaves the result of causal attention.
    CHECK(number_of(*fused, "mean_square") == Approx(number_of(*plain, "mean_square")).epsilon(1e-12));
    if (i > 0) CHECK(number_of(*fused, "mean_square") != Approx(number_of(found[0], "mean_square")).epsilon(1e-6));
    const auto& shape = (*fused)["shape"];
    CHECK(shape[2] == 24);
    CHECK(shape[3] == 6);
    pairs[forms[i]] = number_of(*fused, "gflop") * 1e9 / (4 * 6 * shape[1].get<double>()) / shape[0].get<double>();
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

/// The roofs; of each shape, both ways, plain, fused and copy.
void are_convolutions(const Rows& found) {
  REQUIRE(found.size() == 2 + 3 * 2 * 3);
  CHECK(found[1]["tflops"] > 0.0);
  CHECK(found[2]["shape"] == Json::array({1, 1024, 1024, 1}));
  for (std::size_t i = 2; i < found.size(); ++i) {
    CHECK(found[i]["op"].get<std::string>().rfind("conv1d_first_", 0) == 0);
    CHECK(found[i]["dtype"] == "float64");
    CHECK(found[i]["threads"] == 2);
  }
}

void are_ops(const Ran& changed, const Ran&) {
  std::set<std::string> names;
  for (const Json& each : changed.rows()) {
    names.insert(each["op"]);
    CHECK((each["dtype"] == "float64") == (each["op"] != "copy"));
    CHECK(each["device"] == "cpu");
    CHECK(each["threads"] == 2);
    CHECK(each["ms"] > 0.0);
    CHECK(each["of_copy"] > 0.0);
  }
  CHECK(names == std::set<std::string>{"copy", "layernorm_fwd", "layernorm_bwd", "adamw", "grad_norm"});
  CHECK(contains(changed.result.out, "2 CPU threads: a copy moves"));
}

/// Memory bounds the softmax of attention, which takes its bytes over the device's bandwidth, at 2 bytes an element.
Seen is_bound_by(double bandwidth) {
  return rows([=](const Rows& found) {
    for (const Json& each : found) {
      if (each["part"] != "softmax") continue;
      CHECK(each["bound"] == "memory");
      CHECK(number_of(each, "ms") == Approx(number_of(each, "bytes") / bandwidth * 1e3));
    }
  });
}

void are_convolution_counts(const Rows& found) {
  REQUIRE(found.size() == 4);
  CHECK(found[3]["part"] == "depthwise convolution");
  CHECK(found[3]["flops"] == 402653184);
  CHECK(found[3]["K"] == 3);
  CHECK(number_of(found[2], "bytes") == Approx(2 * number_of(found[3], "bytes")).epsilon(1e-2));
}
/// The cache of attention, of 64 tokens of 32 keys and values, grows as the text; a state (8, 8) of each of 4 heads does not.
void are_mixer_counts(const Rows& found) {
  REQUIRE(found.size() == 15);
  CHECK(found[0]["part"] == "attention");
  CHECK(found[0]["state_bytes"] == 64 * 2 * 32 * 2);
  CHECK(number_of(found[0], "state_exponent") == 1);
  CHECK(number_of(found[0], "flops_exponent") > 1);
  CHECK(found[0]["flops"] == 128 * number_of(found[0], "flops_a_token"));
  CHECK(found[12]["part"] == "gla");
  CHECK(found[12]["state_bytes"] == 4 * 4 * 8 * 8);
  CHECK(number_of(found[12], "state_exponent") == 0);
  CHECK(number_of(found[12], "flops_exponent") == 1);
}
void is_of_the_roof(const Ran& changed, const Ran&) {
  writes("roofline.svg", {"Roofline of T4: 65 TFLOP/s, 320 GB/s", "roofs", "convolution, padded", "both", "depthwise convolution"})(
      changed, changed);
  CHECK_FALSE(contains(slurp(changed.directory / "roofline.svg"), ">padding<"));  // which computes nothing
}

Seen parameters(double count) {
  return rows([=](const Rows& found) { CHECK(number_of(found.at(0), "parameters") == count); });
}
constexpr double blocks = 126.0 * 2 * 16384 * 53248;
constexpr double small = 124439808 + 768.0 * 50257;  // GPT-2 small, whose head is a matrix of its own here

FlagTable step() {
  return {{bench, "step --arch gpt2 --precision fp32 --batch 2 --length 6 --vocab 50 --steps 1 --use-fused-kernel False " + ar},
          {{"", row(is_a_step)},
           {"--model mt", changes({"loss", "params"})},
           {"--arch llama", changes({"loss", "params"})},
           {"--vocab 60", changes({"loss", "params"})},
           {"--precision bf16", changes({"loss"})},
           {"--precision autocast-bf16", changes({"loss"})},
           {"--precision autocast-fp16", changes({"loss"})},
           {"--batch 3", changes({"loss"})},
           {"--length 7", changes({"loss"})},
           {"--dropout 0.5", changes({"loss"})},
           {"--warmup 1", changes({"loss"})},
           {"--steps 2", changes({"loss"})},
           {"--use-fused-kernel True", is("impl", "tern-fused")},
           {"--compile", both(is("impl", "tern-plain-compile"), is_compiled()), "--steps 4 --dropout 0.5"},
           {"--compile", both(is("impl", "tern-plain-compile"), says("(i64 (2, 6), i64 (2, 6)): ")), "--forward-only"},
           {"--threads 3", says("3 CPU threads,")},
           {"--model ar,mt --precision fp32,bf16 --batch 1,2 --length 3,5", rows(are_all_combinations)},
           {"--forward-only", row(is_forward_alone), "--steps 2"},
           {"--activation-checkpointing " + checkpointed, saves("peak_gb"), "--batch 32 --length 64 --use-fused-kernel"},
           {"--ranks 2", row(is_of_two)},
           {"--ranks 1", row(is_a_step)},
           {"--forward-only", row([](const Json& changed, const Json&) { CHECK_FALSE(changed.contains("alone_ms")); }), "--ranks 2"},
           {"--gradient-sync flat", row([](const Json& flat, const Json& two) {
              CHECK(flat["collectives"] == 1);
              CHECK(flat["loss"] == two["loss"]);
            }),
            "--ranks 2"},
           {"--bucket-size-mb 0.2", row([](const Json& changed, const Json&) { CHECK(changed["collectives"] > 2); }), "--ranks 2"},
           {"--reduce-dtype bf16", row([](const Json& lowered, const Json& two) {
              CHECK(lowered["loss"] != two["loss"]);
              CHECK(number_of(lowered, "loss") == Approx(number_of(two, "loss")).epsilon(1e-3));
            }),
            "--ranks 2 --steps 2"},
           {"--shard optimizer", shards("optimizer", 8 + 8 / 2.0), "--ranks 2 --steps 2"},
           {"--shard gradients", shards("gradients", 4 + 12 / 2.0), "--ranks 2 --steps 2"},
           {"--shard parameters", shards("parameters", 16 / 2.0), "--ranks 2 --steps 2"}},
          {no_gpu,
           {"--model foo", "--model: expected mt, ar, small, medium, large, xl, 2.7B, 6.7B, 13B but got foo"},
           {"--batch 0", "--batch: expected a whole number from 1"},
           {"--batch 99999999999999999999", "--batch: "},
           {"--dropout 1", "--dropout: "},
           {"--bach 1", "did you mean --batch?"},
           {"--precision fp8", "--precision: expected fp32, tf32, tf32x3, bf16, fp16, autocast-bf16, autocast-fp16 but got fp8"},
           {"--precision tf32", "--precision tf32: "},
           {"--precision tf32x3", "--precision tf32x3: "},
           {"--profile 2", "--profile: expected --out"},
           {"--compile --capture", "--capture: a GPU's graph is a part of --compile; leave --capture out"},
           {"--compile --ranks 2 --shard gradients",
            "--compile: the memory of sharded gradients is at other addresses in each step; leave it out, or take --shard optimizer"},
           {"--json OUT/no/x", "could not be opened"},
           {"--ranks 2 --json OUT/no/x", "--json "}}};
}

FlagTable memory() {
  return {
      {bench, "memory --batch 2 --length 8 --vocab 40 --pass step --out OUT/made " + ar},
      {{"--model ar,mt --length 3,8 --precision fp32,bf16 --pass forward,step", are_pictures_of_memory},
       {"--batch 6", row([](const Json& changed, const Json& plain) {
          CHECK(changed["residual_stream_bytes"] == 3 * number_of(plain, "residual_stream_bytes"));
        })},
       {"--vocab 4000", row([](const Json& changed, const Json& plain) {
          CHECK(number_of(changed, "parameters_bytes") > 2 * number_of(plain, "parameters_bytes"));
        })},
       {"--dropout 0.1", changes({"loss"})},  // its mask is drawn again for backward, and takes no memory
       {"--use-fused-kernel", row([](const Json& changed, const Json& plain) { CHECK(changed["saved_bytes"] < plain["saved_bytes"]); })},
       {"--arch llama", changes({"saved_bytes"})},
       // The first step makes the moments; a later one finds them.
       {"--warmup 1", row([](const Json& changed, const Json& plain) {
          CHECK(number_of(changed, "begin_bytes") > 1.9 * number_of(plain, "begin_bytes"));
        })},
       {"--threads 2", writes("made/memory.md", {"2 CPU threads,"})},
       {"--stacks", both(writes("made/memory.md", {"```"}),
                         [](const Ran&, const Ran& plain) { CHECK_FALSE(contains(slurp(plain.directory / "made/memory.md"), "```")); })},
       {"--activation-checkpointing " + checkpointed,
        both(saves("activations_bytes"), writes("made/ar-T64-fp32-step-full-checkpointing.svg", {"peak "})),
        "--batch 32 --length 64 --use-fused-kernel"},
       {"--limit 0.3", ran_out, "--length 4096,8 --pass forward"}},
      {no_gpu}};
}

FlagTable ops() {
  return {{bench, "ops --op layernorm,adamw,grad_norm --dtype fp64 --seconds 1e-6 --threads 2 --device cpu --json OUT/rows"},
          {{"--op layernorm,adamw,grad_norm --dtype fp64 --threads 2", are_ops}},
          {no_gpu,
           {"--op softmax,foo",
            "--op: expected softmax, layernorm, rmsnorm, residual_layernorm, xent, linear_xent, adamw, grad_norm, feed_forward, gla, "
            "gated_deltanet "
            "but got foo"},
           {"--op \"\"", "--op: expected softmax"},
           {"--dtype fp8", "--dtype: expected fp32, bf16, fp16, fp64 but got fp8"},
           {"--seconds 0", "--seconds: "},
           {"--json OUT/no/x", "could not be opened"}}};
}

FlagTable attention() {
  return {{bench, "attention --lengths 3,8 --seconds 1e-6 --threads 2 --device cpu --json OUT/rows"},
          {{"--sweep batch --widths 4 --dtype fp64 --impl fused --lengths 3,8 --threads 2", rows(are_fused_attention)},
           {"--sweep length", rows([](const Rows& found) {
              REQUIRE(found.size() == 4 * 2 * 2 * 3);
              CHECK(found[0]["causal"] == true);
              CHECK(found[0]["shape"][0] == 1);
              CHECK(found[0]["impl"] == "tern-plain");
            })},
           {"--sweep masks", rows(are_masks), "--lengths 24 --widths 6 --dtype fp64"}},
          {no_gpu}};
}

FlagTable conv1d() {
  return {{bench, "conv1d --dtype fp64 --taps 1 --layout first --seconds 1e-6 --threads 2 --device cpu --json OUT/rows"},
          {{"--dtype fp64 --taps 1 --layout first --threads 2", rows(are_convolutions)}},
          {no_gpu,
           {"--taps 3,0", "--taps: expected a whole number from 1"},
           {"--dtype fp8", "--dtype: expected fp32, fp16, bf16, fp64 but got fp8"}}};
}

FlagTable count() {
  return {{bench, "count --batch 2 --length 64 --width 32 --heads 4 --bytes 2 --device-name A100 --json OUT/rows"},
          // The MLP D -> 4 D -> D: 16 B N D^2 operations. Scores: one number for each head, query and key.
          {{"", rows([](const Rows& found) {
              REQUIRE(found.size() == 8);
              CHECK(found[5]["part"] == "MHA");
              CHECK(found[7]["part"] == "MLP");
              CHECK(number_of(found[7], "flops") == Approx(16.0 * 2 * 64 * 32 * 32).epsilon(0.05));
            })},
           {"--batch 6", times("MLP", "flops", 3)},
           {"--length 128", times("MLP", "flops", 2)},
           {"--width 64", times("MLP", "flops", 4, 0.1)},
           {"--heads 8", times("softmax", "flops", 2)},
           {"--bytes 4", times("softmax", "bytes", 2)},
           {"--device-name A100", is_bound_by(2.039e12)},
           {"--device-name T4", is_bound_by(3.2e11)},
           {"--device-name measured --threads 3", says("3 CPU threads, measured"), "--device cpu"},
           {"--of conv1d", rows(are_convolution_counts), "--batch 1 --length 8192 --width 8192 --taps 3 --device-name T4"},
           {"--of mixers", rows(are_mixer_counts)},
           {"--of mixers --bytes 4", times("attention", "state_bytes", 2), "--of mixers"},
           {"--taps 6", times("depthwise convolution", "flops", 2), "--of conv1d --taps 3"},
           {"--roofline OUT/roofline.svg", is_of_the_roof, "--of conv1d --device-name T4"},
           {"--roofline OUT/roofline.svg", writes("roofline.svg", {"Roofline of A100"})}},
          {{"--device-name measured --device cuda", "--device cuda: "},
           {"--of mixers --heads 3", "--heads: expected a divisor of the width 32 but got 3"},
           {"--of mixers --roofline OUT/roofline.svg", "--roofline: expected --of transformer or conv1d"},
           {"--device-name A1000", "--device-name: expected A100, T4, H100, H200, measured but got A1000"},
           {"--heads 0", "--heads: expected a whole number from 1"}}};
}

FlagTable accounting() {
  return {{bench, "accounting --json OUT/rows"},
          {{"", both(parameters(blocks),
                     [](const Ran& changed, const Ran&) {
                       for (const char* said : {"126 blocks of two matrices 16384 x 53248: 219.85 B parameters\n",
                                                "3.518 TB, the memory of 44 devices of 80 GB\n",
                                                "C / (Y W M_X) = 319.4 tokens a device: 320, 20480 in all\n", "Y is below"})
                         CHECK(contains(changed.result.out, said));
                     })},
           {"--width 8192", parameters(blocks / 2)},
           {"--ff 106496", parameters(blocks * 2)},
           {"--layers 63", parameters(blocks / 2)},
           {"--parameters 1000", parameters(1000)},
           {"--model small", parameters(small)},
           {"--vocab 50258", parameters(small + 2 * 768), "--model small"},
           {"--length 1025", parameters(small + 768), "--model small"},
           {"--arch llama", rows([](const Rows& found) { CHECK(number_of(found.at(0), "parameters") < small); }), "--model small"},
           {"--memory-gb 95", rows([](const Rows& found) { CHECK(found.at(0)["devices"] == 38); })},
           {"--ranks 4", rows([](const Rows& found) {
              CHECK(found.at(1)["ranks"] == 4);
              CHECK(found[1]["after_step_bytes"] == 16000);
            }),
            "--parameters 1000"},
           {"--ranks 2,3", rows([](const Rows& found) { CHECK(found.size() == 1 + 2 * 4 + 1); })},
           {"--fsdp 32", times("mesh", "tokens", 2)},
           {"--tensor-parallel 8", times("mesh", "tokens_per_device", 0.5)},
           {"--fsdp-axes 1", times("mesh", "tokens_per_device", 2)},
           {"--tensor-axes 2", times("mesh", "most_tensor_parallel", 2)},
           {"--bandwidth 3.6e11", times("mesh", "tokens_per_device", 0.5)},
           {"--flops 9.2e14", times("mesh", "tokens_per_device", 2)},
           {"--tensor-parallel 32", says("Y is above")}},
          {}};
}

}  // namespace

const std::vector<FlagTable>& tern::programs::test::bench_tables() {
  static const std::vector<FlagTable> tables{step(), memory(), ops(), attention(), conv1d(), count(), accounting()};
  return tables;
}

TEST_CASE("tern-bench: each flag of step shows as its row says") { check_flags(bench_tables()[0]); }

TEST_CASE("tern-bench: each flag of memory shows as its row says") { check_flags(bench_tables()[1]); }

TEST_CASE("tern-bench: each flag of other commands shows as its row says") {
  for (std::size_t i = 2; i < bench_tables().size(); ++i) check_flags(bench_tables()[i]);
}

TEST_CASE("tern-bench: a wrong value is refused") {
  for (const FlagTable& table : bench_tables()) check_refusals(table.command, table.refusals);
}
