#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "backend/usable_memory.h"
#include "common/training.h"
#include "lm/commands.h"
#include "lm/language_model.h"
#include "lm/training.h"
#include "profile/memory_history.h"
#include "text/unicode.h"

namespace tern::lm {

using apps::counted, apps::say, text::printable;

namespace {

void train_once(Options options) {
  const double started = train::seconds_now();
  if (!options.checkpoints.resume) io::RunDirectory::check(options.out);
  const Ground ground(options);
  const data::PreparedData& data = ground.data;
  options.end_of_text = data.end_of_text;
  manual_seed(static_cast<std::uint64_t>(options.seed));

  apps::Session session("tern-lm", options, ground.device, apps::to_json(entries(), options), started);
  session.set_data(std::filesystem::absolute(options.data).string(), data.digest);
  if (options.lora == 0) session.run.require_size(ground.parameters);
  Training training(options, ground, session.run);
  train::Trainer& trainer = training.trainer();
  say("data     {} training tokens, {} validation tokens, vocabulary {}\n", data.train.size(), data.valid.size(), ground.shape.vocab);
  say("model    {}, {}, width {}, {}, length {}: {:.2f} M parameters\n", options.architecture, counted(options.layers, "layer"),
      options.width, counted(options.heads, "head"), options.length, static_cast<double>(ground.parameters) / 1e6);
  session.say_training(trainer, fmt::format("{} tokens", options.batch_size * options.accumulate * options.length), options.optimizer);
  if (!session.run.is_resumed()) session.run.write_tokenizer(data.tokenizer.to_json());

  try {
    trainer.run();
  } catch (const train::NotFinite& fault) {
    if (session.ranks.is_alone()) throw;
    throw std::runtime_error(fault.what());
  }
  session.ranks.leave();
  if (!session.ranks.is_first()) return;
  training.model().eval();
  const train::Sample sample = training.sample();
  say("\n{}|{}\n\n", printable(sample.source), printable(sample.translation));
  session.finish(session.summary(trainer, ground.parameters, "tokens").update(trainer.best().validation.numbers));
}

/// Trains, and writes the run to options.out. Throws UsageError or Error for invalid options, before anything is written.
void train(const Options& options) {
  try {
    train_once(options);
  } catch (const train::NotFinite& fault) {
    say("\nreplay   of the updates {} to {}, as the loss is not finite\n", fault.first, fault.last);
    replay(options, fault.first, fault.last, false);
    throw;
  }
}

/// The peak of the device's memory in two updates of so many rows, the second of which has all moments.
double peak(Options options, const Ground& ground, std::int64_t rows) {
  options.batch_size = rows, options.accumulate = 1;
  train::Run run("tern-lm");
  Training training(options, ground, run);
  reset_peak_memory(ground.device);
  training.trainer().replay(2, [](std::int64_t) {});
  return static_cast<double>(memory_statistics(ground.device).peak_allocated);
}

/// Prints the memory of an update, measured at 1, 2, 4, ... rows, and the largest batch that fits. Throws as train() does.
void fit(const Options& options) {
  const Ground ground(options);
  const train::StopSignals signals;
  const auto usable =
      static_cast<double>(with_backend(ground.device, [&](auto dev) { return backend::usable_memory(dev, ground.device); }));
  double before = peak(options, ground, 1), last = peak(options, ground, 2);
  const double row = last - before, fixed = before - row, end = train::seconds_now() + 1;
  std::int64_t rows = 2;
  while (2 * rows <= options.batch_size && 4 * last < usable && train::seconds_now() < end)
    before = std::exchange(last, peak(options, ground, rows *= 2));
  const double more = std::max(2 * (last - before) / static_cast<double>(rows), 1.0);  // for a row
  const auto at = [&](std::int64_t size) { return last + static_cast<double>(size - rows) * more; };
  const auto text = [](double bytes) { return profile::bytes_text(static_cast<std::size_t>(std::max(bytes, 0.0))); };
  say("model    {:.2f} M parameters\n", static_cast<double>(ground.parameters) / 1e6);
  say("memory   {} of weights, gradients and moments, and {} of activations a row of {} tokens, {}\n", text(fixed), text(row),
      options.length, options.precision);
  say("batch    of --batch-size {}: {}\n", options.batch_size, text(at(options.batch_size)));
  say("fits     --batch-size {} in the {} of {}\n", std::max(static_cast<std::int64_t>((usable - at(0)) / more), std::int64_t{0}),
      text(usable), apps::describe(ground.device));
}

struct Arguments : apps::TrainingArguments<Options> {
  bool fit = false;
  std::string base;

  /// The given options over the preset, and over the model to go on from.
  Options chosen() const {
    if (data.empty()) throw apps::UsageError("--data is required (tern-lm train --help lists the options)");
    const apps::Given<Options> all_given = all(entries());
    Options options = apps::find_preset(presets(), apps::find_given(all_given, "preset").value_or("small"));
    if (!base.empty()) set_shape(options, shape_of(base)), options.base = std::filesystem::absolute(base).string();
    for (const auto& [entry, text] : all_given) {
      if (!base.empty() && apps::contains(of_model, entry->key))
        throw apps::UsageError(fmt::format("{} {}: {} has its own; leave the option out", entry->flag(), text, base));
      entry->set(options, text);
    }
    static_cast<apps::RunSettings&>(options) = *this;
    return options;
  }
};

}  // namespace

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "train a model on prepared tokens");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("--data", arguments->data, "directory that prepare wrote; a resumed run knows its own")->type_name("DIR");
  command->add_option("--out", arguments->out, "run directory to write; an earlier run there is replaced")->type_name("DIR");
  apps::add_switch(*command, "--fit", "say the memory of an update and the largest batch that fits, and train nothing",
                   [arguments](bool value) { arguments->fit = value; });
  const std::string sizes = fmt::format("{}; small to xl are GPT-2's sizes", fmt::join(apps::preset_names(presets()), ", "));
  apps::add_entry(*command, apps::entry_of(entries(), "preset"), sizes, arguments->given)->default_str("small");
  command->add_option("--init", arguments->base, "model to go on from: a run, or a directory in Hugging Face's format")->type_name("MODEL");
  apps::add_config_option(*command, arguments->config);
  apps::add_processor_options(*command, *arguments);
  apps::add_run_options(*command, *arguments);
  apps::add_entries(*command, entries(), presets(), arguments->given);
  command->callback([arguments] {
    const Options options = arguments->checkpoints.resume ? arguments->resumed("tern-lm", entries(), changeable) : arguments->chosen();
    require_valid(options);
    if (arguments->fit) return fit(options);
    apps::require_named("--out", options.out);
    train(options);
  });
}

}  // namespace tern::lm
