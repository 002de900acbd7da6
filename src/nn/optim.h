#pragma once
#include "nn/module.h"

namespace tern::nn {

/// Base of the optimizers. A step runs on the device without a host value or wait: the learning rate and the number of
/// steps live in one-element f32 tensors there. Neighbouring parameters in one storage, as flatten_parameters leaves
/// them, are updated by one kernel. Parameters without a gradient are passed over; the step count is the optimizer's,
/// not the parameter's.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(Optimizer&&) = default;  // a copy would share the moments
  Optimizer& operator=(Optimizer&&) = default;

  /// One update from the gradients as they are.
  void step();
  void zero_grad() const;

  /// Sets every group's learning rate, or each group's to its own initial one times a factor (see schedule.h).
  void set_lr(double lr);
  void set_lr_factor(double factor);

  /// What a checkpoint needs: `step`, `lr.<group>`, and each parameter's moments as `<kind>.<parameter>`, where the
  /// parameter is its name in `names`, or its position if it is not there. The tensors are windows on the optimizer's
  /// own memory: copy_ into them restores it.
  std::vector<NamedTensor> state(const std::vector<NamedTensor>& names = {});

  Tensors parameters() const;
  /// The learning rate of a group on the device, f32 ().
  const Tensor& lr(std::size_t group = 0) const { return groups_[group].lr; }
  /// The number of steps so far on the device, f32 ().
  const Tensor& steps() const { return steps_; }
  /// Kernel calls of the last step: the number of contiguous runs.
  std::size_t launches() const { return launches_; }

 protected:
  explicit Optimizer(std::vector<std::string> moments) : moment_names_(std::move(moments)) {}
  /// To be called by a constructor for each group.
  void add_group(const Tensors& parameters, double lr);
  /// One kernel: one-dimensional contiguous windows on a run of parameters, their gradients and their moments.
  virtual void update(std::size_t group, const Tensor& parameter, const Tensor& gradient, const Tensors& moments) = 0;

 private:
  struct Group {
    double initial_lr = 0;
    Tensor lr;
  };
  struct Slot {  // of a parameter
    Tensor parameter;
    std::size_t group = 0;
    const void* place = nullptr;  // of the parameter when its run was laid out
    Tensors moments;              // windows on the run's, in the parameter's shape
  };
  struct Run {  // parameters that follow each other, and their moments
    std::vector<std::size_t> slots;
    Tensors moments;
  };

  bool is_laid_out() const;
  void lay_out();
  void step(const Run& run);

  std::vector<std::string> moment_names_;
  std::vector<Group> groups_;
  std::vector<Slot> slots_;  // in the order given
  std::vector<Run> runs_;
  Tensor steps_;
  std::size_t launches_ = 0;
};

struct SGDOptions {
  double lr = 1e-2;
  double momentum = 0;
  double weight_decay = 0;  ///< added to the gradient
  bool nesterov = false;
};

/// Stochastic gradient descent, with momentum as in Sutskever et al., 2013: buffer = momentum buffer + g, p -= lr
/// buffer.
class SGD final : public Optimizer {
 public:
  struct Group {
    Tensors parameters;
    SGDOptions options;
  };
  /// Throws Error for parameters that are not contiguous f32 or f64, that lie on several devices, that occur twice, or
  /// options out of range.
  explicit SGD(const std::vector<Group>& groups);
  explicit SGD(const Tensors& parameters, const SGDOptions& options = {})
      : SGD(std::vector<Group>{{parameters, options}}) {}

 protected:
  void update(std::size_t group, const Tensor& parameter, const Tensor& gradient, const Tensors& moments) override;

 private:
  std::vector<SGDOptions> options_;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  ///< weight decay acts on the weight (AdamW) and not on the gradient
};

/// Kingma & Ba, 2015.
class Adam : public Optimizer {
 public:
  struct Group {
    Tensors parameters;
    AdamOptions options;
  };
  /// Throws Error as SGD does.
  explicit Adam(const std::vector<Group>& groups);
  explicit Adam(const Tensors& parameters, const AdamOptions& options = {})
      : Adam(std::vector<Group>{{parameters, options}}) {}

 protected:
  void update(std::size_t group, const Tensor& parameter, const Tensor& gradient, const Tensors& moments) override;

 private:
  std::vector<AdamOptions> options_;
};

/// Adam with decoupled weight decay. Loshchilov & Hutter, 2019.
class AdamW final : public Adam {
 public:
  explicit AdamW(std::vector<Group> groups);
  explicit AdamW(const Tensors& parameters, const AdamOptions& options = {.weight_decay = 0.01})
      : AdamW(std::vector<Group>{{parameters, options}}) {}
};

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), in place on the device, and returns their norm before, f32
/// (), without waiting for it. Parameters without a gradient do not count.
Tensor clip_grad_norm(const Tensors& parameters, double max_norm);

}  // namespace tern::nn
