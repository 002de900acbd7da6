#include "tensor/from_blob.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backend/memory.h"
#include "tensor/checked.h"
#include "tensor/context.h"
#include "tensor/overlap.h"

namespace tern {

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
