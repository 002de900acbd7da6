#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tern::io {

/// CRC-32 (ISO 3309, as in gzip) of bytes that come piece by piece. It detects damage, and files that do not belong together, but no
/// forgery.
class Checksum {
 public:
  void add(const void* data, std::size_t bytes);  ///< appends bytes to the checked sequence
  void add(std::string_view text) { add(text.data(), text.size()); }
  /// The checksum of all bytes so far, eight hexadecimal digits.
  std::string hex() const;

 private:
  std::uint32_t value_ = 0;
};

/// Checksum::hex() of a text.
std::string checksum(std::string_view text);

/// CRC-32C (Castagnoli's polynomial, RFC 3720 appendix B.4), the checksum of TFRecord files.
std::uint32_t crc32c(std::string_view bytes) noexcept;

}  // namespace tern::io
