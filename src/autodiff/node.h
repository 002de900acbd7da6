#pragma once
#include <functional>
#include <initializer_list>
#include <string>

#include "tensor/tensor.h"

// Nodes of the graph: what an op saves, the op and its record, and what its backward asks.
namespace tern {

struct Node;

/// Edge of the graph, along which a gradient flows: to an output of the op that `node` records, or to the leaf that it accumulates into.
struct Edge {
  Ref<Node> node;            ///< null if no gradient is required
  std::uint32_t output = 0;  ///< index of the output; 0 for a leaf
};

/// Makes x, a tensor without history, the output that the edge names.
void set_history(const Tensor& x, const Edge& edge);
/// Edge along which a tensor's gradient flows; its node is null if none is required.
Edge edge_of(const Tensor& x);

/// Form in which hooks keep a tensor that an op saves for backward.
struct PackedTensor : RefCounted {
  /// Returns the tensor, with or without history. `op` is the one whose backward needs it, for messages.
  virtual Tensor unpack(const char* op) = 0;
};

/// Saved-tensor hooks. While set as context().saved_tensor_hooks, they pack each tensor that an op of this thread saves for backward:
/// activation checkpointing (ops/checkpoint.h) keeps nothing, and recomputes the tensor. After torch.autograd.graph.saved_tensors_hooks.
/// Leaves that require gradients, such as a model's parameters, are saved as they are.
class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  /// Packs a tensor, detached; backward calls unpack() of the result.
  virtual Ref<PackedTensor> pack(const Tensor& x) = 0;
  /// Returns the results of a matrix product or of attention, which `compute` gives without history: they cost far more to compute than to
  /// keep, so a hook may keep them.
  virtual Tensors costly(const std::function<Tensors()>& compute) { return compute(); }
};

/// Tensor saved for backward. An output of the op itself is kept without its history, which would be a reference cycle.
class Saved {
 public:
  /// Saves output number `output` of an op, or, if that is negative, an input or an intermediate result, which may be undefined.
  explicit Saved(const Tensor& x, std::int32_t output = -1);
  /// Returns the saved tensor with its history. Throws Error if it was edited in place since.
  Tensor unpack(Node& owner) const;
  /// The same for a tensor that is not an output of the node's op; `op` is for messages.
  Tensor unpack(const char* op) const;
  /// Bytes of the tensor's elements; 0 if hooks have packed it.
  std::size_t bytes() const;
  /// The tensor as it is kept; undefined if hooks have packed it.
  const Tensor& kept() const { return tensor_; }

 private:
  bool pack(const Tensor& x);

  Tensor tensor_;
  std::uint32_t version_ = 0;
  std::int32_t output_ = -1;
  Ref<PackedTensor> packed_;  ///< what hooks made of the tensor, or null
  Edge history_;              ///< along which the gradient of a packed tensor flows
};

namespace kernels {
class DeferredSums;
}

/// Destination of a kernel for the gradient of an op's input.
struct GradientTarget {
  Tensor gradient;                            ///< contiguous; undefined if there is none
  Write write = Write::overwrite;             ///< accumulate: the kernel adds to what is there
  kernels::DeferredSums* deferred = nullptr;  ///< if given, the gradient, a sum, may be left there as partial sums
  bool is_new = false;                        ///< new memory of this call, not a leaf's gradient

  /// True if there is memory to write to.
  explicit operator bool() const { return gradient.defined(); }
  View view() const { return gradient.defined() ? gradient.view() : View{}; }  ///< for a kernel; without data if there is none
  /// Result of backward for the input: undefined if the leaf has it already.
  Tensor result() const { return is_new ? gradient : Tensor(); }
};

/// For kernels that only add: fills the targets that are to be overwritten with zeros, with one fill for those that are adjacent in memory.
void start_from_zeros(std::initializer_list<GradientTarget*> targets);

struct Node;
class Backward;
class LeafWriter;

/// The dtype that an op computes in under autocast (ops/autocast.h).
enum class CastTo : std::uint8_t {
  none,    ///< that of its operands
  lower,   ///< the scope's 16-bit dtype: products, which are compute-bound, and which tensor cores compute in 16 bits with f32 sums
  f32,     ///< sums, exponentials, losses, for which 16 bits are too narrow
  widest,  ///< the widest dtype of several operands, which must have one
};
/// Dtypes of an op's operands.
enum class Takes : std::uint8_t {
  any,       ///< the op checks for itself
  floating,  ///< floating ones; operands of others are refused
};
/// How jvp computes the tangents of an op's outputs. Rules other than `transposed` are used where they are cheaper: Note [Tangents].
enum class Tangent : std::uint8_t {
  transposed,  ///< by the transpose of the op's backward
  symmetric,   ///< the Jacobian is symmetric, as that of an elementwise op: backward of the input's tangent, for an input like the output
  linear,      ///< the op is linear in all of its floating inputs together: the op of the tangents
  product,     ///< the op is linear in each of its first two inputs, and a third, if any, is added
};

/// Properties of an op, known before it runs: one constexpr value beside each op.
struct Op {
  const char* name;                       ///< in errors, profiles and graphs; a literal
  CastTo autocast = CastTo::none;         ///< dtype of its operands under autocast
  Takes takes = Takes::any;               ///< dtypes that it accepts
  Tangent tangent = Tangent::transposed;  ///< its derivative in forward mode
};

/// Recorded call of an op. The tensors that it saves are listed, so that memory can be counted, and freed after the backward pass.
struct Node : RefCounted {
  /// Takes the next sequence number of this thread. `op` is a literal.
  explicit Node(const char* op);
  /// Next sequence number of this thread, greater than `after`: that of the latest of a node's inputs, which another thread may have
  /// recorded.
  static std::uint64_t next_sequence(std::uint64_t after = 0) noexcept;

  /// Gradients of the inputs, in order, from those of the outputs, any of which may be undefined for zeros. Written in ops, so that it can
  /// be differentiated again.
  virtual Tensors backward(const Backward& call) = 0;
  /// The leaf, for a node that accumulates a leaf's gradient; null for the node of an op.
  virtual const Tensor* leaf() const { return nullptr; }
  /// Frees the saved tensors.
  void release_saved();

  const char* op;                     ///< name of the op, for messages
  std::uint64_t sequence = 0;         ///< increases with every recorded op: descending order is topological
  std::vector<Edge> next;             ///< an edge for each input
  std::vector<Saved> saved;           ///< empty once the pass has freed them
  std::uint32_t outputs = 1;          ///< number of the op's outputs
  bool released = false;              ///< true after a pass: a second one through the node is an error
  std::string module;                 ///< path of the module whose forward ran, in anomaly mode or with a memory history
  std::uint32_t observed_module = 0;  ///< number of that module, if an observer assigned one

 protected:
  void destroy() noexcept override;
};

namespace detail {
/// A call of backward for tangents: finds those of a fused op from its plain reference, which backward passes to vjp.
struct ReferenceTangents {
  virtual void find(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& reference) = 0;

 protected:
  ~ReferenceTangents() = default;
};
}  // namespace detail

/// The argument of an op's backward function: gradients and saved tensors. An index out of range throws Error.
class Backward {
 public:
  /// `leaves` is null in a pass whose gradients do not go to leaves, or are recorded, or checked for NaN; `tangents` is null unless
  /// backward runs to compute a tangent.
  Backward(Node& node, std::span<const Tensor> gradients, LeafWriter* leaves = nullptr, detail::ReferenceTangents* tangents = nullptr)
      : node_(node), gradients_(gradients), leaves_(leaves), tangents_(tangents) {}
  /// Gradient of an output; undefined if none arrived, which cannot happen with a single output.
  const Tensor& grad(std::size_t output = 0) const {
    if (output >= gradients_.size()) fail_index("output", output, gradients_.size());
    return gradients_[output];
  }
  std::span<const Tensor> grads() const { return gradients_; }  ///< gradients of all outputs
  /// Tensor that the op saved, by its index in the list.
  Tensor saved(std::size_t index) const {
    if (index >= node_.saved.size()) fail_index("saved tensor", index, node_.saved.size());
    return node_.saved[index].unpack(node_);
  }
  std::size_t saved_count() const { return node_.saved.size(); }  ///< number of saved tensors
  std::size_t input_count() const { return node_.next.size(); }   ///< number of the op's inputs
  /// True if the gradient of an input is required; for other inputs an undefined tensor may be returned.
  bool needs(std::size_t input) const { return bool(edge(input).node); }
  /// Target in the gradient that an input, a leaf, already has, for kernels that can write into it: a weight's gradient is then one product
  /// straight into its slice of the flat buffer. The kernel writes every element, or adds, as the target says, and backward returns the
  /// target's result() for that input. No target if the input is not such a leaf, or if this call has taken its sink already. See Note
  /// [Gradient sink].
  GradientTarget sink(std::size_t input) const;
  /// As sink, or else new memory of that shape, with the dtype and device of `like`; no target only if the gradient is not required.
  GradientTarget sink(std::size_t input, const Shape& shape, const Tensor& like) const;
  /// The tangents to be computed from a fused op's reference in place of gradients, or null: used by vjp.
  detail::ReferenceTangents* reference_tangents() const { return tangents_; }

 private:
  const Edge& edge(std::size_t input) const {
    if (input >= node_.next.size()) fail_index("input", input, node_.next.size());
    return node_.next[input];
  }
  [[noreturn]] void fail_index(const char* what, std::size_t index, std::size_t count) const;

  Node& node_;
  std::span<const Tensor> gradients_;
  LeafWriter* leaves_;
  detail::ReferenceTangents* tangents_;
};

/// Node of an op: its backward is a function object F(const Backward&).
template <class F>
struct LambdaNode final : Node {
  /// Takes the function object.
  LambdaNode(const char* name, F f) : Node(name), function(std::move(f)) {}
  Tensors backward(const Backward& call) override { return function(call); }
  F function;  ///< returns a gradient for each input
};

/// True if a derivative of an op on these inputs is required: it is to be recorded, or its output gets a tangent.
bool needs_record(const TensorList& inputs);

/// Call of an op that has computed its outputs, as reported to observers.
struct OpCall {
  const Op& op;                                             ///< the op
  std::span<const Tensor> outputs;                          ///< results
  std::span<const Tensor> inputs;                           ///< operands, undefined ones included
  std::span<const Tensor> saved;                            ///< kept for backward, if the call is recorded, and possibly packed by hooks
  bool is_recorded;                                         ///< true if its floating outputs will require gradients
  const std::function<Tensors(const Backward&)>& backward;  ///< gradients of the inputs
  const std::function<Tensors(const Tensors&)>& again;      ///< the op of other inputs, for the rules `linear` and `product`

  /// Bytes of operands and results; an expanded tensor counts with the size of its storage.
  double bytes() const;
};

namespace detail {
/// True if needs_record() means a graph, and not only tangents.
bool needs_graph(const TensorList& inputs);
void attach(Ref<Node> node, std::span<const Tensor> outputs, const TensorList& inputs, const TensorList& saved);
/// Bytes of the tensors that a kernel reads or writes. An expanded tensor counts with the size of its storage, which is read once.
double observed_bytes(std::span<const Tensor> tensors);

/// Ends the call of an op without gradient: reports it to the observers.
void end_call(const Op& op, std::span<const Tensor> outputs, const TensorList& inputs);
/// Ends the call of an op: reports it to the observers, then records it if a gradient is required. `again` is nullptr for an op whose
/// tangent rule does not call it.
template <class F, class Again>
void end_call(const Op& op, std::span<const Tensor> outputs, const TensorList& inputs, const TensorList& saved, F&& backward,
              const Again& again) {
  const bool is_recorded = needs_graph(inputs) && (outputs.size() != 1 || is_floating(outputs[0].dtype()));
  if (backend::observer) [[unlikely]] {
    const OpCall call{op, outputs, inputs, saved, is_recorded, std::cref(backward), again};
    backend::tell([&](backend::Observer& told) { told.end_op(call); });
  }
  if (is_recorded) attach(make_ref<LambdaNode<std::decay_t<F>>>(op.name, std::forward<F>(backward)), outputs, inputs, saved);
}
}  // namespace detail

/// Makes `output` the result of an op on `inputs`, recorded only if a gradient is required. `backward` is called as `Tensors(const
/// Backward&)` and returns one gradient for each input. Tensors in `saved` are kept until then. For code below ops/op.h, whose call()
/// is the door of every op.
template <class F>
Tensor record(const Op& op, Tensor output, TensorList inputs, TensorList saved, F backward) {
  detail::end_call(op, {&output, 1}, inputs, saved, std::move(backward), nullptr);
  return output;
}

/// Called by every in-place op before it writes. Throws Error if autograd would miss the edit (the target or a source requires a gradient
/// while ops are recorded), and if elements would be written before they are read: the target's elements share memory among themselves, or
/// with a source that is not the same window. Then marks the target as edited.
void begin_in_place(const char* op, const Tensor& target, TensorList sources = {});

/// Registers a hook, called with the leaf each time a backward pass has finished its gradient (Tensor::grad()): once for each pass, in the
/// order in which leaves are finished, for each leaf that gradients reached. A deferred sum is finished at the end of the pass. The hook
/// may change or remove the gradient, or register a hook, which is called from the next pass on. Throws Error for a tensor that is not a
/// leaf, and for an empty function.
void on_gradient_ready(const Tensor& leaf, std::function<void(const Tensor&)> hook);

/// Vector-Jacobian product of a fused op's plain reference: the gradients of the op's inputs, from those in `call`. A fused op's backward
/// returns it if its result is to be differentiated again, so that no fused op needs a second derivation by hand. `reference` computes the
/// op's outputs from its inputs, in their order, with ops; `inputs` are the saved ones, with their history. An input in which the outputs
/// are linear may be replaced by zeros of its shape. Undefined for inputs that need no gradient, or are undefined.
Tensors vjp(const Backward& call, const Tensors& inputs, const std::function<Tensors(const Tensors&)>& reference);

}  // namespace tern
