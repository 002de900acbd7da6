#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/nfc.h"
#include "text/pretokenize.h"
#include "text/random.h"

namespace tern::text {

// Two token ids as one key whose order is the order of (left, right).
using PairKey = std::uint64_t;
constexpr PairKey pair_key(std::int32_t left, std::int32_t right) noexcept {
  return (static_cast<PairKey>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}
constexpr std::int32_t left_of(PairKey key) noexcept { return static_cast<std::int32_t>(key >> 32); }
constexpr std::int32_t right_of(PairKey key) noexcept { return static_cast<std::int32_t>(key & 0xFFFFFFFFu); }

// Hash map from pairs of ids, with open addressing, linear probing and no erase: a look-up mostly touches one cache line, and training and
// encoding spend their time on look-ups. tsl::hopscotch_map and tsl::robin_map are a little slower at both.
template <class Value>
class PairMap {
 public:
  PairMap() { rehash(64); }

  Value* find(PairKey key) noexcept {
    Slot& slot = slots_[index(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  const Value* find(PairKey key) const noexcept { return const_cast<PairMap*>(this)->find(key); }

  Value& operator[](PairKey key) {
    if (2 * (size_ + 1) > slots_.size()) rehash(2 * slots_.size());
    Slot& slot = slots_[index(key)];
    if (slot.key != key) {
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }

  template <class F>
  void for_each(F&& f) {
    for (Slot& slot : slots_) {
      if (slot.key != none) f(slot.key, slot.value);
    }
  }

 private:
  static constexpr PairKey none = ~PairKey{0};  // ids are never negative
  struct Slot {
    PairKey key = none;
    Value value{};
  };

  // The slot of the key, or the free slot for it.
  std::size_t index(PairKey key) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 20) & mask;
    while (slots_[i].key != key && slots_[i].key != none) i = (i + 1) & mask;
    return i;
  }

  void rehash(std::size_t size) {
    std::vector<Slot> old(size);
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.key != none) slots_[index(slot.key)] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
};
template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

// A token that is split out of a text before the text is split into words: first the tokens with `normalized` false, then the others in the
// rest, as Hugging Face's library does, which runs its normaliser between the two passes.
struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = true;
  bool normalized = false;
};

// Finds the occurrences of a set of strings, the leftmost first and the longest of those, in time linear in the text: the automaton of Aho
// and Corasick (1975) over the reversed strings, run from the end of the text, gives for each position the longest string that begins
// there.
class AddedMatcher {
 public:
  struct Match {
    std::size_t begin, size;
    std::int32_t id;
  };

  void add(const AddedToken& token);
  void finish();  // after the last add()
  bool empty() const noexcept { return nodes_.size() <= 1; }
  // All matches in order; they do not overlap.
  std::vector<Match> find(std::string_view text) const;

 private:
  struct Node {
    std::int32_t parent = 0, suffix = 0;  // suffix: the longest other node that this one ends with
    std::int32_t id = -1;                 // of the longest string that this node ends with, -1 for none
    std::uint32_t size = 0;               // of that string
    std::uint8_t byte = 0;                // the last byte of the node's string
  };
  std::int32_t next(std::int32_t node, std::uint8_t byte) const noexcept;

  std::vector<Node> nodes_;  // in the order of add()
  std::vector<std::uint32_t> depths_;
  PairMap<std::int32_t> children_;  // (node, byte) -> node
  std::array<std::int32_t, 256> roots_{};
  std::size_t longest_ = 0;
};

// Limits of training and of loading, so that a file that is written can be read again, in bounded memory.
inline constexpr std::size_t max_vocab_size = 500'000;
inline constexpr std::size_t max_token_bytes = 1024;                         // of one token as tokenizer.json spells it
inline constexpr std::size_t max_vocab_bytes = std::size_t{32} << 20;        // of all tokens
inline constexpr std::size_t max_added_tokens_bytes = std::size_t{1} << 19;  // of all added tokens

struct MergeRule {
  std::uint32_t rank = 0;
  std::int32_t id = 0;  // of the merged token
};

// The ids of words of at most max_word_bytes bytes and max_ids ids, a cache line each: a look-up touches one. A word takes the place of
// another one with the same hash, so that memory is 4 MiB and the frequent words stay.
class WordCache {
 public:
  static constexpr std::size_t max_word_bytes = 23, max_ids = 9;

  struct alignas(64) Slot {
    std::array<std::uint64_t, 3> key{};  // the word's bytes, zeros, and its size in the last byte; no word has the key 0
    std::array<std::int32_t, max_ids> ids{};
    std::uint8_t count = 0;
  };

  // The key of a word, and the slot of a key, which has the ids if it has the key.
  static std::array<std::uint64_t, 3> key_of(std::string_view word) noexcept {
    std::array<std::uint64_t, 3> key{};
    std::memcpy(key.data(), word.data(), word.size());
    key[2] |= static_cast<std::uint64_t>(word.size()) << 56;
    return key;
  }
  Slot& slot_of(const std::array<std::uint64_t, 3>& key) noexcept {
    std::uint64_t hash = key[0] * 0x9E3779B97F4A7C15u;
    hash = ((hash ^ (hash >> 32)) + key[1]) * 0xBF58476D1CE4E5B9u;
    hash = ((hash ^ (hash >> 32)) + key[2]) * 0x94D049BB133111EBu;
    return slots_[static_cast<std::size_t>(hash >> 48)];
  }

 private:
  std::vector<Slot> slots_ = std::vector<Slot>(std::size_t{1} << 16);
};

// The buffers of an encoding, and a cache of words.
struct EncodeScratch {
  struct Symbol {
    std::int32_t id, prev, next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t at;
    std::int32_t merged;
  };
  std::optional<PreTokenizer> words;  // of the model's expression, set by the first text
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::vector<Candidate> dropped;  // left out of this step by dropout, candidates again in the next
  std::unique_ptr<WordCache> cache;
};

// The state of a tokenizer. Immutable once finish() has run, apart from `scratches`, which do not affect results.
struct BpeModel {
  std::vector<std::string> tokens;  // by id; the first `model_tokens` are the vocabulary's, the others added tokens
  std::size_t model_tokens = 0;
  std::vector<AddedToken> added;              // ascending ids
  std::vector<PairKey> merges;                // by rank, each once
  bool composes = false;                      // the normalizer: text becomes NFC
  std::size_t pattern = 0;                    // of word_patterns
  std::shared_ptr<const Pattern> split;       // another expression of the words, in place of `pattern`
  bool ignores_merges = false;                // a word that is a token is this token, whatever the merges make of it
  std::string pre_tokenizer, post_processor;  // the parts of tokenizer.json, if they are other than ByteLevel

  // Derived by finish():
  std::unordered_map<std::string_view, std::int32_t> ids;  // the keys lie in `tokens`
  PairMap<MergeRule> rules;
  std::array<std::int32_t, 256> byte_ids{};
  std::string token_bytes;                 // of all tokens, one after the other
  std::vector<std::uint32_t> byte_begins;  // offset of each token in `token_bytes`, and the end
  std::string_view bytes_of(std::size_t id) const {
    return std::string_view(token_bytes).substr(byte_begins[id], byte_begins[id + 1] - byte_begins[id]);
  }
  std::vector<bool> special;  // by id
  // True for a special token that text never has.
  bool is_control(std::size_t id) const {
    const std::string_view bytes = bytes_of(id);
    return special[id] && !(bytes.size() == 1 && byte_ids[static_cast<std::uint8_t>(bytes[0])] == static_cast<std::int32_t>(id));
  }
  AddedMatcher first_pass, second_pass;

  // The buffers and caches of encodings that have ended, for the next ones: as many as there were encodings at once.
  mutable std::mutex scratch_mutex;
  mutable std::vector<std::unique_ptr<EncodeScratch>> scratches;

  // Sets `ids`. Tokens may not be added or moved afterwards.
  void index_tokens();
  // Sets `merges` from pairs in the order of their ranks. A pair that occurs twice keeps its later rank alone, the one that encoding uses.
  void set_merges(std::span<const PairKey> ranked);
  // Sets the derived members. Throws std::invalid_argument if a byte or a merged token has no id.
  void finish();
};

// The random decisions of BPE-dropout for one line.
class MergeDropout {
 public:
  MergeDropout(double probability, std::uint64_t seed, std::uint64_t epoch, std::uint64_t line)
      : probability_(probability), random_(seed, epoch, (line << 8) | 3) {}
  bool drops() noexcept { return random_.uniform() < probability_; }

 private:
  double probability_;
  Random random_;
};

// Splits text at the added tokens, and the text between them into words, in order. Special tokens are text unless `has_special`.
template <class OnToken, class OnWord>
void split_words(const BpeModel& model, EncodeScratch& scratch, std::string_view text, bool has_special, OnToken&& on_token,
                 OnWord&& on_word) {
  if (!scratch.words && model.split) scratch.words.emplace(*model.split);
  if (!scratch.words) scratch.words.emplace(model.pattern);
  const auto split = [&](const AddedMatcher& matcher, std::string_view part, auto&& between) {
    std::size_t from = 0;
    if (!matcher.empty()) {
      for (const AddedMatcher::Match& match : matcher.find(part)) {
        if (!has_special && model.special[static_cast<std::size_t>(match.id)]) continue;
        if (match.begin > from) between(part.substr(from, match.begin - from));
        on_token(match.id);
        from = match.begin + match.size;
      }
    }
    if (from < part.size()) between(part.substr(from));
  };
  split(model.first_pass, text, [&](std::string_view part) {
    std::string composed;
    if (model.composes && !is_surely_nfc(part)) part = composed = nfc(part);
    split(model.second_pass, part, [&](std::string_view rest) { scratch.words->for_each(rest, on_word); });
  });
}

// Appends the ids of a word to `out`, without the cache. `dropout` may be null; a word that loses no merge asks it once for each merge.
void merge_word(const BpeModel& model, EncodeScratch& scratch, std::string_view word, MergeDropout* dropout,
                std::vector<std::int32_t>& out);

// Appends the ids of a word without dropout: as merge_word, but for a word that ignores_merges makes one token.
void plain_word(const BpeModel& model, EncodeScratch& scratch, std::string_view word, std::vector<std::int32_t>& out);

// The characters that spell the 256 bytes in a token: a printable byte as itself, the others from U+0100 up.
const std::array<char32_t, 256>& byte_characters();
std::string byte_token(std::uint8_t byte);
// The bytes that a token spells. A token with any other character is its own bytes.
std::string bytes_of_token(std::string_view token);

}  // namespace tern::text
