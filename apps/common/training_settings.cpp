#include "common/training_settings.h"

#include "backend/parse.h"

namespace tern::apps {

void add_profile_option(CLI::App& command, std::int64_t& steps) {
  const Check check = whole_number(1, 10'000);
  command
      .add_option_function<std::string>(
          "--profile",
          [&steps](const std::string& text) { steps = backend::parse_number<std::int64_t>(text).value_or(default_profile_steps); },
          "profile that many steps after the first ones (" + std::to_string(default_profile_steps) + "), and write " + profile_file_names +
              " into --out")
      ->expected(0, 1)
      ->check([check](const std::string& text) { return text.empty() ? std::string() : check(text); })
      ->type_name("[STEPS]");
}

static void add_checkpoint_options(CLI::App& command, train::CheckpointOptions& options) {
  command.add_flag("--resume", options.resume, "go on with the run in --out from its last checkpoint, with its options");
  command
      .add_option("--checkpoint-every", options.every,
                  "updates between checkpoints, 0 for once an epoch (default: 0, or as the run had it)")
      ->check(whole_number(0, 1'000'000'000))
      ->type_name("N");
  command
      .add_option("--keep", options.keep, "newest checkpoints that are kept, beside the best model's (default: 1, or as the run had it)")
      ->check(whole_number(1, 1'000'000))
      ->type_name("N");
}

void add_gradient_options(CLI::App& command, std::string& gradient_sync, double& bucket_size_mb, std::string& shard, const char* group) {
  add_value(command, "--gradient-sync", gradient_sync,
            "how gradients meet: bucketed and overlapped beside backward, flat and per-parameter after it",
            one_of({"bucketed", "flat", "overlapped", "per-parameter"}), "NAME")
      ->group(group);
  add_value(command, "--bucket-size-mb", bucket_size_mb, "MiB of gradients that bucketed sends at a time", real_number(1e-6, 1e6), "X")
      ->group(group);
  add_value(command, "--shard", shard,
            "of what each process keeps its part alone: optimizer (its moments), gradients (and them), parameters (and them, which "
            "come while they are used), none",
            one_of({"none", "optimizer", "gradients", "parameters"}), "NAME")
      ->group(group);
}

static void add_rank_options(CLI::App& command, train::RankOptions& options) {
  constexpr const char* group = "Several processes (tern-launch -n N), and nothing for one alone";
  add_gradient_options(command, options.gradient_sync, options.bucket_size_mb, options.shard, group);
  add_value(command, "--rank-timeout", options.timeout, "seconds that a process waits for the others until it ends with an error",
            real_number(0.1, 1e6), "SECONDS")
      ->group(group);
}

void add_run_options(CLI::App& command, RunSettings& settings) {
  add_checkpoint_options(command, settings.checkpoints);
  add_profile_option(command, settings.profile);
  add_rank_options(command, settings.ranks);
}

}  // namespace tern::apps
