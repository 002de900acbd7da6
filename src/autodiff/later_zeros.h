#pragma once
#include <span>

#include "tensor/tensor.h"

namespace tern {

struct AutogradState;

/// Note [Later zeros]
/// A gradient that is set to zero before each backward pass need not be written for that: where the pass begins with a product or a sum
/// straight into it (Backward::target), that may overwrite what is there, and neither the fill nor the old elements' reading is paid. So a
/// leaf's gradient can be marked: its elements stand for zeros until they are written. Tensor::grad() writes the zeros if nothing else has,
/// so nobody sees the mark through it; what reads the memory by another handle in between sees old elements.

/// Marks the gradient that a leaf has, which must be contiguous.
void zero_later(const Tensor& leaf);
/// Writes the zeros of every mark of this thread that is left, in one fill for neighbours in memory. To be called where memory must hold
/// what it stands for: before and after work that is recorded once and replayed.
void write_later_zeros();

namespace detail {
void write_later_zeros(std::span<AutogradState* const> marked);
/// Takes a mark away: the gradient's elements are about to be overwritten, or its leaf ends.
void forget_later_zeros(AutogradState& state);
}  // namespace detail

}  // namespace tern
