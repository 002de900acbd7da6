#include "ops/kernels/random.h"

#include <cmath>
#include <numbers>

#include "ops/cpu/philox.h"
#include "ops/kernels/math.h"
#include "tensor/sizes.h"

namespace tern {

namespace {

/// words[w][b] = word w of the block at position first + step b of a stream.
template <int rounds, std::uint64_t step, std::int64_t pitch>
void draw_words(std::uint64_t seed, std::uint64_t first, std::int64_t count, std::uint32_t (&words)[4][pitch], std::uint64_t stream = 0) {
#pragma omp simd
  for (std::int64_t b = 0; b < count; ++b) {
    const PhiloxBlock block = philox<rounds>(seed, first + step * std::uint64_t(b), stream);
    words[0][b] = block.words[0];
    words[1][b] = block.words[1];
    words[2][b] = block.words[2];
    words[3][b] = block.words[3];
  }
}

}  // namespace

/// Position of the first block.
static std::uint64_t position_of(const PhiloxState& state) { return state.offset + (state.base ? *state.base : 0); }

[[gnu::flatten, gnu::noinline]] void loops::PhiloxWords::draw_blocks(const PhiloxState& state, std::int64_t first, std::int64_t count,
                                                                     std::uint64_t stream) {
  draw_words<10, 1>(state.seed, position_of(state) + std::uint64_t(first), count, of_blocks, stream);
}

[[gnu::flatten, gnu::noinline]] const std::uint16_t* loops::DropoutBits::draw(const PhiloxState& state, std::int64_t first,
                                                                              std::int64_t count) {
  const std::uint64_t position = position_of(state) + std::uint64_t(first / 4), even = position & ~1ull;
  const std::int64_t skipped = first % 4 + 4 * std::int64_t(position - even), blocks = ceil_div(skipped + count, 8);
  draw_words<dropout_rounds, 2>(state.seed, even, blocks, of_blocks);
  for (std::int64_t b = 0; b < blocks; ++b)
    for (int w = 0; w < 4; ++w) {
      of_elements[8 * b + 2 * w] = std::uint16_t(of_blocks[w][b]);
      of_elements[8 * b + 2 * w + 1] = std::uint16_t(of_blocks[w][b] >> 16);
    }
  return of_elements + skipped;
}

namespace kernels {

using namespace loops;

namespace {

/// Calls f(first, n) for chunks of n elements from element `first` on, a multiple of 4, shared among threads.
template <class F>
void for_each_chunk(std::int64_t count, F&& f) {
  parallel(ceil_div(count, 4), function_grain / 4, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t stop = std::min(end * 4, count);
    for (std::int64_t first = begin * 4; first < stop; first += chunk) f(first, std::min(chunk, stop - first));
  });
}

/// y[i] = f(word, i), with one word per element.
template <class C, class S, class F>
void map_words(const View& y, PhiloxState state, F&& f) {
  for_each_chunk(y.numel(), [&](std::int64_t first, std::int64_t n) {
    PhiloxWords words;
    alignas(64) C buffer[chunk];
    S* const to = y.as<S>() + first;
    C* const out = target(to, 1, n, buffer);
    f(words.draw(state, first, n), out, n);
    store(out, to, 1, n);
  });
}

/// Both outputs of Box-Muller for n blocks, into z[w][b].
void box_muller(const std::uint32_t (*words)[PhiloxWords::pitch], std::int64_t n, float (*z)[PhiloxWords::pitch]) {
  for (int pair = 0; pair < 4; pair += 2) {
    const std::uint32_t *first = words[pair], *second = words[pair + 1];
    float *cosines = z[pair], *sines = z[pair + 1];
    alignas(64) float square[PhiloxWords::pitch];
#pragma omp simd
    for (std::int64_t b = 0; b < n; ++b) square[b] = -2.0f * vector_math::log((float(first[b] >> 8) + 0.5f) * 0x1p-24f);
#pragma omp simd
    for (std::int64_t b = 0; b < n; ++b) {
      const float radius = std::sqrt(square[b]);
      const auto [sine, cosine] = vector_math::sine_cosine_of_turn(unit_float(second[b]));
      cosines[b] = radius * cosine;
      sines[b] = radius * sine;
    }
  }
}

void box_muller(const std::uint32_t (*words)[PhiloxWords::pitch], std::int64_t n, double (*z)[PhiloxWords::pitch]) {
  for (int pair = 0; pair < 4; pair += 2)
    for (std::int64_t b = 0; b < n; ++b) {
      const double radius = std::sqrt(-2 * std::log((double(words[pair][b] >> 8) + 0.5) * 0x1p-24));
      const double angle = 2 * std::numbers::pi * double(unit_float(words[pair + 1][b]));
      z[pair][b] = radius * std::cos(angle);
      z[pair + 1][b] = radius * std::sin(angle);
    }
}

}  // namespace

void Uniform::run(Cpu) const {
  dispatch_floats(y.dtype, "uniform", [&]<class S>() {
    using C = compute_t<S>;
    const UniformRange<S, C> range(low, high);
    map_words<C, S>(y, state, [=](const std::uint32_t* words, C* out, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = range(unit_float(words[i]));
    });
  });
}

void Normal::run(Cpu) const {
  dispatch_floats(y.dtype, "normal", [&]<class S>() {
    using C = compute_t<S>;
    for_each_chunk(y.numel(), [&](std::int64_t first, std::int64_t n) {
      PhiloxWords words;
      alignas(64) C z[4][PhiloxWords::pitch];
      words.draw_blocks(state, first / 4, ceil_div(n, 4));
      box_muller(words.of_blocks, ceil_div(n, 4), z);
      S* const to = y.as<S>() + first;
      for (std::int64_t i = 0; i < n; ++i) to[i] = convert<S>(C(mean) + C(deviation) * z[i % 4][i / 4]);
    });
  });
}

void Bernoulli::run(Cpu) const {
  const std::uint32_t bound = draws_below(probability, 24);  // word >> 8 is below this if and only if unit_float(word) < probability
  dispatch_all(y.dtype, [&]<class S>() {
    const S one = from_number<S>(1), zero = from_number<S>(0);
    map_words<S, S>(y, state, [=](const std::uint32_t* words, S* out, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = words[i] >> 8 < bound ? one : zero;
    });
  });
}

void Randint::run(Cpu) const {
  const WholeNumbers numbers(low, span);
  dispatch_numbers(y.dtype, "whole_numbers", [&]<class S>() {
    if constexpr (std::is_integral_v<S>)
      for_each_chunk(y.numel(), [&](std::int64_t first, std::int64_t n) {
        PhiloxWords upper, lower;
        const std::uint32_t* const a = upper.draw(state, first, n);
        const std::uint32_t* const b = numbers.is_wide ? lower.draw(state, first, n, 1) : a;
        const std::uint64_t position = position_of(state) + std::uint64_t(first / 4);
        S* const to = y.as<S>() + first;
        for (std::int64_t i = 0; i < n; ++i)
          to[i] = static_cast<S>(numbers(a[i], b[i], state.seed, position + std::uint64_t(i / 4), static_cast<int>(i % 4)));
      });
  });
}

void Dropout::run(Cpu) const {
  const DropoutRuns dropout(p, state);
  dispatch_floats(y.dtype, "dropout", [&]<class S>() {
    using C = compute_t<S>;
    for_each_chunk(y.numel(), [&](std::int64_t first, std::int64_t n) {
      alignas(64) C in[chunk], out[chunk];
      S* const to = y.as<S>() + first;
      C* const kept = target(to, 1, n, out);
      dropout(load(x.as<const S>() + first, 1, n, in), kept, first, n);
      store(kept, to, 1, n);
    });
  });
}

}  // namespace kernels
}  // namespace tern
