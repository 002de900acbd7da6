// tokenizer.json: read, encode, decode, write, read again.
#include "fuzz.h"
#include "text/bpe.h"
#include "text/data_error.h"

using namespace tern::text;
using tern::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const Tokenizer tokenizer = Tokenizer::from_json(tern::fuzz::text_of(data, size), "f");
    const std::string text = "abab <pad> xabc\xF0\x9F\x98\x80 \xC3\xBC 12";
    const std::vector<std::int32_t> ids = tokenizer.encode(text, {.special_tokens = true});
    for (const std::int32_t id : ids)
      require(id >= 0 && static_cast<std::size_t>(id) < tokenizer.vocab_size(), "ids lie in the vocabulary");
    const std::string written = tokenizer.to_json();
    const Tokenizer again = Tokenizer::from_json(written, "f");
    require(again.encode(text, {.special_tokens = true}) == ids, "a written tokenizer encodes as before");
    require(again.decode(ids, false) == tokenizer.decode(ids, false), "a written tokenizer decodes as before");
    require(again.to_json() == written, "a written tokenizer is written as the same");
  } catch (const DataError& error) {
    tern::fuzz::require_message(error.what());
  }
  return 0;
}
