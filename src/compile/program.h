#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <variant>
#include <vector>

#include "autodiff/autograd_state.h"
#include "compile/overview.h"
#include "ops/kernels/reduce.h"
#include "tensor/context.h"
#include "tensor/kernel.h"
#include "tensor/tensor.h"

namespace tern::compiler {

// Note [Programs]
// A program is the list of kernels that a function ran, in their order, and the blocks of memory that they use. All of a step's work passes
// launch() (tensor/kernel.h): forward, backward, gradients of leaves, clipping, optimizers. So a trace (compile/trace.h) is an observer
// that copies each kernel with its arguments while the function runs as written, and a program runs the copies again, in its own memory. An
// address becomes a place, a block and an offset:
//
//   input     the function's arguments: each run copies its own there
//   outside   tensors that were there before, and that the program owns a reference to: parameters, moments, flat gradients
//   constant  written by the host within the function (Tensor::from), and kept as it is
//   kept      made by the function and still referenced at its end, by its result or as a leaf's gradient
//   inner     all others: they share one arena, in which two have the same memory if their lifetimes do not overlap
//
// Which gradients leaves have is the host's, too: what a pass does to one depends on its sink (Note [Gradient sink]). So a program knows
// the state in which its function found each sink that it used, runs only where that is so, and leaves the sinks as the function did.
//
// A function whose results have a history has a backward pass as well, whose kernels follow in its program: the gradients of what the
// function computed from, by those of its results. A run is one of either part, and what the second part reads of the first is kept
// between.
//
// Work of a function on the host is not in the program: it must be the same each time. Two traces are compared to find out
// (difference), which names a learning rate that is a number of the host, a tensor that was replaced, a branch that was taken once.

/// Memory that the kernels of a program use: Note [Programs].
struct Block {
  enum class Kind : std::uint8_t { input, outside, constant, kept, inner };
  Kind kind = Kind::inner;
  Ref<Storage> memory;  ///< null for an inner one, and one that is kept for the backward part
  std::size_t bytes = 0;
  std::size_t argument = 0;         ///< of an input, its index among the arguments
  bool is_used = false;             ///< by a step
  std::size_t first = 0, last = 0;  ///< the steps that use it first and last
  std::size_t offset = 0;           ///< of one without memory, in the arena or in what is kept for the backward part
};

/// A kernel of a program.
struct Call {
  /// Address of a view: a block, or none for an absent operand, and an offset in bytes.
  struct Place {
    static constexpr std::size_t none = ~std::size_t{0};
    std::size_t block = none;
    std::int64_t offset = 0;
  };
  std::unique_ptr<KernelCall> kernel;
  std::vector<Place> places;  ///< of its views, in their order
  std::string op, module;     ///< what ran it; may be empty
  Context::Kernels ways;      ///< the thread's choice of kernels: the precision of products
  std::size_t kernels = 1;    ///< number of the function's kernels that it is: merge_products
};

/// The geometry of a kernel's views, its numbers, and its states of the random generator.
struct Arguments : KernelCall::Visitor {
  std::vector<View> views;
  std::vector<std::variant<double, std::int64_t>> numbers;
  std::vector<PhiloxState*> states;
  explicit Arguments(KernelCall& kernel) { kernel.visit(*this); }
  void view(View& x, kernels::Access) override { views.push_back(x); }
  void number(double x) override { numbers.emplace_back(x); }
  void number(std::int64_t x) override { numbers.emplace_back(x); }
  void random(PhiloxState& x) override { states.push_back(&x); }

  /// The first difference of the arguments of another call of the kernel; empty if there is none.
  std::string difference(const Arguments& later) const;
};

/// Call between the two parts of a program. It orders them: kernels that write what a call leaves are before it, and those that read the
/// gradients of results after it.
struct BeginBackward {
  std::vector<kernels::In> left;
  std::vector<kernels::Out> gradients;
  void run(Cpu) const {}
  void run(Cuda) const {}
};

/// Parts of a program: Note [Programs].
enum class Part : std::uint8_t { forward, backward };

/// Counts of the texts that the kernels of groups have on a GPU, and their time.
struct CompileCounts {
  std::size_t compiled = 0;  ///< texts that were compiled
  std::size_t kept = 0;      ///< texts whose code the cache on disk had
  double seconds = 0;        ///< for both, and for loading the code
  void add(const CompileCounts& other) { compiled += other.compiled, kept += other.kept, seconds += other.seconds; }
};

struct Group;
struct CudaText;

/// The groups in which a program runs its kernels: Note [Groups].
enum class Grouping : std::uint8_t { none, of_cpu, of_gpu };

/// The kernels that a function ran, for runs in memory of their own.
class Program {
 public:
  /// Throws Error for arguments that the function could see edited: they share memory with what it edits.
  void check(const Tensors& arguments) const;
  /// Makes the arguments of the part's next run those tensors, of the traced kind: in place if only it reads them, or by copies in
  /// inputs().
  void bind(const Tensors& arguments, Part part);
  /// Runs the kernels of a part on the current stream. Random numbers of both begin at the generator's position at the forward one, which
  /// advances it as the function does.
  void run(Part part);
  /// Sets the memory of inner blocks, arena_bytes() or more, which programs that run one after the other share, and of what the forward
  /// part keeps for the backward one, kept_bytes() or more, which is in use between the two.
  void use(Ref<Storage> arena, Ref<Storage> kept);
  const Ref<Storage>& kept_memory() const { return kept_memory_; }
  /// Gives the kernels their addresses and the current stream: for run(), outside of a capture. After use().
  void link();
  /// Writes what products read beside their operands (kernels::write_addresses), for runs by a graph. After link(), outside of a capture.
  void write_addresses();
  /// For a run of a part by a graph: the generator's position at which the forward part begins, which advances there.
  std::uint64_t advance(Part part);
  /// True if there is a backward part.
  bool has_backward() const { return gradients_ > 0; }
  /// Throws Error if memory was edited that the backward part reads, since the forward part left it so.
  void check_kept() const;
  /// @{
  /// True if the gradients that the function reads or adds to are as at the trace: a sum as far, and in the memory that the kernels have.
  bool finds_sums() const;
  bool finds_memory() const;
  /// @}
  /// @{
  /// Versions of memory that the host looks at, as an optimizer does: true if nobody else has edited it since they were noted, and true for
  /// a program whose function found an edit, and did what it does only then.
  bool finds_versions() const;
  bool mends() const { return mends_; }
  void note_versions();
  /// @}
  /// Leaves gradients as the function does, after a run, and marks results as edited, which a caller may have saved for backward.
  void settle();
  /// The first difference of another trace of the function, "kernel 3 of 7 (sgd): numbers 0.1 and 0.2"; empty if both do the same.
  /// Gradients that were there before may be in other memory if that is said.
  std::string difference(const Program& later, bool gradients_may_move) const;
  /// A line for each kernel, with its operands.
  std::string text() const;
  /// The text of the kernels that its groups are on a GPU (compile/cuda_text.h), whatever the device.
  std::string code() const;
  /// The groups and blocks of a run, as data.
  ProgramOverview overview() const;

  std::size_t size() const { return calls_.size(); }                   ///< number of kernels that were traced
  std::size_t steps() const { return steps_.size(); }                  ///< number of kernels and chains that runs of both parts call
  std::size_t steps(Part part) const;                                  ///< those of a part
  std::size_t generated() const { return generated_; }                 ///< number of kernels with code of their own, on a GPU
  std::size_t not_generated() const { return not_generated_; }         ///< number of groups whose code could not be compiled
  const std::string& failure() const { return failure_; }              ///< why not
  const CompileCounts& counts() const { return counts_; }              ///< of the texts of those kernels
  std::size_t arena_bytes() const { return arena_bytes_; }             ///< memory of all inner blocks together
  std::size_t inner_bytes() const;                                     ///< memory that they would take one by one
  std::size_t kept_bytes() const { return kept_bytes_; }               ///< memory that the forward part keeps for the backward one
  bool draws() const { return !draws_.empty(); }                       ///< true if a kernel draws random numbers
  bool reads(std::size_t argument) const { return reads_[argument]; }  ///< true if a run reads that argument of the function
  const Tensors& inputs() const { return inputs_; }                    ///< tensors that a run reads the function's arguments from
  /// The arguments, which are followed by the gradients of results that the backward part has.
  std::size_t arguments() const { return inputs_.size() - gradients_; }
  /// Results of the function, followed by those of its backward pass, without history.
  const Tensors& results() const { return results_; }
  const std::vector<Call>& calls() const { return calls_; }     ///< what was traced
  const std::vector<Block>& blocks() const { return blocks_; }  ///< and its memory

 private:
  friend class Trace;

  /// A kernel's state of the random generator, and its position from that of the run.
  struct Draw {
    PhiloxState* state;
    std::uint64_t position;
  };
  /// A view of an argument.
  struct InputView {
    View* view;
    std::size_t input;
    std::int64_t offset;
  };
  /// A leaf's sink, and its state before and after the function, which may begin with a new gradient.
  struct Sink {
    Ref<GradientSink> sink;
    backend::Observer::GradientUse first;
    GradientSink::State before, after;
  };
  /// Number of the gradient, or its exact sum, that was in that memory before the function; none if there was none.
  std::size_t sum_in(const Ref<Storage>& memory) const;
  void prepare();
  struct Joined;
  std::vector<Joined> joined(std::vector<Group>& groups, const std::vector<Call>& calls);
  bool may_read_in_place(const Tensor& argument) const;
  void plan_arena();
  const Ref<Storage>& memory_of(const Block& block) const {
    return block.memory ? block.memory : block.kind == Block::Kind::kept ? kept_memory_ : arena_;
  }
  void keep_for_backward();
  bool is_in(Part part, std::size_t step) const { return (step < begin_backward_) == (part == Part::forward); }

  Device device_;
  Grouping grouping_ = Grouping::none;
  std::vector<Call> calls_;  ///< as traced, for difference()
  std::vector<Block> blocks_;
  std::vector<Call> steps_;                          ///< what a run does: calls, or several as one
  std::vector<std::vector<std::string>> names_;      ///< of each step, what it runs
  std::unique_ptr<kernels::DeferredSums> deferred_;  ///< of a run: Note [Parts of sums] in compile/parts.h
  std::vector<Draw> draws_;
  std::vector<InputView> input_views_;
  std::vector<Sink> sinks_;
  std::vector<std::pair<Ref<Storage>, std::uint32_t>> versions_;
  bool mends_ = false;
  std::vector<Ref<Storage>> own_results_;        ///< memory of results that the function makes
  std::unordered_set<const Storage*> reserved_;  ///< memory of blocks that are no arguments
  std::unordered_set<const Storage*> edited_;    ///< memory from outside that the kernels write
  bool edits_inputs_ = false, returns_inputs_ = false;
  std::vector<bool> reads_;         ///< for each argument: a run reads it
  std::size_t gradients_ = 0;       ///< number of the last inputs, which are gradients of results
  std::size_t begin_backward_ = 0;  ///< step
  std::size_t kept_bytes_ = 0;
  std::vector<bool> is_kept_input_;                           ///< for each input: the backward part reads an argument
  std::vector<std::pair<Ref<Storage>, std::uint32_t>> kept_;  ///< memory that the backward part reads, and its versions
  PhiloxState first_;                                         ///< where the random numbers of the last run of the forward part began
  std::uint64_t position_ = 0;                                ///< the generator's position then
  std::uint64_t begin_ = 0;                                   ///< the generator's position at the trace
  std::uint64_t drawn_ = 0;                                   ///< positions of the random stream that a run takes
  std::size_t generated_ = 0, not_generated_ = 0;
  std::string failure_;
  CompileCounts counts_;
  Ref<Storage> arena_, kept_memory_;
  Ref<Storage> addresses_;  ///< of products
  std::size_t arena_bytes_ = 0;
  std::optional<void*> linked_stream_;  ///< handle of the stream that the kernels have
  Tensors inputs_, results_;
};

}  // namespace tern::compiler
