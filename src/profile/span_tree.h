#pragma once
#include <algorithm>
#include <vector>

#include "profile/profile.h"

namespace tern::profile {

/// The op and the pass that enclose a span.
struct SpanContext {
  bool is_counted = false;     ///< the span is within a step, or the profile has none; on other threads, it starts during a step
  std::uint32_t entry = none;  ///< the outermost op around the span, which has the row in the table; for such an op itself
  std::uint32_t pass = none;   ///< the span of the innermost pass; for a pass the enclosing one
};

/// The SpanContext of every span, by its index in Profile::spans.
class SpanTree {
 public:
  explicit SpanTree(const Profile& profile) : profile_(profile), contexts_(profile.spans.size()), is_known_(profile.spans.size()) {
    for (const Span& span : profile.spans)
      if (span.kind == Kind::step) steps_.push_back(&span);
    std::sort(steps_.begin(), steps_.end(), [](const Span* a, const Span* b) { return a->begin < b->begin; });
    for (std::uint32_t i = 0; i < profile.spans.size(); ++i) find(i);
  }
  const SpanContext& operator[](std::size_t span) const { return contexts_[span]; }

 private:
  bool begins_in_step(const Span& span) const {
    if (steps_.empty() || span.kind == Kind::step) return true;
    if (span.thread == steps_.front()->thread) return false;
    const auto next =
        std::upper_bound(steps_.begin(), steps_.end(), span.begin, [](auto time, const Span* step) { return time < step->begin; });
    return next != steps_.begin() && span.begin < next[-1]->end;
  }

  const SpanContext& find(std::uint32_t i) {
    if (is_known_[i]) return contexts_[i];
    is_known_[i] = true;
    const Span& span = profile_.spans[i];
    SpanContext result{begins_in_step(span), none, none};
    if (span.parent != none) {
      result = find(span.parent);
      const Kind kind = profile_.spans[span.parent].kind;
      if (kind == Kind::pass) result.pass = span.parent, result.entry = none;
    }
    if (span.kind == Kind::op) result.entry = i;
    return contexts_[i] = result;
  }

  const Profile& profile_;
  std::vector<const Span*> steps_;  ///< in order
  std::vector<SpanContext> contexts_;
  std::vector<bool> is_known_;
};

}  // namespace tern::profile
