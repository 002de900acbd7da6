#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tern::text {

// Two token ids as one key whose order is the order of (left, right).
using PairKey = std::uint64_t;
constexpr PairKey pair_key(std::int32_t left, std::int32_t right) noexcept {
  return (static_cast<PairKey>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}
constexpr std::int32_t left_of(PairKey key) noexcept { return static_cast<std::int32_t>(key >> 32); }
constexpr std::int32_t right_of(PairKey key) noexcept { return static_cast<std::int32_t>(key & 0xFFFFFFFFu); }

// Hash map from pairs of ids, with open addressing, linear probing and no erase: a look-up mostly touches one cache line, and training and
// encoding spend their time on look-ups. tsl::hopscotch_map and tsl::robin_map are a little slower at both.
template <class Value>
class PairMap {
 public:
  PairMap() { rehash(64); }

  Value* find(PairKey key) noexcept {
    Slot& slot = slots_[index(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  const Value* find(PairKey key) const noexcept { return const_cast<PairMap*>(this)->find(key); }

  Value& operator[](PairKey key) {
    if (2 * (size_ + 1) > slots_.size()) rehash(2 * slots_.size());
    Slot& slot = slots_[index(key)];
    if (slot.key != key) {
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }

  template <class F>
  void for_each(F&& f) {
    for (Slot& slot : slots_) {
      if (slot.key != none) f(slot.key, slot.value);
    }
  }

 private:
  static constexpr PairKey none = ~PairKey{0};  // ids are never negative
  struct Slot {
    PairKey key = none;
    Value value{};
  };

  // The slot of the key, or the free slot for it.
  std::size_t index(PairKey key) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 20) & mask;
    while (slots_[i].key != key && slots_[i].key != none) i = (i + 1) & mask;
    return i;
  }

  void rehash(std::size_t size) {
    std::vector<Slot> old(size);
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.key != none) slots_[index(slot.key)] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace tern::text
