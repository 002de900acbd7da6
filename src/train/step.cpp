#include "train/step.h"

#include "autodiff/engine.h"
#include "train/clip.h"
#include "train/detail/grad_norm.h"

namespace tern::train {

Tensor update(const Tensor& loss, Optimizer& optimizer, const UpdateOptions& options) {
  detail::check_max_norm("update", options.max_norm);
  optimizer.zero_grad();
  accumulate(loss, options);
  return apply(optimizer, options);
}

void accumulate(const Tensor& loss, const UpdateOptions& options) {
  if (options.scaler) options.scaler->scaled(loss).backward();
  else loss.backward();
}

Tensor apply(Optimizer& optimizer, const UpdateOptions& options) {
  detail::check_max_norm("apply", options.max_norm);
  const bool reads_all = options.scaler || options.max_norm < std::numeric_limits<double>::infinity();
  if (options.synchronize && (reads_all || !optimizer.exchange())) {
    const backend::PassScope observed("communication");
    options.synchronize();
  }
  const backend::PassScope observed("optimizer");
  if (options.scaler) return options.scaler->step(optimizer, options.max_norm);
  if (options.max_norm == std::numeric_limits<double>::infinity()) {
    optimizer.step();
    return {};
  }
  const ClippedNorm clip = clip_factor(optimizer, options.max_norm);
  optimizer.step({.factor = clip.factor});
  return clip.norm;
}

}  // namespace tern::train
