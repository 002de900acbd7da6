#pragma once
#include <functional>
#include <memory>
#include <string>

#include "autodiff/forward.h"
#include "autodiff/gradient_target.h"
#include "autodiff/saved_tensor.h"
#include "tensor/tensor.h"

namespace tern {

struct Node;
class Backward;

/// The next stop of a gradient: the given output of the op that `node` records, or the leaf that it accumulates into.
struct Edge {
  Ref<Node> node;            ///< null where no gradient is wanted
  std::uint32_t output = 0;  ///< number of the output; 0 for a leaf
};

/// Makes x, a tensor without a history, the output that the edge names.
void set_history(const Tensor& x, const Edge& edge);
/// The edge along which a tensor's gradient flows; its node is null where none is wanted.
Edge edge_of(const Tensor& x);

/// One recorded op call. What it saves is listed, so that memory can be counted, and freed after the backward pass.
struct Node : RefCounted {
  /// Takes this thread's next number. `op` is a literal.
  explicit Node(const char* op);
  /// The next number of the order in which this thread records, greater than `after`: the latest of a node's inputs, which
  /// another thread may have recorded.
  static std::uint64_t next_sequence(std::uint64_t after = 0) noexcept;

  /// The gradients of the inputs, in order, from those of the outputs, any of which may be undefined for "zero".
  /// Written in ops, so that it can be differentiated again.
  virtual Tensors backward(const Backward& call) = 0;
  /// The leaf, of a node that accumulates a leaf's gradient; null for a node of an op.
  virtual const Tensor* leaf() const { return nullptr; }
  /// Frees the saved tensors.
  virtual void release_saved();

  const char* op;                     ///< for messages
  std::uint64_t sequence = 0;         ///< grows with every recorded op, so that descending order is a topological one
  std::vector<Edge> next;             ///< an edge for each input
  std::vector<Saved> saved;           ///< empty once the pass has freed them
  std::uint32_t outputs = 1;          ///< number of the op's outputs
  bool released = false;              ///< a second pass through the node is an error
  std::string module;                 ///< the path of the module whose forward ran, in anomaly mode or under a memory history
  std::uint32_t observed_module = 0;  ///< its number, where an observer gave one

 protected:
  void destroy() noexcept override;
};

/// The view that an op's backward function has of the pass. An index out of range throws Error.
class Backward {
 public:
  /// `leaves` is null in a pass whose gradients do not go to leaves, or are recorded, or searched for NaN; `tangents` is null but where
  /// backward runs for the sake of a tangent.
  Backward(Node& node, std::span<const Tensor> gradients, LeafWriter* leaves = nullptr, detail::ReferenceTangents* tangents = nullptr)
      : node_(node), gradients_(gradients), leaves_(leaves), tangents_(tangents) {}
  /// The gradient of an output; undefined where none arrived, which cannot happen to a single output.
  const Tensor& grad(std::size_t output = 0) const {
    if (output >= gradients_.size()) fail_index("output", output, gradients_.size());
    return gradients_[output];
  }
  std::span<const Tensor> grads() const { return gradients_; }  ///< of all outputs
  /// A tensor from the op's list of saved ones.
  Tensor saved(std::size_t index) const {
    if (index >= node_.saved.size()) fail_index("saved tensor", index, node_.saved.size());
    return node_.saved[index].unpack(node_);
  }
  std::size_t saved_count() const { return node_.saved.size(); }  ///< tensors in that list
  /// True where the gradient of an input is wanted; for another one an undefined tensor may be returned.
  bool needs(std::size_t input) const { return bool(edge(input).node); }
  /// The gradient that an input, a leaf, has already, for a kernel that can write into it: a weight's gradient is then one product straight
  /// into its slice of the flat buffer. The kernel writes every element, or adds, as the target says; for that input, backward returns the
  /// target's result(). No target where the input is no such leaf, or a sink that this call has taken already. See Note [Gradient sink].
  GradientTarget sink(std::size_t input) const;
  /// As sink, or else new memory of that shape, with the dtype and device of `like`; none only where the gradient is not needed.
  GradientTarget sink(std::size_t input, const Shape& shape, const Tensor& like) const;
  /// The tangents that a fused op's reference is asked for instead of gradients, or null: for vjp (autodiff/vjp.h), which finds them.
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

/// The node that `record` makes: its backward is a function object F(const Backward&).
template <class F>
struct LambdaNode final : Node {
  /// Takes the function, with what it has captured.
  LambdaNode(const char* name, F f) : Node(name), function(std::move(f)) {}
  Tensors backward(const Backward& call) override { return function(call); }
  F function;  ///< gives a gradient for each input
};

/// Tensors given in braces, as a vector or as one tensor.
class TensorList {
 public:
  TensorList() = default;
  /// Tensors in braces, which live until the call ends.
  TensorList(std::initializer_list<Tensor> list) : data_(std::data(list)), size_(list.size()) {}  // for one call
  /// @{
  /// Borrowed tensors, which the caller keeps alive: no handle is copied.
  TensorList(const Tensors& list) : data_(list.data()), size_(list.size()) {}
  TensorList(std::span<const Tensor> list) : data_(list.data()), size_(list.size()) {}
  /// @}
  /// @{
  /// The tensors as a range, in the order given.
  const Tensor* begin() const { return data_; }
  const Tensor* end() const { return data_ + size_; }
  /// @}
  std::size_t size() const { return size_; }                          ///< number of tensors, undefined ones included
  const Tensor& operator[](std::size_t i) const { return data_[i]; }  ///< unchecked
  operator std::span<const Tensor>() const { return {data_, size_}; }

 private:
  const Tensor* data_ = nullptr;
  std::size_t size_ = 0;
};

/// True where a derivative of an op on these inputs is asked for: it is to be recorded, or its output gets a tangent.
bool needs_record(const TensorList& inputs);

/// A call of an op, as observers learn of it.
struct OpCall {
  const char* op;                   ///< name of the op, as `record` was given it
  std::span<const Tensor> outputs;  ///< results
  std::span<const Tensor> inputs;   ///< operands, undefined ones included
  std::span<const Tensor> saved;    ///< for backward, which hooks may keep in another form; empty where the op is not recorded
  bool is_recorded;                 ///< its floating outputs will require gradients

  /// Bytes of operands and results; an expanded tensor counts with its storage.
  double bytes() const;
};

namespace detail {
/// True where needs_record() means a graph, and not tangents alone.
bool needs_graph(const TensorList& inputs);
void attach(Ref<Node> node, std::span<const Tensor> outputs, const TensorList& inputs, const TensorList& saved);
void check_anomaly(const char* op, std::span<const Tensor> outputs, const TensorList& inputs);
/// Calls the function object of context().after_op, and takes it out of the context.
void call_after_op();
/// Bytes that a kernel reads or writes of the tensors. An expanded tensor counts with its storage, which is read once.
double observed_bytes(std::span<const Tensor> tensors);
/// Tells the observers of a call that has computed its outputs.
void end_op(const char* op, std::span<const Tensor> outputs, const TensorList& inputs, const TensorList& saved, bool is_recorded);

/// Shape and dtype of an op's input, which its gradient must have.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::f32;
};
/// Throws Error that names the op and the first gradient whose shape or dtype is not its input's. Undefined gradients pass.
void check_gradient_specs(const char* op, std::span<const TensorSpec> inputs, std::span<const Tensor> gradients);
}  // namespace detail

/// Makes `output` the result of an op on `inputs`. `backward` is called as `Tensors(const Backward&)` and returns one
/// gradient for each input. Tensors in `saved` are kept until then. Recorded only where a gradient is wanted. Within jvp the output gets
/// its tangent, by `rule` (autodiff/forward.h).
template <class Rule, class F>
Tensor record(const char* op, Tensor output, TensorList inputs, TensorList saved, const Rule& rule, F backward) {
  if (context().after_op) [[unlikely]]
    detail::call_after_op();
  const bool is_recorded = detail::needs_graph(inputs) && is_floating(output.dtype());
  if (backend::observer) detail::end_op(op, {&output, 1}, inputs, saved, is_recorded);
  if (context().anomaly) detail::check_anomaly(op, {&output, 1}, inputs);
  if (context().forward && needs_record(inputs)) [[unlikely]]
    detail::carry_tangents({op, {&output, 1}, inputs, saved, std::cref(backward), rule});
  if (is_recorded) detail::attach(make_ref<LambdaNode<F>>(op, std::move(backward)), {&output, 1}, inputs, saved);
  return output;
}

/// As record, for an op with several outputs.
template <class Rule, class F>
Tensors record_all(const char* op, Tensors outputs, TensorList inputs, TensorList saved, const Rule& rule, F backward) {
  if (context().after_op) [[unlikely]]
    detail::call_after_op();
  const bool is_recorded = detail::needs_graph(inputs);
  if (backend::observer) detail::end_op(op, outputs, inputs, saved, is_recorded);
  if (context().anomaly) detail::check_anomaly(op, outputs, inputs);
  if (context().forward && needs_record(inputs)) [[unlikely]]
    detail::carry_tangents({op, outputs, inputs, saved, std::cref(backward), rule});
  if (is_recorded) detail::attach(make_ref<LambdaNode<F>>(op, std::move(backward)), outputs, inputs, saved);
  return outputs;
}

/// @{
/// With the rule Transposed.
template <class F>
Tensor record(const char* op, Tensor output, TensorList inputs, TensorList saved, F backward) {
  return record(op, std::move(output), inputs, saved, Transposed{}, std::move(backward));
}
template <class F>
Tensors record_all(const char* op, Tensors outputs, TensorList inputs, TensorList saved, F backward) {
  return record_all(op, std::move(outputs), inputs, saved, Transposed{}, std::move(backward));
}
/// @}

/// To be called by every in-place op before it writes: throws Error where autograd would miss the edit (the target or
/// a source requires a gradient while ops are recorded) and where elements would be written before they are read: a target whose elements
/// share memory, or a source that shares some with the target and is not the same window. Then marks the target as edited.
void begin_in_place(const char* op, const Tensor& target, TensorList sources = {});

/// Calls `hook` with the leaf each time a backward pass has finished its gradient, which Tensor::grad() gives: once a pass, in the order in
/// which leaves are done, for each leaf that gradients reached. A sum that kernels deferred is done when the pass ends. The hook may change
/// the gradient, take it away, or register a hook, which is called from the next pass on. Throws Error for a non-leaf, and for a hook
/// without a function.
void on_gradient_ready(const Tensor& leaf, std::function<void(const Tensor&)> hook);

}  // namespace tern
