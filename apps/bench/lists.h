#pragma once
#include <map>
#include <string>
#include <vector>

#include "common/program.h"
#include "tensor/dtype.h"

// Flags of tern-bench that take several values: --dtype bf16,fp32.
namespace tern::bench {

/// The parts between commas.
std::vector<std::string> words(const std::string& list);
std::vector<std::int64_t> numbers(const std::string& list);
std::vector<double> reals(const std::string& list);

/// Every word of a list passes the check.
apps::Check list_of(apps::Check check);

/// Floating dtypes by their names in flags, with their names in rows.
const std::map<std::string, std::pair<DType, const char*>>& float_modes();

}  // namespace tern::bench
