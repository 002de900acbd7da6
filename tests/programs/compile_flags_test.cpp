// The flags of `tern-bench compile`: a row each, of what is measured and shown.
#include "flags.h"

using namespace tern::programs::test;

namespace {

/// The only row, and that of the plain run.
Seen row(const std::function<void(const Json& changed, const Json& plain)>& check) {
  return [=](const Ran& changed, const Ran& plain) { check(changed.rows().at(0), plain.rows().at(0)); };
}

/// Of a compiled function: a program ran, and the loss after some steps is that as written.
void is_compiled_function(const Json& found, const Json&) {
  for (const char* key : {"as_written_ms", "compiled_ms", "first_ms", "second_ms", "third_ms", "new_length_ms"}) CHECK(found[key] > 0.0);
  CHECK(found["compiled_result"] == found["as_written_result"]);
  CHECK((found["compiled_result"] > 1.0 && found["compiled_result"] < 10.0));
  CHECK(found["groups"] <= found["kernels"]);
  CHECK(number_of(found, "arena_bytes") <= number_of(found, "compiled_peak_bytes"));
  CHECK(number_of(found, "arena_bytes") < number_of(found, "separate_bytes"));
  CHECK(contains(found["report"].get<std::string>(), "1 program\n(i64 (2, 8), i64 (2, 8)): "));
  CHECK_FALSE(found.contains("captured_ms"));
}
/// Every model, of both passes, but for the optimizer, which has one.
void are_all_models(const Rows& found) {
  const std::set<std::string> fused = {"small",      "llama",         "attention", "cross entropy", "gelu",
                                       "layer norm", "residual norm", "rms norm",  "softmax"};
  const std::set<std::string> read_tokens = {"small", "llama", "lstm"};
  std::vector<std::string> models;
  for (const Json& each : found) {
    models.push_back(each["model"].get<std::string>() + " " + each["pass"].get<std::string>());
    CHECK(each["compiled_ms"] > 0.0);
    CHECK(each["compiled_result"] == each["as_written_result"]);
    if (each.contains("by_hand_result"))
      CHECK(number_of(each, "by_hand_result") == Approx(number_of(each, "compiled_result")).margin(1e-4));
    CHECK(each["kernels"] > 0);
    CHECK(each.contains("new_length_ms") == read_tokens.contains(each["model"]));
    CHECK(each.contains("by_hand_ms") == fused.contains(each["model"]));
  }
  std::vector<std::string> wanted;
  for (const char* model : {"small", "llama", "attention", "lstm", "cnn", "own-adamw", "chain of 10 with tanh", "chain of 9", "copy",
                            "cross entropy", "gelu", "layer norm", "residual norm", "rms norm", "softmax"})
    for (const char* pass : {"forward", "step"})
      if (std::string(model) != "own-adamw" || std::string(pass) == "step") wanted.push_back(std::string(model) + " " + pass);
  std::sort(models.begin(), models.end());
  std::sort(wanted.begin(), wanted.end());
  CHECK(models == wanted);
}
/// The kernels of a model are as many times the plain run's.
Seen has_kernels(double factor) {
  return row([=](const Json& changed, const Json& plain) {
    CHECK(number_of(changed, "kernels") == Approx(factor * number_of(plain, "kernels")).epsilon(0.15));
  });
}
void are_parts_of_a_program(const Ran& changed, const Ran&) {
  const std::string name = "made/char-step-fp32-";
  CHECK(contains(slurp(changed.directory / (name + "kernels.txt")), "adam"));
  CHECK(contains(slurp(changed.directory / (name + "groups.txt")), "# layers.0.up (Linear)"));
  CHECK(contains(slurp(changed.directory / (name + "memory.txt")), "arena "));
  CHECK(contains(slurp(changed.directory / (name + "code.txt")), "extern"));
  for (const char* column : {">layers.0<", ">layers.1<", ">(no module)<", "adam"})
    CHECK(contains(slurp(changed.directory / (name + "groups.svg")), column));
  CHECK(contains(slurp(changed.directory / (name + "memory.svg")), ">address in the arena, MiB<"));
}

}  // namespace

const FlagTable& tern::programs::test::compile_table() {
  const Seen longer = row([](const Json& changed, const Json& plain) {
    CHECK(number_of(changed, "separate_bytes") > 1.4 * number_of(plain, "separate_bytes"));
    CHECK(changed["kernels"] == plain["kernels"]);
  });
  static const FlagTable table{
      {bench,
       "compile --model char --batch 2 --length 8 --width 16 --layers 1 --vocab 50 --pass step --seconds 1e-6 --threads 1 --device "
       "cpu --json OUT/rows"},
      {{"", row(is_compiled_function)},
       {"--model small,llama,attention,lstm,cnn,own-adamw,chains,rows --pass forward,step", rows(are_all_models)},
       {"--pass forward", has_kernels(0.3)},
       {"--precision bf16", row([](const Json& changed, const Json& plain) {
          CHECK(number_of(changed, "kernels") > number_of(plain, "kernels"));  // casts
          CHECK(changed["dtype"] == "bf16");
        }),
        "--pass forward"},
       {"--batch 4", longer},
       {"--length 16", longer},
       {"--width 32", longer},
       {"--vocab 400", longer},
       {"--layers 3", has_kernels(2.3)},
       {"--threads 2", says("2 CPU threads")},
       {"--show kernels", says("Matmul")},
       {"--show groups", says("# layers.0.up (Linear)")},
       {"--show memory", says("in use at once")},
       {"--show code", says("extern")},
       {"--out OUT/made", are_parts_of_a_program, "--layers 2"}},
      {{"--device cuda", "--device cuda: "},
       {"--model foo", "--model: expected seed6, small, char, llama, lstm, cnn, attention, own-adamw, chains, rows but got foo"},
       {"--show all", "--show: expected code, groups, kernels, memory but got all"},
       {"--pass backward", "--pass: "},
       {"--precision tf32", "--precision tf32: "},
       {"--layers 0", "--layers: expected a whole number from 1"},
       {"--out /proc/none", "--out: "},
       {"--json OUT/no/x", "could not be opened"}}};
  return table;
}

TEST_CASE("tern-bench: each flag of compile shows as its row says") { check_flags(compile_table()); }

TEST_CASE("tern-bench: a wrong value of compile is refused") { check_refusals(compile_table().command, compile_table().refusals); }
