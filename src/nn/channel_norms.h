#pragma once
#include "nn/module.h"

namespace tern::nn {

/// Options of BatchNorm1d and BatchNorm2d.
struct BatchNormOptions {
  double eps = 1e-5;                 ///< added to the variance
  double momentum = 0.1;             ///< weight of a new batch in the running statistics
  bool affine = true;                ///< weight and bias
  bool tracks_running = true;        ///< false: no running statistics, and evaluation uses those of the batch too
  Device device = default_device();  ///< device of parameters and running statistics
};

/// Batch normalization of each channel of x (B, C, ...): training uses the batch's mean and biased variance, evaluation running ones, which
/// each forward in training moves by `momentum` towards the batch's mean and unbiased variance. The running statistics are buffers, with
/// PyTorch's names running_mean, running_var and num_batches_tracked. Ioffe & Szegedy, 2015; ops/normalize.h. Throws Error in training for
/// channels of a single element.
struct BatchNorm : Callable<BatchNorm> {
  BatchNorm() = default;
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// x (B, C, ...) -> the same shape. In training it updates the running statistics, and gradients flow through the batch's statistics.
  Tensor forward(const Tensor& x) const;
  std::int64_t channels() const { return channels_; }  ///< C

  Tensor weight;           ///< (C), ones at first; undefined unless affine
  Tensor bias;             ///< (C), zeros at first; undefined unless affine
  Tensor running_mean;     ///< (C), zeros at first; undefined unless tracks_running
  Tensor running_var;      ///< (C), ones at first; undefined unless tracks_running
  Tensor batches_tracked;  ///< (), i64: number of forwards in training; undefined unless tracks_running
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

/// Batch normalization of (B, C) or (B, C, L).
struct BatchNorm1d final : BatchNorm {
  BatchNorm1d() = default;
  /// `channels` is the size of dimension 1.
  explicit BatchNorm1d(std::int64_t channels, const BatchNormOptions& options = {}) : BatchNorm("BatchNorm1d", channels, options, 2, 3) {}
};
/// Batch normalization of (B, C, H, W).
struct BatchNorm2d final : BatchNorm {
  BatchNorm2d() = default;
  /// `channels` is the size of dimension 1.
  explicit BatchNorm2d(std::int64_t channels, const BatchNormOptions& options = {}) : BatchNorm("BatchNorm2d", channels, options, 4, 4) {}
};

/// Options of GroupNorm.
struct GroupNormOptions {
  double eps = 1e-5;                 ///< added to the variance
  bool affine = true;                ///< weight and bias, one of each for each channel
  Device device = default_device();  ///< device of the parameters
};
/// Group normalization: group_norm (ops/normalize.h) of x (B, C, ...) over `groups` groups of channels. Throws Error unless these divide
/// the channels.
struct GroupNorm final : Callable<GroupNorm> {
  GroupNorm() = default;
  /// The weight starts as ones, the bias as zeros. One group is a layer norm over (C, ...); a group per channel is an instance norm.
  GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options = {});
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// x (B, C, ...) -> the same shape, the same in training and evaluation.
  Tensor forward(const Tensor& x) const;
  std::int64_t channels() const { return channels_; }  ///< C

  Tensor weight;            ///< (C), or undefined
  Tensor bias;              ///< (C), or undefined
  std::int64_t groups = 1;  ///< groups of adjacent channels
  double eps = 1e-5;        ///< see GroupNormOptions

 private:
  std::int64_t channels_ = 0;
};

}  // namespace tern::nn
