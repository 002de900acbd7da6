#include <unistd.h>

#include <memory>

#include "lm/commands.h"
#include "lm/writer.h"

namespace tern::lm {

namespace {

struct SampleOptions : WriteOptions {
  std::string prompt;
  std::int64_t samples = 1;
};

void sample(const SampleOptions& options, bool has_prompt) {
  const LanguageModel model = load(options);
  const std::string prompt = has_prompt ? options.prompt : ::isatty(STDIN_FILENO) ? "" : apps::standard_input();
  const nn::TokenIds tokens = joined(model.begin, model.tokenizer.encode(prompt));
  if (tokens.empty()) throw apps::UsageError("--prompt: expected a text, as the model has no token that begins one");
  for (std::int64_t i = 0; i < options.samples; ++i) {
    apps::say("{}{}", i > 0 ? "---\n" : "", prompt);
    write(model, tokens, options, {.ends = model.ends, .stop = ""}, i);
    apps::say("\n");
  }
}

}  // namespace

void add_sample(CLI::App& app) {
  auto* command = app.add_subcommand("sample", "write text that goes on from a prompt");
  const auto options = std::make_shared<SampleOptions>();
  CLI::Option* prompt = command->add_option("--prompt", options->prompt, "first words, instead of stdin")->type_name("TEXT");
  apps::add_value(*command, "--samples", options->samples, "texts, with a line of --- between them", apps::positive_count(), "N");
  add_write_options(*command, *options);
  command->callback([=] { sample(*options, prompt->count() > 0); });
}

}  // namespace tern::lm
