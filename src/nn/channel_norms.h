#pragma once
#include "nn/module.h"

namespace tern::nn {

struct BatchNormOptions {
  double eps = 1e-5;
  double momentum = 0.1;       ///< the share of a new batch in the running statistics
  bool affine = true;          ///< weight and bias
  bool tracks_running = true;  ///< without running statistics a batch is normalized with its own in evaluation too
  Device device = default_device();
};

/// Normalizes each channel of x (B, C, ...): while training with the batch's own mean and biased variance, in evaluation with running ones,
/// which a training forward moves by `momentum` towards the batch's mean and unbiased variance. These are buffers, under PyTorch's names
/// running_mean, running_var and num_batches_tracked. Ioffe & Szegedy, 2015; ops/batch_norm.h. Throws Error for a channel of one element
/// while training, which is no batch.
struct BatchNorm : Callable<BatchNorm> {
  BatchNorm() = default;
  void visit(Visitor& v) override;
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  Tensor weight, bias;                                ///< (C), or undefined
  Tensor running_mean, running_var, batches_tracked;  ///< (C), (C) and an i64, or undefined
  double eps = 1e-5, momentum = 0.1;

 protected:
  BatchNorm(const char* type, std::int64_t channels, const BatchNormOptions& options, int least_dims, int most_dims);

 private:
  const char* type_ = "BatchNorm";
  std::int64_t channels_ = 0;
  int least_dims_ = 2, most_dims_ = 8;
};

/// Of (B, C) or (B, C, L).
struct BatchNorm1d final : BatchNorm {
  BatchNorm1d() = default;
  explicit BatchNorm1d(std::int64_t channels, const BatchNormOptions& options = {}) : BatchNorm("BatchNorm1d", channels, options, 2, 3) {}
};
/// Of (B, C, H, W).
struct BatchNorm2d final : BatchNorm {
  BatchNorm2d() = default;
  explicit BatchNorm2d(std::int64_t channels, const BatchNormOptions& options = {}) : BatchNorm("BatchNorm2d", channels, options, 4, 4) {}
};

struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;
  Device device = default_device();
};
/// group_norm (ops/normalize.h) of x (B, C, ...) over `groups` runs of channels. Throws Error unless these divide the channels.
struct GroupNorm final : Callable<GroupNorm> {
  GroupNorm() = default;
  GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options = {});
  void visit(Visitor& v) override;
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  Tensor weight, bias;  ///< (C), or undefined
  std::int64_t groups = 1;
  double eps = 1e-5;

 private:
  std::int64_t channels_ = 0;
};

}  // namespace tern::nn
