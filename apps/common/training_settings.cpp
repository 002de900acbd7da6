#include "common/training_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "backend/memory.h"
#include "backend/parse.h"
#include "common/program.h"
#include "parallel/store.h"

namespace tern::apps {

nn::Positions positions_of(const std::string& name) {
  if (name == "learned") return nn::Positions::learned;
  if (name == "sinusoidal") return nn::Positions::sinusoidal;
  return name == "rotary" ? nn::Positions::rotary : nn::Positions::none;
}

nn::Initialization initialization_of(const std::string& name) {
  if (name == "gpt2") return nn::Initialization::gpt2;
  return name == "xavier" ? nn::Initialization::xavier : nn::Initialization::layer_defaults;
}

std::vector<std::string> mixer_names() {
  std::vector<std::string> names;
  for (int kind = 0; kind < static_cast<int>(nn::MixerKind::own); ++kind) names.emplace_back(nn::name(static_cast<nn::MixerKind>(kind)));
  return names;
}

namespace {

std::int64_t linear(std::int64_t in, std::int64_t out, bool has_bias) { return in * out + (has_bias ? out : 0); }

std::int64_t norm(const nn::TransformerOptions& o) {
  return o.norm == nn::NormKind::none ? 0 : o.width * (o.norm == nn::NormKind::layer && o.bias ? 2 : 1);
}

/// Parameters of an attention with its norm. Cross attention has as many key and value heads as query heads.
std::int64_t attention(const nn::TransformerOptions& o, bool is_cross) {
  const std::int64_t heads = std::max<std::int64_t>(o.heads, 1), kv_heads = o.kv_heads > 0 && !is_cross ? o.kv_heads : heads;
  const std::int64_t head_dim = o.head_dim > 0 ? o.head_dim : o.width / heads;
  const std::int64_t queries = heads * head_dim, keys_values = 2 * kv_heads * head_dim;
  return norm(o) + linear(o.width, queries + keys_values, o.bias) + linear(queries, o.width, o.bias);
}

std::int64_t feed_forward(const nn::TransformerOptions& o) {
  if (o.ff == 0) return 0;
  return norm(o) + linear(o.width, o.ff, o.bias) * (o.gated ? 2 : 1) + linear(o.ff, o.width, o.bias);
}

/// Parameters of a nn::TransformerModel without its token table.
std::int64_t body(const nn::TransformerOptions& o, std::int64_t layers, bool has_cross) {
  const std::int64_t positions = o.positions == nn::Positions::learned ? o.length * o.width : 0;
  const std::int64_t layer = attention(o, false) + (has_cross ? attention(o, true) : 0) + feed_forward(o);
  return positions + layers * layer + (o.final_norm ? norm(o) : 0);
}

/// Parameters of the token table and the head.
std::int64_t tokens(const nn::TransformerOptions& o) { return o.width * o.vocab * (o.tied_head ? 1 : 2) + (o.head_bias ? o.vocab : 0); }

}  // namespace

std::int64_t count_parameters(const nn::DecoderLMOptions& options) { return tokens(options) + body(options, options.layers, false); }

std::int64_t count_parameters(const nn::EncoderDecoderOptions& options) {
  const std::int64_t encoder_layers = options.encoder_layers > 0 ? options.encoder_layers : options.layers;
  return tokens(options) + body(options, encoder_layers, false) + body(options, options.layers, true);
}

void require_memory(std::int64_t parameters, Device device, const std::string& remedy) {
  if (device != cpu) return;
  const double needed = 16 * static_cast<double>(parameters);  // weights, gradients, and Adam's two moments
  const auto there = static_cast<double>(backend::usable_memory());
  if (there > 0 && needed > there)
    throw UsageError(fmt::format("a model of {:.3g} parameters needs {:.3g} GB to train and this machine has {:.3g} GB for it: {}",
                                 static_cast<double>(parameters), needed / 1e9, there / 1e9, remedy));
}

void require_weights(const io::RunDirectory& run, std::int64_t parameters, double bytes_each) {
  std::error_code error;
  const auto bytes = static_cast<double>(std::filesystem::file_size(run.model(), error)), elements = static_cast<double>(parameters);
  if (!error && bytes < bytes_each * elements)
    throw io::FileError(fmt::format("{}: does not fit the model in {}: {:.3g} elements do not fit in {:.0f} bytes", run.model(),
                                    std::filesystem::path(run.config()).filename().string(), elements, bytes));
}

void require_precision(train::Precision precision, Device device) {
  if (precision == train::Precision::tf32 && device == cpu)
    throw UsageError("--precision tf32: a GPU's tensor cores have it and a CPU has not; use fp32 or bf16, or --device cuda");
  if (precision == train::Precision::tf32x3 && !train::has_precision(precision, device))
    throw UsageError("--precision tf32x3: a Hopper GPU has it, in a build for sm_90a, and no other device; use fp32");
}

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

void require_memory_that_stays(const char* option, parallel::Shard shard) {
  if (shard >= parallel::Shard::gradients)
    throw UsageError(fmt::format("{}: the memory of sharded {} is at other addresses in each step; leave it out, or take --shard optimizer",
                                 option, parallel::name(shard)));
}

Device device_of(const TrainingSettings& settings) {
  const Device device = use(settings);
  require_precision(precision(settings), device);
  const auto ranks = parallel::launch_environment();
  const parallel::Shard shard = parallel::shard_of(settings.ranks.shard).value();
  if (settings.compile && ranks && ranks->size > 1) require_memory_that_stays("--compile", shard);
  return device;
}

void add_compile_option(CLI::App& command, RunSettings& settings) {
  add_switch(command, "--compile", "run updates as compiled programs (tern::compile), on a GPU to rounding the same",
             [&settings](bool is_on) { settings.compile = is_on; });
}

void add_run_options(CLI::App& command, RunSettings& settings) {
  add_compile_option(command, settings);
  command.add_flag("--resume", settings.checkpoints.resume, "go on with the run in --out from its last checkpoint, with its options");
  add_option(command, "--checkpoint-every", settings.checkpoints.every,
             "updates between checkpoints, 0 for once an epoch (default: 0, or as the run had it)", whole_number(0, 1'000'000'000), "N");
  add_option(command, "--keep", settings.checkpoints.keep,
             "newest checkpoints that are kept, beside the best model's (default: 1, or as the run had it)", whole_number(1, 1'000'000),
             "N");
  add_profile_option(command, settings.profile);
  constexpr const char* group = "Several processes (tern-launch -n N), and nothing for one alone";
  add_gradient_options(command, settings.ranks.gradient_sync, settings.ranks.bucket_size_mb, settings.ranks.shard, group);
  add_value(command, "--rank-timeout", settings.ranks.timeout, "seconds that a process waits for the others until it ends with an error",
            real_number(0.1, 1e6), "SECONDS")
      ->group(group);
}

}  // namespace tern::apps
