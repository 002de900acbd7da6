#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>

namespace tern::loops {

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

}  // namespace tern::loops
