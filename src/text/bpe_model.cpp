#include "text/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
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
  ids_.emplace(token.content, token.id);
  auto& lengths = lengths_[static_cast<std::uint8_t>(token.content[0])];
  const auto place = std::lower_bound(lengths.begin(), lengths.end(), token.content.size(), std::greater<>());
  if (place == lengths.end() || *place != token.content.size()) lengths.insert(place, token.content.size());
}

bool AddedMatcher::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end, std::int32_t& id) const {
  for (std::size_t i = from; i < text.size(); ++i) {
    for (const std::size_t length : lengths_[static_cast<std::uint8_t>(text[i])]) {
      if (length > text.size() - i) continue;
      const auto found = ids_.find(text.substr(i, length));
      if (found == ids_.end()) continue;
      begin = i;
      end = i + length;
      id = found->second;
      return true;
    }
  }
  return false;
}

void BpeModel::finish() {
  for (std::size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<std::int32_t>(id));
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(byte_token(static_cast<std::uint8_t>(byte)));
    if (found == ids.end()) throw std::invalid_argument(fmt::format("expected a token for byte {} but got none", byte));
    byte_ids[byte] = found->second;
  }
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const PairKey pair = merges[rank];
    const std::string& left = tokens[static_cast<std::size_t>(left_of(pair))];
    const auto merged = ids.find(left + tokens[static_cast<std::size_t>(right_of(pair))]);
    if (merged == ids.end() || static_cast<std::size_t>(merged->second) >= model_tokens) {
      throw std::invalid_argument(fmt::format("expected the result of merge {} in the vocabulary but got none", rank));
    }
    rules[pair] = {static_cast<std::uint32_t>(rank), merged->second};
  }
  token_bytes.reserve(tokens.size());
  for (const std::string& token : tokens) token_bytes.push_back(bytes_of_token(token));
  special.assign(tokens.size(), false);
  for (const AddedToken& token : added) {
    special[static_cast<std::size_t>(token.id)] = token.special;
    (token.normalized ? second_pass : first_pass).add(token);
  }
}

}  // namespace tern::text
