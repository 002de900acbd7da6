// A corpus file of any bytes, mostly plain text.
#include "corpus_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tern::fuzz::read_corpus(tern::fuzz::text_of(data, size));
  return 0;
}
