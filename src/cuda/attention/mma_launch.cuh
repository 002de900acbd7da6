#pragma once
#include <initializer_list>

#include "cuda/attention/mma.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"

// The host's half of flash attention by mma.sync: how memory can be read, and which kernel serves a call.
namespace tern::gpu::ampere {

/// Whether all rows of heads begin at multiples of so many bytes.
inline bool is_aligned(std::initializer_list<const View*> views, int bytes) {
  for (const View* view : views) {
    bool is_fit = gpu::is_aligned(view->data, static_cast<std::size_t>(bytes));
    for (int i = 0; i < 3; ++i) is_fit = is_fit && (view->shape[i] <= 1 || view->strides[i] * 2 % bytes == 0);
    if (!is_fit) return false;
  }
  return true;
}

struct BackwardInputs;
/// dbias, as kernels::AttentionGradients has it.
void sum_bias_gradient(const BackwardInputs& inputs, const View& dbias);

/// Calls f with the element type and the flavour of kernel that serves the call; `is_rare`: there is one for all calls.
template <bool is_rare, class F>
void dispatch(DType dtype, const Args& args, const kernels::Attention& attention, F&& f) {
  const auto with = [&]<class T>() {
    if constexpr (!is_rare) {
      if (!args.dropout.drops && !attention.bias.data) {
        const bool is_masked = args.padding || args.prefix || args.key_lengths || args.query_starts || args.window > 0 || !(args.scale > 0);
        return is_masked ? f.template operator()<T, Flavour::masked>() : f.template operator()<T, Flavour::plain>();
      }
    }
    f.template operator()<T, Flavour::whole>();
  };
  if (dtype == DType::f16) with.template operator()<f16>();
  else with.template operator()<bf16>();
}

}  // namespace tern::gpu::ampere
