#pragma once
#include <functional>

#include "tensor/tensor.h"

namespace tern {

/// The memory of flat parameters or gradients (nn::flatten_parameters). The type says that gaps between slices are padding, and not
/// data.
class FlatStorage final : public Storage {
 public:
  using Storage::Storage;

  /// From now on the memory may go, and is to be brought back by `fetch`, which calls take() (Note [Memory on demand]).
  void set_fetch(std::function<void(FlatStorage&)> fetch) { fetch_ = std::move(fetch); }
  /// Gives the memory back; data() brings it again. Nothing without a set_fetch().
  void free_until_fetched() {
    if (fetch_) free_memory();
  }
  bool is_on_demand() const { return static_cast<bool>(fetch_); }  ///< true after set_fetch()
  /// For autocast: the 16-bit copy of a window on these parameters, of its shape, whose memory is on demand as well; undefined where there
  /// is none. May be empty.
  std::function<Tensor(const Tensor& window, DType dtype)> lowered;
  /// Takes the memory of a tensor that has all of its storage, as large as this one, which must not be used again.
  void take(const Tensor& memory) { take_memory(*memory.impl().storage); }

  Tensor masters;                     ///< of 16-bit parameters: (N), f32
  std::uint32_t masters_version = 0;  ///< this storage's when its elements were last the rounded masters

 protected:
  void fetch() override {
    if (fetch_) fetch_(*this);
  }

 private:
  std::function<void(FlatStorage&)> fetch_;
};

inline constexpr std::size_t flat_alignment = 16;  ///< bytes

/// (count) zeros in a FlatStorage.
Tensor flat_zeros(std::int64_t count, DType dtype, Device device);
/// (count) elements in a FlatStorage whose memory is away, to be fetched by `fetch`.
Tensor flat_on_demand(std::int64_t count, DType dtype, Device device, std::function<void(FlatStorage&)> fetch);
/// The storage of a window on a FlatStorage, else null.
FlatStorage* flat_storage(const Tensor& x);
/// True for a slice of flat parameters or gradients.
inline bool is_flat(const Tensor& x) { return flat_storage(x) != nullptr; }
/// The elements that a slice of that many takes with its padding.
std::int64_t padded_size(std::int64_t count, DType dtype);
/// The elements of a buffer that has all these parameters side by side, each padded.
std::int64_t padded_size(const Tensors& parameters, DType dtype);
/// The parameters' windows on a buffer laid out by padded_size() for `dtype`; masters have the layout of their 16-bit parameters.
Tensors windows_of(const Tensor& buffer, const Tensors& parameters, DType dtype);
/// The window on the masters that a contiguous 16-bit parameter is rounded from, of its shape; undefined where it has none.
Tensor master_of(const Tensor& x);

/// The place of a tensor's elements, by which a move to other memory shows. The address tells a new storage from one that is gone and stood
/// at the same place; of memory on demand it is null, as each fetch may bring another.
struct Place {
  const Storage* storage = nullptr;               ///< the block of memory
  std::int64_t offset = 0;                        ///< of the first element in it, in elements
  const void* address = nullptr;                  ///< of that element
  bool operator==(const Place&) const = default;  ///< the same elements, and no other memory at that address
};
/// The place of x's first element. Fetches nothing.
Place place_of(const Tensor& x);

// Contiguous segments of a storage, which one kernel can take: all tensors here are contiguous.

/// True if `next` begins where `previous` ends, or after padding.
bool is_adjacent(const Tensor& previous, const Tensor& next);
/// (n): everything from the first element of `first` to the last one of `last`, in one storage.
Tensor segment_between(const Tensor& first, const Tensor& last);
/// (end - begin): elements [begin, end) of a contiguous tensor.
Tensor elements_of(const Tensor& x, std::int64_t begin, std::int64_t end);
/// An order of tensors in which those of one storage stand together, by offset.
bool precedes_in_memory(const Tensor& a, const Tensor& b);
/// The same order, as indices into the list. Storages are in the order of their first tensor in it, which is the same on all ranks.
std::vector<std::size_t> order_in_memory(const Tensors& tensors);
/// The tensors merged into as few segments as possible.
Tensors contiguous_segments(Tensors tensors);

}  // namespace tern
