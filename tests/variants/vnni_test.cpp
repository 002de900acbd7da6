// Products of quantised weights with VNNI found at run time (Note [VNNI at run time]) are bitwise those without it. Compiled for a level of
// x86-64 that has no VNNI, as in a package; leaves with 77 where the processor has none, or cannot run the level.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "ops/cpu/integer_products.h"

using namespace tern;

namespace {

struct Problem {
  std::int64_t rows, in, out;
  QuantFormat format;
};

std::vector<std::uint8_t> random_weight(const kernels::QuantizedRows& shape, std::mt19937& random) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(shape.out * shape.bytes));
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  for (std::int64_t row = 0; row < shape.out; ++row) {
    std::uint8_t* const at = bytes.data() + row * shape.bytes;
    const float scale = 0.01F;
    if (!has_blocks(shape.format)) std::memcpy(at, &scale, sizeof scale);
    const std::uint16_t half = 0x211f;  // about 0.01
    if (has_blocks(shape.format))
      for (std::int64_t k = 0; k < shape.bytes; k += block_bytes(shape.format)) std::memcpy(at + k, &half, sizeof half);
  }
  return bytes;
}

template <bool Vnni>
std::vector<float> multiply(const Problem& p, const View& x, const kernels::QuantizedRows& w) {
  std::vector<float> result(static_cast<std::size_t>(p.rows * p.out));
  const View y{result.data(), {p.rows, p.out}, {p.out, 1}, DType::f32, x.stream};
  if (has_blocks(p.format)) integers::multiply<integers::EightBits<Vnni>, true, float>(x, w, {}, y);
  else if (p.format == QuantFormat::dynamic_int8) integers::multiply<integers::EightBits<Vnni>, false, float>(x, w, {}, y);
  else integers::multiply<integers::SixteenBits<Vnni>, false, float>(x, w, {}, y);
  return result;
}

}  // namespace

int main() {
  static_assert(integers::vnni_is_asked_for, "compiled for a level of x86-64 without VNNI");
  if (!__builtin_cpu_supports(TERN_FEATURE) || !integers::has_vnni()) {
    std::puts("skipped: a processor without VNNI");
    return 77;
  }
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  int failures = 0;
  for (const QuantFormat format : {QuantFormat::int8, QuantFormat::dynamic_int8, QuantFormat::q8_0, QuantFormat::q4_0})
    for (const auto& [rows, in, out] : {std::array<std::int64_t, 3>{1, 32, 1}, {3, 65, 33}, {17, 700, 70}, {29, 1, 9}}) {
      const Problem p{rows, in, out, format};
      kernels::QuantizedRows w{nullptr, format, out, in};
      const std::vector<std::uint8_t> bytes = random_weight(w, random);
      w.data = bytes.data();
      std::vector<float> values(static_cast<std::size_t>(rows * in));
      for (float& value : values) value = normal(random);
      const View x{values.data(), {rows, in}, {in, 1}, DType::f32, {}};
      const std::vector<float> with = multiply<true>(p, x, w), without = multiply<false>(p, x, w);
      double sum = 0;
      for (const float value : without) sum += std::abs(value);
      if (std::memcmp(with.data(), without.data(), with.size() * sizeof(float)) == 0 && sum > 0 && sum < 1e9) continue;
      std::printf("format %d, (%d, %d) x %d: with VNNI %g ..., without %g ..., %g in all\n", static_cast<int>(format),
                  static_cast<int>(rows), static_cast<int>(in), static_cast<int>(out), double(with[0]), double(without[0]), sum);
      ++failures;
    }
  return failures != 0;
}
