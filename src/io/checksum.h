#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tern::io {

/// CRC-32 (ISO 3309, as gzip's) of bytes that come piece by piece. It finds damage and mixtures, not forgeries.
class Checksum {
 public:
  void add(const void* data, std::size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  /// Eight hexadecimal digits.
  std::string hex() const;

 private:
  std::uint32_t value_ = 0;
};

std::string checksum(std::string_view text);

/// CRC-32C (Castagnoli's polynomial, RFC 3720 appendix B.4), as TFRecord files have it.
std::uint32_t crc32c(std::string_view bytes) noexcept;

}  // namespace tern::io
