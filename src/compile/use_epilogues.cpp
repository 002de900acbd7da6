#include "compile/match.h"
#include "compile/rewrite.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/pointwise.h"

namespace tern::compiler {

/// The call that writes gelu_tanh of a linear layer's result to memory that nobody used before it; calls.size() if there is none.
static std::size_t gelu_of(std::size_t layer, const std::vector<Call>& calls, const std::vector<Block>& blocks,
                           const std::vector<std::vector<std::size_t>>& uses) {
  const auto* const linear = calls[layer].kernel->as<kernels::Linear>();
  if (!linear || linear->y.numel() == 0) return calls.size();
  const Call::Place& before = calls[layer].places[3];
  for (const std::size_t use : uses[before.block]) {
    if (use <= layer || !calls[use].kernel) continue;
    if (writes(calls[use], before.block)) break;
    const auto* const unary = calls[use].kernel->as<kernels::Unary>();
    if (!unary || !std::holds_alternative<functors::GeluTanh>(unary->f) || !unary->x.is_contiguous() || !unary->y.is_contiguous() ||
        unary->x.numel() != linear->y.numel() || calls[use].places[0].offset != before.offset)
      continue;
    const std::size_t y = calls[use].places[1].block;
    const bool is_own = blocks[y].kind == Block::Kind::inner || blocks[y].kind == Block::Kind::kept;
    if (is_own && uses[y].front() == use) return use;
  }
  return calls.size();
}

void use_epilogues(std::vector<Call>& calls, const std::vector<Block>& blocks) {
  const auto uses = uses_of(calls, blocks.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].kernel) continue;
    const std::size_t gelu = gelu_of(i, calls, blocks, uses);
    if (gelu == calls.size()) continue;
    const kernels::Linear linear = *calls[i].kernel->as<kernels::Linear>();
    View y = linear.y;
    y.data = calls[gelu].kernel->as<kernels::Unary>()->y.data;
    calls[i].kernel =
        std::make_unique<detail::KernelCallOf<kernels::LinearGelu>>(kernels::LinearGelu{linear.x, linear.weight, linear.bias, linear.y, y});
    calls[i].places.push_back(calls[gelu].places[1]);
    calls[i].op = "linear_gelu";
    calls[gelu].kernel = nullptr;
  }
  std::erase_if(calls, [](const Call& call) { return !call.kernel; });
}

}  // namespace tern::compiler
