#include "compile/trace.h"

#include <algorithm>
#include <set>
#include <string>

#include "autodiff/anomaly.h"
#include "autodiff/node.h"
#include "compile/groups.h"
#include "ops/kernels/collective.h"
#include "ops/kernels/linalg.h"
#include "ops/kernels/reduce.h"
#include "tensor/context.h"

namespace tern::compiler {

static constinit thread_local int active = 0;
bool Trace::is_active() { return active > 0; }

Trace::Trace(Tensors inputs, Device device, Grouping grouping) : seed_(context().generator.seed()) {
  program_.begin_ = context().generator.position();
  program_.device_ = device;
  program_.grouping_ = grouping;
  program_.inputs_ = std::move(inputs);
  for (std::size_t i = 0; i < program_.inputs_.size(); ++i)
    if (const Tensor& x = program_.inputs_[i]; x.defined()) program_.blocks_[add(x.impl().storage, Block::Kind::input)].argument = i;
  enter();
}
Trace::~Trace() {
  leave();
  for (const std::size_t index : inner_) program_.blocks_[index].memory->end_watch();
}

void Trace::enter() {
  watch();
  ++active;
  is_entered_ = true;
  names_.emplace(context().diagnosis.names, context().diagnosis.names ? context().diagnosis.names : &unnamed_);
}

void Trace::leave() {
  if (!std::exchange(is_entered_, false)) return;
  names_.reset();
  --active;
  unwatch();
}

void Trace::suspend() {
  const Generator& generator = context().generator;
  if (program_.has_backward()) {
    if (generator.position() != resumed_) fail("compile", "expected a backward pass that draws no random numbers but got one that does");
  } else if (generator.seed() != seed_ || generator.position() < program_.begin_) {
    fail("compile", "expected a step that draws from where the generator is but got one that sets it: call manual_seed outside");
  } else {
    program_.drawn_ = generator.position() - program_.begin_;
  }
  leave();
  drop_freed();
}

void Trace::resume(const Tensors& gradients) {
  for (const Tensor& x : gradients) {
    program_.blocks_[add(x.impl().storage, Block::Kind::input)].argument = program_.inputs_.size();
    program_.inputs_.push_back(x);
  }
  program_.gradients_ = gradients.size();
  begin_backward_ = named_ = program_.calls_.size();
  program_.calls_.emplace_back();
  resumed_ = context().generator.position();
  enter();
}

/// The call between the two passes, after which are those that read the gradients, and before which are those that write what is kept, or
/// was there before.
Call Trace::begin_backward() const {
  std::set<std::size_t> left, gradients;
  for (std::size_t i = 0; i < begin_backward_; ++i)
    each_view(program_.calls_[i], [&](const View&, kernels::Access access, const Call::Place& place) {
      if (access == kernels::Access::read || place.block == Call::Place::none) return;
      const Block::Kind kind = program_.blocks_[place.block].kind;
      if (kind == Block::Kind::kept || kind == Block::Kind::outside) left.insert(place.block);
    });
  for (std::size_t i = 0; i < program_.blocks_.size(); ++i)
    if (const Block& block = program_.blocks_[i]; block.kind == Block::Kind::input && block.argument >= program_.arguments())
      if (block.bytes > 0) gradients.insert(i);
  BeginBackward begin;
  Call call{.kernel = nullptr, .places = {}, .op = "backward", .module = {}, .ways = context().kernels};
  const auto all_of = [&](std::size_t block) {
    const Ref<Storage>& memory = program_.blocks_[block].memory;
    call.places.push_back({block, 0});
    return View(memory->data(), {static_cast<std::int64_t>(memory->bytes())}, {1}, DType::u8, memory->stream());
  };
  for (const std::size_t block : left) begin.left.push_back(all_of(block));
  for (const std::size_t block : gradients) begin.gradients.push_back(all_of(block));
  call.kernel = std::make_unique<detail::KernelCallOf<BeginBackward>>(begin);
  return call;
}

std::size_t Trace::add(const Ref<Storage>& memory, Block::Kind kind) {
  const std::size_t index = program_.blocks_.size();
  program_.blocks_.push_back({.kind = kind, .memory = memory, .bytes = memory->bytes()});
  if (memory->bytes() == 0) return index;
  known_[memory.get()] = index;
  // Blocks are found by address: those of two from_blob on one memory could not be told apart.
  const auto* const begin = static_cast<const std::byte*>(memory->data());
  const auto after = by_address_.lower_bound(begin + memory->bytes());
  if (after != by_address_.begin())
    if (const auto& [first, other] = *std::prev(after); first + program_.blocks_[other].bytes > begin)
      fail("compile", "expected memory that one tensor and its views have but got two tensors on it, as from_blob makes: use a view");
  by_address_[static_cast<const std::byte*>(memory->data())] = index;
  if (kind != Block::Kind::inner) return index;
  memory->begin_watch();
  inner_.push_back(index);
  bytes_since_ += memory->bytes();
  return index;
}

// A block of which the function has dropped every tensor is freed here, before another allocation, so that a trace needs the memory that
// the function needs. Where many are alive they are looked at once in a while, when a sixteenth of their memory has been added.
void Trace::drop_freed() {
  bytes_alive_ = bytes_since_ = 0;
  std::erase_if(inner_, [&](std::size_t index) {
    Block& block = program_.blocks_[index];
    if (block.kind == Block::Kind::inner && block.memory->references() > 1) {
      bytes_alive_ += block.bytes;
      return false;
    }
    block.memory->end_watch();
    if (block.kind != Block::Kind::inner) return true;
    known_.erase(block.memory.get());
    by_address_.erase(static_cast<const std::byte*>(block.memory->data()));
    block.memory = nullptr;
    return true;
  });
}
void Trace::begin_allocation() {
  if (bytes_since_ > bytes_alive_ / 16) drop_freed();
}
void Trace::end_allocation(const Ref<Storage>& memory) { add(memory, Block::Kind::inner); }

void Trace::on_view(const Ref<Storage>& memory) {
  if (memory->bytes() > 0 && !known_.contains(memory.get())) add(memory, Block::Kind::outside);
}

void Trace::on_version(const Ref<Storage>& memory, bool is_edited) {
  program_.versions_.emplace_back(memory, 0);
  program_.mends_ |= is_edited;
}

void Trace::on_host_access(const char* function, const Ref<Storage>& memory) {
  if (!memory) fail("compile", std::string("expected work that a program can do again but got ") + function);
  if (std::string_view(function) != "from")
    fail("compile",
         std::string("expected a step that stays on the device but got ") + function + "(): return the tensor, and read it outside");
  if (const auto found = known_.find(memory.get()); found != known_.end()) program_.blocks_[found->second].kind = Block::Kind::constant;
}

void Trace::on_sink(GradientSink& sink, GradientUse use) {
  if (sinks_.insert(&sink).second) program_.sinks_.push_back({Ref<GradientSink>(&sink), use, sink.state(), {}});
}

/// Collectives are in a program from their begin to their end: Note [Collectives as kernels].
void Trace::note_collective(const KernelCall& kernel, Call& call) {
  if (const auto* const begin = kernel.as<kernels::BeginCollective>()) {
    call.op = kernels::name(begin->kind);
    collectives_[{begin->group.get(), begin->number}] = kernels::name(begin->kind);
  } else if (const auto* const end = kernel.as<kernels::EndCollective>()) {
    call.op = kernels::name(end->kind);
    if (collectives_.erase({end->group.get(), end->number}) == 0)
      fail("compile", "expected waits for collectives that the function begins but got one for " + call.op + " from outside: wait before");
  }
}

Call::Place Trace::place_of(const View& view) const {
  if (!view.data) return {};
  const auto* const address = static_cast<const std::byte*>(view.data);
  auto after = by_address_.upper_bound(address);
  if (after != by_address_.begin()) {
    const auto& [begin, index] = *std::prev(after);
    if (const std::ptrdiff_t offset = address - begin; offset <= static_cast<std::ptrdiff_t>(program_.blocks_[index].bytes))
      return {index, offset};
  }
  fail("compile", "expected kernels on memory of tensors but got one on other memory");
}

/// True for a kernel that waits for its device: because it returns something to the host, or on a GPU by cuSOLVER.
static bool waits(const KernelCall& kernel, Device device) {
  if (kernel.reports()) return true;
  if (device.type == DeviceType::cpu) return false;
  const std::type_info& type = kernel.type();
  return type == typeid(kernels::Qr) || type == typeid(kernels::Eigh) || type == typeid(kernels::Svd) || type == typeid(kernels::Det);
}

void Trace::run_kernel(const KernelCall& kernel) {
  // Pending sums are not in a program, where each kernel adds up its own: copies of kernels have none.
  if (kernel.type() == typeid(kernels::AddPartialSums)) return;
  if (waits(kernel, program_.device_))
    fail("compile", "expected a step that stays on the device but got " + detail::short_name(kernel.type()) + ", which waits for it");
  Call call{.kernel = kernel.copy(), .places = {}, .op = {}, .module = running_module(), .ways = context().kernels};
  note_collective(kernel, call);
  struct Visit : KernelCall::Visitor {
    Trace& trace;
    Call& call;
    Visit(Trace& trace_, Call& call_) : trace(trace_), call(call_) {}
    void view(View& view, kernels::Access access) override {
      const Call::Place place = trace.place_of(view);
      call.places.push_back(place);
      if (place.block == Call::Place::none) return;
      if (view.stream.device != trace.program_.device_)
        fail("compile",
             "expected a step on " + to_string(trace.program_.device_) + " but got a tensor on " + to_string(view.stream.device));
      const Block& block = trace.program_.blocks_[place.block];
      if (access == kernels::Access::read) return;
      if (block.kind == Block::Kind::input) trace.program_.edits_inputs_ = true;
      if (block.kind == Block::Kind::outside) trace.program_.edited_.insert(block.memory.get());
      if (block.kind == Block::Kind::constant)
        fail("compile", "expected no edit in place of a tensor that the host writes within the step: make a copy of it");
    }
  } visitor(*this, call);
  call.kernel->visit(visitor);
  if (call.module.empty()) call.module = modules_.empty() ? latest_ : modules_.back();
  if (const char* const op = std::exchange(in_place_, nullptr)) call.op = op;
  program_.calls_.push_back(std::move(call));
}

void Trace::name_pending(const char* op) {
  for (; named_ < program_.calls_.size(); ++named_)
    if (std::string& name = program_.calls_[named_].op; name.empty()) name = op;
}
void Trace::begin_backward(const Node& node) { modules_.push_back(node.module); }
void Trace::end_backward(double) {
  latest_ = std::move(modules_.back());
  modules_.pop_back();
}
void Trace::begin_pass(const char*) { latest_.clear(); }
void Trace::end_pass() { latest_.clear(); }
void Trace::end_op(const OpCall& call) { name_pending(call.op.name); }
void Trace::begin_in_place(const char* op) { in_place_ = op; }
void Trace::end_kernel(const char* op) {
  if (op) name_pending(op);
}

Program Trace::finish(Tensors results) {
  if (is_entered_) suspend();
  for (const auto& [number, name] : collectives_)
    fail("compile", std::string("expected collectives that end within the function but got ") + name + " that does not: wait for it there");
  for (Tensor& x : results)
    if (x.defined()) x = x.detach();
  program_.results_ = std::move(results);
  // A result or gradient that is an argument is the program's copy of it, which each run must write.
  const auto note = [&](const Tensor& x) {
    for (const Tensor& input : program_.inputs_)
      if (x.defined() && input.defined() && x.impl().storage == input.impl().storage) program_.returns_inputs_ = true;
  };
  std::for_each(program_.results_.begin(), program_.results_.end(), note);
  // Leaves that the function has made and dropped are gone.
  std::erase_if(program_.sinks_, [](const Program::Sink& x) { return x.sink->references() == 1; });
  for (Program::Sink& x : program_.sinks_) x.after = x.sink->state(), note(x.after.gradient);
  drop_freed();
  for (const std::size_t index : inner_) {
    program_.blocks_[index].kind = Block::Kind::kept;
    program_.blocks_[index].memory->end_watch();
  }
  inner_.clear();
  if (program_.has_backward()) program_.calls_[begin_backward_] = begin_backward();
  program_.note_versions();
  for (const Block& block : program_.blocks_)
    if (block.kind != Block::Kind::input && block.memory) program_.reserved_.insert(block.memory.get());
  for (const Tensor& x : program_.results_) {
    const auto found = x.defined() ? known_.find(x.impl().storage.get()) : known_.end();
    if (found != known_.end() && program_.blocks_[found->second].kind == Block::Kind::kept)
      program_.own_results_.push_back(x.impl().storage);
  }
  program_.prepare();
  return std::move(program_);
}

}  // namespace tern::compiler
