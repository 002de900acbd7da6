#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend/stream.h"
#include "compile/overview.h"
#include "ops/captured_step.h"
#include "tensor/tensor.h"

namespace tern {

/// Part of a program that Compiled::show shows.
enum class Stage : std::uint8_t {
  kernels,  ///< the kernels that the function ran, a line each
  groups,   ///< what a run calls: groups of kernels that run as one, a line each, with what they read and write
  memory,   ///< where temporary tensors are in the memory that they share, and from which group to which
  code,     ///< the CUDA text of the kernels that groups of them are on a GPU; also of a program on the CPU
};

/// Options of compile().
struct CompileOptions {
  /// Runs groups of elementwise kernels as one, on a GPU with sums of rows and columns, and products of one weight over time steps as one.
  /// Such sums and products have another order. Without it results are bitwise those of the function as written.
  bool fuse = true;
  /// For tests: on the CPU the groups that a GPU has (compile/rewrite.h), which run kernel by kernel.
  bool as_on_gpu = false;
  /// Results of up to so many bytes are copied for the caller; the next call overwrites a larger one.
  std::int64_t copied_bytes = std::int64_t{64} << 10;
};

namespace compiler {

class Program;
enum class Part : std::uint8_t;

/// The programs of one function (Note [Programs] in compile/program.h), one for each kind of arguments. Threads take turns.
class Programs : public std::enable_shared_from_this<Programs> {
 public:
  using Function = std::function<Tensors(const Tensors&)>;  ///< the function, of a list
  /// Without programs, for a function on the device.
  explicit Programs(Device device, CompileOptions options = {});
  ~Programs();

  /// Calls f, which is the same at each call, or runs its program: see Compiled::operator().
  Tensors call(const Function& f, const Tensors& arguments);
  void forget();                               ///< drops all programs
  std::size_t size() const;                    ///< number of programs
  std::int64_t runs() const { return runs_; }  ///< number of calls that ran a program
  std::string report() const;                  ///< a line for each program
  /// @{
  /// Of the program that ran last.
  std::string text(Stage stage) const;
  ProgramOverview overview() const;
  /// @}

 private:
  struct Entry;
  struct Lock;
  /// Memory between two parts of a program, and what tells whether the call that used it last waits for its backward pass.
  struct Kept {
    Ref<Storage> memory;
    std::weak_ptr<bool> begun;
  };
  using Key = std::vector<std::int64_t>;

  Tensors run(const Function& f, const Tensors& arguments);
  std::shared_ptr<Entry> entry_for(Key key);
  const Program* latest() const;
  Tensors trace(const std::shared_ptr<Entry>& entry, const Function& f, const Tensors& arguments);
  void keep(Entry& entry, Program program);
  void end_without_backward(Entry& entry);
  void replay(Entry& entry, const Tensors& arguments, Part part);
  void record(Entry& entry);
  Tensors with_history(const std::shared_ptr<Entry>& entry, Tensors results, const Tensors& arguments);
  Tensors backward(Entry& entry, const Tensors& gradients);
  void give_memory(Entry& entry, Part part);
  void release_memory(Entry& entry);
  bool is_taken(const Ref<Storage>& kept) const;

  const std::unique_ptr<Lock> lock_;
  Device device_;
  CompileOptions options_;
  std::unique_ptr<backend::GraphStream> stream_;  ///< null on the CPU
  std::map<Key, std::shared_ptr<Entry>> entries_;
  Ref<Storage> arena_;      ///< memory that the programs share; a graph keeps the one that it was recorded with
  std::vector<Kept> kept_;  ///< memory between the parts of programs, which share it, too
  Tensor position_;         ///< random position, i64 (), on a GPU: written before each launch of a graph
  std::int64_t calls_ = 0, runs_ = 0;
  bool has_run_ = false;
};

}  // namespace compiler

/// A compiled function: see compile().
template <class F>
class Compiled {
 public:
  /// A function of tensors, or of a batch with names (ops/captured_step.h), on a device.
  explicit Compiled(F f, Device device = default_device(), CompileOptions options = {})
      : f_(std::move(f)), programs_(std::make_shared<compiler::Programs>(device, options)) {}

  /// Calls the function, as written or by its program. A result keeps its elements until the next call, and for good if it has at most 64
  /// KiB. Throws Error where the function does what a program cannot do again, or did not do the same twice.
  template <std::same_as<Tensor>... X>
  auto operator()(const X&... arguments) {
    return call(
        [&](const Tensors& in) {
          return [&]<std::size_t... i>(std::index_sequence<i...>) {
            return f_(static_cast<const X&>(in[i])...);
          }(std::index_sequence_for<X...>());
        },
        {arguments...});
  }
  /// The same for a list.
  auto operator()(const Tensors& arguments)
    requires std::invocable<F&, const Tensors&>
  {
    return call(f_, arguments);
  }
  /// The same for a batch with names.
  template <TensorStruct Batch>
  auto operator()(const Batch& arguments) {
    return call(
        [&](const Tensors& in) {
          Batch batch;
          auto next = in.begin();
          for_each_tensor(batch, [&](Tensor& x) { x = *next++; });
          return f_(static_cast<const Batch&>(batch));
        },
        tensors_of(arguments));
  }

  /// Drops all programs.
  void forget() { programs_->forget(); }
  /// Number of programs that are kept, one for each kind of arguments.
  std::size_t programs() const { return programs_->size(); }
  /// Number of calls that ran a program; the others ran as written.
  std::int64_t runs() const { return programs_->runs(); }
  /// Text of the programs, for people: a line each.
  std::string report() const { return programs_->report(); }
  /// The program that ran last as text.
  std::string show(Stage stage = Stage::kernels) const { return programs_->text(stage); }
  /// The same as data.
  ProgramOverview overview() const { return programs_->overview(); }

 private:
  template <class Step>
  auto call(const Step& step, const Tensors& arguments) {
    using Result = decltype(step(arguments));
    const auto listed = [&](const Tensors& in) -> Tensors {
      if constexpr (std::is_void_v<Result>) return step(in), Tensors{};
      else if constexpr (std::is_same_v<Result, Tensor>) return {step(in)};
      else return step(in);
    };
    Tensors results = programs_->call(listed, arguments);
    if constexpr (std::is_same_v<Result, Tensor>) return std::move(results[0]);
    else if constexpr (!std::is_void_v<Result>) return results;
  }

  F f_;
  std::shared_ptr<compiler::Programs> programs_;  ///< shared with the histories of results
};

/// Compiles a function of tensors that returns a Tensor, Tensors or nothing: a step of training, a forward pass, an optimizer. For each
/// kind of call (dtypes and shapes of arguments, modes of the thread and of modules) two calls run as written and note the kernels, and
/// later ones run the program of these kernels: on a GPU as one graph, if they are more than a few, on the CPU without a graph of
/// gradients, with temporary tensors in one block of memory and chains of elementwise kernels by chunks in cache. The first call of all is
/// not noted, as optimizers create their moments then. Results are those of the function as written for contiguous arguments, bit for bit
/// but for the order of sums that CompileOptions::fuse allows; it gets copies of these. Within another compiled function, or a captured
/// step, it is a part of that.
///
/// A result has a history if it has one as written, unless the function has used it up in a backward pass of its own: gradients then come
/// from a second part of the program, for arguments and leaves, once for each call and not to be differentiated again. Each of the first
/// two calls has its backward pass, or none of that kind has one. A step with its loss and update within is faster: it copies no gradients,
/// and keeps nothing between two parts.
///
/// The function must do the same work each time: the second of the two is compared with the first, and again at calls 10, 100, 1000, ...;
/// what differs is an Error that names it, not a frozen number. What the function changes must live outside of it: parameters,
/// gradients, moments. After set_requires_grad of a parameter and nn::to it begins anew. 64 programs are kept, those of the
/// kinds that were used last.
template <class F>
Compiled<F> compile(F f, Device device = default_device(), CompileOptions options = {}) {
  return Compiled<F>(std::move(f), device, options);
}

/// A step of training in one of three ways: as it is written, as a CapturedStep, or compiled. Results are the same, but for the order of
/// sums in a compiled one.
class Step {
 public:
  /// How the step runs.
  enum class Way : std::uint8_t {
    as_written,  ///< as the function says
    captured,    ///< as a CapturedStep
    compiled,    ///< as a Compiled
  };
  /// Of a function, for steps on the device.
  Step(StepFunction step, Way way, Device device = default_device()) {
    if (way == Way::captured) captured_ = std::make_unique<CapturedStep>(std::move(step), device);
    else if (way == Way::compiled) compiled_ = std::make_unique<Compiled<StepFunction>>(std::move(step), device);
    else written_ = std::move(step);
  }

  /// Runs the step; the result stays valid until the next call.
  Tensor operator()(const Tensors& inputs) {
    return captured_ ? (*captured_)(inputs) : compiled_ ? (*compiled_)(inputs) : written_(inputs);
  }
  /// Null unless captured.
  const CapturedStep* captured() const { return captured_.get(); }
  /// Null unless compiled.
  const Compiled<StepFunction>* compiled() const { return compiled_.get(); }

 private:
  StepFunction written_;
  std::unique_ptr<CapturedStep> captured_;
  std::unique_ptr<Compiled<StepFunction>> compiled_;
};

}  // namespace tern
