#pragma once

#include <cstdint>

namespace tern::text {

// The finalizer of SplitMix64.
inline std::uint64_t mix(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// SplitMix64 (Steele et al. 2014). The standard library's engines are portable, its distributions and std::shuffle are not. Users that
// share a seed and an epoch have a `purpose` each, which makes their streams independent: 1 the order of an epoch, 2 the order of its
// batches, (line << 8) | 3 the BPE-dropout of a line, 0x10ad the random numbers of a dataset (data/loader.cpp).
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t epoch, std::uint64_t purpose) noexcept
      : state_(mix(mix(mix(seed + step) ^ epoch) + step) ^ mix(purpose)) {}

  // Uniform in [0, bound).
  std::uint64_t below(std::uint64_t bound) noexcept {
    const std::uint64_t uneven = (0 - bound) % bound;  // 2^64 mod bound; values below it are rejected, so that no remainder is favoured
    while (true) {
      const std::uint64_t value = mix(state_ += step);
      if (value >= uneven) return value % bound;
    }
  }

  // Uniform in [0, 1), with 53 bits.
  double uniform() noexcept { return static_cast<double>(mix(state_ += step) >> 11) * 0x1p-53; }

 private:
  static constexpr std::uint64_t step = 0x9E3779B97F4A7C15u;
  std::uint64_t state_;
};

}  // namespace tern::text
