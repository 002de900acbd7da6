#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/conversation.h"
#include "translate/translator.h"

// The subcommands of tern-translate.
namespace tern::translate {

/// Trains a translator from raw text, and writes RUN/{config.json, tokenizer.json, model.safetensors, log.jsonl, summary.json}. Progress
/// goes to stderr, results to stdout. Throws DataError for a fault in the data, before an earlier run in the directory is changed, and
/// UsageError for options that do not fit together.
void train(const Options& options);

/// Models and search of a translation.
struct SearchOptions : apps::Processors {
  std::vector<std::string> models;  ///< runs; several are an ensemble
  std::string precision = "fp32";
  std::int64_t beam = 1;
  double length_penalty = 1;
};

/// Loads the runs, with a message for those whose training has not finished. Throws UsageError if their tokenizers or languages differ.
std::vector<Translator> load_models(const SearchOptions& options);

struct DecodeOptions : SearchOptions, apps::Sampling {
  std::string src_file;         ///< file of the lines, plain or gzip; empty for the standard input
  std::int64_t batch_size = 0;  ///< 0: 64 on a CPU, 512 on a GPU
  std::int64_t n_best = 0;      ///< translations of each line, with scores; 0: one, without a score
  bool sample = false;
  bool statistics = false;
};

/// Translates the lines of `src_file` or the standard input to the standard output in constant memory, one line for each line. With n_best
/// it writes `number ||| translation ||| score`, with line numbers from 0. Throws UsageError for options that do not fit together,
/// DataError for a fault in a model's directory or, after the lines before it have been written, in the input.
void decode(const DecodeOptions& options);

struct ScorePairsOptions : apps::Processors {
  std::string model, src_file, tgt_file, precision = "fp32";
  std::int64_t batch_size = 64;
  double length_penalty = 0;
};

/// Writes a line for each pair of a source and a target file: the log-probability of the target with its end token, given the source,
/// divided by length^length_penalty (nn::GenerateOptions). Throws UsageError if the files have different numbers of lines, DataError for a
/// fault in a file.
void score_pairs(const ScorePairsOptions& options);

struct ChatOptions : SearchOptions {
  std::string attention;   ///< file for a picture of each sentence's attention; "": none
  std::int64_t layer = 0;  ///< layer of the picture; 0: the last
};

/// Reads sentences from the standard input and prints their translations. The command `:attention [FILE]` draws the attention of the last
/// sentence, `:help` lists the commands, and `:quit` or the end of the input ends the chat.
void chat(const ChatOptions& options);

struct AverageOptions {
  std::vector<std::string> inputs;  ///< runs or checkpoints
  std::string out;
};

/// Writes a run whose model is the mean of the inputs' weights, as fairseq's average_checkpoints.py. The inputs are the last checkpoints of
/// a training, or runs that began with the same weights. Options and tokenizer are those of the first input. Throws FileError for inputs
/// with different tensors or tokenizers, and as io::RunDirectory::create().
void average(const AverageOptions& options);

struct QuantiseOptions {
  std::string run, format = "q8_0";
  std::string out;  ///< "": RUN-FORMAT
};

/// Writes a copy of a run with quantised weights (nn/layers.h), which all commands but a training can load, and prints the sizes of both
/// models. Throws UsageError if the run is quantised already or would replace itself, FileError for a damaged run, and as
/// io::RunDirectory::create().
void quantise(const QuantiseOptions& options);

}  // namespace tern::translate
