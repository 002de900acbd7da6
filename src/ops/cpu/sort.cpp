#include <algorithm>
#include <bit>
#include <utility>

#include "ops/cpu/loops.h"
#include "ops/kernels/index.h"
#include "ops/kernels/random.h"

namespace tern::kernels {

using namespace loops;

// Sorting: the rows' elements as unsigned keys of the same order, by radix sort.

namespace {

/// A key and its original position.
template <class Key>
struct Ranked {
  Key key;
  std::int64_t position;
};

/// Sorts by key, ascending and stably. `spare` has room for n entries; returns the sorted entries, which may be in either buffer.
template <class Key>
Ranked<Key>* radix_sort(Ranked<Key>* entries, Ranked<Key>* spare, std::int64_t n) {
  // The histograms of all digits cost as much as sorting a few hundred entries by comparison.
  if (n < 256) {
    std::sort(entries, entries + n,
              [](const Ranked<Key>& a, const Ranked<Key>& b) { return a.key != b.key ? a.key < b.key : a.position < b.position; });
    return entries;
  }
  constexpr int digits = sizeof(Key), base = 256;
  std::int64_t counts[digits][base] = {};
  for (std::int64_t i = 0; i < n; ++i)
    for (int digit = 0; digit < digits; ++digit) ++counts[digit][entries[i].key >> (8 * digit) & 255u];
  for (int digit = 0; digit < digits; ++digit) {
    std::int64_t* const count = counts[digit];
    // A digit that all keys share needs no pass.
    if (count[entries[0].key >> (8 * digit) & 255u] == n) continue;
    std::int64_t start = 0;
    for (int value = 0; value < base; ++value) start += std::exchange(count[value], start);
    for (std::int64_t i = 0; i < n; ++i) spare[count[entries[i].key >> (8 * digit) & 255u]++] = entries[i];
    std::swap(entries, spare);
  }
  return entries;
}

/// Unsigned key with the order of the values: every NaN is largest; both zeros are equal.
template <class S>
auto key_of(S value) {
  using Short = std::conditional_t<sizeof(S) == 1, std::uint8_t, std::uint16_t>;
  using Key = std::conditional_t<sizeof(S) == 8, std::uint64_t, std::conditional_t<sizeof(S) == 4, std::uint32_t, Short>>;
  constexpr Key top = Key(Key(1) << (8 * sizeof(S) - 1));
  if constexpr (std::is_unsigned_v<S>) return Key(value);
  else if constexpr (std::is_integral_v<S>) return Key(Key(value) ^ top);
  else {
    using C = compute_t<S>;
    const C number = C(value);
    if (number != number) return Key(~Key(0));
    const Key bits = number == C(0) ? Key(0) : std::bit_cast<Key>(value);
    return Key(bits & top ? ~bits : bits | top);
  }
}

}  // namespace

void Sort::run(Cpu) const {
  if (x.numel() == 0) return;
  Shape shape = x.shape;
  Strides strides = x.strides;
  const std::int64_t length = x.dims() == 0 ? 1 : x.shape.back(), step = x.dims() == 0 ? 1 : x.strides.back();
  if (x.dims() > 0) {
    shape.pop_back();
    strides.pop_back();
  }
  const auto rows = make_loop<1>(shape, {strides}, DimOrder::row_major);
  dispatch_numbers(x.dtype, "sort", [&]<class S>() {
    using Key = decltype(key_of(S{}));
    const Scratch<Ranked<Key>> entries(num_threads() * 2 * length, x.stream);
    parallel_units(rows.numel(), length, function_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      Ranked<Key>* const own = entries.data() + thread * 2 * length;
      std::int64_t row = begin;
      walk(rows, begin, end, 1, [&](const std::int64_t* at, std::int64_t) {
        const S* const from = x.as<const S>() + at[0];
        for (std::int64_t i = 0; i < length; ++i) {
          const Key key = key_of(from[i * step]);
          own[i] = {descending ? Key(~key) : key, i};
        }
        const Ranked<Key>* const sorted = radix_sort(own, own + length, length);
        S* const to = values.as<S>() + row * length;
        std::int64_t* const positions = indices.as<std::int64_t>() + row * length;
        for (std::int64_t i = 0; i < length; ++i) {
          to[i] = from[sorted[i].position * step];
          positions[i] = sorted[i].position;
        }
        ++row;
      });
    });
  });
}

void Searchsorted::run(Cpu) const {
  const std::int64_t length = sorted.shape[1], columns = x.shape[1];
  dispatch_numbers(x.dtype, "searchsorted", [&]<class S>() {
    parallel_units(
        x.numel(), std::bit_width(static_cast<std::uint64_t>(length)), function_grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i)
            places.as<std::int64_t>()[i] = place_in(sorted.as<const S>() + i / columns * length, length, x.as<const S>()[i], right);
        });
  });
}

void Topk::run(Cpu) const {
  if (values.numel() == 0) return;
  Shape shape = x.shape;
  Strides strides = x.strides;
  const std::int64_t length = shape.back(), step = strides.back(), k = values.shape.back();
  shape.pop_back();
  strides.pop_back();
  const auto rows = make_loop<1>(shape, {strides}, DimOrder::row_major);
  dispatch_numbers(x.dtype, "topk", [&]<class S>() {
    using C = compute_t<S>;
    using Key = decltype(key_of(S{}));
    parallel_units(rows.numel(), length, function_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t) {
      Ranked<Key> best[topk_limit];  // in descending order
      std::int64_t row = begin;
      walk(rows, begin, end, 1, [&](const std::int64_t* at, std::int64_t) {
        const S* const from = x.as<const S>() + at[0];
        std::int64_t found = 0;
        const auto consider = [&](std::int64_t i) {
          const Key key = key_of(from[i * step]);
          if (found == k && key <= best[k - 1].key) return;  // of equal keys the first stays
          std::int64_t place = found < k ? found++ : k - 1;
          for (; place > 0 && best[place - 1].key < key; --place) best[place] = best[place - 1];
          best[place] = {key, i};
        };
        std::int64_t i = 0;
        for (; i < k; ++i) consider(i);
        // Most runs of elements have none that is larger than the k-th so far: one test without a branch for each run.
        constexpr std::int64_t run = 64;
        for (; i + run <= length; i += run) {
          const C least = C(from[best[k - 1].position * step]);
          bool is_any_larger = false;
          for (std::int64_t j = i; j < i + run; ++j) is_any_larger |= !(C(from[j * step]) <= least);  // true for NaN too
          if (!is_any_larger) continue;
          for (std::int64_t j = i; j < i + run; ++j) consider(j);
        }
        for (; i < length; ++i) consider(i);
        S* const to = values.as<S>() + row * k;
        std::int64_t* const positions = indices.as<std::int64_t>() + row * k;
        for (std::int64_t rank = 0; rank < k; ++rank) {
          to[rank] = from[best[rank].position * step];
          positions[rank] = best[rank].position;
        }
        ++row;
      });
    });
  });
}

/// A permutation sorts random keys.
void Permutation::run(Cpu) const {
  const std::int64_t n = y.shape[0];
  const Scratch<Ranked<std::uint64_t>> entries(2 * n, y.stream);
  const std::uint64_t first = state.offset + (state.base ? *state.base : 0);
  parallel(n, function_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const PhiloxBlock block = philox(state.seed, first + std::uint64_t(i));
      entries.data()[i] = {std::uint64_t(block.words[1]) << 32 | block.words[0], i};
    }
  });
  const auto* sorted = radix_sort(entries.data(), entries.data() + n, n);
  for (std::int64_t i = 0; i < n; ++i) y.as<std::int64_t>()[i * y.strides[0]] = sorted[i].position;
}

}  // namespace tern::kernels
