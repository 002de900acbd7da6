#include "compile/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "autodiff/autograd_state.h"
#include "autodiff/engine.h"
#include "compile/history.h"
#include "compile/trace.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "tensor/context.h"

namespace tern::compiler {

namespace {

constexpr std::size_t max_programs = 64;
constexpr std::int64_t max_waiting = 32;  // calls of one kind before their backward passes that have programs

/// True from a call until its backward pass has begun, or cannot come any more.
bool is_awaited(const std::weak_ptr<bool>& begun) {
  const std::shared_ptr<bool> has_begun = begun.lock();
  return has_begun && !*has_begun;
}

/// True for the calls of a kind of arguments, counted from the first traced one, that are traced and compared with it: 2, 10, 100, 1000,
/// ...
bool is_compared(std::int64_t call) {
  if (call == 2) return true;
  std::int64_t power = 10;
  while (power < call) power *= 10;
  return power == call;
}

/// Kind of a call: of its arguments, and of the modes of this thread and of modules in which ops choose kernels.
std::vector<std::int64_t> key_of(const Tensors& arguments) {
  const Context& now = context();
  std::vector<std::int64_t> key = detail::key_of(arguments);
  key.insert(key.end(), {now.grad, now.kernels.fused, now.kernels.autotune, static_cast<std::int64_t>(now.kernels.matmul_precision),
                         now.autocast ? static_cast<std::int64_t>(now.autocast->dtype()) : -1,
                         static_cast<std::int64_t>(now.factory_device.type), static_cast<std::int64_t>(detail::module_modes())});
  return key;
}

/// Results of a program, copied if they are small.
Tensors for_caller(std::span<const Tensor> results, std::int64_t copied_bytes) {
  const NoGrad unrecorded;
  Tensors given;
  for (const Tensor& x : results) {
    const bool is_small = x.defined() && x.numel() * static_cast<std::int64_t>(size_of(x.dtype())) <= copied_bytes;
    given.push_back(is_small ? clone(x) : x);
  }
  return given;
}

/// Runs a function on copies of its arguments, or on those themselves that need a gradient. Only results with a history that a backward
/// pass can follow keep it: nodes that live on with others would have those of the next call run in another order.
Tensors as_written(const Programs::Function& f, const Tensors& arguments) {
  Tensors given = detail::copies_of(arguments);
  for (std::size_t i = 0; i < given.size(); ++i)
    if (given[i].defined() && context().grad && arguments[i].requires_grad()) given[i] = arguments[i];
  Tensors results = f(given);
  const History history = history_of(results, given, 0);
  for (std::size_t i = 0; i < results.size(); ++i)
    if (results[i].defined() && std::find(history.results.begin(), history.results.end(), i) == history.results.end())
      results[i] = results[i].detach();
  return results;
}

Tensors without_history(const Tensors& results) {
  Tensors detached;
  for (const Tensor& x : results) detached.push_back(x.defined() ? x.detach() : x);
  return detached;
}

}  // namespace

// Note [Backward of programs]
// Results with a history have one in which the call is a single node, from the arguments and leaves that they were computed from. Its
// backward runs the second part of the program (Note [Programs]), whose gradients are copies. A traced call runs as written, its backward
// pass too: the trace is left open until the pass, and ends without one when the results are gone. A call of the same kind before the pass
// has a program of its own. What a call keeps for its pass is in memory that another program may have afterwards.
struct Programs::Entry {
  /// A traced call before its backward pass.
  struct Open {
    std::unique_ptr<Trace> trace;
    Tensors results;  ///< with their history
  };
  std::optional<Program> program;
  std::unique_ptr<backend::Graph> graph, backward_graph;
  std::optional<Open> open;
  History history;                 ///< of the last trace
  std::size_t results = 0;         ///< number of the function's
  std::weak_ptr<bool> begun;       ///< of the last call: its backward pass has; gone with the history of its results
  CompileCounts counts;            ///< of all its traces
  std::int64_t calls = 0;          ///< from the first traced one
  std::int64_t moves = 0;          ///< calls that found gradients in other memory than the program has
  std::int64_t last_use = 0;       ///< as a number of calls of all kinds
  std::uint64_t mode_changes = 0;  ///< mode_changes() after the last trace
  std::uint64_t seed = 0;          ///< of the graph, in whose kernels that draw it is a constant
};

struct Programs::Lock {
  std::recursive_mutex mutex;  // a function may call itself by another name
};

Programs::Programs(Device device, CompileOptions options)
    : lock_(std::make_unique<Lock>()),
      device_(device),
      options_(options),
      stream_(with_backend(device, [&](auto dev) { return backend::graph_stream(dev, device); })) {}
Programs::~Programs() = default;

void Programs::forget() { entries_.clear(), kept_.clear(), arena_ = nullptr; }
std::size_t Programs::size() const { return entries_.size(); }

Tensors Programs::call(const Function& f, const Tensors& arguments) {
  const std::scoped_lock alone(lock_->mutex);
  for (const Tensor& x : arguments) {
    if (!x.defined()) continue;
    if (x.device() != device_) fail("compile", "expected arguments on " + to_string(device_) + " but got one on " + to_string(x.device()));
    if (detail::carries_tangent(x)) fail("compile", "expected arguments without tangents: within jvp call the function itself");
  }
  if (context().recording || Trace::is_active()) return f(arguments);  // a part of what another one keeps
  // On a GPU all calls run on the stream of the graphs, so that each sees what the one before has written.
  std::optional<detail::OnStream> here;
  if (stream_) here.emplace(stream_->get());
  // A scope around the call may have casts of weights from before, which a program must make anew, and will make after it.
  Autocast* const outer = context().autocast;
  std::optional<Autocast> autocast;
  if (outer) outer->forget(), autocast.emplace(outer->dtype());
  write_lazy_zeros();
  const Tensors results = run(f, arguments);
  if (here) here->finish();
  return results;
}

Tensors Programs::run(const Function& f, const Tensors& arguments) {
  if (!std::exchange(has_run_, true)) return as_written(f, arguments);  // libraries load their kernels, optimizers create their moments
  std::vector<std::int64_t> key = key_of(arguments);
  for (const Tensor& x : arguments) key.push_back(x.defined() && context().grad && x.requires_grad());
  const std::shared_ptr<Entry> entry = entry_for(std::move(key));
  if (!entry) return as_written(f, arguments);
  if (entry->open) end_without_backward(*entry);
  ++entry->calls;
  if (entry->calls == 1 || is_compared(entry->calls) || !entry->program->finds_memory() || !entry->program->finds_versions())
    return trace(entry, f, arguments);
  Program& program = *entry->program;
  program.check(arguments);
  replay(*entry, arguments, Part::forward);
  ++runs_;
  program.settle();
  return with_history(entry, for_caller({program.results().data(), entry->results}, options_.copied_bytes), arguments);
}

/// The entry for a kind of call; null if so many calls of that kind wait for their backward pass that this one runs as written.
std::shared_ptr<Programs::Entry> Programs::entry_for(Key key) {
  // Kinds of arguments differ by the gradients that leaves have as well: none at the first of several passes, a sum at the others.
  constexpr std::int64_t max_kinds = 8;
  key.push_back(0);
  auto found = entries_.find(key);
  for (std::int64_t others = 0; found != entries_.end(); found = entries_.find(key)) {
    const Entry& entry = *found->second;
    if (!is_awaited(entry.begun)) {
      bool fits = !entry.program || entry.program->finds_sums();
      if (fits ? entry.program && entry.mode_changes != mode_changes() : ++others == max_kinds) entries_.erase(found), fits = true;
      if (fits) break;
    }
    if (++key.back() == max_waiting) return nullptr;
  }
  if (entries_.size() >= max_programs && !entries_.contains(key))
    entries_.erase(std::min_element(entries_.begin(), entries_.end(),
                                    [](const auto& a, const auto& b) { return a.second->last_use < b.second->last_use; }));
  std::shared_ptr<Entry>& entry = entries_[key];
  if (!entry) entry = std::make_shared<Entry>();
  entry->last_use = ++calls_;
  return entry;
}

Tensors Programs::trace(const std::shared_ptr<Entry>& entry, const Function& f, const Tensors& arguments) {
  try {
    if (entry->program && !entry->program->finds_memory()) ++entry->moves;
    if (entries_.size() == 1 && !is_awaited(entry->begun)) release_memory(*entry);
    std::vector<Program*> unedited;
    for (auto& [key, other] : entries_)
      if (other->program && other->program->finds_versions()) unedited.push_back(&*other->program);
    const bool is_gpu = device_.type == DeviceType::cuda || options_.as_on_gpu;
    Tensors copies = detail::copies_of(arguments);
    for (std::size_t i = 0; i < copies.size(); ++i)
      if (copies[i].defined() && context().grad && arguments[i].requires_grad()) copies[i].set_requires_grad();
    const std::uint64_t begin = Node::next_sequence();
    auto trace = std::make_unique<Trace>(std::move(copies), device_,
                                         !options_.fuse ? Grouping::none
                                         : is_gpu       ? Grouping::of_gpu
                                                        : Grouping::of_cpu);
    Tensors results = f(trace->inputs());
    write_lazy_zeros();
    trace->suspend();
    entry->results = results.size();
    entry->history = history_of(results, trace->inputs(), begin);
    const Tensors found = without_history(results);
    if (entry->history.sources.empty()) {
      results.clear();
      Program program = trace->finish(found);
      program.check(arguments);
      keep(*entry, std::move(program));
    } else {
      entry->open.emplace(std::move(trace), std::move(results));
    }
    for (Program* const other : unedited) other->note_versions();  // this call's edits are the function's own
    return with_history(entry, for_caller(found, options_.copied_bytes), arguments);
  } catch (...) {
    *entry = {};  // the next call begins anew
    throw;
  }
}

/// Keeps the program of a traced call, which must be that of the traced calls before.
void Programs::keep(Entry& entry, Program program) {
  // The first passes after gradients were dropped put them elsewhere; those that move at each call are an error.
  constexpr std::int64_t max_moves = 8;
  if (program.mends()) {
    --entry.calls;
    if (entry.program) entry.program->note_versions();
    return;
  }
  if (entry.program && entry.program->has_backward() != program.has_backward()) {
    if (entry.program->has_backward()) return;
    entry.calls = 1;
  } else if (entry.program) {
    if (const std::string found = entry.program->difference(program, entry.moves <= max_moves); !found.empty())
      fail("compile", "expected a function that does the same at each call but got, in " + found);
  }
  entry.graph = nullptr;
  entry.backward_graph = nullptr;
  entry.program = std::move(program);
  entry.counts.add(entry.program->counts());
  entry.mode_changes = mode_changes();  // those of the function itself are in the program
}

/// Ends the trace of a call whose results are gone.
void Programs::end_without_backward(Entry& entry) {
  try {
    const std::unique_ptr<Trace> trace = std::move(entry.open->trace);
    Tensors results = without_history(entry.open->results);
    entry.open.reset();  // and with it what the history kept
    keep(entry, trace->finish(std::move(results)));
  } catch (...) {
    entry = {};
    throw;
  }
}

Tensors Programs::with_history(const std::shared_ptr<Entry>& entry, Tensors results, const Tensors& arguments) {
  if (entry->history.sources.empty()) return results;
  Tensors sources, outputs;
  for (const Source& x : entry->history.sources) sources.push_back(x.leaf.defined() ? x.leaf : arguments[x.argument]);
  for (const std::size_t i : entry->history.results) outputs.push_back(results[i] = results[i].detach());
  const auto begun = std::make_shared<bool>(false);
  if (entry->open || entry->program->has_backward()) entry->begun = begun;
  if (!entry->open)
    for (Kept& kept : kept_)
      if (kept.memory == entry->program->kept_memory()) kept.begun = begun;
  detail::end_call(
      {"compiled"}, outputs, sources, {},
      [self = shared_from_this(), entry, begun](const Backward& call) {
        const std::scoped_lock alone(self->lock_->mutex);
        if (context().grad) fail("compile", "expected no create_graph, as its gradients have no history: call the function itself");
        if (std::exchange(*begun, true)) fail("compile", "expected one backward pass for each call but got a second one");
        if (entry->begun.lock() != begun) {
          if (!is_awaited(entry->begun)) *entry = {};  // the next call is traced
          fail("compile",
               "expected a backward pass of the first two calls of a kind, or of none, but got one of a later call: call it under NoGrad "
               "where no pass follows");
        }
        return self->backward(*entry, {call.grads().begin(), call.grads().end()});
      },
      nullptr);
  return results;
}

Tensors Programs::backward(Entry& entry, const Tensors& gradients) {
  try {
    std::optional<detail::OnStream> here;
    if (stream_) here.emplace(stream_->get());
    const Tensors& results = entry.open ? entry.open->results : entry.program->results();
    Tensors given, outputs;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Tensor& result = outputs.emplace_back(results[entry.history.results[i]]);
      given.push_back(gradients[i].defined() ? gradients[i] : zeros_like(result.detach()));
    }
    Tensors found;
    if (entry.open) {
      Entry::Open open = std::move(*std::exchange(entry.open, std::nullopt));
      given = detail::copies_of(given);
      Tensors sources;
      for (const Source& x : entry.history.sources) sources.push_back(x.leaf.defined() ? x.leaf : open.trace->inputs()[x.argument]);
      open.trace->resume(given);
      found = grad(outputs, sources, given);
      open.trace->suspend();
      outputs.clear();
      Tensors all = without_history(open.results);
      open.results.clear();
      all.insert(all.end(), found.begin(), found.end());
      keep(entry, open.trace->finish(std::move(all)));
    } else {
      entry.program->check_kept();
      replay(entry, given, Part::backward);
      found.assign(entry.program->results().begin() + static_cast<std::ptrdiff_t>(entry.results), entry.program->results().end());
    }
    found = detail::copies_of(found);  // a leaf may take its gradient
    if (here) here->finish();
    return found;
  } catch (...) {
    entry = {};
    throw;
  }
}

void Programs::replay(Entry& entry, const Tensors& arguments, Part part) {
  const NoGrad unrecorded;
  Program& program = *entry.program;
  // A graph takes as long as a few launches, and reads copies of the arguments.
  constexpr std::size_t few = 4;
  if (!stream_ || program.steps() <= few) {
    give_memory(entry, part);
    program.bind(arguments, part);
    return program.run(part);
  }
  if (part == Part::forward &&
      (!entry.graph || (program.draws() && entry.seed != context().generator.seed()) || is_taken(program.kept_memory())))
    record(entry);
  const std::size_t first = part == Part::forward ? 0 : program.arguments();
  Tensors sources;
  std::vector<const void*> places;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!program.reads(first + i)) continue;
    if (places.size() >= backend::GraphStream::max_inputs) {
      copy_(program.inputs()[first + i], arguments[i]);
      continue;
    }
    sources.push_back(contiguous(arguments[i]));
    places.push_back(sources.back().view().data);
  }
  (part == Part::forward ? entry.graph : entry.backward_graph)->launch(places, program.advance(part));
}

/// True for memory in which a call keeps what its backward pass will read.
bool Programs::is_taken(const Ref<Storage>& kept) const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& x) { return x.memory == kept && is_awaited(x.begun); });
}

/// Gives back the memory of the only program, with its graphs: a call that is compared with it needs as much.
void Programs::release_memory(Entry& entry) {
  entry.graph = nullptr, entry.backward_graph = nullptr;
  if (entry.program) entry.program->use(nullptr, entry.program->kept_memory());
  arena_ = nullptr;
}

/// Gives a program the memory that all share, which grows to what the largest needs.
void Programs::give_memory(Entry& entry, Part part) {
  Program& program = *entry.program;
  const Stream stream = context().stream(device_);
  if (!arena_ || arena_->bytes() < program.arena_bytes()) {
    arena_ = nullptr;
    for (auto& [key, other] : entries_)
      if (other->program && !other->graph) other->program->use(nullptr, other->program->kept_memory());
    arena_ = make_ref<Storage>(program.arena_bytes(), stream);
  }
  Ref<Storage> kept = program.kept_memory();
  if (part == Part::forward && program.kept_bytes() > 0 && (!kept || is_taken(kept))) {
    kept = nullptr;
    program.use(arena_, nullptr);
    std::erase_if(kept_, [&](const Kept& x) {
      if (is_awaited(x.begun) || x.memory->bytes() >= program.kept_bytes()) return false;
      for (auto& [key, other] : entries_)
        if (other->program && !other->graph && other->program->kept_memory() == x.memory) other->program->use(nullptr, nullptr);
      return true;
    });
    for (const Kept& x : kept_)
      if (!is_awaited(x.begun)) kept = x.memory;
    if (!kept) kept_.push_back({kept = make_ref<Storage>(program.kept_bytes(), stream), {}});
  }
  program.use(arena_, std::move(kept));
}

void Programs::record(Entry& entry) {
  Program& program = *entry.program;
  if (!position_.defined()) position_ = zeros({}, DType::i64, device_);
  give_memory(entry, Part::forward);
  program.link();
  program.write_addresses();
  entry.seed = context().generator.seed();
  const ScopedValue<bool> recording(context().recording, true);
  Generator& generator = context().generator;
  const Generator before = generator;
  generator.set_position(0);
  generator.set_base(static_cast<const std::uint64_t*>(position_.view().data));
  const auto graph_of = [&](Part part, std::size_t first, std::size_t end) {
    std::vector<backend::GraphStream::Input> inputs;
    for (std::size_t i = first; i < end; ++i)
      if (const Tensor& x = program.inputs()[i]; program.reads(i) && inputs.size() < backend::GraphStream::max_inputs)
        inputs.push_back({x.view().data, static_cast<std::size_t>(x.numel()) * size_of(x.dtype())});
    return stream_->record([&] { program.run(part); }, inputs, static_cast<std::uint64_t*>(position_.view().data));
  };
  try {
    entry.graph = graph_of(Part::forward, 0, program.arguments());
    if (program.has_backward()) entry.backward_graph = graph_of(Part::backward, program.arguments(), program.inputs().size());
  } catch (...) {
    generator = before;
    throw;
  }
  generator = before;
}

std::string Programs::report() const {
  std::string text = fmt::format("{} program{}\n", entries_.size(), entries_.size() == 1 ? "" : "s");
  for (const auto& [key, entry] : entries_) {
    if (!entry->program) continue;
    std::string arguments;
    for (const Tensor& x : entry->program->inputs())
      arguments += fmt::format("{}{}", arguments.empty() ? "" : ", ",
                               x.defined() ? fmt::format("{} {}", name(x.dtype()), to_string(x.shape())) : "none");
    text += fmt::format("({}): {} kernels in {} steps, arena {:.1f} MiB for {:.1f} MiB, {} calls{}\n", arguments, entry->program->size(),
                        entry->program->steps(), static_cast<double>(entry->program->arena_bytes()) / (1 << 20),
                        static_cast<double>(entry->program->inner_bytes()) / (1 << 20), entry->calls,
                        entry->graph ? fmt::format(", a graph of {} nodes", entry->graph->nodes()) : "");
    if (entry->program->has_backward())
      text += fmt::format("  {} of the steps are its backward pass, for which {:.1f} MiB are kept\n", entry->program->steps(Part::backward),
                          static_cast<double>(entry->program->kept_bytes()) / (1 << 20));
    if (entry->program->generated() > 0)
      text += fmt::format("  {} kernels generated: {} compiled and {} from the cache in {:.2f} s\n", entry->program->generated(),
                          entry->counts.compiled, entry->counts.kept, entry->counts.seconds);
    if (entry->program->not_generated() > 0)
      text += fmt::format("  {} groups run op by op: {}\n", entry->program->not_generated(), entry->program->failure());
  }
  return text;
}

const Program* Programs::latest() const {
  const Entry* latest = nullptr;
  for (const auto& [key, entry] : entries_)
    if (entry->program && (!latest || entry->last_use > latest->last_use)) latest = entry.get();
  return latest ? &*latest->program : nullptr;
}

std::string Programs::text(Stage stage) const {
  const Program* const program = latest();
  if (!program) return "";
  switch (stage) {
    case Stage::kernels: return program->text();
    case Stage::groups: return program->overview().groups_text();
    case Stage::memory: return program->overview().memory_text();
    case Stage::code: return program->code();
  }
  return "";
}

ProgramOverview Programs::overview() const {
  const Program* const program = latest();
  return program ? program->overview() : ProgramOverview{};
}

}  // namespace tern::compiler
