#include "backend/observer.h"

namespace tern::backend {

void Observer::watch() {
  thread_local std::uint64_t last = 0;  // which an observer that has gone may have had: a scope may be open since then
  serial_ = ++last;
  outer_ = observer;
  observer = this;
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
