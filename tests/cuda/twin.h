#pragma once
#include <cstddef>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "tensor/view.h"

namespace tern::cuda_test {

inline constexpr Stream gpu_stream{cuda(), nullptr};

/// A tensor's memory twice, on the CPU and on the GPU, with guard elements around it. A kernel runs on both; then the elements must
/// agree, and everything around them and between them must be as it was.
class Twin {
 public:
  Twin(DType dtype, const Shape& shape) : Twin(dtype, shape, contiguous_strides(shape)) {}
  /// `shift` moves the first element off its alignment.
  Twin(DType dtype, const Shape& shape, const Strides& strides, int shift = 0);
  ~Twin();
  Twin(Twin&& other) noexcept;
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;

  /// Random numbers everywhere, guards included. Integers are rounded; bool is the number's parity.
  Twin& randomize(unsigned seed, double low = -2, double high = 2);
  /// One element, by its row-major position.
  Twin& set(std::int64_t position, double value);
  double get(std::int64_t position) const;  ///< of the CPU's copy

  View host() const;
  View device() const;
  /// Brings the CPU's memory to the GPU. Before the kernels run.
  Twin& upload();
  /// "" if the GPU's elements are the CPU's within tolerance * (1 + |x|), and nothing else was written on the GPU since the upload.
  std::string difference(double tolerance = 0) const;
  /// The GPU's memory as it is.
  std::vector<std::byte> download() const;

 private:
  std::int64_t at(std::int64_t position) const;  ///< in elements from the start of the memory
  double read(const std::vector<std::byte>& memory, std::int64_t at) const;

  DType dtype_;
  Shape shape_;
  Strides strides_;
  std::int64_t first_ = 0;
  std::vector<std::byte> memory_, uploaded_;
  void* device_ = nullptr;
};

/// The tolerance between two devices for one operation on the dtype.
double tolerance(DType dtype);

/// Strides of the kinds that kernels meet. `permuted`: the dimensions lie in memory in the given order, outermost first;
/// `gapped`: every second element of rows twice as long; `reversed`: each dimension runs backwards.
Strides permuted(const Shape& shape, std::initializer_list<int> order);
Strides gapped(const Shape& shape);
Strides reversed(const Shape& shape);

inline constexpr DType floats[] = {DType::f32, DType::f64, DType::f16, DType::bf16};
inline constexpr DType integers[] = {DType::i32, DType::i64, DType::u8};
inline constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean};

}  // namespace tern::cuda_test
