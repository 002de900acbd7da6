#include "autodiff/function.h"

#include <fmt/format.h>

#include <algorithm>

namespace tern {

void detail::forbid_second_derivative(const char* op, const Backward& call, Tensors& gradients, bool every) {
  Tensors sources;
  const auto add = [&](const Tensor& x) {
    if (x.defined() && x.requires_grad()) sources.push_back(x);
  };
  for (const Tensor& g : call.grads()) add(g);
  for (std::size_t i = 0; i < call.saved_count(); ++i) add(call.saved(i));
  if (sources.empty()) return;
  for (Tensor& gradient : gradients) {
    if (!gradient.defined() || (gradient.requires_grad() && !every)) continue;
    gradient = record({op}, gradient.detach(), sources, {}, [op](const Backward&) -> Tensors {
      fail(op, "expected a backward written in ops, but this one is once differentiable: its gradient has no history, or says so");
    });
  }
}

}  // namespace tern
