// tern-translate: trains a translator from raw text, translates with it, and scores translations.
#include <fmt/format.h>

#include <iostream>

#include "common/program.h"
#include "io/json_object.h"
#include "text/corpus.h"
#include "text/metrics.h"
#include "translate/train.h"
#include "translate/translator.h"

namespace tern::translate {
namespace {

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "train a translator from a directory of raw text");
  // The preset is known only after parsing, but gives the other options' defaults: each option is kept as an edit that
  // is applied to the preset's values afterwards.
  struct State {
    std::string preset = "quick";
    Options options;
    std::vector<std::function<void(Options&)>> edits;
  };
  const auto state = std::make_shared<State>();
  command->add_option("--data", state->options.data, "directory with train.SRC, train.TGT, valid.* (or val.*), test*.*; plain or .gz")->required();
  command->add_option("--src", state->options.src, "source language: the suffix of its files")->required();
  command->add_option("--tgt", state->options.tgt, "target language")->required();
  command->add_option("--out", state->options.out, "run directory to write")->required();
  command->add_option("--preset", state->preset, "classic or quick")->capture_default_str();
  apps::add_device_option(*command, state->options.device);
  apps::add_switch(*command, "--use-fused-kernel", state->options.use_fused_kernel, "train on the fused kernels");
  command->add_option("--threads", state->options.threads, "CPU threads (default: one for each processor)")->check(CLI::PositiveNumber);

  const auto edit = [&]<class T>(const char* name, T Options::*member, const char* help) {
    return command->add_option_function<T>(name, [state, member](const T& value) {
      state->edits.push_back([member, value](Options& options) { options.*member = value; });
    }, fmt::format("{} (default: the preset's)", help));
  };
  edit("--epochs", &Options::epochs, "passes over the training pairs");
  edit("--updates", &Options::updates, "stop after so many updates");
  edit("--batch-size", &Options::batch_size, "pairs in an update");
  edit("--lr", &Options::lr, "Adam's learning rate, its peak under a schedule");
  edit("--beta2", &Options::beta2, "Adam's decay of squared gradients");
  edit("--adam-eps", &Options::adam_eps, "added to the root of Adam's squared gradients");
  edit("--schedule", &Options::schedule, "of the learning rate")->check(CLI::IsMember({"constant", "cosine", "inverse-sqrt"}));
  edit("--warmup", &Options::warmup, "updates until the learning rate has risen");
  edit("--clip", &Options::clip, "largest gradient norm, 0 for any");
  edit("--label-smoothing", &Options::label_smoothing, "share of a target that is spread over the vocabulary");
  edit("--seed", &Options::seed, "of weights, order and dropout");
  edit("--vocab", &Options::vocab, "size of the joint vocabulary");
  edit("--word-limit", &Options::word_limit, "leave out pairs with so many words, 0 for none");
  edit("--length", &Options::length, "tokens of a pair, longer ones are cut");
  edit("--samples", &Options::samples, "pairs drawn for an epoch, 0 for all");
  edit("--width", &Options::width, "of the model");
  edit("--layers", &Options::layers, "of the model");
  edit("--heads", &Options::heads, "of attention");
  edit("--ff", &Options::ff, "inner width of the feed-forward layers");
  edit("--dropout", &Options::dropout, "probability");
  edit("--init", &Options::init, "of the weights: default (each layer's own, as PyTorch's) or gpt2")->check(CLI::IsMember({"default", "gpt2"}));
  edit("--bleu-every", &Options::bleu_every, "epochs between validation BLEU scores, 0 for the end alone");
  command->add_option_function<std::string>("--prefix-lm", [state](const std::string& text) {
            const bool value = text.empty() || CLI::detail::to_flag_value(text) > 0;
            state->edits.push_back([value](Options& options) { options.prefix_lm = value; });
          }, "source tokens see the whole source (default: the preset's)")->expected(0, 1)->type_name("[True|False]");

  command->callback([state] {
    Options options = preset(state->preset);
    const Options& given = state->options;
    options.data = given.data;
    options.src = given.src;
    options.tgt = given.tgt;
    options.out = given.out;
    options.device = given.device;
    options.threads = given.threads;
    options.use_fused_kernel = given.use_fused_kernel;
    for (const auto& apply : state->edits) apply(options);
    train(options);
  });
}

void add_decode(CLI::App& app) {
  auto* command = app.add_subcommand("decode", "translate lines from stdin to stdout, greedily");
  struct State {
    std::string model, device = "auto";
    std::size_t batch_size = 64;
    int threads = 0;
  };
  const auto state = std::make_shared<State>();
  command->add_option("--model", state->model, "run directory of a training")->required();
  command->add_option("--batch-size", state->batch_size, "sentences decoded together; does not change the output")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--threads", state->threads, "CPU threads")->check(CLI::PositiveNumber);
  apps::add_device_option(*command, state->device);
  command->callback([state] {
    if (state->threads > 0) set_num_threads(state->threads);
    const Translator translator = Translator::load(state->model, apps::resolve_device(state->device));
    std::size_t truncated = 0;
    std::vector<std::string> lines;
    const auto flush = [&] {
      for (const std::string& line : translator.translate(lines, state->batch_size, &truncated)) std::cout << line << '\n';
      std::cout.flush();
      lines.clear();
    };
    // Blocks of several batches let the decoder put sentences of similar length together.
    for (std::string line; std::getline(std::cin, line);) {
      if (!line.empty() && line.back() == '\r') line.pop_back();
      lines.push_back(std::move(line));
      if (lines.size() == 16 * state->batch_size) flush();
    }
    flush();
    if (!std::cout) throw std::runtime_error("the output could not be written");
    if (truncated) fmt::print(stderr, "tern-translate: {} lines were longer than the model's {} tokens and were cut\n", truncated, translator.options.length);
  });
}

void add_score(CLI::App& app) {
  auto* command = app.add_subcommand("score", "BLEU and chrF of translations, as sacreBLEU computes them");
  struct State {
    std::string hypotheses, references;
    bool json = false, lowercase = false;
  };
  const auto state = std::make_shared<State>();
  command->add_option("--hyp", state->hypotheses, "file of translations, one a line")->required();
  command->add_option("--ref", state->references, "file of references, one a line")->required();
  command->add_flag("--json", state->json, "print one JSON object");
  command->add_flag("--lowercase", state->lowercase, "compare without case");
  command->callback([state] {
    const auto hypotheses = text::read_lines(state->hypotheses), references = text::read_lines(state->references);
    if (hypotheses.size() != references.size())
      throw apps::UsageError(fmt::format("expected as many translations as references but got {} in {} and {} in {}", hypotheses.size(),
                                         state->hypotheses, references.size(), state->references));
    if (hypotheses.empty()) throw apps::UsageError(fmt::format("{}: expected at least one line", state->hypotheses));
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
  CLI::App app("Train a translator from raw text, translate with it, score translations.", "tern-translate");
  app.require_subcommand(1);
  tern::translate::add_train(app);
  tern::translate::add_decode(app);
  tern::translate::add_score(app);
  return tern::apps::run(app, argc, argv);
}
