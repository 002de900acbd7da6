#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "common/program.h"
#include "lm/commands.h"
#include "lm/language_model.h"
#include "lm/training.h"

namespace tern::lm {

namespace {

struct State {
  apps::RunSettings fixed;
  bool fit = false;
  std::string data, preset = "small", base, config;
  apps::Given<Options> given;

  /// All that is given, the command line last.
  apps::Given<Options> all() const {
    apps::Given<Options> result = apps::read_config(entries(), config);
    result.insert(result.end(), given.begin(), given.end());
    return result;
  }

  Options resumed() const {
    const train::CheckpointHead head = train::last_checkpoint("tern-lm", fixed.out);
    Options options = apps::resumed_options(entries(), head, all(), changeable);
    options.data = data.empty() ? head.data : data;
    return options;
  }

  Options chosen() const {
    if (data.empty()) throw apps::UsageError("--data is required (tern-lm train --help lists the options)");
    const apps::Given<Options> given_here = all();
    Options options = lm::preset(apps::find_given(given_here, "preset").value_or(preset));
    if (!base.empty()) {
      const nn::DecoderLMOptions model = shape_of(base);
      set_shape(options, model);
      options.length = model.length;
      options.base = std::filesystem::absolute(base).string();
    }
    for (const auto& [entry, text] : given_here) {
      if (!base.empty() && is_of_model(entry->key))
        throw apps::UsageError(fmt::format("{} {}: {} has its own; leave the option out", entry->flag(), text, base));
      entry->set(options, text);
    }
    options.data = data;
    return options;
  }
};

}  // namespace

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "train a model on prepared tokens");
  const auto state = std::make_shared<State>();
  command->add_option("--data", state->data, "directory that prepare wrote; a resumed run knows its own")->type_name("DIR");
  command->add_option("--out", state->fixed.out, "run directory to write; an earlier run there is replaced")->type_name("DIR");
  apps::add_switch(*command, "--fit", "say the memory of an update and the largest batch that fits, and train nothing",
                   [state](bool value) { state->fit = value; });
  const std::vector<Options> all = presets();
  std::string names;
  for (const Options& options : all) names += (names.empty() ? "" : ", ") + options.preset;
  command->add_option("--preset", state->preset, names + "; small to xl are GPT-2's sizes")->type_name("NAME")->capture_default_str();
  command->add_option("--init", state->base, "model to go on from: a run, or a directory in Hugging Face's format")->type_name("MODEL");
  apps::add_config_option(*command, state->config);
  apps::add_processor_options(*command, state->fixed);
  apps::add_run_options(*command, state->fixed);
  for (const Entry& entry : entries())
    if (!entry.help.empty()) apps::add_entry(*command, entry, all, state->given);
  command->callback([state] {
    Options options = state->fixed.checkpoints.resume ? state->resumed() : state->chosen();
    static_cast<apps::RunSettings&>(options) = state->fixed;
    if (state->fit) return fit(options);
    apps::require_named("--out", options.out);
    train(options);
  });
}

}  // namespace tern::lm
