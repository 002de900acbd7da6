#pragma once
#include <filesystem>
#include <memory>
#include <span>

#include "text/bpe.h"
#include "translate/model.h"

namespace tern::translate {

inline const std::string pad_token = "<pad>";
inline std::string end_token(const std::string& language) { return "<eos_" + language + ">"; }

/// A model with its tokenizer: text in, text out.
struct Translator {
  Options options;
  text::Tokenizer tokenizer;
  TranslationModel model;
  Device device;
  bool is_finished = false;  ///< the training of a model that was loaded came to its end
  /// Of a model that was loaded: copies of a Translator share them.
  std::shared_ptr<nn::DecodingGraphs> graphs = nullptr;

  std::int32_t eos_src() const { return *tokenizer.token_to_id(end_token(options.src)); }
  std::int32_t eos_tgt() const { return *tokenizer.token_to_id(end_token(options.tgt)); }
  std::int32_t pad() const { return *tokenizer.token_to_id(pad_token); }

  /// The most tokens of a source: its end needs room as well, and in a decoder-only LM one token of the target.
  std::int64_t source_room() const { return options.length - (model.lm ? 2 : 1); }
  /// The tokens of a source and its end, cut to the room there is, which sets `is_cut`; none of an empty line.
  nn::TokenIds source_tokens(const std::string& line, std::int64_t room, bool& is_cut) const;
  /// Text of a line: control characters become spaces, and none stands at its begin.
  std::string text_of(const nn::TokenIds& tokens) const;
  /// The continuation of sources, which have their end tokens, by the model.
  nn::Continuation read(const std::vector<nn::TokenIds>& sources) const;

  /// Greedy translations, in the order of the lines; an empty line gives an empty one. A line of more tokens than the model has room for is
  /// cut, and counted in `truncated`.
  std::vector<std::string> translate(std::span<const std::string> lines, std::size_t batch_size, std::size_t* truncated = nullptr) const;

  /// Reads what `train` wrote; with a precision, which the device has, other than the training's. Throws FileError for anything that does
  /// not fit together, by its digests too (io::RunDirectory::require_whole).
  static Translator load(const std::filesystem::path& run, Device device, const std::string& precision = "");
};

struct Translation {
  std::string text;
  double log_probability = 0, score = 0;
  std::size_t tokens = 0;
};

/// Translations of each line, the best first: at least one. Several models decode as one (nn::ensemble), and have one tokenizer and pair of
/// languages, which is the caller's to see to; a line is cut to the least room. `options` need no eos.
std::vector<std::vector<Translation>> translate(std::span<const Translator> models, std::span<const std::string> lines,
                                                nn::GenerateOptions options, std::size_t batch_size, std::size_t* truncated = nullptr);

}  // namespace tern::translate
