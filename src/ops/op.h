#pragma once
#include <fmt/format.h>

#include <array>

#include "autodiff/node.h"
#include "ops/factory.h"
#include "tensor/fields.h"

// Note [How an op is written]
// An op is a struct: what is known of it (`op`), its attributes (the fields), forward, and backward. call() is the door of every op: it
// casts the operands for autocast, checks their devices and dtypes, runs forward, tells the observers of the thread, and records the call
// if a gradient is required. The whole of one:
//
//     struct Hypot {
//       static constexpr Op op{.name = "hypot", .takes = Takes::floating, .tangent = Tangent::symmetric};
//       double eps;                                    // an attribute
//
//       struct Kept {
//         Tensor a, b, y;                              // what backward reads: tensors, and anything else that a copy keeps
//       };
//       Result<Tensor, Kept> forward(const Tensor& a, const Tensor& b) const {
//         const Tensor y = empty_like(a);
//         launch(y.device(), kernels::Hypot{a, b, eps, y});
//         return {y, {a, b, y}};
//       }
//       Tensors backward(const Backward& call, const Kept& kept) const {
//         const Tensor g = call.grad() / kept.y;
//         return {g * kept.a, g * kept.b};
//       }
//     };
//     Tensor hypot(const Tensor& a, const Tensor& b) { return call(Hypot{1e-12}, a, b); }
//
// - forward returns a Result; or a Tensor, if it is a composition of ops, which record themselves. It sees operands that autocast has cast.
// - backward returns a gradient for each input; trailing ones may be left out, and those that the call does not need may be undefined.
//   Written in ops, it can be differentiated again. If it calls kernels, it begins with `if (context().grad) return vjp(call, inputs,
//   reference)`, whose reference is a composition (autodiff/node.h). An op without backward has no gradient.
// - Tensors that are operands are inputs of call(), in their order, undefined ones included. What else backward needs is an attribute or
//   kept: kept tensors are counted, freed after the pass, packed by checkpoints, and an edit in place of one is an error.
// - An op with several outputs returns Result<Tensors, Kept>, and one that takes a list gets it as Tensors.
// - An op with a fused kernel has `Tensor plain(inputs...) const`, the same as a composition of others. It is the op's reference, for vjp()
//   and for tests, and call() takes it in place of forward if the thread asks for plain kernels (PlainKernels).
// - Where the tangent of jvp has a cheaper form than the rules of enum Tangent, a member `Tensors tangents(const Tensors& t, const Kept&)`
//   computes it from those of the inputs, zeros for an input without one.
namespace tern {

/// A Kept without fields.
struct Nothing {};

/// Result of forward: the outputs, Tensor or Tensors, and what backward will read.
template <class Output, class Kept = Nothing>
struct Result {
  Output output;
  Kept kept = {};
};

namespace detail {

/// x as the op computes on it: cast as this thread's autocast asks. Throws Error for a dtype that the op does not take.
Tensor operand(const Op& op, const Tensor& x);
/// The same for a list, whose dtypes may be cast to the widest of them.
Tensors operands(const Op& op, const Tensors& xs);

/// The tensors of a struct.
template <class Kept>
auto kept_tensors(const Kept& kept) {
  return with_fields(kept, [&]<class... Field>(const Field&...) {
    std::array<Tensor, (std::size_t{0} + ... + std::size_t{std::is_same_v<Field, Tensor>})> all;
    std::size_t next = 0;
    for_each_tensor(kept, [&](const Tensor& x) { all[next++] = x; });
    return all;
  });
}

/// Backward of a recorded call: the op, and its Kept, whose tensors the node holds.
template <class F, class Kept>
struct OpBackward {
  F f;
  Kept kept;

  OpBackward(const F& f_, const Kept& kept_) : f(f_), kept(kept_) {
    for_each_tensor(kept, [](Tensor& x) { x = Tensor(); });
  }
  Tensors operator()(const Backward& call) const {
    Tensors gradients;
    if constexpr (std::is_empty_v<Kept>) {
      gradients = f.backward(call);
    } else {
      Kept unpacked = kept;
      std::size_t next = 0;
      for_each_tensor(unpacked, [&](Tensor& x) { x = call.saved(next++); });
      gradients = f.backward(call, unpacked);
    }
    gradients.resize(call.input_count());
    return gradients;
  }
};

template <class T>
constexpr bool is_composed = std::is_same_v<T, Tensor> || std::is_same_v<T, Tensors>;

inline Tensor output_of(const Tensor& x) { return x; }
inline Tensors output_of(const Tensors& xs) { return xs; }
template <class Output, class Kept>
Output output_of(const Result<Output, Kept>& result) {
  return result.output;
}
/// Type of an op's output for such inputs: Tensor or Tensors.
template <class F, class... X>
using OutputOf = decltype(output_of(std::declval<const F&>().forward(std::declval<const X&>()...)));

inline std::span<const Tensor> span_of(const Tensor& x) { return {&x, 1}; }
inline std::span<const Tensor> span_of(const Tensors& xs) { return xs; }
inline Tensors list_of(const Tensor& x) { return {x}; }
inline Tensors list_of(Tensors xs) { return xs; }

/// Ends a call whose forward has returned `result`; gives its output. `again` calls the op of other inputs.
template <class F, class R, class Again>
decltype(output_of(std::declval<R>())) end(const F& f, R result, const TensorList& inputs, const Again& again) {
  if constexpr (is_composed<R>) {
    return result;
  } else {
    const std::span<const Tensor> outputs = span_of(result.output);
    if constexpr (!requires { &F::backward; }) {
      end_call(f.op, outputs, inputs);
    } else if (backend::observer || needs_graph(inputs)) {
      const auto saved = kept_tensors(result.kept);
      std::function<Tensors(const Tensors&)> tangents = nullptr;
      if (backend::observer) {
        if constexpr (requires(const Tensors& t) { f.tangents(t, result.kept); })
          tangents = [&](const Tensors& t) { return f.tangents(t, result.kept); };
        else tangents = again;
      }
      end_call(f.op, outputs, inputs, std::span<const Tensor>(saved), OpBackward(f, result.kept), tangents);
    }
    return std::move(result.output);
  }
}

}  // namespace detail

/// Calls an op: Note [How an op is written].
template <class F, class... X>
  requires(std::is_same_v<X, Tensor> && ...)
detail::OutputOf<F, X...> call(const F& f, const X&... inputs) {
  check_one_device(f.op.name, {&inputs...});
  const auto again = [&f](const Tensors& xs) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) { return detail::list_of(call(f, xs[I]...)); }(std::index_sequence_for<X...>());
  };
  const auto run = [&](const X&... in) {
    if constexpr (requires { f.plain(in...); })
      if (!context().kernels.fused) return f.plain(in...);
    return detail::end(f, f.forward(in...), {in...}, again);
  };
  return context().autocast || f.op.takes != Takes::any ? run(detail::operand(f.op, inputs)...) : run(inputs...);
}

/// Calls an op that takes a list of tensors.
template <class F>
detail::OutputOf<F, Tensors> call(const F& f, const Tensors& inputs) {
  check_one_device(f.op.name, std::span<const Tensor>(inputs));
  const Tensors in = detail::operands(f.op, inputs);
  return detail::end(f, f.forward(in), in, [&f](const Tensors& xs) { return detail::list_of(call(f, xs)); });
}

// Tools of forward and backward.
namespace detail {

/// Throws Error that names `op` unless the dtype is a floating one.
inline void check_floating(const char* op, DType dtype) {
  if (!is_floating(dtype)) fail(op, fmt::format("expected a floating dtype but got {}", name(dtype)));
}
inline void check_floating(const char* op, const Tensor& x) { check_floating(op, x.dtype()); }

/// Throws Error unless p is a probability of dropout.
inline void check_probability(const char* op, double p) {
  if (!(p >= 0 && p < 1)) fail(op, fmt::format("expected a probability in [0, 1) but got {}", p));
}
/// Shape of an operand, for an error.
inline std::string shape_or_none(const Tensor& x) { return x.defined() ? to_string(x.shape()) : "none"; }

/// x in f32 if it has 16 bits, else x itself, which may be undefined. In f16 a square overflows from 256 on and a sum from 65504, and in
/// bf16 a sum keeps 8 bits. So compositions compute on widened operands, as the kernels do, and round their result once.
inline bool is_narrow(DType dtype) { return is_floating(dtype) && size_of(dtype) == 2; }
inline Tensor widened(const Tensor& x) { return x.defined() && is_narrow(x.dtype()) ? cast(x, DType::f32) : x; }

/// Indices, targets or ids as kernels take them, i64: those of i32 are cast, at the door of each op, so that no kernel has a second type of
/// index. Throws Error for other dtypes.
inline Tensor as_indices(const char* op, const Tensor& index) {
  if (index.dtype() == DType::i64) return index;
  if (index.dtype() != DType::i32) fail(op, fmt::format("expected indices of i64 or i32 but got {}", name(index.dtype())));
  return cast(index, DType::i64);
}

/// x as contiguous memory; an undefined tensor stays one.
inline Tensor contiguous_or_none(const Tensor& x) { return x.defined() ? contiguous(x) : x; }

/// Results of compute(), Tensors of a matrix product or of attention: a checkpointed function that runs again reuses them if its policy
/// kept them.
template <class F>
Tensors costly(F compute) {
  SavedTensorHooks* const hooks = context().saved_tensor_hooks;
  return hooks ? hooks->costly(compute) : compute();
}

/// True if matmul supports x's dtype on its device: floats on every device, integers (not bool) only on the CPU.
inline bool matmul_takes(const Tensor& x) {
  return is_floating(x.dtype()) || (x.device().type == DeviceType::cpu && x.dtype() != DType::boolean);
}
/// True if such kernels take x: on the CPU, f32 or f64.
inline bool has_cpu_kernel(const Tensor& x) {
  return x.device().type == DeviceType::cpu && (x.dtype() == DType::f32 || x.dtype() == DType::f64);
}

}  // namespace detail

}  // namespace tern
