#pragma once
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <span>
#include <vector>

#include "backend/memory.h"
#include "tensor/context.h"
#include "tensor/storage.h"
#include "tensor/view.h"

namespace tern {

/// State that a tensor handle shares with its copies: a view of a Storage, and its autograd state.
struct TensorImpl final : RefCounted {
  Ref<Storage> storage;      ///< memory, shared by views
  std::int64_t offset = 0;   ///< position of the first element in the storage, in elements
  Shape shape;               ///< sizes of the dimensions
  Strides strides;           ///< strides of the dimensions, in elements; 0 for a broadcast dimension
  DType dtype = DType::f32;  ///< dtype of the elements
  Ref<RefCounted> autograd;  ///< an AutogradState (autodiff/autograd_state.h), or null
};

class Index;

/// Strided array of numbers on a device: a one-word handle, whose copies share the same memory and gradient. Ops are free functions
/// (ops/*.h); the members here need no kernel.
class Tensor {
 public:
  /// Undefined tensor: "no tensor" where one is optional.
  Tensor() = default;
  /// Handle of a state created elsewhere: for factories, views and adopted memory.
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  Tensor(const Tensor&) = default;  ///< another handle of the same tensor; no elements are copied
  Tensor(Tensor&&) = default;       ///< leaves the source undefined
  // Only for lvalues (&): x[0] = y would rebind the temporary handle x[0], and leave x unchanged. copy_(x[0], y) writes.
  /// @{
  /// Rebinds this handle to the other tensor; copy_() writes elements.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & = default;
  /// @}

  /// Creates a tensor with the given elements, row-major. T is one of the eight dtypes' C++ types. Throws Error unless values.size() ==
  /// numel(shape).
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape, Device device = default_device());
  /// As from a span.
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, Device device = default_device()) {
    return from(std::span<const T>(values), shape, device);
  }
  /// As from a span: Tensor::from({1.f, 2.f, 3.f}, {3}).
  template <class T>
  static Tensor from(std::initializer_list<T> values, const Shape& shape, Device device = default_device()) {
    return from(std::span<const T>(values.begin(), values.size()), shape, device);
  }
  /// Creates a bool tensor, whose elements are one byte each.
  static Tensor from(const std::vector<bool>& values, const Shape& shape, Device device = default_device());
  /// Creates a zero-dimensional tensor.
  template <class T>
  static Tensor scalar(T value, Device device = default_device()) {
    return from(std::span<const T>(&value, 1), {}, device);
  }

  bool defined() const noexcept { return bool(impl_); }      ///< false for Tensor(), on which only this, is_same() and ref() may be called
  const Shape& shape() const { return impl().shape; }        ///< sizes of the dimensions
  const Strides& strides() const { return impl().strides; }  ///< in elements; negative if a view runs backwards, 0 if it repeats
  int dims() const { return impl().shape.size(); }           ///< number of dimensions, 0 to 8
  /// Size of a dimension; -1 is the last one.
  std::int64_t size(int dim) const;
  std::int64_t numel() const { return tern::numel(impl().shape); }   ///< number of elements; 1 for the zero-dimensional shape
  DType dtype() const { return impl().dtype; }                       ///< dtype of the elements
  Device device() const { return impl().storage->stream().device; }  ///< device of the memory
  /// True if the elements are in row-major order without gaps; strides of dimensions of size 1 are ignored.
  bool is_contiguous() const { return tern::is_contiguous(impl().shape, impl().strides); }
  /// True for handles of the same tensor.
  bool is_same(const Tensor& other) const noexcept { return impl_ == other.impl_; }

  /// The view that kernels take, with the current stream of the tensor's device.
  View view() const;
  /// Address of the first element. Throws Error unless T is the tensor's type.
  template <class T>
  T* data() const;

  /// Copies the elements to the host in row-major order; waits for the device. Throws Error unless T is the tensor's type.
  template <class T>
  std::vector<T> to_vector() const;
  /// The only element, converted to T; waits for the device. Throws Error unless there is exactly one, and for a value that T cannot
  /// represent: a NaN as an integer, or an integer above 2^24 that is not a float.
  template <class T = float>
  T item() const;

  /// View of another window on the same storage, without history: results computed from it give this tensor no gradient. Views with history
  /// are ops (ops/view.h). Bounds are checked.
  Tensor window(const Shape& shape, const Strides& strides, std::int64_t offset) const;
  /// Position of the first element in the storage, in elements.
  std::int64_t offset() const { return impl().offset; }
  /// Number of in-place edits of the storage so far.
  std::uint32_t version() const { return impl().storage->version(); }

  // Indexing and the most frequent ops, as members (defined in ops/).

  /// The slice at an index along the first dimension: a view, as select(x, 0, index).
  Tensor operator[](std::int64_t index) const;
  /// The part of the tensor that an index selects: ops/index.h.
  Tensor operator[](const Index& index) const;
  /// The part of the tensor that indices for the first dimensions select: x[{Slice(), 0}].
  Tensor operator[](std::initializer_list<Index> indices) const;
  /// tern::sum (ops/reduce.h).
  Tensor sum(const Dims& dims = {}, bool keepdim = false) const;
  /// tern::mean (ops/reduce.h).
  Tensor mean(const Dims& dims = {}, bool keepdim = false) const;
  /// tern::reshape (ops/view.h): a view where the strides allow it.
  Tensor reshape(const Shape& shape) const;
  /// Transpose of the last two dimensions. Throws Error for fewer dimensions.
  Tensor T() const;
  /// The tensor on a device, itself if it is there already; gradients flow back (ops/factory.h).
  Tensor to(Device device) const;
  /// The tensor in a dtype, itself if it has it already; gradients flow back between floating dtypes (ops/factory.h).
  Tensor to(DType dtype) const;

  // Autograd (defined in autodiff/).

  /// True for a leaf that requires a gradient, and for results computed from one.
  bool requires_grad() const;
  /// Makes a floating leaf require a gradient, or freezes a parameter. Returns the tensor, for chaining.
  Tensor& set_requires_grad(bool requires_grad = true);
  /// True unless an op recorded how this tensor was made.
  bool is_leaf() const;
  /// Accumulated gradient of a leaf; undefined before the first backward.
  Tensor grad() const;
  /// Replaces the gradient of a leaf; an undefined one clears it. Throws Error for another shape, dtype or device than the leaf's.
  void set_grad(const Tensor& gradient);
  /// View of the same memory without history.
  Tensor detach() const;
  /// Backpropagation: adds the gradient of this tensor to every leaf that it was computed from. A tensor with more than one element needs
  /// `gradient`. The graph is freed unless `retain_graph`. `create_graph` makes the gradients differentiable; a leaf with such a gradient
  /// keeps itself alive until set_grad({}).
  void backward(const Tensor& gradient = {}, bool retain_graph = false, bool create_graph = false) const;

  TensorImpl& impl() const;                                      ///< shared state; throws Error for an undefined tensor
  const Ref<TensorImpl>& ref() const noexcept { return impl_; }  ///< null for an undefined tensor

 private:
  Ref<TensorImpl> impl_;
};

/// List of tensors: several outputs, gradients, a module's parameters.
using Tensors = std::vector<Tensor>;

/// List of tensors as an argument: in braces, a vector or one tensor.
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

/// Tensor with the name that it is saved under.
struct NamedTensor {
  std::string name;  ///< `blocks.0.attn.qkv.weight`
  Tensor tensor;     ///< a handle: writing to it writes to the model's tensor
};

/// Dtype and device of a new tensor, for factories: zeros({2, 3}, {.dtype = DType::f64, .device = cuda()}).
struct TensorOptions {
  DType dtype = DType::f32;          ///< dtype of the elements
  Device device = default_device();  ///< the CPU outside of a DeviceScope
};

/// @{
/// New tensor with uninitialized memory.
Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = default_device());
inline Tensor empty(const Shape& shape, const TensorOptions& options) { return empty(shape, options.dtype, options.device); }
/// @}
/// Uninitialized tensor of x's shape, dtype and device; row-major for any strides of x.
inline Tensor empty_like(const Tensor& x) { return empty(x.shape(), x.dtype(), x.device()); }

/// Converts a dimension, negative ones counting from the last, to [0, dims). Throws Error that names `where` if it is out of range.
int normalize_dim(int dim, int dims, const char* where);

/// Shape that both broadcast to: dimensions are matched from the last, and a size of 1 is repeated. Throws Error that names `where` and
/// both shapes if they do not match.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* where);
/// Strides by which x is read in a shape that it broadcasts to: 0 along the dimensions that repeat it.
Strides broadcast_strides(const Tensor& x, const Shape& shape);

/// @{
/// Throws Error that names `where` and both devices unless all defined tensors are on one device.
void check_one_device(const char* where, std::initializer_list<const Tensor*> tensors);
void check_one_device(const char* where, std::span<const Tensor> tensors);
/// @}

/// Prints the elements with at most 4 digits after the point, large tensors abbreviated, and dtype, shape and device.
std::ostream& operator<<(std::ostream& out, const Tensor& x);
/// The text that operator<< prints.
std::string to_string(const Tensor& x);
/// @{
/// `(4, 8)`, `f32` and `cuda:0`.
std::ostream& operator<<(std::ostream& out, const Shape& shape);
std::ostream& operator<<(std::ostream& out, DType dtype);
std::ostream& operator<<(std::ostream& out, Device device);
/// @}

/// Waits until all work queued on the device's current stream is done.
void synchronize(Device device);
/// Memory use of the device, as counted by its allocator.
backend::MemoryStatistics memory_statistics(Device device);
/// Resets the peak of the device's memory use to its current use.
void reset_peak_memory(Device device);

/// View of x; if x is undefined, a view without data, which is an absent operand.
inline View view_of(const Tensor& x) { return x.defined() ? x.view() : View{}; }

/// Range that a window covers, in elements from its first one.
struct Extent {
  std::int64_t low = 0;   ///< first element
  std::int64_t high = 0;  ///< one past the last
};
/// Extent of a window; none if it is invalid: sizes and strides that do not match, a negative size, or numbers beyond 64 bits.
std::optional<Extent> extent_of(const Shape& shape, const Strides& strides);

/// Overlap of two sets of elements in memory.
enum class Overlap : std::uint8_t {
  none,
  whole,      ///< the same window: the same elements in the same order
  partial,    ///< some elements are shared, but not in the same order
  undecided,  ///< a bounded search found no answer
};

/// Overlap of a tensor's elements among themselves.
Overlap overlap(const Tensor& x);
/// Overlap of the elements of two tensors.
Overlap overlap(const Tensor& a, const Tensor& b);

}  // namespace tern
