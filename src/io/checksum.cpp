#include "io/checksum.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>

namespace tern::io {

namespace {

/// CRC-32C remainders of each byte by the polynomial 0x1EDC6F41, in reflected bit order.
constexpr std::array<std::uint32_t, 256> castagnoli = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82F63B78U : 0U);
    table[byte] = remainder;
  }
  return table;
}();

}  // namespace

void Checksum::add(const void* data, std::size_t bytes) {
  value_ = static_cast<std::uint32_t>(::crc32_z(value_, static_cast<const Bytef*>(data), bytes));
}

std::string Checksum::hex() const { return fmt::format("{:08x}", value_); }

std::string checksum(std::string_view text) {
  Checksum sum;
  sum.add(text);
  return sum.hex();
}

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t remainder = ~0U;
  for (const char byte : bytes) remainder = (remainder >> 8) ^ castagnoli[(remainder ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~remainder;
}

}  // namespace tern::io
