#pragma once
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "autodiff/anomaly.h"
#include "compile/program.h"

namespace tern::compiler {

/// Scope whose kernels, run by this thread, become a program: Note [Programs]. They run as they do without it. What a program could not do
/// again throws Error that names it: reading a tensor on the host, a copy between devices, a collective that begins or ends outside.
class Trace : backend::Observer {
 public:
  /// `inputs` are the function's arguments, on `device`.
  Trace(Tensors inputs, Device device, Grouping grouping);
  ~Trace() override;

  /// True within a trace of this thread.
  static bool is_active();
  /// The arguments that the function is called with.
  const Tensors& inputs() const { return program_.inputs_; }
  /// Leaves the scope until its function's backward pass, whose kernels follow in the program: resume().
  void suspend();
  /// Enters the scope again for the function's backward pass, which begins with the gradients of results: they become the last of inputs().
  void resume(const Tensors& gradients);
  /// Ends the scope, whose function returned `results`, followed by the results of its backward pass: their history goes.
  Program finish(Tensors results);

 private:
  void run_kernel(const KernelCall& kernel) override;
  void end_op(const OpCall& call) override;
  void begin_in_place(const char* op) override;
  void end_kernel(const char* op) override;
  void begin_backward(const Node& node) override;
  void end_backward(double bytes) override;
  void begin_pass(const char* name) override;
  void end_pass() override;
  void on_sink(GradientSink& sink, GradientUse use) override;
  void begin_allocation() override;
  void end_allocation(const Ref<Storage>& memory) override;
  void on_view(const Ref<Storage>& memory) override;
  void on_version(const Ref<Storage>& memory, bool is_edited) override;
  void on_host_access(const char* function, const Ref<Storage>& memory) override;

  std::size_t add(const Ref<Storage>& memory, Block::Kind kind);
  Call::Place place_of(const View& view) const;
  void drop_freed();
  void enter();
  void leave();
  Call begin_backward() const;
  void note_collective(const KernelCall& kernel, Call& call);
  void name_pending(const char* op);

  Program program_;
  const std::uint64_t seed_;
  std::size_t begin_backward_ = 0;  ///< call
  std::uint64_t resumed_ = 0;       ///< the generator's position where the backward pass began
  bool is_entered_ = false;
  std::unordered_map<const Storage*, std::size_t> known_;                    ///< blocks whose memory is alive
  std::map<const std::byte*, std::size_t> by_address_;                       ///< the same, by their first byte
  std::vector<std::size_t> inner_;                                           ///< of these, the inner ones
  std::size_t bytes_alive_ = 0;                                              ///< of the inner ones, when freed ones were last dropped
  std::size_t bytes_since_ = 0;                                              ///< of those that were added since then
  std::unordered_set<const GradientSink*> sinks_;                            ///< those of the program
  std::size_t named_ = 0;                                                    ///< kernels before this one have their op
  const char* in_place_ = nullptr;                                           ///< in-place op whose kernel is next, or null
  std::map<std::pair<const void*, std::int64_t>, const char*> collectives_;  ///< those that have not ended: group and number, and name
  std::vector<std::string> modules_;  ///< whose forward recorded the nodes of backward functions that run
  std::string latest_;                ///< the one before, to which sums of its gradients belong
  ModuleNames unnamed_;
  std::optional<ScopedValue<const ModuleNames*>> names_;  ///< with which nodes note their modules
};

}  // namespace tern::compiler
