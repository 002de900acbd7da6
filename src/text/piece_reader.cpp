#include "text/piece_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/data_error.h"
#include "text/json_reader.h"
#include "text/unicode.h"

namespace tern::text {
namespace {

// The character that ends before `at` > 0.
char32_t before(std::string_view text, std::size_t at) {
  std::size_t begin = at - 1;
  while (begin > 0 && at - begin < 4 && (static_cast<std::uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return decode_utf8(text.substr(begin, at - begin)).code_point;
}

bool is_letter_or_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

}  // namespace

std::size_t find_cut(std::string_view text, std::size_t limit) {
  for (std::size_t at = std::min(limit, text.size()); at > 1;) {
    const std::size_t line = text.rfind('\n', at - 1);
    if (line == std::string_view::npos || line == 0) return 0;
    // Behind one line break between two characters that are not white space: each expression ends a word there.
    const std::size_t next = line + 1;
    if (next < text.size() && !is_python_space(before(text, line)) && !is_python_space(decode_utf8(text.substr(next)).code_point))
      return next;
    // Before a line break behind a letter or a digit: white space begins a new word there.
    const std::size_t end = text[line - 1] == '\r' ? line - 1 : line;
    if (end > 0 && is_letter_or_digit(text[end - 1])) return end;
    at = line;
  }
  return 0;
}

PieceReader::PieceReader(const std::filesystem::path& file, bool is_jsonl, std::size_t piece_bytes)
    : name_(file.string()), bytes_(file), is_jsonl_(is_jsonl), piece_bytes_(piece_bytes) {}

// Reads until `text_` has `bytes` bytes, or the file ends; true if it has.
bool PieceReader::fill(std::size_t bytes) {
  while (text_.size() < bytes && !is_at_end_) {
    const std::string_view more = bytes_.next();
    is_at_end_ = more.empty();
    text_ += more;
  }
  if (is_first_ && text_.starts_with("\xEF\xBB\xBF")) text_.erase(0, 3);
  is_first_ = false;
  return text_.size() >= bytes;
}

bool PieceReader::next(Piece& piece) {
  // One more character than the piece has, which find_cut() looks at.
  std::size_t limit = piece_bytes_, cut = 0;
  while (true) {
    if (!fill(limit + 4)) {
      cut = text_.size();
      break;
    }
    cut = is_jsonl_ ? text_.rfind('\n', limit - 1) + 1 : find_cut(text_, limit);
    if (cut > 0) break;
    if (is_jsonl_ && limit == max_line_bytes)
      throw DataError(fmt::format("{}:{}: expected a line of at most {} bytes but got a longer one", name_, line_, max_line_bytes));
    if (!is_jsonl_ && limit == 16 * piece_bytes_) {
      // No cut in sight: between two characters.
      for (cut = limit; cut > limit - 4 && (static_cast<std::uint8_t>(text_[cut]) & 0xC0) == 0x80;) --cut;
      break;
    }
    limit = std::min(2 * limit, is_jsonl_ ? max_line_bytes : 16 * piece_bytes_);
  }
  if (is_at_end_ && cut == 0) return false;
  piece.text.assign(text_, 0, cut);
  piece.line = line_;
  text_.erase(0, cut);
  line_ += static_cast<std::uint64_t>(std::count(piece.text.begin(), piece.text.end(), '\n'));
  piece.ends_document = is_at_end_ && text_.empty();
  return true;
}

void for_each_document(const Piece& piece, const std::string& file, const std::string& field,
                       const std::function<void(const std::string&)>& f) {
  const JsonLimits limits{.max_string_bytes = PieceReader::max_line_bytes, .max_values = 1'000'000, .max_depth = 64};
  std::string_view rest = piece.text;
  for (std::uint64_t number = piece.line; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string name = fmt::format("{}:{}", file, number);
    JsonSource source(line, name, limits.max_string_bytes);
    const JsonReader::Json document = JsonReader(source, limits).read();
    const auto found = document.is_object() ? document.find(field) : document.end();
    if (found == document.end() || !found->is_string())
      throw DataError(fmt::format("{}: expected an object with the string \"{}\" but got {}", name, printable(field, 60),
                                  !document.is_object()     ? document.type_name()
                                  : found == document.end() ? "none"
                                                            : found->type_name()));
    f(found->get_ref<const std::string&>());
  }
}

}  // namespace tern::text
