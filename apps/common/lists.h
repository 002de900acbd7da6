#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/program.h"

// Flags that take several values: --dtype bf16,fp32.
namespace tern::apps {

/// The words of a list, split at commas; none for an empty text.
std::vector<std::string> words(const std::string& list);
/// The integers of a list that list_of(whole_number()) has checked.
std::vector<std::int64_t> numbers(const std::string& list);
/// The numbers of a list that list_of(real_number()) has checked.
std::vector<double> reals(const std::string& list);

/// A check of a list: it has at least one word, and each passes `check`.
Check list_of(Check check);

}  // namespace tern::apps
