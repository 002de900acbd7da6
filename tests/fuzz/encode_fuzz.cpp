// Any bytes as text: encoding and decoding give them back, but for what is not UTF-8.
#include "fuzz.h"
#include "text/bpe.h"
#include "text/unicode.h"

using namespace tern::text;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokenizer = [] {
    TrainOptions options;
    options.vocab_size = 320;
    // In ASCII: of a letter past it, which also spells a byte, decoding makes that byte, as in the library that we follow.
    options.special_tokens = {"<pad>", "<pa", "ab<pad>ab", "bb"};
    const std::vector<std::string> lines = {"the little dog sees the other dog, it's 1998",
                                            "der kleine Hund h\xC3\xB6rt die anderen Hunde"};
    return Tokenizer::train(lines, options);
  }();
  const std::string_view text = tern::fuzz::text_of(data, size);
  const std::string whole = utf8_lossy(text);
  tern::fuzz::require(tokenizer.decode(tokenizer.encode(text)) == whole, "decoding gives the text back");
  tern::fuzz::require(tokenizer.decode(tokenizer.encode(text, {.special_tokens = true}), false) == whole, "and with special tokens");
  return 0;
}
