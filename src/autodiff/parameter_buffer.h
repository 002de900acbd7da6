#pragma once
#include <functional>

#include "tensor/tensor.h"

namespace tern {

/// Memory of flat parameters or gradients (nn::flatten_parameters). The type marks gaps between slices as padding rather than data.
class FlatStorage final : public Storage {
 public:
  using Storage::Storage;

  /// Frees the memory, of which nothing is to be read or written before allocate() or take().
  void free();
  /// Allocates the memory again if it is freed; its elements are not initialized.
  void allocate();
  /// Takes the memory of a tensor that covers its whole storage, which has this one's size; the tensor must not be used again.
  void take(const Tensor& memory);

  /// For parameters whose memory comes and goes: brings it, before the backward of an op that saved a window on it. Else empty.
  std::function<void()> gather;
  Tensor masters;                     ///< masters of 16-bit parameters: (N), f32
  std::uint32_t masters_version = 0;  ///< this storage's version when its elements last were the rounded masters
};

inline constexpr std::size_t flat_alignment = 16;  ///< bytes

/// Zeros (count) in a FlatStorage.
Tensor flat_zeros(std::int64_t count, DType dtype, Device device);
/// Tensor (count) in a FlatStorage whose memory is freed.
Tensor flat_freed(std::int64_t count, DType dtype, Device device);
/// FlatStorage of a window on one, else null.
FlatStorage* flat_storage(const Tensor& x);
/// True for a slice of flat parameters or gradients.
inline bool is_flat(const Tensor& x) { return flat_storage(x) != nullptr; }
/// Number of elements of a slice of `count` elements with its padding.
std::int64_t padded_size(std::int64_t count, DType dtype);
/// Number of elements of a buffer that holds all these parameters, each padded.
std::int64_t padded_size(const Tensors& parameters, DType dtype);
/// Windows of the parameters on a buffer with the layout of padded_size() for `dtype`; masters have the layout of their 16-bit parameters.
Tensors windows_of(const Tensor& buffer, const Tensors& parameters, DType dtype);
/// Window on the masters that a contiguous 16-bit parameter is rounded from, of its shape; undefined if it has none.
Tensor master_of(const Tensor& x);

/// Location of a tensor's elements, to detect a move to other memory. The address distinguishes a new storage from a destroyed one that had
/// the same place; it is null for memory that comes and goes (FlatStorage::gather).
struct Place {
  const Storage* storage = nullptr;               ///< the block of memory
  std::int64_t offset = 0;                        ///< offset of the first element, in elements
  const void* address = nullptr;                  ///< address of that element
  bool operator==(const Place&) const = default;  ///< the same elements in the same memory
};
/// Location of x's first element.
Place place_of(const Tensor& x);

// Contiguous segments of a storage, each a range for one kernel. All tensors here are contiguous.

/// True if `next` begins where `previous` ends, or after its padding.
bool is_adjacent(const Tensor& previous, const Tensor& next);
/// (n): all elements from the first one of `first` to the last one of `last`, in one storage.
Tensor segment_between(const Tensor& first, const Tensor& last);
/// (end - begin): elements [begin, end) of a contiguous tensor.
Tensor elements_of(const Tensor& x, std::int64_t begin, std::int64_t end);
/// Order in which tensors of one storage are adjacent, by offset, as indices into the list. Storages are in the order of their first tensor
/// in the list, which is the same on all ranks.
std::vector<std::size_t> order_in_memory(const Tensors& tensors);
/// Merges the tensors into as few segments as possible, in that order.
Tensors contiguous_segments(const Tensors& tensors);

}  // namespace tern
