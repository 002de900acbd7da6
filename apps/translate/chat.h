#pragma once
#include <cstdint>
#include <string>

#include "translate/decode.h"

namespace tern::translate {

struct ChatOptions : SearchOptions {
  std::string attention;   ///< file for the picture of each sentence's attention; "": none
  std::int64_t layer = 0;  ///< of the picture; 0: the last
};

/// Reads sentences from the standard input and shows the translation of each. `:attention [FILE]` draws that of the last one
/// (attention_picture), `:help` lists what there is, `:quit` ends it, as the end of the input does.
void chat(const ChatOptions& options);

}  // namespace tern::translate
