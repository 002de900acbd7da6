#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autodiff/parameter_buffer.h"
#include "nn/module.h"
#include "tensor/tensor.h"

namespace tern::train {

/// Note [Exchange]
/// Update of parameters that several processes train: in parts.
///  * Arrival. When backward ends, the last gradients are still being averaged, among them that of a table used at both ends of a model,
///    which is large. The optimizer updates the other parts meanwhile. If something reads all gradients before the update (clipping by
///    their norm, a loss scaler), there is no overlap: train::apply waits for all of them first.
///  * Sharding: ZeRO stage 1 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020). Each
///    process keeps the moments of its own elements only, updates those, and gets the others from the processes that own them. With Adam
///    in float32 that is 8 + 8/N bytes per parameter instead of 16.
/// Made by parallel::overlap_optimizer and parallel::shard_optimizer.
class Exchange {
 public:
  /// Elements [begin, end) of a storage of parameters, which this process updates and whose gradients arrive together.
  struct Part {
    std::int64_t begin = 0;   ///< first element
    std::int64_t end = 0;     ///< one past the last element
    std::size_t arrival = 0;  ///< position in the order of arrival, below size()
    bool is_counted = true;   ///< if several processes own it: true in one of them only
    /// (end - begin): memory of these elements, if it is not that of the parameters, of their gradients and of their masters.
    Tensor parameters = {};
    Tensor gradients = {};  ///< (end - begin), likewise
    Tensor masters = {};    ///< (end - begin), likewise
  };

  virtual ~Exchange() = default;
  /// True if each process owns elements of its own. If not, no part ends within a parameter.
  virtual bool is_sharded() const = 0;
  /// Parts of a segment of parameters, (n), in order.
  virtual std::vector<Part> parts(const Tensor& segment) const = 0;
  /// Number of parts that arrive separately.
  virtual std::size_t size() const = 0;
  /// Begins an update: sends the gradients that backward has not sent.
  virtual void begin() = 0;
  /// Makes the stream wait: kernels queued from now on read gradients of this arrival and of earlier ones. Called for each, in order.
  virtual void wait(std::size_t arrival) = 0;
  /// Called when the parameters of this arrival are updated.
  virtual void updated(std::size_t arrival) = 0;
  /// Ends an update: all processes have all parameters, of which each has written its own parts.
  virtual void end() = 0;
  /// All-reduce: x, of a floating dtype, becomes the sum of all processes' x. For norms, and for state to which each process contributes
  /// its own elements and zeros.
  virtual void sum(const Tensor& x) = 0;
};

/// Scaling of the gradients within an update, f32 () on the device: it needs no wait, and no pass over the gradients.
struct GradientScale {
  Tensor factor = {};   ///< factor of the gradients; undefined for 1
  Tensor advance = {};  ///< 0: the step is skipped and not counted; undefined for 1
};

/// A contiguous range of a group's parameters and their state, which a rule updates: one-dimensional views of one length.
struct ParameterRange {
  Tensor parameter;          ///< (n), of the parameters' dtype
  Tensor gradient;           ///< (n)
  Tensor master;             ///< (n), f32: masters of 16-bit parameters; undefined for others
  Tensors moments;           ///< (n) each, in the order of their names; f32, or f64 for f64
  Shape shape = {};          ///< shape of the parameter, for a rule of whole parameters
  Tensor lr = {};            ///< learning rate on the device, f32 ()
  Tensor steps = {};         ///< number of this step on the device, f32 (), from 1
  GradientScale scale = {};  ///< of the gradients
};

/// Parameters, the layout of their state and, for each group, a rule. A step runs on the device without a host value or a wait: the
/// learning rate and the number of steps are one-element f32 tensors there. Parameters that are contiguous in one storage, as
/// flatten_parameters leaves them, are updated by one kernel. Parameters without a gradient are skipped; the step count is the
/// optimizer's, not the parameter's. 16-bit parameters are the rounded values of f32 masters, which the same kernel updates.
///
/// A rule is the options of a group, with `lr`, the learning rate at first, and two functions: `moments()`, the names of the moments that
/// each of its elements has, initially zeros, which throws Error for options out of range, and `update(range)`, which writes parameter,
/// master and moments from the gradient. A rule with a member `is_whole`, for example of whole matrices, has `update(ranges)` instead: each
/// parameter is a range of its own, and those whose gradients arrive together come together, as a span. Such a group cannot be sharded. See
/// OptimizerOf.
class Optimizer {
 public:
  virtual ~Optimizer();
  /// @{
  Optimizer(Optimizer&&) noexcept;  ///< move only: a copy would share the moments
  Optimizer& operator=(Optimizer&&) noexcept;
  /// @}

  /// Updates the parameters from their gradients, scaled by `scale`. Throws Error for a parameter that only the optimizer still holds: a
  /// module's weight that was replaced by another tensor, so that no step would change the module (use copy_ into the old one instead).
  void step(const GradientScale& scale = {});
  /// Drops the gradients of all parameters; those in a flat buffer are zeroed lazily (Note [Gradient sink]), which costs nothing.
  void zero_grad() const;

  /// Sets every group's learning rate on the device, without a wait. Throws Error if lr < 0.
  void set_lr(double lr);
  /// Sets each group's learning rate to its initial one times a factor (train/schedule.h). Throws Error if factor < 0.
  void set_lr_factor(double factor);

  /// State for a checkpoint: `step`, `lr.GROUP`, and each parameter's moments as `KIND.PARAMETER`, where PARAMETER is its name in `names`,
  /// or its position if it has none; `master.PARAMETER` for 16-bit parameters. The tensors are views of the optimizer's own memory: copy_
  /// into them restores it. For a sharded optimizer, where all processes call this, moments are copies on the CPU, for load_moments().
  std::vector<NamedTensor> state(const std::vector<NamedTensor>& names = {});
  /// Restores the moments from such copies; entries of other kinds are ignored. Throws Error for a moment that is missing, or has another
  /// shape.
  void load_moments(const std::vector<NamedTensor>& state, const std::vector<NamedTensor>& names = {});

  /// Updates in the parts, and in the order, of an exchange with other processes from now on (Note [Exchange]); null: all at once. Throws
  /// Error if moments are sharded already.
  void set_exchange(std::shared_ptr<Exchange> exchange);
  Exchange* exchange() const { return exchange_.get(); }  ///< null if there is none
  bool is_sharded() const {
    return exchange_ && exchange_->is_sharded();
  }  ///< true if this process has the moments of its own elements only
  /// Completes the masters of 16-bit parameters, of which a sharded optimizer updates only its own elements, before they are read. All
  /// processes call it.
  void gather_masters();
  /// Gradients of the elements that this process updates and counts in the global norm, in as few segments (n) as possible.
  Tensors own_gradients();

  /// Parameters of all groups, in the order in which they were given.
  Tensors parameters() const;
  /// Learning rate of a group on the device, f32 (). Throws Error for a group that does not exist.
  const Tensor& lr(std::size_t group = 0) const;
  /// Number of steps so far on the device, f32 ().
  const Tensor& steps() const { return steps_; }
  /// Number of kernel calls of the last step: that of contiguous segments, each divided by the parts in which its gradients arrive.
  std::size_t launches() const { return launches_; }
  /// Tensors of the moments and masters.
  Tensors memory();

 protected:
  Optimizer();
  /// Adds a group.
  template <class Options>
  void add_parameters(const Tensors& parameters, const Options& options) {
    constexpr bool is_whole = requires { Options::is_whole; };
    add_parameters(parameters, options.lr, options.moments(), is_whole, [options](std::span<const ParameterRange> ranges) {
      if constexpr (is_whole) options.update(ranges);
      else
        for (const ParameterRange& range : ranges) options.update(range);
    });
  }
  /// Throws Error if no group has a parameter: for the end of a constructor. step() calls it too.
  void require_parameters() const;

 private:
  struct Group;  // these are optimizer.cpp's own
  struct ParameterState;
  struct Shard;
  struct Segment;
  struct GradientRange;
  struct Update;

  using Rule = std::function<void(std::span<const ParameterRange>)>;
  void add_parameters(const Tensors& parameters, double lr, std::vector<std::string> moments, bool is_whole, Rule rule);
  bool is_laid_out() const;
  void lay_out();
  std::vector<Shard> shards_of(const Tensor& segment) const;
  void find_master(Segment& segment);
  void refresh_master(Segment& segment);
  std::vector<GradientRange> gradients_of(const Segment& segment) const;
  std::vector<Update> updates() const;
  Tensor tensor_of(const Segment& segment) const;
  void check_sharding(const Exchange* exchange) const;
  Tensor moment(std::size_t i, std::size_t kind) const;
  template <class F>
  void for_each_moment(F&& f) const;
  template <class F>
  static void for_each_shard(const std::vector<Segment>& segments, const ParameterState& state, F&& f);
  static std::string key_of(const std::string& kind, std::size_t i, const ParameterState& state, const std::vector<NamedTensor>& names);

  std::vector<std::string> moment_names_;  // of all groups
  std::vector<Group> groups_;
  std::vector<ParameterState> states_;  // in the order given
  std::vector<Segment> segments_;
  Tensor steps_;
  std::size_t launches_ = 0;
  bool has_new_exchange_ = false;
  std::shared_ptr<Exchange> exchange_;
};

/// Optimizer of one rule, whose options may differ from group to group.
template <class Options>
class OptimizerOf : public Optimizer {
 public:
  /// Group of parameters with its options.
  struct Group {
    Tensors parameters;    ///< trained parameters, or frozen ones that may be trained later
    Options options = {};  ///< options of all parameters
  };
  /// Throws Error if there are no parameters, for parameters that are not contiguous floats, are on several devices, or occur twice, for
  /// those that were never marked as trained or frozen (set_requires_grad() or set_requires_grad(false)), and for options out of range.
  explicit OptimizerOf(const std::vector<Group>& groups) {
    for (const Group& group : groups) add_group(group);
    require_parameters();
  }
  /// Creates one group.
  explicit OptimizerOf(const Tensors& parameters, const Options& options = {}) : OptimizerOf(std::vector<Group>{{parameters, options}}) {}
  /// Adds a group, also between steps: its moments start as zeros, and its step count is the optimizer's.
  void add_group(const Group& group) { add_parameters(group.parameters, group.options); }
};

/// Options of a group of SGD, and its rule.
struct SGDOptions {
  double lr = 1e-2;         ///< learning rate, the factor of an update
  double momentum = 0;      ///< factor of the momentum buffer, 0 or more; 0: no buffer is used
  double weight_decay = 0;  ///< added to the gradient
  bool nesterov = false;    ///< steps by g + momentum * buffer; needs momentum

  std::vector<std::string> moments() const;        ///< of the rule, see Optimizer: names of its moments
  void update(const ParameterRange& range) const;  ///< of the rule: a step
};

/// Stochastic gradient descent, with momentum as in Sutskever et al., 2013: buffer = momentum buffer + g, p -= lr buffer.
using SGD = OptimizerOf<SGDOptions>;

/// Options of a group of Lion, and its rule.
struct LionOptions {
  double lr = 1e-4;         ///< learning rate: the step of each element
  double beta1 = 0.9;       ///< weight of the moment in the mean whose sign is the step
  double beta2 = 0.99;      ///< decay of the moment
  double weight_decay = 0;  ///< decoupled weight decay: p -= lr * weight_decay * p

  std::vector<std::string> moments() const;        ///< of the rule, see Optimizer: names of its moments
  void update(const ParameterRange& range) const;  ///< of the rule: a step
};

/// Lion: steps by the sign of a mean of gradient and momentum, with one moment: c = beta1 m + (1 - beta1) g, p -= lr (sign(c) +
/// weight_decay p), m = beta2 m + (1 - beta2) g. Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2. A step
/// has the length lr for every gradient: choose lr 3 to 10 times smaller than AdamW's, and the weight decay as much larger (section 5 of
/// the paper).
using Lion = OptimizerOf<LionOptions>;

/// Options of a group of RMSprop, and its rule.
struct RMSpropOptions {
  double lr = 1e-2;         ///< learning rate, the factor of an update
  double alpha = 0.99;      ///< decay of the mean squared gradient, in [0, 1)
  double eps = 1e-8;        ///< added to the root of the mean squared gradient; above 0
  double weight_decay = 0;  ///< added to the gradient
  double momentum = 0;      ///< factor of the momentum buffer, 0 or more; 0: no buffer is used
  bool centered = false;    ///< divides by the root of the gradient's variance: the squared mean is subtracted from the mean square

  std::vector<std::string> moments() const;        ///< of the rule, see Optimizer: names of its moments
  void update(const ParameterRange& range) const;  ///< of the rule: a step
};

/// RMSprop: v = alpha v + (1 - alpha) g^2, p -= lr g / (sqrt(v) + eps). Tieleman & Hinton, lecture 6.5 of "Neural Networks for Machine
/// Learning", 2012. With `centered` a second moment is kept, m = alpha m + (1 - alpha) g, and v - m^2 takes the place of v (Graves,
/// "Generating Sequences With Recurrent Neural Networks", 2013). With momentum, buffer = momentum buffer + the quotient, and p -= lr
/// buffer.
using RMSprop = OptimizerOf<RMSpropOptions>;

/// Options of a group of Adam, and its rule.
struct AdamOptions {
  double lr = 1e-3;         ///< learning rate: about the step of each element
  double beta1 = 0.9;       ///< decay of the mean gradient, in [0, 1)
  double beta2 = 0.999;     ///< decay of the mean squared gradient, in [0, 1)
  double eps = 1e-8;        ///< added to the root of the mean squared gradient
  double weight_decay = 0;  ///< added to the gradient

  std::vector<std::string> moments() const;        ///< of the rule, see Optimizer: names of its moments
  void update(const ParameterRange& range) const;  ///< of the rule: a step
};

/// Adam, with L2 regularization: the decay is added to the gradient, and so enters the moments. Kingma & Ba, 2015.
using Adam = OptimizerOf<AdamOptions>;

/// Options of a group of AdamW, and its rule.
struct AdamWOptions {
  double lr = 1e-3;            ///< learning rate: about the step of each element
  double beta1 = 0.9;          ///< decay of the mean gradient, in [0, 1)
  double beta2 = 0.999;        ///< decay of the mean squared gradient, in [0, 1)
  double eps = 1e-8;           ///< added to the root of the mean squared gradient
  double weight_decay = 0.01;  ///< decoupled weight decay: p -= lr * weight_decay * p

  std::vector<std::string> moments() const;        ///< of the rule, see Optimizer: names of its moments
  void update(const ParameterRange& range) const;  ///< of the rule: a step
};

/// Adam with decoupled weight decay, which does not enter the moments. Loshchilov & Hutter, 2019.
using AdamW = OptimizerOf<AdamWOptions>;

/// Options of a group of matrices that Muon updates.
struct MuonOptions {
  double lr = 0.02;                       ///< learning rate of the orthogonalized update, whose singular values are about 1
  double momentum = 0.95;                 ///< weight of the previous mean
  bool nesterov = true;                   ///< Nesterov momentum
  double weight_decay = 0;                ///< decoupled weight decay: p -= lr * weight_decay * p
  int iterations = 5;                     ///< number of Newton-Schulz iterations
  DType dtype = DType::bf16;              ///< dtype of their products: bf16 or f32; f64 for f64 parameters
  static constexpr bool is_whole = true;  ///< each matrix is a range of its own

  std::vector<std::string> moments() const;                   ///< of the rule, see Optimizer: names of its moments
  void update(std::span<const ParameterRange> ranges) const;  ///< of the rule: a step
};

/// Muon: momentum of a weight matrix, orthogonalized. m = momentum m + (1 - momentum) g; its Nesterov mean momentum m + (1 - momentum) g,
/// or m itself, is replaced approximately by U V^T of its singular value decomposition, by Newton-Schulz iterations (orthogonalize), and p
/// = (1 - lr weight_decay) p - lr sqrt(max(1, rows / columns)) U V^T. After Jordan et al., "Muon: An optimizer for hidden layers in neural
/// networks", 2024, with the constants and the scale of their reference implementation (github.com/KellerJordan/Muon, muon_update). Use it
/// for the matrices of hidden layers: embeddings, heads, biases and norms are updated by AdamW, in additional groups. A matrix has one
/// moment; dimensions after the first, as of a convolution's weight, are flattened to columns. Matrices of one shape, such as those of the
/// layers of a model, are orthogonalized together. A step has no host value and no wait. Sharding a Muon throws Error.
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

/// Approximates U V^T of each matrix x = U S V^T, (..., rows, columns), of a floating dtype: divides x by its Frobenius norm, and then
/// iterates x = a x + (b A + c A A) x with A = x x^T, a = 3.4445, b = -4.7750, c = 2.0315. That takes singular values that are not tiny to
/// between 0.7 and 1.2, and not to 1, which is as good here and needs only 5 iterations. Not recorded. Norms beyond 1e19 overflow. Throws
/// Error for fewer than two dimensions.
Tensor orthogonalize(const Tensor& x, int iterations = 5);

namespace detail {
/// Throws Error unless an option holds: "[WHERE] expected WHAT but got VALUE".
void require(const char* where, bool holds, const char* what, double value);
/// True if parameters were edited since they had that version.
bool is_edited(const Tensor& parameters, std::uint32_t since);
/// Copies edits of 16-bit parameters to their f32 masters, where a parameter is no longer its rounded master: loading a file writes only
/// parameters. Both (N).
void refresh_masters(const Tensor& parameters, const Tensor& masters);
}  // namespace detail

}  // namespace tern::train
