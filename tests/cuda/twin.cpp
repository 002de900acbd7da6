#include "twin.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "backend/memory.h"
#include "tensor/dispatch.h"

namespace tern::cuda_test {

namespace {

constexpr std::int64_t guard = 64;

/// Begin and end of the window, relative to its first element.
std::pair<std::int64_t, std::int64_t> extent(const Shape& shape, const Strides& strides) {
  std::int64_t low = 0, high = 1;
  if (numel(shape) == 0) return {0, 0};
  for (int d = 0; d < shape.size(); ++d) (strides[d] < 0 ? low : high) += (shape[d] - 1) * strides[d];
  return {low, high};
}

}  // namespace

Twin::Twin(DType dtype, const Shape& shape, const Strides& strides, int shift) : dtype_(dtype), shape_(shape), strides_(strides) {
  const auto [low, high] = extent(shape, strides);
  first_ = guard + shift - low;
  memory_.assign(static_cast<std::size_t>(first_ + high + guard) * size_of(dtype), std::byte(0xa5));
  if (dtype == DType::boolean) std::fill(memory_.begin(), memory_.end(), std::byte(1));
  device_ = backend::allocate(Cuda{}, memory_.size(), gpu_stream);
}

Twin::~Twin() {
  if (device_) backend::deallocate(Cuda{}, device_, memory_.size(), gpu_stream);
}

Twin::Twin(Twin&& other) noexcept
    : dtype_(other.dtype_),
      shape_(other.shape_),
      strides_(other.strides_),
      first_(other.first_),
      memory_(std::move(other.memory_)),
      uploaded_(std::move(other.uploaded_)),
      device_(std::exchange(other.device_, nullptr)) {}

std::int64_t Twin::at(std::int64_t position) const {
  std::int64_t result = first_;
  for (int d = shape_.size() - 1; d >= 0; --d) {
    result += position % shape_[d] * strides_[d];
    position /= shape_[d];
  }
  return result;
}

double Twin::read(const std::vector<std::byte>& memory, std::int64_t at) const {
  return dispatch_all(
      dtype_, [&]<class T>() { return static_cast<double>(static_cast<compute_t<T>>(reinterpret_cast<const T*>(memory.data())[at])); });
}

static void write(std::vector<std::byte>& memory, DType dtype, std::int64_t at, double value) {
  dispatch_all(dtype, [&]<class T>() {
    T& element = reinterpret_cast<T*>(memory.data())[at];
    if constexpr (std::is_same_v<T, bool>) element = static_cast<std::int64_t>(value) % 2 != 0;
    else if constexpr (std::is_arithmetic_v<T>) element = static_cast<T>(value);
    else element = T(static_cast<float>(value));
  });
}

Twin& Twin::randomize(unsigned seed, double low, double high) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  const bool whole = !is_floating(dtype_);
  if (dtype_ == DType::u8 || dtype_ == DType::boolean)
    uniform = std::uniform_real_distribution<double>(std::max(low, 0.0), std::max(high, 2.0));
  const auto count = static_cast<std::int64_t>(memory_.size() / size_of(dtype_));
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = uniform(generator);
    write(memory_, dtype_, i, whole ? std::floor(value) : value);
  }
  return *this;
}

Twin& Twin::set(std::int64_t position, double value) {
  write(memory_, dtype_, at(position), value);
  return *this;
}

double Twin::get(std::int64_t position) const { return read(memory_, at(position)); }

View Twin::host() const {
  const auto offset = first_ * static_cast<std::int64_t>(size_of(dtype_));
  return {const_cast<std::byte*>(memory_.data()) + offset, shape_, strides_, dtype_, Stream{cpu, nullptr}};
}

View Twin::device() const {
  const auto offset = first_ * static_cast<std::int64_t>(size_of(dtype_));
  return {static_cast<std::byte*>(device_) + offset, shape_, strides_, dtype_, gpu_stream};
}

Twin& Twin::upload() {
  uploaded_ = memory_;
  backend::copy_from_host(Cuda{}, device_, memory_.data(), memory_.size(), gpu_stream);
  return *this;
}

std::vector<std::byte> Twin::download() const {
  std::vector<std::byte> result(memory_.size());
  backend::copy_to_host(Cuda{}, result.data(), device_, result.size(), gpu_stream);
  return result;
}

std::string Twin::difference(double tolerance) const {
  const std::vector<std::byte> got = download();
  const std::size_t size = size_of(dtype_);
  std::vector<bool> inside(memory_.size() / size);
  for (std::int64_t i = 0; i < numel(shape_); ++i) {
    const std::int64_t where = at(i);
    inside[static_cast<std::size_t>(where)] = true;
    const double want = read(memory_, where), have = read(got, where);
    const bool equal = want != want ? have != have : want == have || std::abs(want - have) <= tolerance * (1 + std::abs(want));
    if (!equal)
      return std::string(name(dtype_)) + " " + to_string(shape_) + " element " + std::to_string(i) + ": expected " + std::to_string(want) +
             " but got " + std::to_string(have);
  }
  for (std::size_t i = 0; i < inside.size(); ++i)
    if (!inside[i] && std::memcmp(got.data() + i * size, uploaded_.data() + i * size, size) != 0)
      return "written outside the tensor, " + std::to_string(static_cast<std::int64_t>(i) - first_) + " elements from its first";
  return {};
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f32: return 1e-5;
    case DType::f64: return 1e-12;
    case DType::f16: return 2e-3;
    case DType::bf16: return 1.6e-2;
    default: return 0;
  }
}

Strides permuted(const Shape& shape, std::initializer_list<int> order) {
  Strides strides = Strides::filled(shape.size(), 1);
  std::int64_t step = 1;
  for (const int* d = order.end(); d != order.begin();) {
    --d;
    strides[*d] = step;
    step *= shape[*d];
  }
  return strides;
}

Strides gapped(const Shape& shape) {
  Strides strides = contiguous_strides(shape);
  for (std::int64_t& stride : strides) stride *= 2;
  return strides;
}

Strides reversed(const Shape& shape) {
  Strides strides = contiguous_strides(shape);
  for (std::int64_t& stride : strides) stride = -stride;
  return strides;
}

}  // namespace tern::cuda_test
