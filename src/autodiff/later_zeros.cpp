#include "autodiff/later_zeros.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "autodiff/gradient_arithmetic.h"
#include "autodiff/node.h"

namespace tern {

namespace {

/// The states that are marked, and by which thread.
struct Marks {
  std::mutex mutex;
  std::unordered_map<AutogradState*, std::thread::id> states;
};
Marks& marks() {
  static auto& all = *new Marks;  // leaves may end after everything static
  return all;
}

}  // namespace

void zero_later(const Tensor& leaf) {
  AutogradState* const state = autograd_state(leaf);
  if (!state || !state->grad.defined() || !state->grad.is_contiguous())
    fail("zero_later", "expected a leaf that has a contiguous gradient");
  if (state->awaits_zeros) return;
  Marks& all = marks();
  const std::lock_guard lock(all.mutex);
  all.states.emplace(state, std::this_thread::get_id());
  state->awaits_zeros = true;
}

void detail::forget_later_zeros(AutogradState& state) {
  if (!state.awaits_zeros) return;
  Marks& all = marks();
  const std::lock_guard lock(all.mutex);
  all.states.erase(&state);
  state.awaits_zeros = false;
}

void detail::write_later_zeros(std::span<AutogradState* const> marked) {
  Tensors gradients;
  for (AutogradState* state : marked) {
    if (!state->awaits_zeros) continue;
    forget_later_zeros(*state);
    gradients.push_back(state->grad);
  }
  std::sort(gradients.begin(), gradients.end(), [](const Tensor& a, const Tensor& b) {
    const Storage *in_a = a.impl().storage.get(), *in_b = b.impl().storage.get();
    return in_a == in_b ? a.offset() < b.offset() : std::less<const Storage*>()(in_a, in_b);
  });
  for (std::size_t first = 0, last; first < gradients.size(); first = last) {
    const Tensor& begin = gradients[first];
    std::int64_t end = begin.offset() + begin.numel();
    for (last = first + 1; last < gradients.size(); ++last) {
      const Tensor& next = gradients[last];
      if (!(next.impl().storage == begin.impl().storage) || next.dtype() != begin.dtype() || next.offset() != end) break;
      end += next.numel();
    }
    detail::fill_gradient(begin.as_strided({end - begin.offset()}, {1}, begin.offset()), 0);
  }
}

void write_later_zeros() {
  std::vector<AutogradState*> left;
  {
    Marks& all = marks();
    const std::lock_guard lock(all.mutex);
    for (const auto& [state, thread] : all.states)
      if (thread == std::this_thread::get_id()) left.push_back(state);
  }
  detail::write_later_zeros(left);
}

}  // namespace tern
