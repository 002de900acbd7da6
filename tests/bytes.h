#pragma once
#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>

/// Bytes for tests and fuzz programs to read, for programs without Catch2 too.
namespace tern::test {

/// Steele, Lea and Flood's generator: inputs that are the same on every run and with every standard library.
struct SplitMix64 {
  std::uint64_t state;
  /// From 0 to bound - 1.
  std::uint64_t operator()(std::uint64_t bound) {
    std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % bound;
  }
};

inline std::string gzip(std::string_view content, int level = 6) {
  z_stream z{};
  deflateInit2(&z, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, content.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  z.avail_in = static_cast<uInt>(content.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

/// A Zstandard frame (RFC 8878) whose blocks are stored as they are, or, of equal bytes, as one of them and a count.
inline std::string zstd(std::string_view content) {
  const auto number = [](std::uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
    return text;
  };
  std::string out = "\x28\xB5\x2F\xFD\xA0" + number(content.size(), 4);  // one segment, its size in four bytes
  do {
    const std::string_view block = content.substr(0, std::size_t{1} << 17);
    content.remove_prefix(block.size());
    const bool is_equal = block.size() > 1 && block.find_first_not_of(block[0]) == block.npos;
    out += number(content.empty() | (is_equal ? 2U : 0U) | block.size() << 3, 3);
    out += is_equal ? block.substr(0, 1) : block;
  } while (!content.empty());
  return out;
}

}  // namespace tern::test
