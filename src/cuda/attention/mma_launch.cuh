#pragma once
#include <algorithm>
#include <initializer_list>

#include "cuda/attention/mma.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"

// The host's half of flash attention by mma.sync: alignment of several heads, and which kernel serves a call.
namespace tern::gpu::ampere {

inline bool rows_are_aligned(std::initializer_list<const View*> heads, int bytes) {
  return std::ranges::all_of(heads, [&](const View* one) { return gpu::rows_are_aligned(*one, bytes); });
}

struct BackwardInputs;
/// dbias, as kernels::AttentionGradients has it.
void sum_bias_gradient(const BackwardInputs& inputs, const View& dbias);

/// Calls f with the element type and the flavour of kernel that serves the call; `is_rare`: there is one for all calls.
template <bool is_rare, class F>
void dispatch(DType dtype, const Args& args, const kernels::Attention& attention, F&& f) {
  dispatch_halves(dtype, [&]<class T>() {
    if constexpr (!is_rare) {
      if (!args.dropout.drops && !attention.bias.data) {
        const bool is_masked = args.padding || args.prefix || args.key_lengths || args.query_starts || args.window > 0 || !(args.scale > 0);
        return is_masked ? f.template operator()<T, Flavour::masked>() : f.template operator()<T, Flavour::plain>();
      }
    }
    f.template operator()<T, Flavour::whole>();
  });
}

}  // namespace tern::gpu::ampere
