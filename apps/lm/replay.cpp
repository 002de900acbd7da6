#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "autodiff/anomaly.h"
#include "common/training.h"
#include "io/files.h"
#include "io/run_directory.h"
#include "io/safetensors.h"
#include "lm/commands.h"
#include "lm/training.h"
#include "text/unicode.h"

namespace tern::lm {

using apps::say, text::printable;

namespace {

/// A checkpoint before that update, or the run's first weights if there is none.
std::optional<train::CheckpointHead> checkpoint_before(const std::string& run, std::int64_t update) {
  try {
    return train::last_checkpoint("tern-lm", run, update - 1);
  } catch (const io::FileError&) {
    return std::nullopt;
  }
}

/// Prints the losses of an update's rows, the worst first: those that are not finite, else three.
void print_rows(Training& training, const data::PreparedData& data, const Options& options, std::int64_t update) {
  const NoGrad unrecorded;
  const train::PrecisionScope scope(precision(options));
  training.model().eval();
  std::vector<std::pair<double, std::int64_t>> rows;  // loss, first token
  for (const std::int64_t first : training.rows(update - 1)) {
    const Training::Batch batch = training.load({&first, 1});
    rows.emplace_back(training.model().loss(batch.ids, batch.labels).item<double>(), first);
  }
  training.model().train();
  const auto is_worse = [](const auto& a, const auto& b) {
    return std::isfinite(a.first) != std::isfinite(b.first) ? !std::isfinite(a.first) : a.first > b.first;
  };
  std::stable_sort(rows.begin(), rows.end(), is_worse);
  const auto bad =
      static_cast<std::size_t>(std::count_if(rows.begin(), rows.end(), [](const auto& row) { return !std::isfinite(row.first); }));
  say("rows     {} of {} have a loss that is not finite, without dropout and with the weights before the update\n", bad, rows.size());
  for (std::size_t i = 0; i < std::min(rows.size(), std::max<std::size_t>(bad, 3)); ++i) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min<std::int64_t>(options.length, 24)));
    data.train.read(rows[i].second, ids);
    say("  loss {:.6g}  tokens {} to {}: {}\n", rows[i].first, rows[i].second, rows[i].second + options.length,
        printable(data.tokenizer.decode(std::vector<std::int32_t>(ids.begin(), ids.end())), 72));
  }
}

/// "the same as" or "others than" and the checkpoint of that update, if there is one.
std::string compared(const std::string& run, std::int64_t update, const std::vector<NamedTensor>& weights) {
  for (const io::CheckpointFile& file : io::RunDirectory::require_checkpoints(run)) {
    if (file.update != update) continue;
    const std::map<std::string, Tensor> kept = io::load_safetensors(file.path).tensors;
    const bool is_same = std::all_of(weights.begin(), weights.end(), [&](const NamedTensor& weight) {
      const auto found = kept.find("model." + weight.name);
      return found != kept.end() && found->second.to_vector<float>() == weight.tensor.to(cpu).to_vector<float>();
    });
    return fmt::format(", {} {}", is_same ? "those of" : "others than in", std::filesystem::path(file.path).filename().string());
  }
  return "";
}

std::string digest(const std::vector<NamedTensor>& weights) {
  io::Checksum sum;
  for (const NamedTensor& weight : weights) {
    const std::vector<float> values = weight.tensor.to(cpu).to_vector<float>();
    sum.add(values.data(), values.size() * sizeof(float));
  }
  return sum.hex();
}

}  // namespace

void replay(const Options& options, std::int64_t first, std::int64_t last, bool is_finite) {
  const Ground ground(options);
  manual_seed(static_cast<std::uint64_t>(options.seed));
  const std::optional<train::CheckpointHead> head = checkpoint_before(options.out, first);
  if (head && head->data_digest != ground.data.digest)
    throw apps::UsageError(fmt::format("{}: is not the data that {} was trained on: restore it", options.data, options.out));
  if (!head) say("from     the first weights, as {} keeps no checkpoint before update {}\n", printable(options.out), first);
  train::Run run = head ? train::Run("tern-lm", *head) : train::Run("tern-lm");
  const train::StopSignals signals;
  Training training(options, ground, run);
  train::Trainer& trainer = training.trainer();
  const ModuleNames names = nn::module_names(training.model());
  std::optional<AnomalyMode> anomaly;  // off while all is finite: it sums some gradients in another order
  std::int64_t update = 0;
  try {
    trainer.replay(last, [&](std::int64_t done) {
      update = done + 1;
      if (update == last) static_cast<void>(trainer.progress());  // of which the next one is the loss of this update alone
      if (update == first && !is_finite) anomaly.emplace(names);
    });
    anomaly.reset();
    const double loss = trainer.progress().loss;
    const std::vector<NamedTensor> weights = nn::named_masters(training.model(), false);
    say("update   {} of {}: loss {}, on {}\n", last, trainer.total_updates(), loss, apps::describe(ground.device));
    say("weights  checksum {}{}\n", digest(weights), head ? compared(options.out, last, weights) : "");
  } catch (const train::NotFinite& fault) {
    if (is_finite) return replay(options, fault.first, fault.last, false);
    say("update   {} of {}: {}\n", update, trainer.total_updates(), fault.what());
  } catch (const Error& fault) {  // of anomaly mode, which names the op and the module
    if (!anomaly) throw;
    anomaly.reset();
    say("update   {} of {}: {}\n", update, trainer.total_updates(), fault.what());
  }
  print_rows(training, ground.data, options, update);
}

void add_replay(CLI::App& app) {
  auto* command =
      app.add_subcommand("replay", "make an update of a run once more, from its last checkpoint, and look for values that are not finite");
  struct State : apps::TrainingArguments<Options> {
    std::int64_t update = 0;
  };
  const auto state = std::make_shared<State>();
  command->add_option("run", state->out, "run directory of tern-lm train")->required()->type_name("RUN");
  command->add_option("--update", state->update, "number of the update, from 1")->required()->check(apps::positive_count())->type_name("N");
  command->add_option("--data", state->data, "directory that prepare wrote (the run's)")->type_name("DIR");
  apps::add_processor_options(*command, *state);
  command->callback([state] {
    const Options options = state->resumed("tern-lm", entries(), {});
    require_valid(options);
    const train::CheckpointHead head = train::last_checkpoint("tern-lm", options.out);
    if (const std::int64_t total = head.numbers.get_object("loop").get_int("updates"); state->update > total)
      throw apps::UsageError(fmt::format("--update {}: the training has {} updates", state->update, total));
    replay(options, state->update, state->update, true);
  });
}

}  // namespace tern::lm
