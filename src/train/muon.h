#pragma once
#include <optional>

#include "train/optimizer.h"

namespace tern::train {

/// Options of a group of matrices of Muon.
struct MuonOptions {
  double lr = 0.02;           ///< of the orthogonalised update, whose singular values are about 1
  double momentum = 0.95;     ///< share of the mean before that stays
  bool nesterov = true;       ///< the mean looks one gradient ahead
  double weight_decay = 0;    ///< of the weight itself: p -= lr * weight_decay * p
  int iterations = 5;         ///< of Newton and Schulz
  DType dtype = DType::bf16;  ///< of their products: bf16, or f32; parameters of f64 have them in f64
};

/// Muon: the momentum of a weight matrix, orthogonalised. m = momentum m + (1 - momentum) g; the Nesterov mean momentum m + (1 - momentum)
/// g of it, or m itself, becomes nearly U V^T of its singular value decomposition by Newton-Schulz iterations (orthogonalize), and p = (1 -
/// lr weight_decay) p - lr sqrt(max(1, rows / columns)) U V^T. After Jordan et al., "Muon: An optimizer for hidden layers in neural
/// networks", 2024, with the numbers and the scale of their reference implementation (github.com/KellerJordan/Muon, muon_update).
/// It is meant for the matrices of hidden layers: embeddings, heads, biases and norms are updated by AdamW, in groups beside. A matrix
/// has one moment, and its dimensions after the first, as a convolution's weight has them, are flattened to columns. A step is a few
/// kernels for each matrix, without a host value or wait. Sharding a Muon throws Error.
class Muon final : public Optimizer {
 public:
  /// Matrices with options of their own.
  struct Group {
    Tensors parameters;   ///< of two dimensions or more
    MuonOptions options;  ///< for all of them
  };
  /// Throws Error as SGD does, and for a matrix of fewer than two dimensions. Groups are numbered in this order, for lr().
  explicit Muon(const std::vector<Group>& matrices, const std::vector<AdamW::Group>& others = {});
  /// One group of matrices and, unless `others` is empty, one of AdamW.
  explicit Muon(const Tensors& matrices, const MuonOptions& options = {}, const Tensors& others = {}, const AdamWOptions& adam = {});
  /// One more group, also between steps.
  void add_group(const Group& group);
  /// One more group that AdamW updates.
  void add_group(const AdamW::Group& group);

 protected:
  void update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) override;

 private:
  struct GroupOptions {
    std::optional<MuonOptions> muon;  // of matrices
    AdamWOptions adam;                // of the others
  };
  std::vector<GroupOptions> options_;
};

/// Nearly U V^T of a matrix x = U S V^T, (rows, columns), of a floating dtype: x by its Frobenius norm, and then `iterations` times
/// a x + (b A + c A A) x with A = x x^T, a = 3.4445, b = -4.7750, c = 2.0315. These take singular values to between 0.7 and 1.2 where they
/// are not tiny, and not to 1, which is as good here and takes 5 iterations. Unrecorded. Norms beyond 1e19 overflow. Throws Error for
/// another number of dimensions.
Tensor orthogonalize(const Tensor& x, int iterations = 5);

}  // namespace tern::train
