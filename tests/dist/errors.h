#pragma once
#include <string>

#include "backend/error.h"

namespace tern::dist::test {

/// The message of the Error that f throws; "" for none.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace tern::dist::test
