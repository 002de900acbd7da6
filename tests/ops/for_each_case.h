#pragma once
#include "catch.h"
#include "op_cases.h"

namespace tern::op_cases {

/// Calls f(row, case, dtype) for every case of the table in each of its dtypes, and says which one threw.
template <class F>
void for_each_case(F f) {
  for (const Row& row : table()) {
    for (std::size_t i = 0; i < row.cases.size(); ++i) {
      const Case& op = row.cases[i];
      for (DType dtype : op.dtypes.empty() ? row.dtypes : op.dtypes) {
        const std::string what = describe(row, op, i, dtype);
        INFO(what);
        try {
          f(row, op, dtype);
        } catch (const std::exception& error) {
          FAIL_CHECK("threw " << error.what());
        }
      }
    }
  }
}

}  // namespace tern::op_cases
