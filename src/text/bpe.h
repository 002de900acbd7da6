#pragma once
#include <cstddef>
#include <cstdint>
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
  std::size_t vocab_size = 10'000;          ///< tokens; the special tokens and the 256 bytes are always included
  std::uint64_t min_frequency = 2;          ///< least count of a pair to be merged
  std::vector<std::string> special_tokens;  ///< get the first ids, in this order
  std::function<void()> on_step = {};       ///< called for each line and merge; what it throws ends the training
};

/// Options of an encoding. BPE-dropout (Provilkov et al. 2020) leaves each possible merge out of a step of a word's encoding with a
/// probability, so that a model sees a word in many segmentations. The result is a pure function of the text and these options.
struct EncodeOptions {
  /// Special tokens that the text spells become their ids, for text of a program's own such as a chat template. Text of users has none:
  /// by default "<pad>" is five characters (`encode_special_tokens` of Hugging Face's tokenizers).
  bool special_tokens = false;
  double dropout = 0;       ///< probability that a merge is left out, in [0, 1]
  std::uint64_t seed = 0;   ///< seed of the training
  std::uint64_t epoch = 0;  ///< number of the epoch
  std::uint64_t line = 0;   ///< number of the text in its corpus
};

/// Byte-level byte-pair encoding (Sennrich et al. 2016, over bytes as in Radford et al. 2019): the same ids, merges and
/// tokenizer.json as Hugging Face's ByteLevelBPETokenizer without prefix space. Text may become NFC, and words may be those of Llama 3,
/// Qwen 2 or another Split expression. A value: copies share an immutable model. Safe to use from several threads at once.
class Tokenizer {
 public:
  /// Trains a tokenizer on lines of text. Its ids are: the special tokens in their order, the 256 byte characters by code point, the merged
  /// tokens in the order of training. Special tokens are not split out of `lines`. The order of the lines does not matter.
  /// Throws std::invalid_argument for a vocab_size past 500,000 and for a special token that is empty, repeated, longer
  /// than 1,024 bytes or not UTF-8.
  static Tokenizer train(std::span<const std::string> lines, const TrainOptions& options);

  /// Reads a tokenizer.json of this kind: docs/hugging-face.md lists its parts. Throws DataError, one line with the file's name, for an
  /// inconsistent file and for a setting with which Hugging Face's library would encode differently.
  static Tokenizer load(const std::string& path);

  /// The ids of plain text, none of them special: decode() gives the text back. Added tokens (leftmost, then longest) are split out first.
  /// A run of bytes that is not UTF-8 is a word of its own. Throws DataError where a Split expression takes more steps than its bound.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Encodes with options. A dropout of 1 gives one token a byte. Throws std::invalid_argument for a dropout outside [0, 1].
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options) const;

  /// Joins the tokens' bytes; each ill-formed UTF-8 subpart becomes U+FFFD. `skip_special` leaves special tokens out, but not those that
  /// spell a byte, which any text has.
  /// Throws std::invalid_argument for an id outside [0, vocab_size()).
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  std::size_t vocab_size() const noexcept;  ///< ids, from 0
  /// The id of a token as tokenizer.json spells it; none if there is no such token.
  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  /// The token as tokenizer.json spells it: bytes as printable characters, a space as U+0120. Throws as decode does.
  const std::string& id_to_token(std::int32_t id) const;
  /// Pairs of ids in the order of their rank.
  std::vector<std::pair<std::int32_t, std::int32_t>> merges() const;

  /// The text of tokenizer.json.
  std::string to_json() const;
  /// Reads the text of a tokenizer.json. Throws DataError as load does, with `name` in place of the path.
  static Tokenizer from_json(std::string_view json, std::string_view name);

 private:
  friend class EpochEncoder;
  friend class IncrementalDecoder;
  explicit Tokenizer(std::shared_ptr<const BpeModel> model);
  std::shared_ptr<const BpeModel> model_;
};

/// Decodes tokens that come one by one: the texts, joined, are Tokenizer::decode of all of them, up to the first `stop` in it.
class IncrementalDecoder {
 public:
  /// Before the first token; the text has no end if `stop` is "".
  explicit IncrementalDecoder(const Tokenizer& tokenizer, std::string stop = "") : tokenizer_(tokenizer), stop_(std::move(stop)) {}
  /// Text that a token completes: bytes that may be the beginning of a character of UTF-8, or of `stop`, wait for its end. Throws as decode
  /// does.
  std::string add(std::int32_t id);
  /// The bytes that wait, those of a character that is not complete as U+FFFD.
  std::string end();
  bool has_ended() const noexcept { return has_ended_; }  ///< true after `stop`

 private:
  std::string before_stop(bool is_last);

  Tokenizer tokenizer_;
  std::string stop_;
  std::string bytes_, text_;  // of a character that is not complete, and text that may begin with `stop`
  bool has_ended_ = false;
};

/// Encodes the lines of a corpus anew for each epoch, with BPE-dropout (EncodeOptions). The lines are split into words once, and a word
/// that loses no merge, as most do, takes its ids from a table, so that an epoch costs a small part of the first encoding. Safe to use from
/// several threads at once.
class EpochEncoder {
 public:
  /// `dropout` and `seed` are those of EncodeOptions; its `line` is first_line + i for lines[i]. Throws std::invalid_argument for a dropout
  /// outside [0, 1].
  EpochEncoder(const Tokenizer& tokenizer, std::span<const std::string> lines, double dropout, std::uint64_t seed,
               std::uint64_t first_line = 0);

  /// Returns tokenizer.encode(lines[i], {dropout, seed, epoch, first_line + i}) for each i. `threads` does not change the result.
  std::vector<std::vector<std::int32_t>> encode(std::uint64_t epoch, int threads = 1) const;

 private:
  void encode(std::uint64_t epoch, std::size_t first, std::size_t last, std::vector<std::vector<std::int32_t>>& out) const;

  Tokenizer tokenizer_;
  double dropout_;
  std::uint64_t seed_, first_line_;
  std::string bytes_;                                 ///< of all distinct words, one after the other
  std::vector<std::int32_t> plain_ids_;               ///< ids of these words without dropout, one word after the other
  std::vector<std::size_t> byte_begins_, id_begins_;  ///< offsets of each word in bytes_ and plain_ids_, and the end
  std::vector<std::int64_t> pieces_;                  ///< of all lines: the index of a word, or ~id of an added token
  std::vector<std::size_t> line_begins_;              ///< offset of each line in pieces_, and the end
};

}  // namespace tern::text
