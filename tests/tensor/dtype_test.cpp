// Dtypes, their promotion, and the 16-bit floats against a reference that computes in float64.
#include <bit>
#include <cmath>
#include <cstring>

#include "catch.h"
#include "tensor/dispatch.h"
#include "tensor/random.h"

namespace tern {

namespace {

/// The value of sign, exponent and mantissa fields, after IEEE 754: exponent 0 is subnormal, all ones infinite or NaN.
double decoded(std::uint16_t bits, int mantissa_bits, int exponent_bits) {
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1), mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> 15 ? -1 : 1, fraction = std::ldexp(mantissa, -mantissa_bits);
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? std::nan("") : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1 + fraction, exponent - bias) : std::ldexp(fraction, 1 - bias));
}
double decoded(f16 x) { return decoded(x.bits, 10, 5); }
double decoded(bf16 x) { return decoded(x.bits, 7, 8); }

/// The nearest value of a half type by its definition: both neighbours are compared, ties go to the even one.
template <class Half>
void check_nearest(float value) {
  const Half got(value);
  const double x = value;
  if (std::isnan(value)) {
    if (!std::isnan(decoded(got))) FAIL_CHECK("NaN became " << decoded(got));
    return;
  }
  Half below = got, above = got;
  const bool is_zero = (got.bits & 0x7fff) == 0;
  below.bits = static_cast<std::uint16_t>(is_zero ? got.bits : got.bits - 1);  // towards zero
  above.bits = static_cast<std::uint16_t>(got.bits + 1);                       // away from zero
  // Beyond the largest finite value the next step counts as a number of its own, which infinity stands for.
  const auto step = [](Half h) {
    Half largest = h;
    largest.bits = static_cast<std::uint16_t>((h.bits & 0x8000) | (std::is_same_v<Half, f16> ? 0x7bff : 0x7f7f));
    Half before = largest;
    --before.bits;
    return std::isinf(decoded(h)) ? 2 * decoded(largest) - decoded(before) : decoded(h);
  };
  const double error = std::abs(step(got) - x);
  if (std::isinf(value)) {
    CHECK(decoded(got) == x);
    return;
  }
  const bool overflowed = std::isinf(decoded(got));
  const double low = std::abs(step(below) - x), high = overflowed ? INFINITY : std::abs(step(above) - x);
  const bool odd = got.bits & 1;
  const bool beyond = overflowed && std::abs(x) >= std::abs(step(got));
  if (!beyond && (error > low || error > high || (odd && !is_zero && (error == low || error == high))))
    FAIL_CHECK(value << " became " << decoded(got) << ", a neighbour is nearer or even");
  if (std::signbit(decoded(got)) != std::signbit(value)) FAIL_CHECK(value << " changed its sign");
}

}  // namespace

TEST_CASE("Every half is its fields' value as a float, and comes back") {
  int nans = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    f16 h;
    bf16 b;
    h.bits = b.bits = static_cast<std::uint16_t>(i);
    const double want_h = decoded(h), want_b = decoded(b);
    const float got_h = h, got_b = b;
    if (std::isnan(want_h) ? !std::isnan(got_h) : static_cast<double>(got_h) != want_h || std::signbit(got_h) != std::signbit(want_h))
      FAIL_CHECK("f16 " << i << " is " << got_h);
    if (std::isnan(want_b) ? !std::isnan(got_b) : static_cast<double>(got_b) != want_b || std::signbit(got_b) != std::signbit(want_b))
      FAIL_CHECK("bf16 " << i << " is " << got_b);
    if (!std::isnan(want_h) && f16(got_h).bits != i) FAIL_CHECK("f16 " << i << " came back as " << f16(got_h).bits);
    if (!std::isnan(want_b) && bf16(got_b).bits != i) FAIL_CHECK("bf16 " << i << " came back as " << bf16(got_b).bits);
    if (std::isnan(want_h) && !std::isnan(static_cast<float>(f16(got_h)))) FAIL_CHECK("f16 NaN " << i << " was lost");
    if (std::isnan(want_b) && !std::isnan(static_cast<float>(bf16(got_b)))) FAIL_CHECK("bf16 NaN " << i << " was lost");
    nans += std::isnan(got_h) + std::isnan(got_b);
  }
  CHECK(nans == 2 * (1023 + 127));  // all that an exponent of ones has, but the infinities
}

TEST_CASE("Floats round to the nearest half, ties to even") {
  for (std::uint32_t i = 0; i < 100000; ++i) {
    const PhiloxBlock random = philox(5, i);
    check_nearest<f16>(std::bit_cast<float>(random.words[0]));  // any float
    check_nearest<bf16>(std::bit_cast<float>(random.words[0]));
    const float moderate = std::ldexp(unit_float(random.words[1]) * 2 - 1, static_cast<int>(random.words[2] % 45) - 27);
    check_nearest<f16>(moderate);
    check_nearest<bf16>(moderate);
  }
  // Halfway between neighbours, and one float to either side, over all halves.
  for (std::uint32_t i = 0; i < 0x7c00; ++i) {
    f16 h, next;
    h.bits = static_cast<std::uint16_t>(i);
    next.bits = static_cast<std::uint16_t>(i + 1);
    const float middle = static_cast<float>((decoded(h) + (i == 0x7bff ? 65536.0 : decoded(next))) / 2);
    for (float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)}) {
      check_nearest<f16>(x);
      check_nearest<f16>(-x);
    }
  }
  CHECK(f16(65519.0f).bits == 0x7bff);
  CHECK(f16(65520.0f).bits == 0x7c00);
  CHECK(f16(0x1p-25f).bits == 0);
  CHECK(f16(std::nextafter(0x1p-25f, 1.0f)).bits == 1);
  CHECK(bf16(3.3895314e38f).bits == 0x7f7f);
  CHECK(bf16(3.4e38f).bits == 0x7f80);
  CHECK(f16(-0.0f).bits == 0x8000);
  CHECK(bf16(-0.0f).bits == 0x8000);
}

TEST_CASE("Dtypes have sizes, names and C++ types") {
  CHECK(size_of(DType::f32) == 4);
  CHECK(size_of(DType::boolean) == 1);
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean}) {
    dispatch_all(dtype, [&]<class T>() {
      CHECK(dtype_of<T> == dtype);
      CHECK(sizeof(T) == size_of(dtype));
    });
    CHECK(is_floating(dtype) == (name(dtype)[0] == 'f' || std::strcmp(name(dtype), "bf16") == 0));
  }
  CHECK(std::string(name(DType::boolean)) == "bool");
  CHECK_THROWS_WITH(dispatch_floats(DType::i64, "gelu", []<class T>() {}), "[gelu] expected a floating dtype but got i64");
}

TEST_CASE("Promotion is the smallest dtype that holds both kinds") {
  const std::vector<DType> all = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean};
  for (DType a : all) {
    CHECK(promote(a, a) == a);
    CHECK(promote(a, DType::boolean) == a);
    for (DType b : all) {
      CHECK(promote(a, b) == promote(b, a));
      CHECK(is_floating(promote(a, b)) == (is_floating(a) || is_floating(b)));
      for (DType c : all)
        if (!(is_floating(a) && is_floating(b) && is_floating(c)))
          CHECK(is_floating(promote(promote(a, b), c)) == is_floating(promote(a, promote(b, c))));
    }
  }
  CHECK(promote(DType::f16, DType::bf16) == DType::f32);
  CHECK(promote(DType::f16, DType::i64) == DType::f16);
  CHECK(promote(DType::f32, DType::bf16) == DType::f32);
  CHECK(promote(DType::f64, DType::f16) == DType::f64);
  CHECK(promote(DType::u8, DType::i32) == DType::i32);
  CHECK(promote(DType::i64, DType::i32) == DType::i64);
}

}  // namespace tern
