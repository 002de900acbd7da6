#include "autodiff/parameter_buffer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "autodiff/autograd_state.h"
#include "backend/observer.h"

namespace tern {

static std::int64_t alignment_in_elements(DType dtype) { return static_cast<std::int64_t>(flat_alignment / size_of(dtype)); }

std::int64_t padded_size(std::int64_t count, DType dtype) {
  const std::int64_t unit = alignment_in_elements(dtype);
  return (count + unit - 1) / unit * unit;
}

std::int64_t padded_size(const Tensors& parameters, DType dtype) {
  std::int64_t total = 0;
  for (const Tensor& x : parameters) total += padded_size(x.numel(), dtype);
  return total;
}

Tensors windows_of(const Tensor& buffer, const Tensors& parameters, DType dtype) {
  Tensors windows;
  std::int64_t offset = 0;
  for (const Tensor& x : parameters) {
    windows.push_back(buffer.window(x.shape(), contiguous_strides(x.shape()), offset));
    offset += padded_size(x.numel(), dtype);
  }
  return windows;
}

static Tensor flat_empty(std::int64_t count, DType dtype, Device device) {
  auto impl = make_ref<TensorImpl>();
  impl->storage = make_ref<FlatStorage>(static_cast<std::size_t>(count) * size_of(dtype), context().stream(device));
  impl->shape = {count};
  impl->strides = {1};
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

Tensor flat_zeros(std::int64_t count, DType dtype, Device device) {
  const Tensor x = flat_empty(count, dtype, device);
  detail::fill_gradient(x, 0);
  return x;
}

Tensor flat_freed(std::int64_t count, DType dtype, Device device) {
  const Tensor x = flat_empty(count, dtype, device);
  flat_storage(x)->free();
  return x;
}

/// For observers, to which memory is at one address.
static void tell_of_moves() {
  if (backend::observer) backend::tell([](backend::Observer& told) { told.on_host_access("sharded gradients or parameters", {}); });
}
void FlatStorage::free() {
  tell_of_moves();
  free_memory();
}
void FlatStorage::take(const Tensor& memory) {
  tell_of_moves();
  take_memory(*memory.impl().storage);
}
void FlatStorage::allocate() {
  if (is_here()) return;
  FlatStorage memory(bytes(), context().stream(stream().device));
  take_memory(memory);
}

FlatStorage* flat_storage(const Tensor& x) { return dynamic_cast<FlatStorage*>(x.impl().storage.get()); }

Tensor master_of(const Tensor& x) {
  const FlatStorage* storage = flat_storage(x);
  if (!storage || !storage->masters.defined() || size_of(x.dtype()) != 2) return {};
  return storage->masters.window(x.shape(), contiguous_strides(x.shape()), x.offset());
}

bool is_adjacent(const Tensor& previous, const Tensor& next) {
  if (!(previous.impl().storage == next.impl().storage) || previous.dtype() != next.dtype()) return false;
  const std::int64_t gap = next.offset() - (previous.offset() + previous.numel());
  return gap == 0 || (gap > 0 && gap < alignment_in_elements(next.dtype()) && is_flat(next));
}

Tensor segment_between(const Tensor& first, const Tensor& last) {
  return first.window({last.offset() + last.numel() - first.offset()}, {1}, first.offset());
}

Tensor elements_of(const Tensor& x, std::int64_t begin, std::int64_t end) { return x.window({end - begin}, {1}, x.offset() + begin); }

Place place_of(const Tensor& x) {
  const FlatStorage* const flat = flat_storage(x);
  return {x.impl().storage.get(), x.offset(), flat && flat->gather ? nullptr : x.view().data};
}

std::vector<std::size_t> order_in_memory(const Tensors& tensors) {
  std::unordered_map<const Storage*, std::size_t> first;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    first.emplace(tensors[i].impl().storage.get(), i);
    order.push_back(i);
  }
  const auto place = [&](std::size_t i) { return std::pair(first.at(tensors[i].impl().storage.get()), tensors[i].offset()); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  return order;
}

Tensors contiguous_segments(const Tensors& tensors) {
  const std::vector<std::size_t> order = order_in_memory(tensors);
  Tensors segments;
  for (std::size_t first = 0, last; first < order.size(); first = last + 1) {
    for (last = first; last + 1 < order.size() && is_adjacent(tensors[order[last]], tensors[order[last + 1]]);) ++last;
    segments.push_back(segment_between(tensors[order[first]], tensors[order[last]]));
  }
  return segments;
}

}  // namespace tern
