#pragma once
#include <memory>

#include "autodiff/parameter_buffer.h"
#include "nn/module.h"
#include "train/gradient_arrival.h"
#include "train/sharding.h"

namespace tern::train {

/// Numbers on the device that the gradients meet on their way into an update, f32 (): no step waits for them, and no pass over the
/// gradients applies them.
struct GradientScale {
  Tensor factor = {};   ///< gradients are multiplied by it; undefined for 1
  Tensor advance = {};  ///< 0 where the step changes nothing and does not count; undefined for 1
};

/// Base of the optimizers. A step found on the device without a host value or wait: the learning rate and the number of
/// steps live in one-element f32 tensors there. Neighbouring parameters in one storage, as flatten_parameters leaves
/// them, are updated by one kernel. Parameters without a gradient are passed over; the step count is the optimizer's,
/// not the parameter's. Parameters of 16 bits are the rounded values of f32 masters, which the same kernel updates.
class Optimizer {
 public:
  virtual ~Optimizer();
  /// @{
  Optimizer(Optimizer&&) noexcept;  ///< move only: a copy would share the moments
  Optimizer& operator=(Optimizer&&) noexcept;
  /// @}

  /// One update from the gradients as they are, or scaled on their way in. Throws Error for a parameter that only the optimizer still
  /// holds: a module's weight that was replaced by another tensor, which no step would change (copy_ into the old one instead).
  void step(const GradientScale& scale = {});
  /// Forgets the gradients of all parameters; those in a flat buffer stand for zeros (Note [Gradient sink]), which costs nothing.
  void zero_grad() const;

  /// Sets every group's learning rate on the device, without a wait. Throws Error below 0.
  void set_lr(double lr);
  /// Sets each group's learning rate to its own initial one times a factor (train/schedule.h). Throws Error below 0.
  void set_lr_factor(double factor);

  /// The state for a checkpoint: `step`, `lr.GROUP`, and each parameter's moments as `KIND.PARAMETER`, where PARAMETER
  /// is its name in `names`, or its position if it is not there; `master.PARAMETER` for those of 16 bits. The
  /// tensors are views of the optimizer's own memory: copy_ into them restores it. Of a sharded optimizer, whose processes all call this,
  /// moments are copies on the CPU, for load_moments().
  std::vector<NamedTensor> state(const std::vector<NamedTensor>& names = {});
  /// Takes the moments over from such copies; entries of other kinds are passed over. Throws Error for a moment that is missing, or has
  /// another shape.
  void load_moments(const std::vector<NamedTensor>& state, const std::vector<NamedTensor>& names = {});

  /// Keeps the moments of this process's own elements alone from now on (Note [Sharded optimizer]); null: of all. Throws Error where
  /// moments are sharded already.
  void set_sharding(std::shared_ptr<Sharding> sharding);
  Sharding* sharding() const { return sharding_.get(); }  ///< null where nothing is sharded
  /// The order in which updates go with gradients that are still on their way (Note [Gradients that arrive]); null: all at once.
  void set_arrival(std::shared_ptr<GradientArrival> arrival) { arrival_ = std::move(arrival); }
  GradientArrival* arrival() const { return arrival_.get(); }  ///< null where all gradients are there before an update
  /// Makes masters of 16-bit parameters whole, of which a sharded optimizer updates its own elements alone: before they are read. All
  /// processes call it.
  void gather_masters();
  /// A part of the gradients, which one kernel reads.
  struct Gradient {
    Tensor segment;          ///< (n)
    bool is_counted = true;  ///< false where another process counts it for the norm of all
  };
  /// The gradients of the elements that this process updates, in as few segments as possible: for norms and for looking at them.
  std::vector<Gradient> own_gradients();

  /// Those of all groups, in the order in which they were given.
  Tensors parameters() const;
  /// The learning rate of a group on the device, f32 (). Throws Error for a group that is not there.
  const Tensor& lr(std::size_t group = 0) const;
  /// The number of steps so far on the device, f32 ().
  const Tensor& steps() const { return steps_; }
  /// Kernel calls of the last step: the number of contiguous segments, each in as many parts as its gradients arrive in.
  std::size_t launches() const { return launches_; }
  /// The memory of the moments and masters.
  Tensors memory();

 protected:
  /// `moments` are the names of the moments that the rule has, "m" and "v" say: a buffer each, zeros at first, as large as the parameters.
  explicit Optimizer(std::vector<std::string> moments);
  bool has_moments() const { return !moment_names_.empty(); }  ///< whether the rule has any
  /// The form of a group's update.
  struct GroupForm {
    std::size_t moments = all_moments;  ///< that its parameters have: the first so many of the optimizer's
    /// Each parameter is a segment of its own, for a rule that takes a matrix as a whole; such a group cannot be sharded.
    bool is_whole = false;
    static constexpr std::size_t all_moments = static_cast<std::size_t>(-1);  ///< as many as the constructor named
  };
  /// To be called for each group.
  void add_parameters(const Tensors& parameters, double lr, const GroupForm& form);
  /// As that, of parameters that have all moments and may be updated together.
  void add_parameters(const Tensors& parameters, double lr) { add_parameters(parameters, lr, GroupForm{}); }
  /// A contiguous segment of parameters and their state, all one-dimensional views of one length.
  struct SegmentViews {
    Tensor parameter;  ///< (n), of the parameters' dtype
    Tensor gradient;   ///< (n)
    Tensor master;     ///< (n), f32: what parameters of 16 bits are rounded from; undefined for others
    Tensors moments;   ///< (n) each, in the order of their names; f32, or f64 for f64
    Shape shape = {};  ///< the parameter's, in a group whose parameters are updated as a whole
  };
  /// The rule: writes parameter, master and moments from the gradient. Called once for each segment of a step.
  virtual void update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) = 0;

 private:
  struct Group;  // these are optimizer.cpp's own
  struct ParameterState;
  struct Shard;
  struct Segment;
  struct GradientSegment;
  struct Update;

  bool is_laid_out() const;
  void lay_out();
  std::vector<Shard> shards_of(const Tensor& segment) const;
  void find_master(Segment& segment);
  void refresh_master(Segment& segment);
  std::vector<GradientSegment> gradient_segments_of(const Segment& segment) const;
  std::vector<Update> updates_of(const Segment& segment, const GradientArrival* arrival) const;
  Tensor tensor_of(const Segment& segment) const;
  std::size_t moments_of(const ParameterState& state) const;
  void check_sharding() const;
  Tensor moment(std::size_t i, std::size_t kind) const;
  template <class F>
  static void for_each_shard(const std::vector<Segment>& segments, const ParameterState& state, F&& f);
  static std::string key_of(const std::string& kind, std::size_t i, const ParameterState& state, const std::vector<NamedTensor>& names);

  std::vector<std::string> moment_names_;
  std::vector<Group> groups_;
  std::vector<ParameterState> states_;  // in the order given
  std::vector<Segment> segments_;
  Tensor steps_;
  std::size_t launches_ = 0;
  bool has_new_sharding_ = false;
  std::shared_ptr<Sharding> sharding_;
  std::shared_ptr<GradientArrival> arrival_;
};

/// Options of a group of SGD.
struct SGDOptions {
  double lr = 1e-2;         ///< learning rate, the factor of an update
  double momentum = 0;      ///< factor of the buffer of gradients before, in [0, 1); 0: no buffer is used
  double weight_decay = 0;  ///< added to the gradient
  bool nesterov = false;    ///< g + momentum buffer in the place of the buffer; needs momentum
};

/// Stochastic gradient descent, with momentum as in Sutskever et al., 2013: buffer = momentum buffer + g, p -= lr
/// buffer.
class SGD final : public Optimizer {
 public:
  /// Parameters with options of their own.
  struct Group {
    Tensors parameters;  ///< trained, or frozen ones that may be trained later
    SGDOptions options;  ///< for all of them
  };
  /// Throws Error for parameters that are not contiguous floats, that lie on several devices, that occur twice, that were never told
  /// whether they are trained (set_requires_grad() trains one, set_requires_grad(false) freezes it), or options out of range.
  explicit SGD(const std::vector<Group>& groups);
  /// One group.
  explicit SGD(const Tensors& parameters, const SGDOptions& options = {});
  /// One more group, also between steps. Momentum, if any group is to have it, is the constructor's to know.
  void add_group(const Group& group);

 protected:
  void update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) override;

 private:
  std::vector<SGDOptions> options_;
};

/// Options of a group of Lion.
struct LionOptions {
  double lr = 1e-4;         ///< length of a step of each element
  double beta1 = 0.9;       ///< share of the moment in the mean whose sign counts
  double beta2 = 0.99;      ///< share of the moment that stays
  double weight_decay = 0;  ///< of the weight itself: p -= lr * weight_decay * p
};

/// Lion, with the sign of a mean of gradient and momentum, and one moment: c = beta1 m + (1 - beta1) g, p -= lr (sign(c) + weight_decay p),
/// m = beta2 m + (1 - beta2) g. Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2. A step is as long as lr
/// whatever the gradient: lr is 3 to 10 times smaller than AdamW's, and the decay as much larger (section 5 there).
class Lion final : public Optimizer {
 public:
  /// Parameters with options of their own.
  struct Group {
    Tensors parameters;   ///< trained, or frozen ones that may be trained later
    LionOptions options;  ///< for all of them
  };
  /// Throws Error as SGD does.
  explicit Lion(const std::vector<Group>& groups);
  /// One group.
  explicit Lion(const Tensors& parameters, const LionOptions& options = {});
  /// One more group, also between steps.
  void add_group(const Group& group);

 protected:
  void update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) override;

 private:
  std::vector<LionOptions> options_;
};

/// Options of a group of Adam: the decay is part of the gradient, and so of the moments.
struct AdamOptions {
  static constexpr const char* optimizer = "Adam";  ///< named in errors
  static constexpr bool decoupled = false;          ///< the decay goes through the moments
  double lr = 1e-3;                                 ///< learning rate, about the length of a step of each element
  double beta1 = 0.9;                               ///< share of the mean gradient that stays, in [0, 1)
  double beta2 = 0.999;                             ///< share of the mean squared gradient that stays, in [0, 1)
  double eps = 1e-8;                                ///< added to the root of the mean squared gradient
  double weight_decay = 0;                          ///< added to the gradient
};
/// Options of a group of AdamW: the decay is of the weight itself.
struct AdamWOptions {
  static constexpr const char* optimizer = "AdamW";  ///< named in errors
  static constexpr bool decoupled = true;            ///< the decay does not go through the moments
  double lr = 1e-3;                                  ///< learning rate, about the length of a step of each element
  double beta1 = 0.9;                                ///< share of the mean gradient that stays, in [0, 1)
  double beta2 = 0.999;                              ///< share of the mean squared gradient that stays, in [0, 1)
  double eps = 1e-8;                                 ///< added to the root of the mean squared gradient
  double weight_decay = 0.01;                        ///< of the weight itself: p -= lr * weight_decay * p
};

/// Adam and AdamW, which differ in their decay alone.
template <class Options>
class AdamOf final : public Optimizer {
 public:
  /// Parameters with options of their own.
  struct Group {
    Tensors parameters;  ///< trained, or frozen ones that may be trained later
    Options options;     ///< for all of them
  };
  /// Throws Error as SGD does.
  explicit AdamOf(const std::vector<Group>& groups);
  /// One group.
  explicit AdamOf(const Tensors& parameters, const Options& options = {});
  /// One more group, also between steps: its moments begin as zeros, and its step count is the optimizer's.
  void add_group(const Group& group);

 protected:
  void update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) override;

 private:
  std::vector<Options> options_;
};
extern template class AdamOf<AdamOptions>;
extern template class AdamOf<AdamWOptions>;

/// Kingma & Ba, 2015.
using Adam = AdamOf<AdamOptions>;
/// Adam with decoupled weight decay. Loshchilov & Hutter, 2019.
using AdamW = AdamOf<AdamWOptions>;

}  // namespace tern::train
