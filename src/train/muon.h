#pragma once
#include "train/optimizer.h"

namespace tern::train {

/// Options of a group of matrices that Muon updates.
struct MuonOptions {
  double lr = 0.02;                       ///< learning rate of the orthogonalized update, whose singular values are about 1
  double momentum = 0.95;                 ///< weight of the previous mean
  bool nesterov = true;                   ///< Nesterov momentum
  double weight_decay = 0;                ///< decoupled weight decay: p -= lr * weight_decay * p
  int iterations = 5;                     ///< number of Newton-Schulz iterations
  DType dtype = DType::bf16;              ///< dtype of their products: bf16 or f32; f64 for f64 parameters
  static constexpr bool is_whole = true;  ///< each matrix is a range of its own
  /// @{
  /// The rule: see Optimizer.
  std::vector<std::string> moments() const;
  void update(const ParameterRange& range) const;
  /// @}
};

/// Muon: momentum of a weight matrix, orthogonalized. m = momentum m + (1 - momentum) g; its Nesterov mean momentum m + (1 - momentum) g,
/// or m itself, is replaced approximately by U V^T of its singular value decomposition, by Newton-Schulz iterations (orthogonalize), and p
/// = (1 - lr weight_decay) p - lr sqrt(max(1, rows / columns)) U V^T. After Jordan et al., "Muon: An optimizer for hidden layers in neural
/// networks", 2024, with the constants and the scale of their reference implementation (github.com/KellerJordan/Muon, muon_update). Use it
/// for the matrices of hidden layers: embeddings, heads, biases and norms are updated by AdamW, in additional groups. A matrix has one
/// moment; dimensions after the first, as of a convolution's weight, are flattened to columns. A step is a few kernels for each matrix,
/// without a host value or a wait. Sharding a Muon throws Error.
class Muon final : public Optimizer {
 public:
  /// Group of matrices with its options.
  struct Group {
    Tensors parameters;   ///< parameters of two dimensions or more
    MuonOptions options;  ///< options of all parameters
  };
  /// Throws Error as SGD does, and for a matrix of fewer than two dimensions. Groups are numbered in this order, for lr().
  explicit Muon(const std::vector<Group>& matrices, const std::vector<AdamW::Group>& others = {});
  /// Creates one group of matrices and, unless `others` is empty, one of AdamW.
  explicit Muon(const Tensors& matrices, const MuonOptions& options = {}, const Tensors& others = {}, const AdamWOptions& adam = {});
  /// Adds a group, also between steps.
  void add_group(const Group& group);
  /// Adds a group that AdamW updates.
  void add_group(const AdamW::Group& group) { add_parameters(group.parameters, group.options); }
};

/// Approximates U V^T of a matrix x = U S V^T, (rows, columns), of a floating dtype: divides x by its Frobenius norm, and then iterates x =
/// a x + (b A + c A A) x with A = x x^T, a = 3.4445, b = -4.7750, c = 2.0315. That takes singular values that are not tiny to between 0.7
/// and 1.2, and not to 1, which is as good here and needs only 5 iterations. Not recorded. Norms beyond 1e19 overflow. Throws Error for
/// another number of dimensions.
Tensor orthogonalize(const Tensor& x, int iterations = 5);

}  // namespace tern::train
