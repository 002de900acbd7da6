// BPE training. The counts of pairs are updated while words are merged, so that a merge visits the words that contain the pair, and not the
// whole corpus.
//
// Note [Hugging Face's trainer]
// The result has to equal that of Hugging Face's trainer, ties included. It merges the pair with the highest count; among equal counts, the
// smaller (left id, right id). A count in the queue may be stale, and is corrected when it reaches the top. The count of a pair is not
// cleared when the pair is merged, and a merged string that already has an id keeps it: both matter only if two pairs spell the same token,
// and then a pair may be merged a second time.
#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <stdexcept>

#include "text/bpe.h"
#include "text/bpe_model.h"

namespace tern::text {
namespace {

class Trainer {
 public:
  Trainer(const TrainOptions& options, BpeModel& model) : options_(options), model_(model) {
    for (const std::string& token : options.special_tokens) {
      model_.added.push_back({token, add_token(token), true, false});
    }
    std::vector<char32_t> alphabet(byte_characters().begin(), byte_characters().end());
    std::sort(alphabet.begin(), alphabet.end());
    for (const char32_t c : alphabet) {
      std::string token;
      append_utf8(token, c);
      add_token(token);
    }
  }

  void count_words(std::span<const std::string> lines) {
    PreTokenizer words;
    StringMap<std::uint64_t> counts;
    for (const std::string& line : lines) {
      if (options_.on_step) options_.on_step();
      words.for_each(line, [&](std::string_view word) {
        if (word.size() < 2) return;  // nothing to merge
        const auto found = counts.find(word);
        if (found == counts.end()) {
          counts.emplace(word, 1);
        } else {
          ++found->second;
        }
      });
    }
    for (const auto& [word, count] : counts) {
      words_.push_back({symbols_.size(), word.size(), static_cast<std::int64_t>(count)});
      for (const char c : word) symbols_.push_back(ids_.find(byte_token(static_cast<std::uint8_t>(c)))->second);
    }
  }

  // The order of the steps is that of Note [Hugging Face's trainer].
  void merge_pairs() {
    count_pairs();
    while (model_.tokens.size() < options_.vocab_size && !queue_.empty()) {
      if (options_.on_step) options_.on_step();
      Entry best = queue_.top();
      queue_.pop();
      const std::int64_t count = *counts_.find(best.pair);
      if (best.count != count) {
        best.count = count;
        queue_.push(best);
        continue;
      }
      if (count < 1 || static_cast<std::uint64_t>(count) < options_.min_frequency) break;
      const std::string merged = token(left_of(best.pair)) + token(right_of(best.pair));
      const auto found = ids_.find(merged);
      // Tokenizer::load would refuse a longer token. (Hugging Face's trainer has max_token_length for this, by default without a limit.)
      if (found == ids_.end() && (merged.size() > max_token_bytes || token_bytes_ + merged.size() > max_vocab_bytes)) continue;
      const std::int32_t id = found != ids_.end() ? found->second : add_token(merged);
      merges_.push_back(best.pair);
      for (const std::uint32_t word : positions_[best.positions]) merge_in_word(word, best.pair, id);
      std::vector<std::uint32_t>().swap(positions_[best.positions]);
      push_grown();
    }
  }

  void finish() {
    model_.set_merges(merges_);
    model_.model_tokens = model_.tokens.size();
    model_.finish();
  }

 private:
  struct Word {
    std::size_t begin, size;  // in symbols_
    std::int64_t count;
  };
  struct Entry {
    std::int64_t count;
    PairKey pair;
    std::size_t positions;  // index in positions_: the words that had the pair when it was pushed
    bool operator<(const Entry& other) const noexcept { return count != other.count ? count < other.count : pair > other.pair; }
  };

  std::int32_t add_token(const std::string& token) {
    const auto id = static_cast<std::int32_t>(model_.tokens.size());
    const auto [entry, is_new] = ids_.emplace(token, id);
    if (is_new) {
      model_.tokens.push_back(token);
      token_bytes_ += token.size();
    }
    return entry->second;
  }

  const std::string& token(std::int32_t id) const { return model_.tokens[static_cast<std::size_t>(id)]; }

  void count_pairs() {
    for (std::uint32_t w = 0; w < words_.size(); ++w) {
      const Word& word = words_[w];
      for (std::size_t i = word.begin; i + 1 < word.begin + word.size; ++i) {
        change(pair_key(symbols_[i], symbols_[i + 1]), word.count, w);
      }
    }
    push_grown();
  }

  void change(PairKey pair, std::int64_t by, std::uint32_t word) {
    counts_[pair] += by;
    if (by <= 0) return;
    auto& words = grown_[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void push_grown() {
    grown_.for_each([&](PairKey pair, std::vector<std::uint32_t>& words) {
      const std::int64_t count = *counts_.find(pair);
      if (count > 0) {
        queue_.push({count, pair, positions_.size()});
        positions_.push_back(std::move(words));
      }
    });
    grown_ = {};
  }

  // Replaces the pair from left to right. The counts change by the pairs with the neighbours at that moment: on the left after earlier
  // replacements, on the right still before them.
  void merge_in_word(std::uint32_t w, PairKey pair, std::int32_t merged) {
    Word& word = words_[w];
    std::int32_t* s = symbols_.data() + word.begin;
    const std::int32_t left = left_of(pair), right = right_of(pair);
    std::size_t out = 0;
    for (std::size_t in = 0; in < word.size; ++in) {
      if (!(s[in] == left && in + 1 < word.size && s[in + 1] == right)) {
        s[out++] = s[in];
        continue;
      }
      if (out > 0) {
        change(pair_key(s[out - 1], left), -word.count, w);
        change(pair_key(s[out - 1], merged), word.count, w);
      }
      ++in;
      if (in + 1 < word.size) {
        change(pair_key(right, s[in + 1]), -word.count, w);
        change(pair_key(merged, s[in + 1]), word.count, w);
      }
      s[out++] = merged;
    }
    word.size = out;
  }

  const TrainOptions& options_;
  BpeModel& model_;
  StringMap<std::int32_t> ids_;
  std::size_t token_bytes_ = 0;
  std::vector<std::int32_t> symbols_;
  std::vector<Word> words_;
  PairMap<std::int64_t> counts_;
  PairMap<std::vector<std::uint32_t>> grown_;  // pairs that the last step made more frequent, and the words with them
  std::vector<std::vector<std::uint32_t>> positions_;
  std::priority_queue<Entry> queue_;
  std::vector<PairKey> merges_;
};

}  // namespace

Tokenizer Tokenizer::train(std::span<const std::string> lines, const TrainOptions& options) {
  if (options.vocab_size > max_vocab_size) {
    throw std::invalid_argument(
        fmt::format("[Tokenizer::train] expected a vocab_size of at most {} but got {}", max_vocab_size, options.vocab_size));
  }
  StringMap<bool> seen;
  for (const std::string& token : options.special_tokens) {
    const bool text = !token.empty() && token.size() <= max_token_bytes && find_invalid_utf8(token) == std::string::npos;
    if (!text || !seen.emplace(token, true).second) {
      throw std::invalid_argument(
          fmt::format("[Tokenizer::train] expected special tokens of UTF-8 text, 1 to {} bytes, each once, but got '{}'{}", max_token_bytes,
                      utf8_lossy(token.substr(0, 100)), text ? " twice" : ""));
    }
  }
  auto model = std::make_shared<BpeModel>();
  Trainer trainer(options, *model);
  trainer.count_words(lines);
  trainer.merge_pairs();
  trainer.finish();
  return Tokenizer(std::move(model));
}

}  // namespace tern::text
