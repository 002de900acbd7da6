#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>

#include "bench/commands.h"
#include "bench/step_case.h"
#include "bench/timing.h"
#include "common/program.h"
#include "common/training_settings.h"
#include "io/json_object.h"
#include "nn/nn.h"
#include "train/train.h"
#include "trainer/ranks.h"
#include "trainer/step_profile.h"

namespace tern::bench {
namespace {

struct Options : apps::Processors {
  StepCase step;  ///< settings that all cases share
  std::string models = "mt", archs = "gpt2", precisions = "fp32", batches = "32", lengths = "40", checkpointing = "none", json,
              gradient_sync = "bucketed", reduce_dtype, shard = "none";
  int ranks = 0;
  bool capture = false, compile = false;
  parallel::GroupOptions group;
};

/// All combinations of the lists, in their order.
std::vector<StepCase> cases_of(const Options& options) {
  std::vector<StepCase> cases = {options.step};
  if (options.capture) cases[0].way = Step::Way::captured;
  if (options.compile) cases[0].way = Step::Way::compiled;
  cases[0].parallel.shard = parallel::shard_of(options.shard).value();
  cases[0].parallel.scatter_gradients = cases[0].parallel.shard != parallel::Shard::none;
  cases[0].parallel.sync = parallel::gradient_sync_of(options.gradient_sync).value();
  if (!options.reduce_dtype.empty()) cases[0].parallel.reduce_dtype = float_modes().at(options.reduce_dtype).first;
  vary(cases, words(options.models), [](StepCase& c, const std::string& name) { c.model = name; });
  vary(cases, words(options.archs), [](StepCase& c, const std::string& name) { c.arch = name; });
  vary(cases, words(options.precisions), set_mode);
  vary(cases, numbers(options.batches), [](StepCase& c, std::int64_t batch) { c.batch = batch; });
  vary(cases, numbers(options.lengths), [](StepCase& c, std::int64_t length) { c.length = length; });
  vary(cases, words(options.checkpointing),
       [](StepCase& c, const std::string& name) { c.activation_checkpointing = *checkpoint_policy_of(name); });
  return cases;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : device_(apps::use(options)),
        group_(parallel::make_process_group(device_, options.group)),
        rows_(group_->rank() == 0 ? options.json : "") {}

  Device device() const { return device_; }

  void run(const StepCase& c) {
    if (is_first())
      fmt::print("{} {} B {} T {} V {} dropout {}, {}{}, {}, {} kernels{}{}\n", c.model, c.arch, c.batch, c.length, c.vocab, c.dropout,
                 ranks_text(c), apps::describe(device_), mode(c), c.use_fused_kernel ? "fused" : "plain", checkpointing_text(c),
                 c.forward_only ? ", forward only" : "");
    std::fflush(stdout);
    const train::PrecisionScope scope(c.precision);
    try {
      const StepFigures figures = measure_step(c, device_, group_.get());
      const double of_product = ceiling(c);
      if (is_first()) show(c, figures, of_product);
    } catch (const OutOfMemory&) {
      if (!is_alone()) throw;  // other ranks would wait for this one
      // Running out of memory is a result, too.
      fmt::print("  out of memory\n");
      rows_.add(row(c).set("error", "out of memory"));
    }
    std::fflush(stdout);
  }

 private:
  bool is_first() const { return group_->rank() == 0; }
  bool is_alone() const { return group_->size() == 1; }

  /// The text "2 ranks (gloo, bucketed 25 MiB) of "; "" for a single process.
  std::string ranks_text(const StepCase& c) const {
    if (is_alone()) return "";
    std::string how = parallel::name(c.parallel.sync);
    if (c.parallel.sync == parallel::GradientSync::bucketed) how += fmt::format(" {} MiB", c.parallel.bucket_size_mb);
    if (c.parallel.shard != parallel::Shard::none) how += fmt::format(", sharded {}", parallel::name(c.parallel.shard));
    if (c.parallel.reduce_dtype) how += fmt::format(" in {}", name(*c.parallel.reduce_dtype));
    return fmt::format("{} ranks ({}, {}) of ", group_->size(), group_->engine(), how);
  }

  double ceiling(const StepCase& c) {
    const auto [place, is_new] = ceilings_.try_emplace(mode(c), 0);
    if (is_new) place->second = measure_product(device_, c.autocast.value_or(train::dtype_of(c.precision))).tflops;
    return place->second;
  }

  io::JsonObject row(const StepCase& c) const {
    io::JsonObject row = case_row(c, is_alone() ? "" : fmt::format("-{}-ranks", group_->size()));
    row.set("warmup", c.warmup).set("steps", c.steps);
    set_device(row, device_);
    if (is_alone()) return row;
    row.set("ranks", group_->size()).set("engine", group_->engine()).set("gradient_sync", parallel::name(c.parallel.sync));
    row.set("bucket_size_mb", c.parallel.bucket_size_mb);
    if (c.parallel.reduce_dtype) row.set("reduce_dtype", name(*c.parallel.reduce_dtype));
    if (c.parallel.shard != parallel::Shard::none) row.set("shard", parallel::name(c.parallel.shard));
    return row;
  }

  static void print(const char* part, const Times& times) {
    fmt::print("  {:<9} {:9.3f} ms median, {:.3f} mean, {:.3f} deviation\n", part, times.median, times.mean, times.deviation);
  }

  void show(const StepCase& c, const StepFigures& f, double ceiling) {
    const double tokens = static_cast<double>(c.batch * c.length);
    print(c.forward_only ? "call" : "step", f.step);
    fmt::print("  burst     {:9.3f} ms each, {:.0f} tokens/s, {:.2f} TFLOP/s{}, {:.0f}% of a large product's {:.1f}\n", f.burst_ms,
               tokens / f.burst_ms * 1e3, f.tflops, is_alone() ? "" : " a rank", 100 * f.tflops / ceiling, ceiling);
    if (device_.type == DeviceType::cuda) fmt::print("  host      {:9.3f} ms to queue it\n", f.host.median);
    if (f.graph_nodes > 0) fmt::print("  graph     {:9} nodes\n", f.graph_nodes);
    const char* name = "compiled";
    std::istringstream lines(f.programs);
    for (std::string line; std::getline(lines, line); name = "") fmt::print("  {:<9} {}\n", name, line);
    print("forward", f.forward);
    io::JsonObject result = row(c);
    const auto set = [&](const std::string& part, const Times& times) {
      result.set(part + "_ms", rounded(times.median, 1e4)).set(part + "_mean_ms", rounded(times.mean, 1e4));
      result.set(part + "_deviation_ms", rounded(times.deviation, 1e4));
    };
    set("step", f.step);
    set("fwd", f.forward);
    if (!c.forward_only) {
      print("backward", f.backward);
      print("optimizer", f.update);
      fmt::print("  inference {:9.3f} ms median, forward without what backward needs\n", f.inference_ms);
      set("backward", f.backward);
      set("optimizer", f.update);
      result.set("inference_ms", rounded(f.inference_ms, 1e4));
    }
    if (f.alone_ms > 0) {
      fmt::print("  alone     {:9.3f} ms each, without communication: {:.3f} times as long with it, in {}\n", f.alone_ms,
                 f.burst_ms / f.alone_ms, apps::counted(f.buckets, "collective"));
      result.set("alone_ms", rounded(f.alone_ms, 1e3)).set("collectives", f.buckets);
    }
    if (f.state_bytes > 0) {
      fmt::print("  state     {:9.3f} GiB of weights, gradients, moments and masters between steps, on rank 0\n",
                 static_cast<double>(f.state_bytes) / 0x1p30);
      result.set("optimizer_bytes", f.optimizer_bytes).set("state_bytes", f.state_bytes);
    }
    fmt::print("  memory    {:9.3f} GiB at the peak\n", f.peak_gib);
    fmt::print("  loss      {:9.3f} in the last step\n", f.loss);
    if (device_.type == DeviceType::cuda) result.set("host_ms", rounded(f.host.median, 1e3));
    if (f.graph_nodes > 0) result.set("graph_nodes", static_cast<std::int64_t>(f.graph_nodes));
    if (f.profiled_ms > 0) {
      fmt::print("  profiled  {:9.3f} ms each, {:+.1f}% beside the burst\n", f.profiled_ms, 100 * (f.profiled_ms / f.burst_ms - 1));
      result.set("profiled_ms", rounded(f.profiled_ms, 1e4));
    }
    result.set("burst_ms", rounded(f.burst_ms, 1e3)).set("tok_s", std::round(tokens / f.burst_ms * 1e3));
    result.set("params", f.params).set("tflops", rounded(f.tflops, 10));
    result.set("of_gemm", rounded(f.tflops / ceiling, 1e4)).set("peak_gb", rounded(f.peak_gib, 1e4)).set("loss", f.loss);
    rows_.add(result);
  }

  Device device_;
  std::unique_ptr<parallel::ProcessGroup> group_;
  RowFile rows_;
  std::map<std::string, double> ceilings_;  ///< by mode
};

void step(const Options& options) {
  if (options.capture && options.compile) throw apps::UsageError("--capture: a GPU's graph is a part of --compile; leave --capture out");
  if (const int ranks = std::max(options.ranks, launched().size); options.compile && ranks > 1)
    apps::require_memory_that_stays("--compile", parallel::shard_of(options.shard).value());
  if (options.ranks > 0 && !is_started_rank()) {
    require_no_launcher();
    if (options.ranks > 1) {
      static_cast<void>(RowFile(options.json));  // reports a fault of the file once, and not on each rank
      return start_ranks(options.ranks);
    }
  }
  std::vector<StepCase> cases = cases_of(options);
  if (options.step.profile > 0 && options.step.out.empty())
    throw apps::UsageError(fmt::format("--profile: expected --out with a directory for {}", apps::profile_file_names));
  if (cases.size() > 1 && options.step.profile > 0)
    for (StepCase& c : cases)
      c.out = (std::filesystem::path(c.out) / fmt::format("{}-{}-{}-B{}-T{}", c.model, c.arch, train::name(c.precision), c.batch, c.length))
                  .string();
  Bench bench(options);
  for (const StepCase& c : cases) apps::require_precision(c.precision, bench.device());
  if (options.capture && bench.device() != cpu)
    for (const StepCase& c : cases) apps::require_memory_that_stays("--capture", c.parallel.shard);
  for (const StepCase& c : cases) bench.run(c);
}

}  // namespace

void add_step(CLI::App& app) {
  auto* command = app.add_subcommand("step", "time a training step: forward, backward, optimizer");
  const auto options = std::make_shared<Options>();
  StepCase& c = options->step;
  const apps::Check size = list_of(apps::whole_number(1, 1'000'000));
  add_list(*command, "--model", options->models, step_models());
  add_list(*command, "--arch", options->archs, {"gpt2", "llama"}, " (RMSNorm, rotary positions, SwiGLU, no biases)");
  add_value(*command, "--precision", options->precisions,
            "of fp32, tf32, tf32x3, bf16, fp16, and autocast-bf16, autocast-fp16 over float32 weights", list_of(apps::one_of(step_modes())),
            "LIST");
  add_value(*command, "--batch", options->batches, "sequences in a step", size, "LIST");
  add_value(*command, "--length", options->lengths, "tokens of a sequence", size, "LIST");
  add_value(*command, "--vocab", c.vocab, "size of the vocabulary", apps::whole_number(1, 10'000'000), "N");
  add_value(*command, "--dropout", c.dropout, "probability", apps::real_number(0, 0.99), "X");
  add_value(*command, "--activation-checkpointing", options->checkpointing,
            "of none, selective (backward computes all again but products and attention), full (each layer)",
            list_of(apps::one_of(apps::checkpointing_names)), "LIST");
  add_value(*command, "--warmup", c.warmup, "calls before the measured ones, of the step and of each of its parts",
            apps::whole_number(0, 1'000'000), "N");
  add_value(*command, "--steps", c.steps, "measured calls", apps::whole_number(1, 1'000'000), "N");
  constexpr const char* several = "Several ranks, each with a batch of its own (--ranks N, or tern-launch -n N)";
  apps::add_option(*command, "--ranks", options->ranks, "processes to start; without it a launcher has started them, or this one is alone",
                   apps::whole_number(1, 4096), "N")
      ->group(several);
  apps::add_gradient_options(*command, options->gradient_sync, c.parallel.bucket_size_mb, options->shard, several);
  apps::add_option(*command, "--reduce-dtype", options->reduce_dtype, "of gradients on their way: fp32, bf16, fp16; as they are without it",
                   apps::one_of({"fp32", "bf16", "fp16"}), "NAME")
      ->group(several);
  apps::add_switch(*command, "--use-fused-kernel", "softmax and norms as fused kernels", [&c](bool is_on) { c.use_fused_kernel = is_on; });
  apps::add_switch(*command, "--capture", "record the step as a CUDA graph and replay it",
                   [options](bool is_on) { options->capture = is_on; });
  apps::add_switch(*command, "--compile", "run the step as a compiled program (tern::compile)",
                   [options](bool is_on) { options->compile = is_on; });
  apps::add_switch(*command, "--forward-only", "the forward pass alone, without gradients or an optimizer in memory",
                   [&c](bool is_on) { c.forward_only = is_on; });
  apps::add_profile_option(*command, c.profile);
  command->add_option("--out", c.out, "directory for --profile, with one of its own for each of several cases")->type_name("DIR");
  add_json_option(*command, options->json, "a row a case");
  apps::add_processor_options(*command, *options);
  command->callback([options] { step(*options); });
}

}  // namespace tern::bench
