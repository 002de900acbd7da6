#pragma once
#include <span>
#include <unordered_map>

#include "tensor/tensor.h"

namespace tern {

/// Mixed precision: during the lifetime of this scope, ops on f32 and 16-bit tensors choose the dtype that they compute in by one table
/// (autocast_table): products in `dtype`; softmax, norms, losses, powers, exponentials and sums in f32; all others in the dtype of their
/// inputs. Parameters stay f32; one that a product reads is cast once, until it is edited, and parameters that ranks share are sent in 16
/// bits (Note [Sharded parameters]). Gradients flow through the casts, and backward follows the forward's dtypes. float16 needs a loss
/// scale (train::GradScaler). In a captured step, open the scope inside of the step. The policy is PyTorch's.
class Autocast {
 public:
  /// Throws Error for a dtype other than bf16 and f16.
  explicit Autocast(DType dtype);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  /// For ops: x in the dtype that the op of that name computes in.
  Tensor operand(const char* op, const Tensor& x);
  DType dtype() const { return dtype_; }  ///< bf16 or f16

 private:
  struct Cast {
    Tensor source, result;  ///< the source is kept alive, so that no other tensor gets its address, the map's key
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
  widest,  ///< the widest dtype of several operands
};
/// A row of the table.
struct AutocastRule {
  const char* op;  ///< name of the op
  CastTo to;       ///< dtype of its operands
};
/// Table of the ops that autocast casts for. Ops that are not in it compute in the dtype of their inputs.
std::span<const AutocastRule> autocast_table();

}  // namespace tern
