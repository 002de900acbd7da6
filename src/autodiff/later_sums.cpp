#include "autodiff/later_sums.h"

namespace tern {

backend::PartialSums* LaterSums::for_leaf(AutogradState& leaf) {
  if (leaf.grad.device() != device_) return nullptr;
  if (!sums_) sums_ = on(device_, [&](auto dev) { return backend::partial_sums(dev, device_); });
  if (!sums_) return nullptr;
  leaf.awaits_sum = true;
  leaves_.emplace_back(Ref<AutogradState>(&leaf), leaf.grad);
  return sums_.get();
}

void LaterSums::finish() {
  if (sums_) sums_->finish();
  forget();
}

void LaterSums::forget() {
  for (auto& [leaf, gradient] : leaves_) leaf->awaits_sum = false;
  leaves_.clear();
}

}  // namespace tern
