// Text in pieces, as `tern-lm prepare` reads it: plain, JSON lines, or compressed by Zstandard. The first byte says which, and how long a
// piece is.
#include "bytes.h"
#include "corpus_file.h"
#include "text/piece_reader.h"

using namespace tern::fuzz;
using tern::text::Piece;

namespace {

void read_pieces(std::string_view bytes, bool is_jsonl, std::size_t piece_bytes, std::string_view expected) {
  static const int file = ::memfd_create("f", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  require(::ftruncate(file, 0) == 0 && ::pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
          "the file is written");
  try {
    tern::text::PieceReader reader(path, is_jsonl, piece_bytes);
    std::string all;
    for (Piece piece; reader.next(piece);) {
      require(!piece.text.empty(), "a piece has text");
      require(is_jsonl || piece.text.size() <= 16 * piece_bytes + 4, "a piece is of bounded length");
      all += piece.text;
      require(all.size() < (std::size_t{1} << 26), "the text is of bounded length");
      if (!is_jsonl) continue;
      tern::text::for_each_document(piece, "f", "text", [&](const std::string& text) {
        require(tern::text::find_invalid_utf8(text) == text.npos, "a string of JSON is text");
      });
    }
    if (expected.starts_with("\xEF\xBB\xBF")) expected.remove_prefix(3);
    if (expected.data()) require(all == expected, "the pieces are the text");
  } catch (const tern::text::DataError& error) {
    require_message(error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const std::string_view rest = text_of(data, size).substr(4);
  const std::size_t piece_bytes = 1 + data[0] / 4 * 8U;
  const bool is_plain = !rest.starts_with("\x1f\x8b") && !rest.starts_with("\x28\xB5\x2F\xFD") && !rest.starts_with("PK");
  switch (data[0] % 4) {
    case 0: read_pieces(rest, false, piece_bytes, is_plain ? rest : std::string_view()); break;
    case 1: read_pieces(rest, true, piece_bytes, {}); break;
    case 2: read_pieces(std::string("\x28\xB5\x2F\xFD").append(rest), false, piece_bytes, {}); break;
    default: {
      std::string packed = tern::test::zstd(rest);
      const std::size_t at = data[1] + 256u * (data[2] % 16);
      if (at < packed.size()) packed[at] = static_cast<char>(packed[at] ^ data[3]);
      read_pieces(packed, data[2] >= 128, piece_bytes, at >= packed.size() || data[3] == 0 ? rest : std::string_view());
    }
  }
  return 0;
}
