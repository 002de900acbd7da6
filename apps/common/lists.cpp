#include "common/lists.h"

namespace tern::apps {

std::vector<std::string> words(const std::string& list) {
  if (list.empty()) return {};
  std::vector<std::string> result(1);
  for (const char c : list)
    if (c == ',') result.emplace_back();
    else result.back() += c;
  return result;
}

std::vector<std::int64_t> numbers(const std::string& list) {
  std::vector<std::int64_t> result;
  for (const std::string& word : words(list)) result.push_back(std::stoll(word));
  return result;
}

std::vector<double> reals(const std::string& list) {
  std::vector<double> result;
  for (const std::string& word : words(list)) result.push_back(std::stod(word));
  return result;
}

Check list_of(Check check) {
  return [check = std::move(check)](const std::string& text) {
    if (text.empty()) return check(text);
    for (const std::string& word : words(text))
      if (const std::string fault = check(word); !fault.empty()) return fault;
    return std::string();
  };
}

}  // namespace tern::apps
