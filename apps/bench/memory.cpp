#include "backend/memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <new>
#include <optional>

#include "backend/error.h"
#include "bench/commands.h"
#include "bench/step_case.h"
#include "bench/timing.h"
#include "common/program.h"
#include "common/training_settings.h"
#include "io/files.h"
#include "profile/memory_history.h"
#include "train/train.h"

namespace tern::bench {
namespace {

using profile::MemoryHistory;

struct Options : apps::Processors {
  StepCase step;  ///< settings that all cases share
  std::string models = "small", precisions = "fp32", lengths = "128", passes = "forward,step", checkpointing = "none", json,
              directory = "memory";
  double limit = 0;  ///< GiB
  bool stacks = false;
};

/// Limits the CPU's allocations to the machine's memory, beyond which the system would kill the process when memory is used.
class MemoryLimit {
 public:
  MemoryLimit(Device device, double gib) {
    const std::uint64_t bytes = gib > 0 ? static_cast<std::uint64_t>(gib * 0x1p30) : backend::usable_memory();
    if (device != cpu || bytes == 0 || ::getrlimit(RLIMIT_DATA, &before_) != 0) return;
    rlimit limit = before_;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, bytes);
    is_set_ = ::setrlimit(RLIMIT_DATA, &limit) == 0;
  }
  ~MemoryLimit() {
    if (is_set_) ::setrlimit(RLIMIT_DATA, &before_);
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
  bool is_set_ = false;
};

/// The results of a case, also of one that ran out of memory.
struct Measured {
  std::unique_ptr<MemoryHistory> history;
  std::vector<profile::SavedBytes> saved;
  double loss = 0;                 ///< as a check of the model and the tokens
  std::size_t allocator_peak = 0;  ///< as counted by the allocator
  bool is_out_of_memory = false;
};

/// Records a history of each call, and keeps that of the last one or of the one that ran out of memory.
void measure(const StepCase& c, Device device, bool stacks, Measured& result) {
  const FusedKernels kernels(c.use_fused_kernel);
  manual_seed(0);
  const nn::DecoderLMOptions options = model_options(c, device);
  require_memory(options, c.forward_only);
  nn::DecoderLM model(options);
  if (c.forward_only) nn::set_requires_grad(model, false);
  train::set_precision(model, c.precision);
  const Tensor ids = random_ids(c, device), labels = random_ids(c, device);
  std::optional<train::AdamW> optimizer;
  if (!c.forward_only) optimizer.emplace(nn::parameters(model), train::AdamWOptions{.lr = 1e-4, .weight_decay = 0.01});
  for (int i = 0; i <= c.warmup; ++i) {
    result.history.reset();
    reset_peak_memory(device);
    result.history = std::make_unique<MemoryHistory>(device, nn::module_names(model), MemoryHistory::Options{.stacks = stacks});
    result.history->name(model);
    Tensor loss;
    try {
      if (c.forward_only) {
        const NoGrad unrecorded;
        loss = model.loss(ids, labels);
      } else {
        loss = model.loss(ids, labels);
        if (i == c.warmup) result.saved = profile::saved_for_backward(loss);
        train::update(loss, *optimizer);
        loss = loss.detach();
      }
    } catch (...) {
      // Without the optimizer, as naming it would allocate missing moments.
      result.history->name(model);
      result.history->end();
      result.allocator_peak = memory_statistics(device).peak_allocated;
      throw;
    }
    result.history->name(model);
    if (optimizer) result.history->name(*optimizer);
    result.history->end();
    result.allocator_peak = memory_statistics(device).peak_allocated;
    result.loss = loss.item<double>();
  }
}

std::string name_of(const StepCase& c) {
  return fmt::format("{}-T{}-{}-{}{}", c.model, c.length, train::name(c.precision), c.forward_only ? "forward" : "step",
                     checkpointing_suffix(c));
}

class MemoryBench {
 public:
  explicit MemoryBench(const Options& options)
      : options_(options), device_(apps::use(options)), directory_(options.directory), rows_(options.json) {
    apps::make_directory("--out", directory_);
  }
  Device device() const { return device_; }

  void run(const StepCase& c) {
    Measured& measured = *measured_.emplace_back(std::make_unique<Measured>());
    const train::PrecisionScope scope(c.precision);
    try {
      const MemoryLimit limit(device_, options_.limit);
      measure(c, device_, options_.stacks, measured);
    } catch (const OutOfMemory&) {
      measured.is_out_of_memory = true;
    } catch (const std::bad_alloc&) {
      measured.is_out_of_memory = true;
    }
    const std::string name = name_of(c), failure = measured.is_out_of_memory ? "out of memory" : "";
    parts_.push_back({name, measured.history.get(), measured.saved, failure});
    if (measured.history) {
      io::write_file_atomically(directory_ / (name + ".svg"), profile::to_svg(*measured.history, title(c)));
      profile::write_snapshot(*measured.history, directory_ / (name + ".pickle"));
    }
    show(c, measured);
  }

  void finish() {
    profile::write_memory_report(directory_ / "memory.md", "Where the memory is", notes_, parts_);
    fmt::print("{}: memory.md, and of each case a picture (.svg) and a snapshot for pytorch.org/memory_viz (.pickle)\n",
               directory_.string());
  }

 private:
  std::string title(const StepCase& c) const {
    return fmt::format("{} {} B {} T {}, {}, {}, {} kernels{}: {}", c.model, c.arch, c.batch, c.length, apps::describe(device_),
                       train::name(c.precision), c.use_fused_kernel ? "fused" : "plain", checkpointing_text(c),
                       c.forward_only ? "forward pass" : "training step");
  }

  void show(const StepCase& c, const Measured& measured) {
    const std::size_t stream =
        static_cast<std::size_t>(c.batch * c.length * model_options(c, device_).width) * size_of(train::dtype_of(c.precision));
    fmt::print("{}\n", title(c));
    io::JsonObject row = case_row(c);
    row.set("device", device_.type == DeviceType::cpu ? "cpu" : "cuda");
    row.set("residual_stream_bytes", stream);
    if (measured.is_out_of_memory) {
      fmt::print("  out of memory\n");
      row.set("error", "out of memory");
    }
    if (measured.history) {
      const profile::MemoryPeak peak = measured.history->peak();
      fmt::print("  peak        {:>12}\n", profile::bytes_text(peak.bytes));
      for (std::size_t i = 0; i < profile::memory_categories; ++i) {
        const auto category = static_cast<profile::MemoryCategory>(i);
        if (peak.categories.bytes[i] > 0)
          fmt::print("  {:<11} {:>12}\n", profile::name(category), profile::bytes_text(peak.categories.bytes[i]));
        row.set(std::string(profile::name(category)) + "_bytes", peak.categories.bytes[i]);
      }
      row.set("peak_bytes", peak.bytes).set("allocator_peak_bytes", measured.allocator_peak);
      row.set("begin_bytes", measured.history->at_begin().total()).set("end_bytes", measured.history->at_end().total());
      std::size_t saved = 0;
      for (const profile::SavedBytes& part : measured.saved) saved += part.bytes;
      if (!c.forward_only) fmt::print("  saved       {:>12} for backward\n", profile::bytes_text(saved));
      row.set("saved_bytes", saved);
      if (!measured.is_out_of_memory) row.set("loss", measured.loss);
      if (const std::vector<std::size_t> largest = measured.history->largest(1, true); !largest.empty())
        row.set("largest_bytes", measured.history->blocks()[largest[0]].bytes);
    }
    fmt::print("  the residual stream, (B, T, width), has {}\n", profile::bytes_text(stream));
    notes_.push_back(fmt::format("`{}`: {}. Residual stream: ({}, {}, {}) in {}, {}.{}", name_of(c), title(c), c.batch, c.length,
                                 model_options(c, device_).width, train::name(c.precision), profile::bytes_text(stream),
                                 measured.history ? fmt::format(" ![timeline]({}.svg)", name_of(c)) : ""));
    rows_.add(row);
    std::fflush(stdout);
  }

  const Options& options_;
  Device device_;
  std::filesystem::path directory_;
  RowFile rows_;
  std::vector<std::unique_ptr<Measured>> measured_;
  std::vector<profile::MemoryReportPart> parts_;
  std::vector<std::string> notes_;
};

void memory(const Options& options) {
  MemoryBench bench(options);
  std::vector<StepCase> cases = {options.step};
  vary(cases, words(options.models), [](StepCase& c, const std::string& name) { c.model = name; });
  vary(cases, words(options.precisions), set_mode);
  vary(cases, numbers(options.lengths), [](StepCase& c, std::int64_t length) { c.length = length; });
  vary(cases, words(options.passes), [](StepCase& c, const std::string& pass) { c.forward_only = pass == "forward"; });
  vary(cases, words(options.checkpointing),
       [](StepCase& c, const std::string& name) { c.activation_checkpointing = *checkpoint_policy_of(name); });
  for (const StepCase& c : cases) apps::require_precision(c.precision, bench.device());
  for (const StepCase& c : cases) bench.run(c);
  bench.finish();
}

}  // namespace

void add_memory(CLI::App& app) {
  auto* command = app.add_subcommand("memory", "show where the memory of a forward pass and a training step is");
  const auto options = std::make_shared<Options>();
  options->step.batch = 4;
  options->step.warmup = 1;
  StepCase& c = options->step;
  add_list(*command, "--model", options->models, step_models());
  add_value(*command, "--arch", c.arch, "gpt2, or llama (RMSNorm, rotary positions, SwiGLU, no biases)", apps::one_of({"gpt2", "llama"}),
            "NAME");
  add_list(*command, "--precision", options->precisions, apps::precision_names);
  add_value(*command, "--pass", options->passes, "of forward, without gradients or an optimizer in memory, and step",
            list_of(apps::one_of({"forward", "step"})), "LIST");
  add_value(*command, "--activation-checkpointing", options->checkpointing,
            "of none, selective (backward computes all again but products and attention), full (each layer)",
            list_of(apps::one_of(apps::checkpointing_names)), "LIST");
  add_value(*command, "--batch", c.batch, "sequences in a step", apps::whole_number(1, 1'000'000), "N");
  add_value(*command, "--length", options->lengths, "tokens of a sequence", list_of(apps::whole_number(1, 1'000'000)), "LIST");
  add_value(*command, "--vocab", c.vocab, "size of the vocabulary", apps::whole_number(1, 10'000'000), "N");
  add_value(*command, "--dropout", c.dropout, "probability", apps::real_number(0, 0.99), "X");
  add_value(*command, "--warmup", c.warmup, "calls before the one that is shown: without one, the step makes the optimizer's moments",
            apps::whole_number(0, 1000), "N");
  add_value(*command, "--limit", options->limit, "GiB that the process may have on the CPU; 0: what the machine has",
            apps::real_number(0, 1'000'000), "X");
  apps::add_switch(*command, "--use-fused-kernel", "softmax and norms as fused kernels", [&c](bool is_on) { c.use_fused_kernel = is_on; });
  apps::add_switch(*command, "--stacks", "keep the C++ stack of each allocation", [options](bool is_on) { options->stacks = is_on; });
  command->add_option("--out", options->directory, "directory for the report, the pictures and the snapshots")
      ->type_name("DIR")
      ->capture_default_str();
  add_json_option(*command, options->json, "a row a case");
  apps::add_processor_options(*command, *options);
  command->callback([options] { memory(*options); });
}

}  // namespace tern::bench
