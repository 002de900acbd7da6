// tern-translate: trains a translator from raw text, translates with it, and scores translations.
#include <fmt/format.h>

#include "common/program.h"
#include "common/training.h"
#include "io/json_object.h"
#include "text/corpus.h"
#include "text/metrics.h"
#include "translate/commands.h"

namespace tern::translate {
namespace {

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "train a translator from a directory of raw text");
  const auto state = std::make_shared<apps::TrainingArguments<Options>>();
  command
      ->add_option("--data", state->data,
                   "directory with train.SRC, train.TGT, valid.* (or val.*), test*.*, or tables train.SRC-TGT.tsv; plain or .gz")
      ->type_name("DIR");
  const auto add = [&](const char* key, const char* help) {
    return apps::add_entry(*command, apps::entry_of(entries(), key), help, state->given);
  };
  add("src", "source language: the suffix of its files");
  add("tgt", "target language");
  command->add_option("--out", state->out, "run directory to write; an earlier run there is replaced")->type_name("DIR");
  add("preset", "best (for real data), quick (its small form, minutes on a CPU) or classic (the well-known run)")->default_str("best");
  apps::add_config_option(*command, state->config);
  apps::add_processor_options(*command, *state);
  apps::add_run_options(*command, *state);
  apps::add_entries(*command, entries(), {preset("best"), preset("quick"), preset("classic")}, state->given);

  command->callback([state, command] {
    const apps::Given<Options> all = state->all(entries());
    const bool resumes = state->checkpoints.resume;
    // A resumed run has its own options.
    for (const std::string key : {"data", "src", "tgt", "out"})
      if (command->count("--" + key) == 0 && !apps::find_given(all, key) && (!resumes || key == "out"))
        throw apps::UsageError(fmt::format("--{} is required (tern-translate train --help lists the options)", key));
    if (resumes) return train(state->resumed("tern-translate", entries(), changeable));
    Options chosen = preset(apps::find_given(all, "preset").value_or("best"));
    for (const auto& [entry, text] : all) entry->set(chosen, text);
    static_cast<apps::RunSettings&>(chosen) = *state;
    train(chosen);
  });
}

void add_models(CLI::App& command, SearchOptions& options) {
  command
      .add_option("--model", options.models, "run directory of a training; several translate as one, by the mean of their probabilities")
      ->required()
      ->type_name("DIR")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  apps::add_processor_options(command, options);
}

void add_precision(CLI::App& command, std::string& precision) {
  apps::add_value(command, "--precision", precision, "fp32, tf32, tf32x3, bf16 or fp16, whatever the training had",
                  apps::one_of(apps::precision_names), "NAME");
}

void add_beam(CLI::App& command, SearchOptions& options) {
  apps::add_value(command, "--beam", options.beam, "hypotheses of a beam search; 1 is greedy", apps::whole_number(1, 1000), "N");
  apps::add_value(command, "--length-penalty", options.length_penalty,
                  "power of its length that a hypothesis's log-probability is divided by", apps::real_number(-10, 10), "X");
}

void add_decode(CLI::App& app) {
  auto* command = app.add_subcommand("decode", "translate lines from stdin, or from a file, to stdout, as they come");
  const auto options = std::make_shared<DecodeOptions>();
  add_models(*command, *options);
  add_precision(*command, options->precision);
  add_beam(*command, *options);
  command->add_option("--src-file", options->src_file, "file of sources, one a line, plain or .gz, instead of stdin")->type_name("FILE");
  apps::add_option(*command, "--n-best", options->n_best, "print so many translations of a line, as \"number ||| translation ||| score\"",
                   apps::whole_number(1, 1'000'000), "N");
  command->add_flag("--sample", options->sample, "draw tokens by their probabilities");
  apps::add_sampling_options(*command, *options);
  apps::add_option(*command, "--batch-size", options->batch_size,
                   "sentences decoded together; does not change the output (64 on a CPU, 512 on a GPU)", apps::whole_number(1, 1'000'000),
                   "N");
  command->add_flag("--statistics", options->statistics, "end with a line on stderr: tokens a second, and how long a line took");
  command->callback([options] { decode(*options); });
}

void add_score_pairs(CLI::App& app) {
  auto* command = app.add_subcommand("score-pairs", "log-probability of each target as a translation of its source, one a line");
  const auto options = std::make_shared<ScorePairsOptions>();
  command->add_option("--model", options->model, "run directory of a training")->required()->type_name("DIR");
  command->add_option("--src-file", options->src_file, "file of sources, one a line, plain or .gz")->required()->type_name("FILE");
  command->add_option("--tgt-file", options->tgt_file, "file of targets, one a line, plain or .gz")->required()->type_name("FILE");
  apps::add_value(*command, "--length-penalty", options->length_penalty,
                  "power of the target's length to divide by: 0 none, 1 for the mean", apps::real_number(-10, 10), "X");
  apps::add_value(*command, "--batch-size", options->batch_size, "pairs read together; does not change the output",
                  apps::whole_number(1, 1'000'000), "N");
  add_precision(*command, options->precision);
  apps::add_processor_options(*command, *options);
  command->callback([options] { score_pairs(*options); });
}

void add_chat(CLI::App& app) {
  auto* command = app.add_subcommand("chat", "translate what you write, and draw the attention");
  const auto options = std::make_shared<ChatOptions>();
  add_models(*command, *options);
  add_precision(*command, options->precision);
  add_beam(*command, *options);
  command->add_option("--attention", options->attention, "draw the attention of each sentence into this SVG file")->type_name("FILE");
  apps::add_value(*command, "--layer", options->layer, "of the picture, from 1; 0 is the last", apps::whole_number(0, 1024), "N");
  command->callback([options] { chat(*options); });
}

void add_average(CLI::App& app) {
  auto* command = app.add_subcommand("average", "a run of the mean weights of runs, or of a run's checkpoints");
  const auto options = std::make_shared<AverageOptions>();
  command->add_option("--out", options->out, "run directory to write; an earlier run there is replaced")->required()->type_name("DIR");
  command
      ->add_option("inputs", options->inputs,
                   "run directories, or files of RUN/checkpoints; the first one's options and tokenizer are taken")
      ->required()
      ->type_name("RUN");
  command->callback([options] { average(*options); });
}

void add_quantise(CLI::App& app) {
  auto* command = app.add_subcommand("quantise", "a run of the same model with weights of 8 bits or 4, for translating");
  const auto options = std::make_shared<QuantiseOptions>();
  command->add_option("run", options->run, "run directory of a training")->required()->type_name("RUN");
  apps::add_value(*command, "--format", options->format,
                  "int8 or dynamic-int8 (a scale for each output), q8_0 or q4_0 (for each 32 weights; 8 bits and 4)",
                  apps::one_of({"int8", "dynamic-int8", "q8_0", "q4_0"}), "NAME");
  command->add_option("--out", options->out, "run directory to write; an earlier run there is replaced (RUN-FORMAT)")->type_name("DIR");
  command->callback([options] { quantise(*options); });
}

void add_score(CLI::App& app) {
  auto* command = app.add_subcommand("score", "BLEU and chrF of translations, as sacreBLEU computes them");
  struct State {
    std::string hypotheses, references;
    bool json = false, lowercase = false;
  };
  const auto state = std::make_shared<State>();
  command->add_option("--hyp", state->hypotheses, "file of translations, one a line")->required()->type_name("FILE");
  command->add_option("--ref", state->references, "file of references, one a line")->required()->type_name("FILE");
  command->add_flag("--json", state->json, "print one JSON object");
  command->add_flag("--lowercase", state->lowercase, "compare without case");
  command->callback([state] {
    const auto hypotheses = text::read_lines(state->hypotheses), references = text::read_lines(state->references);
    if (hypotheses.size() != references.size())
      throw apps::UsageError(fmt::format("expected as many translations as references but got {} in {} and {} in {}", hypotheses.size(),
                                         state->hypotheses, references.size(), state->references));
    if (hypotheses.empty()) throw apps::UsageError(fmt::format("{}: expected at least one line but got an empty file", state->hypotheses));
    const text::Bleu bleu = text::bleu(hypotheses, references, {state->lowercase});
    const text::Chrf chrf = text::chrf(hypotheses, references, {state->lowercase});
    if (!state->json) {
      fmt::print("{}\n{}\n", text::format(bleu), text::format(chrf));
      return;
    }
    io::JsonObject json;
    json.set("bleu", bleu.score).set("bleu_signature", bleu.signature()).set("brevity_penalty", bleu.brevity_penalty);
    json.set("hyp_length", bleu.hyp_length).set("ref_length", bleu.ref_length);
    json.set("chrf", chrf.score).set("chrf_signature", chrf.signature());
    fmt::print("{}\n", json.dump());
  });
}

}  // namespace
}  // namespace tern::translate

int main(int argc, char** argv) {
  using namespace tern::translate;
  return tern::apps::run("Train a translator from raw text, translate with it, score translations.", "tern-translate",
                         {add_train, add_decode, add_average, add_quantise, add_score, add_score_pairs, add_chat}, argc, argv,
                         "use a smaller --batch-size, --length, --width or --layers");
}
