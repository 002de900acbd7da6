// A corpus file that begins as gzip does. The first byte says which: bytes as they are, or text that is compressed here, and of which
// the next three bytes flip bits: so that the mutated bytes are not all lost to the first checksum.
#include "bytes.h"
#include "corpus_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const std::string_view rest = tern::fuzz::text_of(data, size).substr(4);
  if (data[0] % 2 == 0) {
    tern::fuzz::read_corpus(std::string("\x1f\x8b\x08").append(rest));
    return 0;
  }
  std::string packed = tern::test::gzip(rest, 1 + data[0] % 9);
  const std::size_t at = data[1] + 256u * (data[2] % 16);
  if (at < packed.size()) packed[at] = static_cast<char>(packed[at] ^ data[3]);
  tern::fuzz::read_corpus(packed);
  return 0;
}
