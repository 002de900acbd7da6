// The flags of `tern-bench mixers`: a row each, of what is measured and counted.
#include "flags.h"

using namespace tern::programs::test;

namespace {

const std::string all_mixers = "attention,window,conv,h3,hyena,rwkv4,rwkv7,mamba,mamba2,based,linear,retnet,gla,deltanet,gated-deltanet";

/// Both ways of each mixer.
void are_mixers(const Rows& found) {
  REQUIRE(found.size() == 2 * 15);
  CHECK(found[0]["op"] == "mixer_attention_fwd");
  CHECK(found[29]["op"] == "mixer_gated-deltanet_fwd_bwd");
  for (const Json& each : found) {
    CHECK(each["shape"] == Json::array({2, 6, 8, 2}));
    CHECK(each["ms"] > 0.0);
    CHECK(number_of(each, "tok_s") == Approx(12e3 / number_of(each, "ms")).epsilon(1e-2));
  }
}
/// The first row's key is so many times the plain run's.
Seen first_times(const char* key, double factor) {
  return [=](const Ran& changed, const Ran& plain) {
    CHECK(number_of(changed.rows().at(0), key) == Approx(factor * number_of(plain.rows().at(0), key)));
  };
}

}  // namespace

const FlagTable& tern::programs::test::mixers_table() {
  static const FlagTable table{
      {bench,
       "mixers --mixer gla,attention --batch 2 --length 6 --width 8 --heads 2 --seconds 1e-6 --threads 1 --device cpu "
       "--json OUT/rows"},
      {{"", rows([](const Rows& found) {
          REQUIRE(found.size() == 4);
          CHECK(found[0]["op"] == "mixer_gla_fwd");
          CHECK(found[3]["op"] == "mixer_attention_fwd_bwd");
          CHECK(found[0]["state_bytes"] == 2 * 4 * 4 * 4);
          CHECK(found[3]["state_bytes"] == 6 * 2 * 8 * 4);
        })},
       {"--mixer " + all_mixers, rows(are_mixers)},
       {"--batch 4", both(first_times("state_bytes", 1), says("1 CPU thread: one layer of a mixer, B 4, D 8, H 2"))},
       {"--length 6,12", rows([](const Rows& found) {
          REQUIRE(found.size() == 8);
          CHECK(number_of(found[7], "state_bytes") == 2 * number_of(found[3], "state_bytes"));
        })},
       {"--width 16", first_times("state_bytes", 4)},
       {"--heads 1", first_times("state_bytes", 2)},
       {"--precision fp32,bf16", rows([](const Rows& found) {
          REQUIRE(found.size() == 8);
          CHECK(found[4]["precision"] == "bf16");
          CHECK(found[4]["dtype"] == "bfloat16");
          CHECK(number_of(found[7], "state_bytes") == number_of(found[3], "state_bytes") / 2);
        })},
       {"--threads 2", rows([](const Rows& found) { CHECK(found[0]["threads"] == 2); })}},
      {{"--device cuda", "--device cuda: "},
       {"--mixer gla,foo", "--mixer: expected attention, window, conv"},
       {"--heads 3", "--heads: expected heads of an even size, for rotary positions, but got 3 in a width of 8"},
       {"--heads 8", "--heads: expected heads of an even size"},
       {"--precision tf32", "--precision tf32: "},
       {"--length 0", "--length: expected a whole number from 1"}}};
  return table;
}

TEST_CASE("tern-bench: each flag of mixers shows as its row says") { check_flags(mixers_table()); }

TEST_CASE("tern-bench: a wrong value of mixers is refused") { check_refusals(mixers_table().command, mixers_table().refusals); }
