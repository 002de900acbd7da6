#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tern::text {

struct BpeModel;

/// Options of Tokenizer::train.
struct TrainOptions {
  std::size_t vocab_size = 10'000;          ///< never less comes out than the special tokens and the 256 bytes
  std::uint64_t min_frequency = 2;          ///< a pair that occurs less often is not merged
  std::vector<std::string> special_tokens;  ///< get the first ids, in this order
  std::function<void()> on_step = {};       ///< called for each line and merge; what it throws ends the training
};

/// BPE-dropout (Provilkov et al. 2020): at each step of a word's encoding each possible merge is left out with this probability, so that
/// a model sees a word in many segmentations. What is left out is a pure function of seed, epoch and line.
struct EncodeOptions {
  double dropout = 0;       ///< probability that a merge is left out, in [0, 1]
  std::uint64_t seed = 0;   ///< of a training
  std::uint64_t epoch = 0;  ///< its number
  std::uint64_t line = 0;   ///< number of the text in its corpus
};

/// Byte-level byte-pair encoding (Sennrich et al. 2016, over bytes as in Radford et al. 2019): the same ids, merges and
/// tokenizer.json as Hugging Face's ByteLevelBPETokenizer without normaliser and prefix space. A value: copies share an
/// immutable model. Safe to use from several threads at once.
class Tokenizer {
 public:
  /// Ids: special tokens in their order, the 256 byte characters by code point, then the merged tokens in the order of
  /// training. Special tokens are not looked for in `lines`. The same lines give the same tokenizer in any order.
  /// Throws std::invalid_argument for a vocab_size past 500,000 and for a special token that is empty, repeated, longer
  /// than 1,024 bytes or not UTF-8.
  static Tokenizer train(std::span<const std::string> lines, const TrainOptions& options);

  /// Reads a tokenizer.json of this kind. Throws DataError, one line with the file's name, for anything that this class
  /// would encode differently or that does not hold together.
  static Tokenizer load(const std::filesystem::path& path);

  /// Added tokens (leftmost, then longest) are split out first. Every input has an encoding: a run of bytes that is not
  /// UTF-8 is a word of its own and is encoded byte by byte like any other.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// With dropout 0 the same, with 1 one token for each byte. Throws std::invalid_argument for a dropout outside [0, 1].
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options) const;

  /// Joins the tokens' bytes; each ill-formed UTF-8 subpart becomes U+FFFD. `skip_special` leaves special tokens out.
  /// Throws std::invalid_argument for an id outside [0, vocab_size()).
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  std::size_t vocab_size() const noexcept;  ///< ids, from 0
  /// The id of a token as tokenizer.json spells it; none where there is no such token.
  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  /// The token as tokenizer.json spells it: bytes as printable characters, a space as U+0120. Throws as decode does.
  const std::string& id_to_token(std::int32_t id) const;
  /// Pairs of ids in the order of their rank.
  std::vector<std::pair<std::int32_t, std::int32_t>> merges() const;

  /// The whole tokenizer.json as text (io/atomic_file.h writes it whole or not at all), and back; `name` stands in the messages of the
  /// DataError.
  std::string to_json() const;
  /// Reads such a text; `name` stands in the messages of the DataError.
  static Tokenizer from_json(std::string_view json, std::string_view name);

 private:
  friend class EpochEncoder;
  explicit Tokenizer(std::shared_ptr<const BpeModel> model);
  std::shared_ptr<const BpeModel> model_;
};

}  // namespace tern::text
