#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catch.h"

/// A reader of TensorBoard's event files that is written from their description and shares no code with the writer.
namespace tern::test {

/// CRC-32C bit by bit, as the definition has it, and TFRecord's mask.
inline std::uint32_t masked(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78U : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

template <class T>
T number(std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  REQUIRE(bytes.size() >= sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// The payloads of all records; every length and checksum is checked, and nothing stands behind the last one.
inline std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> result;
  while (!file.empty()) {
    const auto length = number<std::uint64_t>(file);
    REQUIRE(file.size() >= length + 16);
    CHECK(number<std::uint32_t>(file.substr(8)) == masked(file.substr(0, 8)));
    CHECK(number<std::uint32_t>(file.substr(12 + length)) == masked(file.substr(12, length)));
    result.emplace_back(file.substr(12, length));
    file.remove_prefix(length + 16);
  }
  return result;
}

/// A field of a protocol buffer: its number, and its bytes or its integer.
struct Field {
  std::uint64_t number = 0, integer = 0;
  std::string bytes;
};

inline std::vector<Field> fields(std::string_view message) {
  std::vector<Field> result;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      REQUIRE(!message.empty());
      const auto byte = static_cast<unsigned char>(message.front());
      message.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (!message.empty()) {
    const std::uint64_t key = varint(), type = key & 7;
    Field field{key >> 3, 0, ""};
    if (type == 0) {
      field.integer = varint();
    } else {
      REQUIRE((type == 1 || type == 2 || type == 5));
      const std::uint64_t size = type == 2 ? varint() : type == 1 ? 8 : 4;
      REQUIRE(message.size() >= size);
      field.bytes = message.substr(0, size);
      message.remove_prefix(size);
    }
    result.push_back(field);
  }
  return result;
}

/// The one field of that number.
inline Field field(std::string_view message, std::uint64_t number) {
  std::optional<Field> found;
  for (const Field& each : fields(message))
    if (each.number == number) {
      CHECK_FALSE(found);
      found = each;
    }
  INFO("field " << number);
  REQUIRE(found);
  return *found;
}

}  // namespace tern::test
