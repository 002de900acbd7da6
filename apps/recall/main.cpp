// tern-recall: trains models that look up what they have read, compares them, and builds one by hand.
#include "common/program.h"
#include "common/training.h"
#include "recall/commands.h"

namespace tern::recall {
namespace {

using Arguments = apps::TrainingArguments<Options>;

/// The given options over the preset, which is by default that of the task.
Options chosen(const Arguments& arguments) {
  const apps::Given<Options> all = arguments.all(entries());
  const std::optional<std::string> task = apps::find_given(all, "task");
  const std::string name = apps::find_given(all, "preset").value_or(task == "mqar" ? "mqar" : "quick");
  Options options = apps::find_preset(presets(), name);
  for (const auto& [entry, text] : all) entry->set(options, text);
  for (const auto& [entry, text] : arguments.given)
    if (const std::string owner = task_of(*entry); !owner.empty() && owner != options.task)
      throw apps::UsageError(fmt::format("{}: expected --task {}, which alone has it, but got {}", entry->flag(), owner, options.task));
  static_cast<apps::RunSettings&>(options) = arguments;
  return options;
}

/// Adds the options of a training except those in `without`.
void add_training(CLI::App& command, Arguments& arguments, const std::vector<std::string>& without = {}) {
  apps::add_entry(command, apps::entry_of(entries(), "preset"), "quick (half a minute on a CPU), classic (the course's model) or mqar",
                  arguments.given);
  apps::add_entry(command, apps::entry_of(entries(), "task"), "recall (one question at the end) or mqar (many, of a large vocabulary)",
                  arguments.given);
  apps::add_processor_options(command, arguments);
  apps::add_entries(command, entries(), presets(), arguments.given, without);
}

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "train a model on a recall task");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("--out", arguments->out, "run directory to write; an earlier run there is replaced")->required()->type_name("DIR");
  apps::add_config_option(*command, arguments->config);
  add_training(*command, *arguments);
  apps::add_run_options(*command, *arguments);
  command->callback([arguments] {
    train(arguments->checkpoints.resume ? arguments->resumed("tern-recall", entries(), changeable) : chosen(*arguments));
  });
}

/// Adds an option for a list "1,2,3", of numbers that pass the check.
template <class T>
void add_list(CLI::App& command, const std::string& name, const std::string& help, const apps::Check& check, std::vector<T>& list) {
  const auto parse = [&list](const std::string& text) {
    if constexpr (std::is_same_v<T, double>) list = apps::reals(text);
    else list = apps::numbers(text);
  };
  command.add_option_function<std::string>(name, parse, help)
      ->check(apps::list_of(check))
      ->type_name(std::is_same_v<T, double> ? "X,X,..." : "N,N,...");
}

const apps::Check& check_of(const std::string& key) { return apps::entry_of(entries(), key).check; }

void add_sweep(CLI::App& app) {
  auto* command = app.add_subcommand("sweep", "train many models; write a table and pictures of their accuracy");
  struct State {
    Arguments arguments;
    Grid grid;
    std::int64_t jobs = 1;
  };
  const auto state = std::make_shared<State>();
  command->add_option("--out", state->arguments.out, "directory for sweep.csv and the pictures; a sweep that was cut short there goes on")
      ->required()
      ->type_name("DIR");
  Grid& lists = state->grid;
  add_list(*command, "--layers", "numbers of layers (recall 1,2,3,4; mqar 2)", apps::whole_number(1, 1024), lists.layers);
  add_list(*command, "--widths", "widths (recall the preset's; mqar 64,128,256,512)", apps::whole_number(1, 65536), lists.widths);
  add_list(*command, "--seeds", "seeds (recall 1,2,3,4,5; mqar 1)", apps::seed_value(), lists.seeds);
  add_list(*command, "--lengths", "lengths of mqar, each with its pairs (64,128,256,512)", apps::whole_number(4, 100'000), lists.lengths);
  add_list(*command, "--pairs", "pairs: of mqar one for each length, or one for all (4,8,16,64, else a sixteenth of the length); recall 50",
           check_of("pairs"), lists.pairs);
  command
      ->add_option("--mixer", lists.mixers,
                   "of the tokens: all, which is each that train knows, or as train's; several for a model each (attention)")
      ->type_name("NAME ...")
      ->check([](const std::string& text) { return text == "all" ? std::string() : check_of("mixer")(text); })
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_list(*command, "--lrs", "learning rates, tried in turn until one reaches --target (the preset's)", check_of("lr"), lists.lrs);
  apps::add_value(*command, "--jobs", state->jobs, "models that are trained at once, each on one CPU thread, or in a stream of the GPU",
                  apps::whole_number(1, 1024), "N");
  apps::add_compile_option(*command, state->arguments);
  add_training(*command, state->arguments, {"layers", "width", "seed", "length", "pairs", "mixer", "lr"});
  command->callback([state] {
    const Options options = chosen(state->arguments);
    const bool is_mqar = options.task == "mqar";
    Grid grid = state->grid;
    const auto fill = [](std::vector<std::int64_t>& list, const std::vector<std::int64_t>& otherwise) {
      if (list.empty()) list = otherwise;
    };
    if (apps::contains(grid.mixers, "all")) grid.mixers = apps::mixer_names();
    if (!is_mqar && !grid.lengths.empty()) throw apps::UsageError("--lengths: expected --task mqar; recall's follows from --pairs");
    fill(grid.layers, is_mqar ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>{1, 2, 3, 4});
    fill(grid.seeds, is_mqar ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, 2, 3, 4, 5});
    if (is_mqar) fill(grid.widths, {64, 128, 256, 512});
    if (is_mqar) fill(grid.lengths, {64, 128, 256, 512});
    if (is_mqar && grid.pairs.size() > 1 && grid.pairs.size() != grid.lengths.size())
      throw apps::UsageError(
          fmt::format("--pairs: expected one for each of {} lengths, or one for all, but got {}", grid.lengths.size(), grid.pairs.size()));
    sweep(options, grid, state->jobs);
  });
}

void add_plot(CLI::App& app) {
  auto* command = app.add_subcommand("plot", "draw the pictures of sweeps again, several tables in one");
  struct State {
    std::vector<std::string> tables;
    std::string out;
  };
  const auto state = std::make_shared<State>();
  command->add_option("csv", state->tables, "tables that sweep wrote")->required()->type_name("FILE");
  command->add_option("--out", state->out, "directory for the pictures (the first table's)")->type_name("DIR");
  command->callback([state] {
    const std::filesystem::path first = state->tables.front();
    plot(state->tables, state->out.empty() ? first.parent_path() : std::filesystem::path(state->out));
  });
}

void add_hardcoded(CLI::App& app) {
  auto* command = app.add_subcommand("hardcoded", "recall by two layers of attention whose weights are set by hand");
  const auto options = std::make_shared<HardcodedOptions>();
  apps::add_option(*command, "--vocab", options->vocab, "V: half keys, half values, and the question's sign", apps::whole_number(3, 10'000),
                   "N");
  apps::add_option(*command, "--length", options->length, "N: tokens of an input, even", apps::whole_number(4, 10'000), "N");
  apps::add_option(*command, "--examples", options->examples, "of each size (default: some 24,000 tokens)",
                   apps::whole_number(1, 1'000'000), "N");
  apps::add_value(*command, "--seed", options->seed, "of the examples", apps::seed_value(), "N");
  command->add_option("--out", options->out, "directory for heat maps of Q, K, scores and probabilities")->type_name("DIR");
  apps::add_processor_options(*command, *options);
  command->callback([options] { hardcoded(*options); });
}

}  // namespace
}  // namespace tern::recall

int main(int argc, char** argv) {
  using namespace tern::recall;
  return tern::apps::run("Train models to look up what they have read, compare them, and build one by hand.", "tern-recall",
                         {add_train, add_sweep, add_plot, add_hardcoded}, argc, argv,
                         "use a smaller --batch-size, --pairs, --width or --layers");
}
