#include "text/pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <new>
#include <stdexcept>

namespace tern::text {
namespace {

std::string message(int code) {
  unsigned char buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

pcre2_code* as_code(void* p) { return static_cast<pcre2_code*>(p); }
pcre2_match_data* as_data(void* p) { return static_cast<pcre2_match_data*>(p); }

}  // namespace

Pattern::Pattern(const std::string& expression) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), PCRE2_UTF | PCRE2_UCP, &code, &offset, nullptr);
  if (!code_) throw std::logic_error(fmt::format("[pattern] {} at byte {} of {}", message(code), offset, expression));
  pcre2_jit_compile(as_code(code_), PCRE2_JIT_COMPLETE);  // without JIT the interpreter matches the same, slower
}

Pattern::~Pattern() { pcre2_code_free(as_code(code_)); }

bool Pattern::matches(std::string_view text) const {
  std::size_t begin, end;
  return Matcher(*this).find(text, 0, begin, end);
}

Matcher::Matcher(const Pattern& pattern) : pattern_(pattern), data_(pcre2_match_data_create_from_pattern(as_code(pattern.code_), nullptr)) {
  if (!data_) throw std::bad_alloc();
}

Matcher::~Matcher() { pcre2_match_data_free(as_data(data_)); }

bool Matcher::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) {
  const int code = pcre2_match(as_code(pattern_.code_), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_NO_UTF_CHECK,
                               as_data(data_), nullptr);
  if (code == PCRE2_ERROR_NOMATCH) return false;
  if (code < 0) throw std::runtime_error(fmt::format("[pattern] {}", message(code)));
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(as_data(data_));
  begin = span[0];
  end = span[1];
  return true;
}

}  // namespace tern::text
