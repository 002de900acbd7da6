#include "tensor/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "backend/memory.h"
#include "tensor/context.h"
#include "tensor/dispatch.h"
#include "tensor/from_blob.h"
#include "tensor/kernel.h"
#include "tensor/random.h"
#include "tensor/view.h"

namespace tern {

template <class T>
static std::string join(const DimVec<T>& values) {
  return values.size() == 1 ? fmt::format("({},)", values[0]) : fmt::format("({})", fmt::join(values.begin(), values.end(), ", "));
}
void detail::fail_index(int index, int size) { fail("shape", fmt::format("expected an index in [0, {}) but got {}", size, index)); }
std::string to_string(const Shape& values) { return join(values); }
std::string to_string(const Dims& values) { return join(values); }

std::int64_t checked_add(const char* where, std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum))
    fail(where, "expected sizes that fit into 64 bits but got " + std::to_string(a) + " + " + std::to_string(b));
  return sum;
}

std::int64_t checked_mul(const char* where, std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    fail(where, "expected sizes that fit into 64 bits but got " + std::to_string(a) + " * " + std::to_string(b));
  return product;
}

bool detail::holds(DType dtype, double number) {
  if (is_floating(dtype)) return true;
  if (number != std::floor(number)) return false;
  switch (dtype) {
    case DType::boolean: return number == 0 || number == 1;
    case DType::u8: return number >= 0 && number <= 255;
    case DType::i32: return number >= -0x1p31 && number < 0x1p31;
    default: return number >= -0x1p63 && number < 0x1p63;
  }
}

bool detail::takes(DType dtype, double number) { return dtype == DType::boolean || holds(dtype, std::trunc(number)); }

Context& context() noexcept {
  thread_local Context instance;
  return instance;
}

static std::atomic<std::uint64_t> changes_of_modes = 0;
std::uint64_t mode_changes() noexcept { return changes_of_modes.load(std::memory_order_relaxed); }
void count_mode_change() noexcept { changes_of_modes.fetch_add(1, std::memory_order_relaxed); }

PhiloxState Generator::reserve_rows(std::int64_t count) {
  if (rows_.count < 1 || count % rows_.count != 0)
    fail("random", "expected a tensor of " + std::to_string(rows_.count) + " rows, a part of a batch, but got " + std::to_string(count) +
                       " elements");
  const std::int64_t of_row = count / rows_.count, before = checked_mul("random", rows_.first, of_row);
  if (before % 4 != 0)
    fail("random",
         "expected a part of a batch to begin at a multiple of four elements but got one that begins at " + std::to_string(before));
  const PhiloxState state{seed_, next_ + static_cast<std::uint64_t>(before / 4), base_};
  next_ += positions_of(checked_mul("random", rows_.total, of_row));
  return state;
}

void synchronize(Device device) {
  with_backend(device, [&](auto dev) { backend::synchronize(dev, context().stream(device)); });
}

backend::MemoryStatistics memory_statistics(Device device) {
  return with_backend(device, [&](auto dev) { return backend::memory_statistics(dev, device); });
}

void reset_peak_memory(Device device) {
  with_backend(device, [&](auto dev) { backend::reset_peak_memory(dev, device); });
}

Storage::Storage(std::size_t bytes, Stream stream) : bytes_(bytes), stream_(stream) {
  if (bytes > 0) data_ = with_backend(stream.device, [&](auto dev) { return backend::allocate(dev, bytes, stream); });
}

Storage::~Storage() { free_memory(); }

void Storage::fail_freed() {
  fail("data",
       "expected memory but it is freed: sharded parameters have theirs in the forward and the backward of their module, after "
       "DataParallel::gather(), and only as long as the DataParallel lives");
}

void Storage::free_memory() {
  if (data_) with_backend(stream_.device, [&](auto dev) { backend::deallocate(dev, data_, bytes_, stream_); });
  data_ = nullptr;
}

void Storage::take_memory(Storage& other) {
  if (other.bytes_ != bytes_ || other.stream_.device != stream_.device)
    fail("Storage", fmt::format("expected memory of {} bytes on {} but got {} on {}", bytes_, to_string(stream_.device), other.bytes_,
                                to_string(other.stream_.device)));
  free_memory();
  data_ = std::exchange(other.data_, nullptr);
  stream_ = other.stream_;
}

Tensor empty(const Shape& shape, DType dtype, Device device) {
  const std::optional<std::int64_t> bytes = checked_product(shape, static_cast<std::int64_t>(size_of(dtype)));
  if (!bytes) {
    for (std::int64_t size : shape)
      if (size < 0) fail("empty", fmt::format("expected sizes >= 0 but got {}", to_string(shape)));
    fail("empty", fmt::format("expected a shape whose size fits in memory but got {}", to_string(shape)));
  }
  if (backend::observer) backend::tell([](backend::Observer& told) { told.begin_allocation(); });
  auto impl = make_ref<TensorImpl>();
  impl->storage = make_ref<Storage>(numel(shape) == 0 ? 0 : static_cast<std::size_t>(*bytes), context().stream(device));
  impl->shape = shape;
  impl->strides = contiguous_strides(shape);
  impl->dtype = dtype;
  if (backend::observer) backend::tell([&](backend::Observer& told) { told.end_allocation(impl->storage); });
  return Tensor(std::move(impl));
}

TensorImpl& Tensor::impl() const {
  if (!impl_) fail("tensor", "expected a defined tensor but got an undefined one");
  return *impl_;
}

std::int64_t Tensor::size(int dim) const { return shape()[normalize_dim(dim, dims(), "size")]; }

/// Address of the first element.
static void* address_of(const TensorImpl& x) {
  if (backend::observer) [[unlikely]]
    backend::tell([&](backend::Observer& told) { told.on_view(x.storage); });
  return static_cast<char*>(x.storage->data()) + x.offset * static_cast<std::int64_t>(size_of(x.dtype));
}

View Tensor::view() const {
  const TensorImpl& self = impl();
  return {address_of(self), self.shape, self.strides, self.dtype, context().stream(device())};
}

// Not by view(), whose result a base class would copy.
template <kernels::Access access>
kernels::Argument<access>::Argument(const Tensor& x)
    : View(address_of(x.impl()), x.shape(), x.strides(), x.dtype(), context().stream(x.device())) {}
template kernels::In::Argument(const Tensor& x);
template kernels::Out::Argument(const Tensor& x);
template kernels::InOut::Argument(const Tensor& x);

Tensor Tensor::window(const Shape& new_shape, const Strides& new_strides, std::int64_t new_offset) const {
  const std::optional<Extent> touched = extent_of(new_shape, new_strides);
  const auto elements = static_cast<std::int64_t>(impl().storage->bytes() / size_of(dtype()));
  if (!touched || new_offset < -touched->low || new_offset > elements - touched->high)
    fail("window", fmt::format("expected a window inside a storage of {} elements but got shape {}, strides {}, offset {}", elements,
                               to_string(new_shape), to_string(new_strides), new_offset));
  auto result = make_ref<TensorImpl>();
  result->storage = impl().storage;
  result->offset = new_offset;
  result->shape = new_shape;
  result->strides = new_strides;
  result->dtype = dtype();
  return Tensor(std::move(result));
}

/// Tells the observers that `function` reads or writes elements of x on the host.
static void tell_host_access(const char* function, const Tensor& x) {
  if (backend::observer) backend::tell([&](backend::Observer& told) { told.on_host_access(function, x.impl().storage); });
}

template <class T>
static void check_type(const Tensor& x, const char* where) {
  if (x.dtype() != dtype_of<T>) fail(where, fmt::format("expected a tensor of {} but got {}", name(dtype_of<T>), name(x.dtype())));
}

template <class Value>
Value* Tensor::data() const {
  check_type<Value>(*this, "data");
  tell_host_access("data", *this);
  return view().as<Value>();
}

template <class Value>
Tensor Tensor::from(std::span<const Value> values, const Shape& shape, Device device) {
  Tensor result = empty(shape, dtype_of<Value>, device);
  if (static_cast<std::int64_t>(values.size()) != result.numel())
    fail("from", fmt::format("expected {} values for shape {} but got {}", result.numel(), to_string(shape), values.size()));
  tell_host_access("from", result);
  if (!values.empty())
    with_backend(device, [&](auto dev) {
      const View y = result.view();
      backend::copy_from_host(dev, y.data, values.data(), values.size_bytes(), y.stream);
    });
  return result;
}

Tensor Tensor::from(const std::vector<bool>& values, const Shape& shape, Device device) {
  const auto bytes = std::make_unique<bool[]>(values.size());  // std::vector<bool> has no array of bool
  std::copy(values.begin(), values.end(), bytes.get());
  return from(std::span<const bool>(bytes.get(), values.size()), shape, device);
}

template <class Value>
std::vector<Value> Tensor::to_vector() const {
  check_type<Value>(*this, "to_vector");
  tell_host_access("to_vector", *this);
  std::vector<Value> result(static_cast<std::size_t>(numel()));
  if (result.empty()) return result;
  // One copy of the covered range, then a walk over it: reading a strided window needs no kernel.
  const auto [low, high] = *extent_of(shape(), strides());
  const View x = view();
  // std::vector<bool> has no data(): a vector of bytes works for every type.
  std::vector<unsigned char> range(static_cast<std::size_t>(high - low) * sizeof(Value));
  with_backend(device(), [&](auto dev) { backend::copy_to_host(dev, range.data(), x.as<Value>() + low, range.size(), x.stream); });
  const Value* origin = reinterpret_cast<const Value*>(range.data()) - low;
  DimVec<std::int64_t> index = Shape::filled(dims(), 0);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = origin[at];
    for (int d = dims() - 1; d >= 0; --d) {
      at += x.strides[d];
      if (++index[d] < x.shape[d]) break;
      at -= x.strides[d] * x.shape[d];
      index[d] = 0;
    }
  }
  return result;
}

namespace detail {

/// True if a conversion to T is exact, or rounds to nearest if both are floats.
template <class T, class S>
static bool holds(S value) {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, S>) return true;
  else if constexpr (std::is_integral_v<T> && !std::is_integral_v<S>) {
    const auto number = static_cast<double>(value);  // NaN is out of range
    return number >= static_cast<double>(std::numeric_limits<T>::min()) && number < std::ldexp(1.0, std::numeric_limits<T>::digits);
  } else if constexpr (std::is_integral_v<T>) return std::in_range<T>(static_cast<std::int64_t>(value));
  else if constexpr (std::is_integral_v<S>) {
    const auto number = static_cast<long double>(value);  // holds every integer
    return static_cast<long double>(static_cast<T>(value)) == number;
  } else return true;
}

template <class S>
static std::string shown(S value) {
  if constexpr (std::is_integral_v<S>) return fmt::format("{}: item<std::int64_t>() gives an integer", static_cast<std::int64_t>(value));
  else return fmt::format("{}", static_cast<double>(value));
}

}  // namespace detail

template <class Value>
Value Tensor::item() const {
  if (numel() != 1) fail("item", fmt::format("expected one element but got shape {}", to_string(shape())));
  tell_host_access("item", *this);
  const View x = view();
  return dispatch_all(dtype(), [&]<class S>() {
    S value{};
    with_backend(device(), [&](auto dev) { backend::copy_to_host(dev, &value, x.data, sizeof(S), x.stream); });
    if (!detail::holds<Value>(value))
      fail("item", fmt::format("expected a number that {} holds but got {}", name(dtype_of<Value>), detail::shown(value)));
    return static_cast<Value>(value);
  });
}

template float Tensor::item<float>() const;
template double Tensor::item<double>() const;
template std::int64_t Tensor::item<std::int64_t>() const;
template std::int32_t Tensor::item<std::int32_t>() const;
template bool Tensor::item<bool>() const;

/// Instantiates the members that are templates on the element type, for the eight types.
template <class... T>
struct Instantiate {
  static constexpr auto members = std::tuple{std::tuple{
      &Tensor::data<T>, &Tensor::to_vector<T>, static_cast<Tensor (*)(std::span<const T>, const Shape&, Device)>(&Tensor::from<T>)}...};
};
template struct Instantiate<float, double, f16, bf16, std::int32_t, std::int64_t, std::uint8_t, bool>;

int normalize_dim(int dim, int dims, const char* where) {
  if (dim < -dims || dim >= dims) fail(where, fmt::format("expected a dimension in [{}, {}) but got {}", -dims, dims, dim));
  return dim < 0 ? dim + dims : dim;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* where) {
  Shape result = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  const int lead = result.size() - shorter.size();
  for (int i = 0; i < shorter.size(); ++i) {
    std::int64_t& size = result[lead + i];
    if (size == 1) size = shorter[i];
    else if (shorter[i] != 1 && shorter[i] != size)
      fail(where, fmt::format("expected shapes that broadcast but got {} and {}", to_string(a), to_string(b)));
  }
  return result;
}

Strides broadcast_strides(const Tensor& x, const Shape& shape) {
  Strides strides = Strides::filled(shape.size(), 0);
  const int lead = shape.size() - x.dims();
  for (int i = 0; i < x.dims(); ++i)
    if (x.shape()[i] == shape[lead + i]) strides[lead + i] = x.strides()[i];
  return strides;
}

static void check_device(const char* where, Device expected, const Tensor& x) {
  if (x.device() != expected)
    fail(where, fmt::format("expected tensors on one device but got {} and {}", to_string(expected), to_string(x.device())));
}

void check_one_device(const char* where, std::initializer_list<const Tensor*> tensors) {
  const Tensor* first = nullptr;
  for (const Tensor* x : tensors) {
    if (!x->defined()) continue;
    if (!first) first = x;
    check_device(where, first->device(), *x);
  }
}

void check_one_device(const char* where, std::span<const Tensor> tensors) {
  for (const Tensor& x : tensors) check_one_device(where, {&tensors[0], &x});
}

namespace {

class AdoptedStorage final : public Storage {
 public:
  /// `begin` is the lowest address, and `data` the argument of the deleter.
  AdoptedStorage(void* begin, std::size_t bytes, Stream stream, bool is_read_only, void* data, std::function<void(void*)> deleter) noexcept
      : Storage(begin, bytes, stream, is_read_only), data_(data), deleter_(std::move(deleter)) {}
  ~AdoptedStorage() override {
    release_memory();
    if (!deleter_) return;
    if (stream().device.type == DeviceType::cuda) {
      try {
        const Stream current = context().stream(stream().device);
        with_backend(current.device, [&](auto dev) { backend::synchronize(dev, current); });
      } catch (const Error&) {  // the device has failed, and no longer reads
      }
    }
    deleter_(data_);
  }

 private:
  void* data_;
  std::function<void(void*)> deleter_;
};

}  // namespace

Tensor from_blob(void* data, const Shape& shape, DType dtype, std::function<void(void*)> deleter, const BlobOptions& options) {
  for (const std::int64_t size : shape)
    if (size < 0) fail("from_blob", fmt::format("expected sizes >= 0 but got {}", to_string(shape)));
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const bool fits = checked_product(shape, element).has_value();
  Strides strides = options.strides ? *options.strides : fits ? contiguous_strides(shape) : Strides::filled(shape.size(), 1);
  if (strides.size() != shape.size())
    fail("from_blob", fmt::format("expected a stride for each of {} dimensions but got {}", shape.size(), strides.size()));
  // A stride that is never used, as there is no second element, may be any number: one within these bounds.
  constexpr std::int64_t longest = std::int64_t(1) << 48;
  for (int d = 0; fits && d < shape.size(); ++d)
    if (shape[d] <= 1 || numel(shape) == 0) strides[d] = std::clamp(strides[d], -longest, longest);
  // The storage extends from the first to the last element in memory: a negative stride leads to elements before `data`.
  const std::optional<Extent> touched = fits ? extent_of(shape, strides) : std::nullopt;
  if (!touched || touched->high - touched->low > std::numeric_limits<std::int64_t>::max() / element)
    fail("from_blob", fmt::format("expected a shape that fits in memory but got {} with strides {}", to_string(shape), to_string(strides)));
  const std::int64_t low = touched->low, elements = touched->high - low, bytes = elements * element;
  if (bytes > 0 && !data) fail("from_blob", fmt::format("expected an address for {} elements but got null", elements));
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) != 0)
    fail("from_blob",
         fmt::format("expected an address that is a multiple of {}, the size of {}: copy such memory", size_of(dtype), name(dtype)));
  if (options.device.type == DeviceType::cuda && options.device.index >= cuda_device_count())
    fail("from_blob", fmt::format("expected one of {} CUDA devices but got {}", cuda_device_count(), to_string(options.device)));

  auto impl = make_ref<TensorImpl>();
  impl->shape = shape;
  impl->strides = strides;
  impl->dtype = dtype;
  impl->offset = -low;
  void* const begin = data ? static_cast<char*>(data) + low * element : nullptr;
  // The last step: nothing throws after it, and the storage owns the deleter.
  impl->storage = make_ref<AdoptedStorage>(begin, static_cast<std::size_t>(bytes), context().stream(options.device), options.is_read_only,
                                           data, std::move(deleter));
  return Tensor(std::move(impl));
}

}  // namespace tern
