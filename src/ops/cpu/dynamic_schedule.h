#pragma once
#include <atomic>

#include "ops/cpu/loops.h"

namespace tern::loops {

/// Dynamic schedule: as share, but calls f(begin, end, thread) for at most `at_once` units at a time, and a free thread takes the next
/// ones, so that a thread that is delayed holds up no more than those. The assignment to threads is in no given order.
template <class F>
void share_dynamically(std::int64_t count, std::int64_t threads, std::int64_t at_once, F&& f) {
  std::atomic<std::int64_t> taken = 0;
  const std::int64_t team = std::clamp<std::int64_t>(count, 1, std::max<std::int64_t>(threads, 1));
  share(team, team, [&](std::int64_t, std::int64_t, std::int64_t thread) {
    for (std::int64_t begin = taken.fetch_add(at_once); begin < count; begin = taken.fetch_add(at_once))
      f(begin, std::min(count, begin + at_once), thread);
  });
}
/// The same unit by unit: calls f(unit, thread).
template <class F>
void share_dynamically(std::int64_t count, std::int64_t threads, F&& f) {
  share_dynamically(count, threads, 1, [&](std::int64_t unit, std::int64_t, std::int64_t thread) { f(unit, thread); });
}

}  // namespace tern::loops
