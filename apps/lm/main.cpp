// tern-lm: language models of one's own, from text files to a chat.
#include "common/program.h"
#include "lm/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Train a language model on text of your own, sample from it, talk to it, and export it.", "tern-lm");
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  tern::lm::add_prepare(app);
  tern::lm::add_train(app);
  tern::lm::add_replay(app);
  tern::lm::add_export(app);
  tern::lm::add_sample(app);
  tern::lm::add_chat(app);
  tern::lm::add_evaluate(app);
  return tern::apps::run(app, argc, argv, "use a smaller --batch-size, --length, --width or --layers");
}
