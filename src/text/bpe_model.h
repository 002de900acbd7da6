#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/pair_map.h"
#include "text/pretokenize.h"

namespace tern::text {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
};
template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

// A token that is looked for in the text before anything else. Of two kinds: those with `normalized` false are split
// out first, the others from what is left, as Hugging Face does with and without a normaliser between.
struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = true;
  bool normalized = false;
};

// Finds the leftmost and then longest of a set of strings.
class AddedMatcher {
 public:
  void add(const AddedToken& token);
  bool empty() const noexcept { return ids_.empty(); }
  // False if none is at or after `from`.
  bool find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end, std::int32_t& id) const;

 private:
  StringMap<std::int32_t> ids_;
  std::array<std::vector<std::size_t>, 256> lengths_;  // by first byte, longest first, each once
};

// Bounds on what is trained and loaded, so that every file we write we also read, in bounded memory.
inline constexpr std::size_t max_vocab_size = 500'000;
inline constexpr std::size_t max_added_bytes = 1024;  // of one added token

struct MergeRule {
  std::uint32_t rank = 0;
  std::int32_t id = 0;  // of the merged token
};

// The buffers of one encoding, and what earlier ones found out about words.
struct EncodeScratch {
  struct Symbol {
    std::int32_t id, prev, next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t at;
    std::int32_t merged;
  };
  PreTokenizer words;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  StringMap<std::pair<std::uint32_t, std::uint32_t>> cache;  // word -> begin and count in cached_ids
  std::vector<std::int32_t> cached_ids;
};

// A tokenizer's state. Immutable once finish() has run, but for the scratch, which changes no result.
struct BpeModel {
  std::vector<std::string> tokens;  // by id; the first `model_tokens` are the model's, the rest only added
  std::size_t model_tokens = 0;
  std::vector<AddedToken> added;  // ascending ids
  std::vector<PairKey> merges;    // by rank, each once

  // Derived by finish():
  StringMap<std::int32_t> ids;
  PairMap<MergeRule> rules;
  std::array<std::int32_t, 256> byte_ids{};
  std::vector<std::string> token_bytes;
  std::vector<bool> special;
  AddedMatcher first_pass, second_pass;

  mutable std::mutex scratch_mutex;
  mutable EncodeScratch scratch;

  // Throws std::invalid_argument with the reason when a byte or a merged token has no id.
  void finish();
};

// The 256 characters that stand for bytes in tokens: printable ones for themselves, the others from U+0100 up.
const std::array<char32_t, 256>& byte_characters();
std::string byte_token(std::uint8_t byte);
// The bytes that a token stands for; a token with any other character stands for itself.
std::string bytes_of_token(std::string_view token);

}  // namespace tern::text
