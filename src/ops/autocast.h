#pragma once
#include <span>
#include <unordered_map>

#include "autodiff/node.h"

namespace tern {

/// Mixed precision: during the lifetime of this scope, ops on f32 and 16-bit tensors choose the dtype that they compute in (Op::autocast):
/// products in `dtype`; softmax, norms, losses, powers, exponentials and sums in f32; all others in the dtype of their inputs. Parameters
/// stay f32; one that a product reads is cast once, until it is edited, and parameters that ranks share are sent in 16 bits (Note [Sharded
/// parameters]). Gradients flow through the casts, and backward follows the forward's dtypes. float16 needs a loss scale
/// (train::GradScaler). In a captured step, open the scope inside of the step. The policy is PyTorch's.
class Autocast {
 public:
  /// Throws Error for a dtype other than bf16 and f16.
  explicit Autocast(DType dtype);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  /// For call() of ops/op.h: x in the dtype that an op of that rule computes in.
  Tensor operand(CastTo to, const Tensor& x);
  /// Makes `copy`, which has the elements of a weight in dtype(), the weight's cast until it is edited: ops then do not read the weight.
  void use(const Tensor& x, const Tensor& copy);
  DType dtype() const { return dtype_; }  ///< bf16 or f16
  /// Drops the weights' casts of this scope and of those around it: after edits that no version counts, as those of a replayed graph.
  void forget();

 private:
  struct Cast {
    Tensor source, result;  ///< the source is kept alive, so that no other tensor gets its address, the map's key
    std::uint32_t version = 0;
    bool is_recorded = false;
  };
  static bool is_current(const Cast& kept);
  Tensor lowered(const Tensor& x);

  DType dtype_;
  std::unordered_map<const TensorImpl*, Cast> weights_;
  ScopedValue<Autocast*> scope_;
};

}  // namespace tern
