#pragma once
#include <map>
#include <string>

#include "common/lists.h"
#include "tensor/dtype.h"

// Lists and dtypes of the flags of tern-bench.
namespace tern::bench {

using apps::words, apps::numbers, apps::reals, apps::list_of;

/// Floating dtypes by their names in flags, with their names in rows.
const std::map<std::string, std::pair<DType, const char*>>& float_modes();

}  // namespace tern::bench
