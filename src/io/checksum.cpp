#include "io/checksum.h"

#include <fmt/format.h>
#include <zlib.h>

namespace tern::io {

void Checksum::add(const void* data, std::size_t bytes) {
  value_ = static_cast<std::uint32_t>(::crc32_z(value_, static_cast<const Bytef*>(data), bytes));
}

std::string Checksum::hex() const { return fmt::format("{:08x}", value_); }

std::string checksum(std::string_view text) {
  Checksum sum;
  sum.add(text);
  return sum.hex();
}

}  // namespace tern::io
