#pragma once
#include <CLI/CLI.hpp>

// The subcommands of tern-lm. Each function adds one with its options; its callback throws UsageError, Error or FileError for a mistake of
// the user's, before anything is written.
namespace tern::lm {

void add_prepare(CLI::App& app);   ///< text files -> tokens: data.h
void add_train(CLI::App& app);     ///< tokens -> a run
void add_replay(CLI::App& app);    ///< an update of a run, once more
void add_sample(CLI::App& app);    ///< text that goes on from a prompt
void add_chat(CLI::App& app);      ///< a conversation
void add_evaluate(CLI::App& app);  ///< perplexity of a text, accuracy of choices
void add_export(CLI::App& app);    ///< a model -> a Hugging Face directory or a GGUF file

}  // namespace tern::lm
