#include "text/epoch_encoder.h"

#include <algorithm>
#include <future>

#include "text/bpe_model.h"

namespace tern::text {

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
