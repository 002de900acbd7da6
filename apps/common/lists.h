#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/program.h"

// Flags that take several values: --dtype bf16,fp32.
namespace tern::apps {

/// The parts between commas; none of an empty text.
std::vector<std::string> words(const std::string& list);
/// Those of a list that list_of(whole_number()) has passed.
std::vector<std::int64_t> numbers(const std::string& list);
/// Those of a list that list_of(real_number()) has passed.
std::vector<double> reals(const std::string& list);

/// Every word of a list passes the check, of which there is at least one.
Check list_of(Check check);

}  // namespace tern::apps
