#include "text/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "text/unicode.h"

namespace tern::text {

const std::array<char32_t, 256>& byte_characters() {
  static const std::array<char32_t, 256> table = [] {
    std::array<char32_t, 256> characters{};
    char32_t next = 256;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      characters[byte] = printable ? byte : next++;
    }
    return characters;
  }();
  return table;
}

std::string byte_token(std::uint8_t byte) {
  std::string token;
  append_utf8(token, byte_characters()[byte]);
  return token;
}

std::string bytes_of_token(std::string_view token) {
  static const std::array<std::int16_t, 512> bytes = [] {
    std::array<std::int16_t, 512> table;
    table.fill(-1);
    for (std::size_t byte = 0; byte < 256; ++byte) table[byte_characters()[byte]] = static_cast<std::int16_t>(byte);
    return table;
  }();
  std::string out;
  for (std::string_view rest = token; !rest.empty();) {
    const Utf8Step step = decode_utf8(rest);
    if (!step.valid || step.code_point >= bytes.size() || bytes[step.code_point] < 0) return std::string(token);
    out.push_back(static_cast<char>(bytes[step.code_point]));
    rest.remove_prefix(step.size);
  }
  return out;
}

void AddedMatcher::add(const AddedToken& token) {
  if (nodes_.empty()) {
    nodes_.emplace_back();
    depths_.push_back(0);
  }
  std::int32_t node = 0;
  for (std::size_t i = token.content.size(); i > 0; --i) {
    const auto byte = static_cast<std::uint8_t>(token.content[i - 1]);
    std::int32_t& child = children_[pair_key(node, byte)];
    if (child == 0) {
      child = static_cast<std::int32_t>(nodes_.size());
      if (node == 0) roots_[byte] = child;
      depths_.push_back(depths_[static_cast<std::size_t>(node)] + 1);
      nodes_.push_back({.parent = node, .byte = byte});
    }
    node = child;
  }
  nodes_[static_cast<std::size_t>(node)].id = token.id;
  nodes_[static_cast<std::size_t>(node)].size = static_cast<std::uint32_t>(token.content.size());
  longest_ = std::max(longest_, token.content.size());
}

void AddedMatcher::finish() {
  // By depth, as the suffix of a node is less deep.
  std::vector<std::int32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return depths_[static_cast<std::size_t>(a)] < depths_[static_cast<std::size_t>(b)];
  });
  for (const std::int32_t at : order) {
    Node& node = nodes_[static_cast<std::size_t>(at)];
    if (at == 0) continue;
    if (node.parent != 0) node.suffix = next(nodes_[static_cast<std::size_t>(node.parent)].suffix, node.byte);
    const Node& suffix = nodes_[static_cast<std::size_t>(node.suffix)];
    if (node.id < 0) {
      node.id = suffix.id;
      node.size = suffix.size;
    }
  }
  depths_ = {};
}

// The node after one more byte: the longest that the text up to it ends with.
std::int32_t AddedMatcher::next(std::int32_t node, std::uint8_t byte) const noexcept {
  while (node != 0) {
    if (const std::int32_t* child = children_.find(pair_key(node, byte))) return *child;
    node = nodes_[static_cast<std::size_t>(node)].suffix;
  }
  return roots_[byte];
}

std::vector<AddedMatcher::Match> AddedMatcher::find(std::string_view text) const {
  std::vector<Match> matches, here;
  // The text is searched in pieces, to bound the memory of candidates. A string that begins in a piece may end behind it.
  constexpr std::size_t piece = std::size_t{1} << 16;
  std::size_t free = 0;  // the end of the last match
  for (std::size_t begin = 0; begin < text.size(); begin += piece) {
    const std::size_t end = std::min(text.size(), begin + piece), last = std::min(text.size(), end + longest_ - 1);
    here.clear();
    std::int32_t node = 0;
    for (std::size_t i = last; i > begin; --i) {
      node = next(node, static_cast<std::uint8_t>(text[i - 1]));
      if (node == 0) continue;
      const Node& at = nodes_[static_cast<std::size_t>(node)];
      if (at.id >= 0 && i <= end) here.push_back({i - 1, at.size, at.id});
    }
    for (std::size_t i = here.size(); i > 0; --i) {
      if (here[i - 1].begin < free) continue;
      matches.push_back(here[i - 1]);
      free = matches.back().begin + matches.back().size;
    }
  }
  return matches;
}

void BpeModel::index_tokens() {
  ids.reserve(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<std::int32_t>(id));
}

void BpeModel::set_merges(std::span<const PairKey> ranked) {
  PairMap<std::size_t> last;
  for (std::size_t rank = 0; rank < ranked.size(); ++rank) last[ranked[rank]] = rank;
  for (std::size_t rank = 0; rank < ranked.size(); ++rank) {
    if (last[ranked[rank]] == rank) merges.push_back(ranked[rank]);
  }
}

void BpeModel::finish() {
  if (ids.empty()) index_tokens();
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(byte_token(static_cast<std::uint8_t>(byte)));
    if (found == ids.end()) throw std::invalid_argument(fmt::format("expected a token for byte {} but got none", byte));
    byte_ids[byte] = found->second;
  }
  special.assign(tokens.size(), false);
  for (const AddedToken& token : added) {
    special[static_cast<std::size_t>(token.id)] = token.special;
    AddedToken found = token;
    if (token.normalized && composes) found.content = nfc(token.content);
    (token.normalized ? second_pass : first_pass).add(found);
  }
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const PairKey pair = merges[rank];
    const std::string& left = tokens[static_cast<std::size_t>(left_of(pair))];
    const auto merged = ids.find(left + tokens[static_cast<std::size_t>(right_of(pair))]);
    if (merged == ids.end() || static_cast<std::size_t>(merged->second) >= model_tokens) {
      throw std::invalid_argument(fmt::format("expected the result of merge {} in the vocabulary but got none", rank));
    }
    // Text that spells a special token is not merged into it. (Where special tokens are split out, no such text is left.)
    if (special[static_cast<std::size_t>(merged->second)]) continue;
    rules[pair] = {static_cast<std::uint32_t>(rank), merged->second};
  }
  byte_begins.reserve(tokens.size() + 1);
  for (const std::string& token : tokens) {
    byte_begins.push_back(static_cast<std::uint32_t>(token_bytes.size()));
    token_bytes += bytes_of_token(token);
  }
  byte_begins.push_back(static_cast<std::uint32_t>(token_bytes.size()));
  first_pass.finish();
  second_pass.finish();
}

}  // namespace tern::text
