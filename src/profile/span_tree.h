#pragma once
#include <vector>

#include "profile/profile.h"

namespace tern::profile {

/// What a span is a part of.
struct Around {
  bool is_counted = false;     ///< within a step, or there are no steps
  std::uint32_t entry = none;  ///< the row's span: an op that is no part of another, or itself
  std::uint32_t pass = none;   ///< the span of the innermost pass, for a pass the next one out
};

/// The Around of every span.
class SpanTree {
 public:
  explicit SpanTree(const Profile& profile) : profile_(profile), around_(profile.spans.size()), is_known_(profile.spans.size()) {
    const bool has_steps = profile.steps() > 0;
    for (std::uint32_t i = 0; i < profile.spans.size(); ++i) find(i, has_steps);
  }
  const Around& operator[](std::size_t span) const { return around_[span]; }

 private:
  const Around& find(std::uint32_t i, bool has_steps) {
    if (is_known_[i]) return around_[i];
    is_known_[i] = true;
    const Span& span = profile_.spans[i];
    Around result{!has_steps || span.kind == Kind::step, none, none};
    if (span.parent != none) {
      result = find(span.parent, has_steps);
      const Kind kind = profile_.spans[span.parent].kind;
      if (kind == Kind::pass) result.pass = span.parent, result.entry = none;
    }
    if (span.kind == Kind::op) result.entry = i;
    return around_[i] = result;
  }

  const Profile& profile_;
  std::vector<Around> around_;
  std::vector<bool> is_known_;
};

}  // namespace tern::profile
