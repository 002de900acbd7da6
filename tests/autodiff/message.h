#pragma once
#include <functional>
#include <string>

#include "backend/error.h"

namespace tern {

/// The message of the Error that a call throws; "" if it throws none. Catch2's matchers for parts of a message have
/// different names in its versions 2 and 3.
inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace tern
