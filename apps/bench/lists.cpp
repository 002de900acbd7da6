#include "bench/lists.h"

#include <sstream>

namespace tern::bench {

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> result;
  std::stringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) result.push_back(word);
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

apps::Check list_of(apps::Check check) {
  return [check = std::move(check)](const std::string& text) {
    if (text.empty()) return check(text);
    for (const std::string& word : words(text))
      if (const std::string fault = check(word); !fault.empty()) return fault;
    return std::string();
  };
}

const std::map<std::string, std::pair<DType, const char*>>& float_modes() {
  static const auto& modes = *new std::map<std::string, std::pair<DType, const char*>>{{"fp32", {DType::f32, "float32"}},
                                                                                       {"fp16", {DType::f16, "float16"}},
                                                                                       {"bf16", {DType::bf16, "bfloat16"}},
                                                                                       {"fp64", {DType::f64, "float64"}}};
  return modes;
}

}  // namespace tern::bench
