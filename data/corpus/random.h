#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace tern::corpus {

// splitmix64 (Steele, Lea and Flood, 2014). The standard's distributions differ between libraries; these draws are
// integer arithmetic and therefore the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    return mix(state_);
  }
  // 0 .. count - 1. The high 32 bits are scaled, so the bias is below count / 2^32.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(((next() >> 32) * count) >> 32); }
  bool chance(int percent) { return below(100) < static_cast<std::size_t>(percent); }
  template <class T>
  const T& pick(std::span<const T> items) {
    return items[below(items.size())];
  }

  static std::uint64_t mix(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
  }

 private:
  std::uint64_t state_;
};

// FNV-1a, finished by the generator's mixer because its high bits are weak for short words.
inline std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 0xCBF29CE484222325u;
  for (const char letter : text) value = (value ^ static_cast<unsigned char>(letter)) * 0x100000001B3u;
  return Random::mix(value);
}

}  // namespace tern::corpus
