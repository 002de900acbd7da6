// tern-lm: language models of one's own, from text files to a chat.
#include "common/program.h"
#include "lm/commands.h"

int main(int argc, char** argv) {
  using namespace tern::lm;
  return tern::apps::run("Train a language model on text of your own, sample from it, talk to it, and export it.", "tern-lm",
                         {add_prepare, add_train, add_replay, add_export, add_sample, add_chat, add_evaluate}, argc, argv,
                         "use a smaller --batch-size, --length, --width or --layers");
}
