// Encoding and decoding. The merges of a word are found with a linked list of symbols and a heap of candidate pairs, in O(n log n) for n
// bytes, as a line without spaces is one word.
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <stdexcept>

#include "text/bpe.h"
#include "text/bpe_model.h"

namespace tern::text {
namespace {

constexpr std::int32_t gone = -1;  // the id of a symbol that has been merged into its left neighbour

class Merger {
 public:
  Merger(const BpeModel& model, EncodeScratch& scratch) : model_(model), scratch_(scratch) {}

  // Merges the pair of the lowest rank, the leftmost of equals, until no pair has a rule. With dropout, candidates are tried in this order
  // until one is not dropped.
  void merge(std::string_view word, MergeDropout* dropout, std::vector<std::int32_t>& out) {
    auto& symbols = scratch_.symbols;
    auto& heap = scratch_.heap;
    auto& dropped = scratch_.dropped;
    symbols.clear();
    heap.clear();
    dropped.clear();
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
      // A candidate is stale if one of its symbols has changed since; the new pair has a candidate of its own.
      const MergeRule* rule = rule_at(best.at);
      if (!rule || rule->rank != best.rank) continue;
      if (dropout && dropout->drops()) {
        dropped.push_back(best);
        continue;
      }
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
      for (const EncodeScratch::Candidate& again : dropped) push(again);
      dropped.clear();
    }
    for (std::int32_t i = 0; i >= 0; i = symbol(i).next) out.push_back(symbol(i).id);
  }

 private:
  const MergeRule* rule_at(std::int32_t at) {
    const EncodeScratch::Symbol& left = symbol(at);
    if (left.id == gone || left.next < 0) return nullptr;
    return model_.rules.find(pair_key(left.id, symbol(left.next).id));
  }

  void propose(std::int32_t at) {
    if (const MergeRule* rule = rule_at(at)) push({rule->rank, at, rule->id});
  }

  void push(const EncodeScratch::Candidate& candidate) {
    scratch_.heap.push_back(candidate);
    std::push_heap(scratch_.heap.begin(), scratch_.heap.end(), later);
  }

  static bool later(const EncodeScratch::Candidate& a, const EncodeScratch::Candidate& b) noexcept {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }

  EncodeScratch::Symbol& symbol(std::int32_t i) { return scratch_.symbols[static_cast<std::size_t>(i)]; }

  const BpeModel& model_;
  EncodeScratch& scratch_;
};

class Encoder {
 public:
  Encoder(const BpeModel& model, EncodeScratch& scratch, std::vector<std::int32_t>& out) : model_(model), scratch_(scratch), out_(out) {
    if (!scratch.cache) scratch.cache = std::make_unique<WordCache>();
  }

  void encode(std::string_view text, bool has_special) {
    split_words(
        model_, scratch_, text, has_special, [&](std::int32_t id) { out_.push_back(id); },
        [&](std::string_view word) { encode_word(word); });
  }

 private:
  void encode_word(std::string_view word) {
    if (word.size() > WordCache::max_word_bytes) {
      plain_word(model_, scratch_, word, out_);
      return;
    }
    const auto key = WordCache::key_of(word);
    WordCache::Slot& slot = scratch_.cache->slot_of(key);
    if (slot.key == key) {
      out_.insert(out_.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
      return;
    }
    const std::size_t old_size = out_.size();
    plain_word(model_, scratch_, word, out_);
    if (const std::size_t count = out_.size() - old_size; count <= WordCache::max_ids) {
      slot.key = key;
      std::copy(out_.begin() + static_cast<std::ptrdiff_t>(old_size), out_.end(), slot.ids.begin());
      slot.count = static_cast<std::uint8_t>(count);
    }
  }

  const BpeModel& model_;
  EncodeScratch& scratch_;
  std::vector<std::int32_t>& out_;
};

void require_room(std::string_view text) {
  constexpr std::size_t limit = std::size_t{1} << 30;  // symbols are numbered in 32 bits
  if (text.size() > limit) {
    throw std::invalid_argument(fmt::format("[encode] expected at most {} bytes but got {}", limit, text.size()));
  }
}

std::size_t checked(const BpeModel& model, std::int32_t id, const char* function) {
  if (id < 0 || static_cast<std::size_t>(id) >= model.tokens.size()) {
    throw std::invalid_argument(fmt::format("[{}] expected an id in [0, {}) but got {}", function, model.tokens.size(), id));
  }
  return static_cast<std::size_t>(id);
}

}  // namespace

void merge_word(const BpeModel& model, EncodeScratch& scratch, std::string_view word, MergeDropout* dropout,
                std::vector<std::int32_t>& out) {
  Merger(model, scratch).merge(word, dropout, out);
}

void plain_word(const BpeModel& model, EncodeScratch& scratch, std::string_view word, std::vector<std::int32_t>& out) {
  if (model.ignores_merges && word.size() <= max_token_bytes) {
    std::string token;
    for (const char c : word) token += byte_token(static_cast<std::uint8_t>(c));
    const auto found = model.ids.find(token);
    const bool is_word = found != model.ids.end() && static_cast<std::size_t>(found->second) < model.model_tokens;
    if (is_word && !model.is_control(static_cast<std::size_t>(found->second))) {
      out.push_back(found->second);
      return;
    }
  }
  merge_word(model, scratch, word, nullptr, out);
}

Tokenizer::Tokenizer(std::shared_ptr<const BpeModel> model) : model_(std::move(model)) {}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const { return encode(text, {}); }

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (!(options.dropout >= 0 && options.dropout <= 1)) {
    throw std::invalid_argument(fmt::format("[encode] expected a dropout in [0, 1] but got {}", options.dropout));
  }
  require_room(text);
  std::vector<std::int32_t> ids;
  if (options.dropout == 0) {
    ids.reserve(text.size() / 3);
    std::unique_ptr<EncodeScratch> scratch;
    {
      const std::lock_guard lock(model_->scratch_mutex);
      if (!model_->scratches.empty()) {
        scratch = std::move(model_->scratches.back());
        model_->scratches.pop_back();
      }
    }
    if (!scratch) scratch = std::make_unique<EncodeScratch>();
    Encoder(*model_, *scratch, ids).encode(text, options.special_tokens);
    const std::lock_guard lock(model_->scratch_mutex);
    model_->scratches.push_back(std::move(scratch));
    return ids;
  }
  EncodeScratch scratch;
  MergeDropout dropout(options.dropout, options.seed, options.epoch, options.line);
  const auto on_word = [&](std::string_view word) { merge_word(*model_, scratch, word, &dropout, ids); };
  split_words(*model_, scratch, text, options.special_tokens, [&](std::int32_t id) { ids.push_back(id); }, on_word);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    const std::size_t i = checked(*model_, id, "decode");
    if (!(skip_special && model_->is_control(i))) bytes += model_->bytes_of(i);
  }
  return utf8_lossy(bytes);
}

std::string IncrementalDecoder::add(std::int32_t id) {
  const BpeModel& model = *tokenizer_.model_;
  const std::size_t i = checked(model, id, "decode");
  if (!model.is_control(i)) bytes_ += model.bytes_of(i);
  // A character that is not complete has 1 to 3 bytes, and becomes longer by one of 0x80 and 0xBF, the ends of the ranges of bytes that
  // follow.
  std::size_t whole = bytes_.size();
  for (std::size_t n = 1; n <= std::min<std::size_t>(3, bytes_.size()); ++n) {
    const std::string end = bytes_.substr(bytes_.size() - n);
    if (decode_utf8(end + '\x80').size > n || decode_utf8(end + '\xbf').size > n) whole = bytes_.size() - n;
  }
  text_ += utf8_lossy(std::string_view(bytes_).substr(0, whole));
  bytes_.erase(0, whole);
  return before_stop(false);
}

std::string IncrementalDecoder::end() {
  text_ += utf8_lossy(std::exchange(bytes_, {}));
  return before_stop(true);
}

std::string IncrementalDecoder::before_stop(bool is_last) {
  std::size_t ready = text_.size();
  if (const std::size_t at = stop_.empty() ? std::string::npos : text_.find(stop_); at != std::string::npos) {
    ready = at;
    has_ended_ = true;
  }
  for (std::size_t n = std::min(ready, stop_.size()); n > 0 && !has_ended_ && !is_last; --n)
    if (text_.ends_with(std::string_view(stop_).substr(0, n))) {
      ready -= n;
      break;
    }
  std::string text = text_.substr(0, ready);
  text_.erase(0, ready);  // `stop` stays, and nothing comes after it
  return text;
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

EpochEncoder::EpochEncoder(const Tokenizer& tokenizer, std::span<const std::string> lines, double dropout, std::uint64_t seed,
                           std::uint64_t first_line)
    : tokenizer_(tokenizer), dropout_(dropout), seed_(seed), first_line_(first_line) {
  (void)tokenizer.encode("", {.dropout = dropout});  // throws for a dropout out of range
  const BpeModel& model = *tokenizer_.model_;
  EncodeScratch scratch;
  StringMap<std::int64_t> indices;
  for (const std::string& line : lines) {
    line_begins_.push_back(pieces_.size());
    const auto on_word = [&](std::string_view word) {
      auto found = indices.find(word);
      if (found == indices.end()) {
        found = indices.emplace(word, static_cast<std::int64_t>(byte_begins_.size())).first;
        byte_begins_.push_back(bytes_.size());
        id_begins_.push_back(plain_ids_.size());
        bytes_ += word;
        if (dropout_ > 0) merge_word(model, scratch, word, nullptr, plain_ids_);  // what is left if no merge is lost
        else plain_word(model, scratch, word, plain_ids_);
      }
      pieces_.push_back(found->second);
    };
    split_words(model, scratch, line, false, [&](std::int32_t id) { pieces_.push_back(~std::int64_t{id}); }, on_word);
  }
  line_begins_.push_back(pieces_.size());
  byte_begins_.push_back(bytes_.size());
  id_begins_.push_back(plain_ids_.size());
}

std::vector<std::vector<std::int32_t>> EpochEncoder::encode(std::uint64_t epoch, int threads) const {
  const std::size_t lines = line_begins_.size() - 1,
                    parts = std::clamp<std::size_t>(static_cast<std::size_t>(std::max(threads, 1)), 1, lines + 1);
  std::vector<std::vector<std::int32_t>> result(lines);
  std::vector<std::future<void>> others;
  for (std::size_t part = 1; part < parts; ++part) {
    others.push_back(
        std::async(std::launch::async, [&, part] { encode(epoch, lines * part / parts, lines * (part + 1) / parts, result); }));
  }
  encode(epoch, 0, lines / parts, result);
  for (std::future<void>& other : others) other.get();
  return result;
}

void EpochEncoder::encode(std::uint64_t epoch, std::size_t first, std::size_t last, std::vector<std::vector<std::int32_t>>& out) const {
  const BpeModel& model = *tokenizer_.model_;
  EncodeScratch scratch;
  for (std::size_t line = first; line < last; ++line) {
    MergeDropout dropout(dropout_, seed_, epoch, first_line_ + line);
    std::vector<std::int32_t>& ids = out[line];
    for (std::size_t i = line_begins_[line]; i < line_begins_[line + 1]; ++i) {
      const std::int64_t piece = pieces_[i];
      if (piece < 0) {
        ids.push_back(static_cast<std::int32_t>(~piece));
        continue;
      }
      const auto word = static_cast<std::size_t>(piece);
      const std::size_t bytes = byte_begins_[word + 1] - byte_begins_[word], tokens = id_begins_[word + 1] - id_begins_[word];
      // merge_word() draws one random number for each merge of a word that loses none; `bytes` symbols take bytes - tokens merges.
      const MergeDropout before = dropout;
      bool keeps_all = true;
      for (std::size_t merge = tokens; keeps_all && dropout_ > 0 && merge < bytes; ++merge) keeps_all = !dropout.drops();
      if (keeps_all) {
        const auto begin = plain_ids_.begin() + static_cast<std::ptrdiff_t>(id_begins_[word]);
        ids.insert(ids.end(), begin, begin + static_cast<std::ptrdiff_t>(tokens));
      } else {
        dropout = before;
        merge_word(model, scratch, std::string_view(bytes_).substr(byte_begins_[word], bytes), &dropout, ids);
      }
    }
  }
}

}  // namespace tern::text
