#pragma once

#include <string>
#include <string_view>

namespace tern::text {

// Text in normalization form C (Unicode Standard Annex 15), with the characters of Unicode 9, as Hugging Face's tokenizers has it. Bytes
// that are not UTF-8 stay as they are, and nothing composes across them.
std::string nfc(std::string_view text);
// True if nfc() surely leaves the text as it is: no character that could change, move or join the one before it. Costs a look at each.
bool is_surely_nfc(std::string_view text);

}  // namespace tern::text
