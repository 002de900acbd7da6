#include "backend/observer.h"

#include <chrono>

namespace tern::backend {

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Observer::watch() {
  thread_local std::uint64_t last = 0;  // never reused: a scope that an earlier observer saw begin may still be open
  serial_ = ++last;
  outer_ = observer;
  observer = this;
}

void Observer::watch_last() {
  Observer** place = &observer;
  while (*place) place = &(*place)->outer_;
  *place = this;
}

void Observer::unwatch() {
  for (Observer** place = &observer; *place; place = &(*place)->outer_)
    if (*place == this) {
      *place = outer_;
      outer_ = nullptr;
      return;
    }
}

}  // namespace tern::backend
