#pragma once
#include <string>

#include "backend/error.h"

namespace tern {

/// The message of the E that a call throws; "" if it throws nothing. Catch2's matchers for parts of a message have different names in its
/// versions 2 and 3.
template <class E = Error, class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace tern
