#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "backend/device.h"
#include "backend/error.h"
#include "tensor/dtype.h"
#include "tensor/sizes.h"

// Shapes and strides, and the views that kernels take.
namespace tern {

namespace detail {
[[noreturn]] void fail_index(int index, int size);
}

/// Vector of at most max_dims numbers, without heap memory and trivially copyable, so that a kernel can take it by value.
template <class T>
class DimVec {
 public:
  constexpr DimVec() = default;
  /// Numbers in braces: Shape{4, 8}. Throws Error for more than max_dims.
  constexpr DimVec(std::initializer_list<T> values) {
    for (T value : values) push_back(value);
  }
  /// A single dimension as a list: sum(x, 1). Shape lacks this conversion, because a number is no shape.
  template <std::same_as<int> I>
    requires std::same_as<T, int>
  constexpr DimVec(I dim) {
    push_back(dim);
  }
  /// The numbers of a range, each converted to T. Throws Error for more than max_dims.
  template <class Iterator>
  constexpr DimVec(Iterator first, Iterator last) {
    for (; first != last; ++first) push_back(static_cast<T>(*first));
  }
  /// `size` times the same value. Throws Error for more than max_dims.
  static constexpr DimVec filled(int size, T value) {
    DimVec result;
    for (int i = 0; i < size; ++i) result.push_back(value);
    return result;
  }

  constexpr int size() const { return size_; }         ///< number of values
  constexpr bool empty() const { return size_ == 0; }  ///< true for the shape () of a zero-dimensional tensor
  /// @{
  /// Throws Error for an index out of range.
  constexpr T& operator[](int i) { return values_[checked(i)]; }
  constexpr const T& operator[](int i) const { return values_[checked(i)]; }
  /// @}
  /// @{
  /// The last number. Throws Error if there is none.
  constexpr T& back() { return (*this)[size_ - 1]; }
  constexpr const T& back() const { return (*this)[size_ - 1]; }
  /// @}
  /// @{
  /// The numbers as a range, in order.
  constexpr T* begin() { return values_; }
  constexpr T* end() { return values_ + size_; }
  constexpr const T* begin() const { return values_; }
  constexpr const T* end() const { return values_ + size_; }
  /// @}

  /// Appends a value. Throws Error if there are max_dims already.
  constexpr void push_back(T value) {
    if (size_ == max_dims) fail("shape", "expected at most 8 dimensions");
    values_[size_++] = value;
  }
  /// Removes the last value. Throws Error if there is none.
  constexpr void pop_back() { size_ = checked(size_ - 1); }
  /// Inserts a value before the one at `position`, at most size(). Throws Error if there are max_dims already.
  constexpr void insert(int position, T value) {
    push_back(value);
    checked(position);
    for (int i = size_ - 1; i > position; --i) values_[i] = values_[i - 1];
    values_[position] = value;
  }
  /// Removes the value at a position. Throws Error for a position out of range.
  constexpr void erase(int position) {
    checked(position);
    for (int i = position; i + 1 < size_; ++i) values_[i] = values_[i + 1];
    --size_;
  }

  /// True if size and all values are equal.
  friend constexpr bool operator==(const DimVec& a, const DimVec& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i)
      if (a.values_[i] != b.values_[i]) return false;
    return true;
  }

 private:
  constexpr int checked(int i) const {
#ifndef __CUDA_ARCH__
    if (static_cast<unsigned>(i) >= static_cast<unsigned>(size_)) [[unlikely]]
      detail::fail_index(i, size_);
#endif
    return i;
  }

  T values_[max_dims] = {};
  int size_ = 0;
};

using Shape = DimVec<std::int64_t>;    ///< sizes of a tensor's dimensions, the slowest first
using Strides = DimVec<std::int64_t>;  ///< steps of the dimensions in memory, in elements, not bytes
/// List of dimensions, as a set or an order; negative entries count from the last.
using Dims = DimVec<int>;

/// Number of elements; 1 for the zero-dimensional shape.
constexpr std::int64_t numel(const Shape& shape) {
  std::int64_t count = 1;
  for (std::int64_t size : shape) count *= size;
  return count;
}

/// @{
/// Sum or product of two sizes. Throws Error that names `where` if it does not fit into 64 bits.
std::int64_t checked_add(const char* where, std::int64_t a, std::int64_t b);
std::int64_t checked_mul(const char* where, std::int64_t a, std::int64_t b);
/// @}
/// Product of sizes >= 0 and of `factor`, in which a size of 0 counts as 1, so that the strides of an empty tensor fit too; nothing if a
/// size is negative or the product does not fit into 64 bits.
template <class Sizes>
std::optional<std::int64_t> checked_product(const Sizes& sizes, std::int64_t factor = 1) {
  for (const std::int64_t size : sizes)
    if (size < 0 || __builtin_mul_overflow(factor, size > 1 ? size : 1, &factor)) return std::nullopt;
  return factor;
}

/// Strides of a row-major tensor of this shape, in elements.
constexpr Strides contiguous_strides(const Shape& shape) {
  Strides strides = Strides::filled(shape.size(), 1);
  for (int i = shape.size() - 2; i >= 0; --i) strides[i] = strides[i + 1] * (shape[i + 1] > 1 ? shape[i + 1] : 1);
  return strides;
}

/// True if the elements are in row-major order without gaps; strides of dimensions of size 1 are ignored.
constexpr bool is_contiguous(const Shape& shape, const Strides& strides) {
  std::int64_t expected = 1;
  if (numel(shape) == 0) return true;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

/// @{
/// Text of the values: `(4, 8)`; `(3,)` for one dimension and `()` for none.
std::string to_string(const DimVec<std::int64_t>& values);
std::string to_string(const DimVec<int>& values);
/// @}

/// A tensor as a kernel sees it: memory, geometry, dtype and the stream to run on. Strides are in elements, and may be zero (broadcast) or
/// negative. Trivially copyable.
struct View {
  void* data = nullptr;      ///< address of the first element, on the stream's device
  Shape shape;               ///< sizes of the dimensions
  Strides strides;           ///< strides of the dimensions, in elements
  DType dtype = DType::f32;  ///< dtype of the elements
  Stream stream;             ///< stream that kernels on this tensor are queued on

  /// Without data: an absent operand.
  View() = default;
  /// Of all fields, unchecked.
  View(void* data_, const Shape& shape_, const Strides& strides_, DType dtype_, Stream stream_)
      : data(data_), shape(shape_), strides(strides_), dtype(dtype_), stream(stream_) {}

  /// Address as a pointer to T, unchecked: the caller has dispatched on dtype.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int dims() const { return shape.size(); }                  ///< number of dimensions, 0 to 8
  std::int64_t numel() const { return tern::numel(shape); }  ///< number of elements
  /// True if the elements are in row-major order without gaps, so that one loop over numel() of them reaches all.
  bool is_contiguous() const { return tern::is_contiguous(shape, strides); }
};

/// Mode of a kernel's output: overwrite it, or add to it.
enum class Write : std::uint8_t { overwrite, accumulate };

}  // namespace tern
