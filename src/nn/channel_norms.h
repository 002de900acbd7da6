#pragma once
#include "nn/module.h"

namespace tern::nn {

/// Options of BatchNorm1d and BatchNorm2d.
struct BatchNormOptions {
  double eps = 1e-5;                 ///< added to the variance
  double momentum = 0.1;             ///< the share of a new batch in the running statistics
  bool affine = true;                ///< weight and bias
  bool tracks_running = true;        ///< without running statistics a batch is normalized with its own in evaluation too
  Device device = default_device();  ///< of parameters and running statistics
};

/// Normalizes each channel of x (B, C, ...): while training with the batch's own mean and biased variance, in evaluation with running ones,
/// which a training forward moves by `momentum` towards the batch's mean and unbiased variance. These are buffers, under PyTorch's names
/// running_mean, running_var and num_batches_tracked. Ioffe & Szegedy, 2015; ops/batch_norm.h. Throws Error for a channel of one element
/// while training, which is no batch.
struct BatchNorm : Callable<BatchNorm> {
  BatchNorm() = default;
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// x (B, C, ...) -> the same shape. While training it changes the running statistics, and gradients flow through the batch's.
  Tensor forward(const Tensor& x) const;

  Tensor weight;           ///< (C), ones at first; undefined unless affine
  Tensor bias;             ///< (C), zeros at first; undefined unless affine
  Tensor running_mean;     ///< (C), zeros at first; undefined unless tracks_running
  Tensor running_var;      ///< (C), ones at first; undefined unless tracks_running
  Tensor batches_tracked;  ///< (), i64: training forwards so far; undefined unless tracks_running
  double eps = 1e-5;       ///< see BatchNormOptions
  double momentum = 0.1;   ///< see BatchNormOptions

 protected:
  /// For inputs of min_dims to max_dims dimensions; `type` names the subclass in errors. Throws Error for channels below 1, eps that is
  /// not above 0, and a momentum outside [0, 1].
  BatchNorm(const char* type, std::int64_t channels, const BatchNormOptions& options, int min_dims, int max_dims);

 private:
  const char* type_ = "BatchNorm";
  std::int64_t channels_ = 0;
  int min_dims_ = 2, max_dims_ = 8;
};

/// Of (B, C) or (B, C, L).
struct BatchNorm1d final : BatchNorm {
  BatchNorm1d() = default;
  /// Of `channels` features, the size of dimension 1.
  explicit BatchNorm1d(std::int64_t channels, const BatchNormOptions& options = {}) : BatchNorm("BatchNorm1d", channels, options, 2, 3) {}
};
/// Of (B, C, H, W).
struct BatchNorm2d final : BatchNorm {
  BatchNorm2d() = default;
  /// Of `channels` channels, the size of dimension 1.
  explicit BatchNorm2d(std::int64_t channels, const BatchNormOptions& options = {}) : BatchNorm("BatchNorm2d", channels, options, 4, 4) {}
};

/// Options of GroupNorm.
struct GroupNormOptions {
  double eps = 1e-5;                 ///< added to the variance
  bool affine = true;                ///< weight and bias, one of each a channel
  Device device = default_device();  ///< of the parameters
};
/// group_norm (ops/normalize.h) of x (B, C, ...) over `groups` runs of channels. Throws Error unless these divide the channels.
struct GroupNorm final : Callable<GroupNorm> {
  GroupNorm() = default;
  /// The weight begins as ones, the bias as zeros. One group is a layer norm over (C, ...), as many groups as channels an instance norm.
  GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options = {});
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// x (B, C, ...) -> the same shape, in training and evaluation alike.
  Tensor forward(const Tensor& x) const;

  Tensor weight;            ///< (C), or undefined
  Tensor bias;              ///< (C), or undefined
  std::int64_t groups = 1;  ///< runs of neighbouring channels
  double eps = 1e-5;        ///< see GroupNormOptions

 private:
  std::int64_t channels_ = 0;
};

}  // namespace tern::nn
