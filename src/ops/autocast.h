#pragma once
#include <span>
#include <unordered_map>

#include "tensor/tensor.h"

namespace tern {

/// While it lives, ops on f32 and 16-bit tensors choose what they compute in by one table (autocast_table): products in `dtype`,
/// softmax, norms, losses, powers, exponentials and sums in f32; all others follow their inputs. Parameters stay f32; each that a
/// product takes is cast once, until it is edited; of those that ranks share, 16 bits go over the wire (Note [Sharded parameters]).
/// Gradients flow through the casts, and backward follows the forward's dtypes.
/// float16 takes a loss scale (train::GradScaler). To be opened inside of a captured step. The policy is PyTorch's.
class Autocast {
 public:
  /// Throws Error for a dtype other than bf16 and f16.
  explicit Autocast(DType dtype);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  /// For ops: x as the op of that name computes with it.
  Tensor operand(const char* op, const Tensor& x);
  DType dtype() const { return dtype_; }  ///< bf16 or f16

 private:
  struct Cast {
    Tensor source, result;  ///< the source is kept, so that its place in the map is its own
    std::uint32_t version = 0;
    bool is_recorded = false;
  };
  Tensor lowered(const Tensor& x);

  DType dtype_;
  std::unordered_map<const TensorImpl*, Cast> weights_;
  ScopedValue<Autocast*> scope_;
};

/// The dtype that an op computes in under autocast.
enum class CastTo : std::uint8_t {
  lower,   ///< the scope's 16-bit dtype
  f32,     ///< sums, exponentials, losses, for which 16 bits are too narrow
  widest,  ///< of several operands, the widest of their dtypes
};
/// A row of the table.
struct AutocastRule {
  const char* op;  ///< name of the op
  CastTo to;       ///< that its operands are cast to
};
/// Ops that are not in it follow their inputs.
std::span<const AutocastRule> autocast_table();

}  // namespace tern
