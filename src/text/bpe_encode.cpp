// Encoding and decoding. A word's merges are found with a linked list of symbols and a heap of candidate pairs, which
// is O(n log n) in the word's length, so that a line without a space costs no more than prose.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "text/bpe.h"
#include "text/bpe_model.h"

namespace tern::text {
namespace {

// Bounds on the word cache: words past the length are rare, and a full cache is dropped and built anew, which costs
// less than keeping count of use.
constexpr std::size_t cached_word_bytes = 64, cached_words = 1 << 17;

class Encoder {
 public:
  Encoder(const BpeModel& model, EncodeScratch& scratch, std::vector<std::int32_t>& out) : model_(model), scratch_(scratch), out_(out) {}

  // Splits out the added tokens of one pass and gives the text between them to the next.
  void encode(std::string_view text) {
    split(model_.first_pass, text, [&](std::string_view part) {
      split(model_.second_pass, part,
            [&](std::string_view rest) { scratch_.words.for_each(rest, [&](std::string_view word) { encode_word(word); }); });
    });
  }

 private:
  template <class F>
  void split(const AddedMatcher& matcher, std::string_view text, F&& between) {
    std::size_t from = 0;
    if (!matcher.empty()) {
      for (const AddedMatcher::Match& match : matcher.find(text)) {
        if (match.begin > from) between(text.substr(from, match.begin - from));
        out_.push_back(match.id);
        from = match.begin + match.size;
      }
    }
    if (from < text.size()) between(text.substr(from));
  }

  void encode_word(std::string_view word) {
    if (word.size() > cached_word_bytes) {
      merge(word);
      return;
    }
    auto& cache = scratch_.cache;
    if (const auto found = cache.find(word); found != cache.end()) {
      const auto [begin, count] = found->second;
      out_.insert(out_.end(), scratch_.cached_ids.begin() + begin, scratch_.cached_ids.begin() + begin + count);
      return;
    }
    if (cache.size() >= cached_words) {
      cache.clear();
      scratch_.cached_ids.clear();
    }
    const std::size_t old_size = out_.size();
    merge(word);
    const auto begin = static_cast<std::uint32_t>(scratch_.cached_ids.size());
    scratch_.cached_ids.insert(scratch_.cached_ids.end(), out_.begin() + static_cast<std::ptrdiff_t>(old_size), out_.end());
    cache.emplace(word, std::pair(begin, static_cast<std::uint32_t>(out_.size() - old_size)));
  }

  // The pair of lowest rank first, of equals the leftmost, until no pair has a rule.
  void merge(std::string_view word) {
    auto& symbols = scratch_.symbols;
    auto& heap = scratch_.heap;
    symbols.clear();
    heap.clear();
    const auto count = static_cast<std::int32_t>(word.size());
    for (std::int32_t i = 0; i < count; ++i) {
      const auto byte = static_cast<std::uint8_t>(word[static_cast<std::size_t>(i)]);
      symbols.push_back({model_.byte_ids[byte], i - 1, i + 1 < count ? i + 1 : -1});
    }
    for (std::int32_t i = 0; i + 1 < count; ++i) propose(i);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), later);
      const EncodeScratch::Candidate best = heap.back();
      heap.pop_back();
      // A candidate is stale when either of its symbols has changed since; what replaced it has its own candidate.
      const MergeRule* rule = rule_at(best.at);
      if (!rule || rule->rank != best.rank) continue;
      EncodeScratch::Symbol& left = symbol(best.at);
      EncodeScratch::Symbol& right = symbol(left.next);
      right.id = gone;
      left.id = best.merged;
      left.next = right.next;
      if (left.next >= 0) {
        symbol(left.next).prev = best.at;
        propose(best.at);
      }
      if (left.prev >= 0) propose(left.prev);
    }
    for (std::int32_t i = 0; i >= 0; i = symbol(i).next) out_.push_back(symbol(i).id);
  }

  const MergeRule* rule_at(std::int32_t at) {
    const EncodeScratch::Symbol& left = symbol(at);
    if (left.id == gone || left.next < 0) return nullptr;
    return model_.rules.find(pair_key(left.id, symbol(left.next).id));
  }

  void propose(std::int32_t at) {
    if (const MergeRule* rule = rule_at(at)) {
      scratch_.heap.push_back({rule->rank, at, rule->id});
      std::push_heap(scratch_.heap.begin(), scratch_.heap.end(), later);
    }
  }

  static bool later(const EncodeScratch::Candidate& a, const EncodeScratch::Candidate& b) noexcept {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }

  EncodeScratch::Symbol& symbol(std::int32_t i) { return scratch_.symbols[static_cast<std::size_t>(i)]; }

  static constexpr std::int32_t gone = -1;
  const BpeModel& model_;
  EncodeScratch& scratch_;
  std::vector<std::int32_t>& out_;
};

std::size_t checked(const BpeModel& model, std::int32_t id, const char* what) {
  if (id < 0 || static_cast<std::size_t>(id) >= model.tokens.size()) {
    throw std::invalid_argument(fmt::format("[{}] expected an id in [0, {}) but got {}", what, model.tokens.size(), id));
  }
  return static_cast<std::size_t>(id);
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const BpeModel> model) : model_(std::move(model)) {}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  constexpr std::size_t limit = std::size_t{1} << 30;  // symbols are numbered in 32 bits
  if (text.size() > limit) {
    throw std::invalid_argument(fmt::format("[encode] expected at most {} bytes but got {}", limit, text.size()));
  }
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3);
  // One thread at a time has the cache; another one that comes meanwhile does without rather than wait.
  if (std::unique_lock lock(model_->scratch_mutex, std::try_to_lock); lock) {
    Encoder(*model_, model_->scratch, ids).encode(text);
  } else {
    EncodeScratch scratch;
    Encoder(*model_, scratch, ids).encode(text);
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    const std::size_t i = checked(*model_, id, "decode");
    if (!(skip_special && model_->special[i])) bytes += model_->bytes_of(i);
  }
  return utf8_lossy(bytes);
}

std::size_t Tokenizer::vocab_size() const noexcept { return model_->tokens.size(); }

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto found = model_->ids.find(token);
  return found == model_->ids.end() ? std::nullopt : std::optional(found->second);
}

const std::string& Tokenizer::id_to_token(std::int32_t id) const { return model_->tokens[checked(*model_, id, "id_to_token")]; }

std::vector<std::pair<std::int32_t, std::int32_t>> Tokenizer::merges() const {
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  pairs.reserve(model_->merges.size());
  for (const PairKey key : model_->merges) pairs.emplace_back(left_of(key), right_of(key));
  return pairs;
}

}  // namespace tern::text
