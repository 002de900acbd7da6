#pragma once
#include <cstdint>
#include <string>

#include "translate/decode.h"

namespace tern::translate {

struct ChatOptions : SearchOptions {
  std::string attention;   ///< file for a picture of each sentence's attention; "": none
  std::int64_t layer = 0;  ///< layer of the picture; 0: the last
};

/// Reads sentences from the standard input and prints their translations. The command `:attention [FILE]` draws the attention of the last
/// sentence (attention_picture), `:help` lists the commands, and `:quit` or the end of the input ends the chat.
void chat(const ChatOptions& options);

}  // namespace tern::translate
