#pragma once
#include <atomic>

#include "ops/cpu/loops.h"

namespace tern::loops {

/// As share, as f(begin, end, thread) on at most `at_once` units at a time: a thread that is done takes the next, so that a thread that is
/// held up keeps no more than those from the others. Runs go to threads in no given order.
template <class F>
void share_by_turns(std::int64_t count, std::int64_t threads, std::int64_t at_once, F&& f) {
  std::atomic<std::int64_t> taken = 0;
  const std::int64_t team = std::clamp<std::int64_t>(count, 1, std::max<std::int64_t>(threads, 1));
  share(team, team, [&](std::int64_t, std::int64_t, std::int64_t thread) {
    for (std::int64_t begin = taken.fetch_add(at_once); begin < count; begin = taken.fetch_add(at_once))
      f(begin, std::min(count, begin + at_once), thread);
  });
}

}  // namespace tern::loops
