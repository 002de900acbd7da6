#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/conversation.h"
#include "lm/language_model.h"

namespace tern::lm {

/// Options of all commands that load a model to read or write text with it.
struct ReadOptions : apps::Processors {
  std::string model, precision = "fp32";
};
/// Adds MODEL, --precision, --device and --threads.
void add_read_options(CLI::App& command, ReadOptions& options);
/// Loads the model. Throws as load() does, and UsageError for a precision that the device lacks.
LanguageModel load(const ReadOptions& options);

struct WriteOptions : ReadOptions, apps::Sampling {
  WriteOptions() : Sampling{.temperature = 0.8, .top_p = 0.95} {}
  double repetition = 1;
  std::int64_t tokens = 256;
};
/// Adds the above, --tokens, --repetition and the options of samples.
void add_write_options(CLI::App& command, WriteOptions& options);

/// The end of a text.
struct Ending {
  std::vector<std::int64_t> ends;  ///< tokens that end it, and are not a part of it
  std::string stop;                ///< text that ends it, likewise; "": none
  bool is_answer = false;          ///< it begins without white space, and ends where the model has no room for more
};

/// Tokens, and those of a text behind them.
nn::TokenIds joined(nn::TokenIds tokens, const std::vector<std::int32_t>& more);

/// Writes text that goes on from tokens to stdout as it comes, and returns it: `options.tokens` tokens at most, fewer where a stop signal
/// arrives. A text that fills the model's length goes on from its last half. `number` is the sample's, by which it is drawn.
std::string write(const LanguageModel& model, nn::TokenIds tokens, const WriteOptions& options, const Ending& ending, std::int64_t number);

}  // namespace tern::lm
