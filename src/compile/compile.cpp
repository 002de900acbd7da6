#include "compile/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "autodiff/autograd_state.h"
#include "compile/trace.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "tensor/context.h"

namespace tern::compiler {

namespace {

constexpr std::size_t max_programs = 64;

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

Tensors for_caller(const Tensors& results, std::int64_t copied_bytes) {
  const NoGrad unrecorded;
  Tensors given;
  for (const Tensor& x : results) {
    const bool is_small = x.defined() && x.numel() * static_cast<std::int64_t>(size_of(x.dtype())) <= copied_bytes;
    given.push_back(is_small ? clone(x) : x);
  }
  return given;
}

}  // namespace

struct Programs::Entry {
  std::optional<Program> program;
  std::unique_ptr<backend::Graph> graph;
  CompileCounts counts;            ///< of all its traces
  std::int64_t calls = 0;          ///< from the first traced one
  std::int64_t moves = 0;          ///< calls that found gradients in other memory than the program has
  std::int64_t last_use = 0;       ///< as a number of calls of all kinds
  std::uint64_t mode_changes = 0;  ///< mode_changes() after the last trace
  std::uint64_t seed = 0;          ///< of the graph, in whose kernels that draw it is a constant
};

Programs::Programs(Device device, CompileOptions options)
    : device_(device), options_(options), stream_(with_backend(device, [&](auto dev) { return backend::graph_stream(dev, device); })) {}
Programs::~Programs() = default;
Programs::Programs(Programs&&) noexcept = default;
Programs& Programs::operator=(Programs&&) noexcept = default;

void Programs::forget() { entries_.clear(), arena_ = nullptr; }
std::size_t Programs::size() const { return entries_.size(); }

Tensors Programs::call(const Function& f, const Tensors& arguments) {
  for (const Tensor& x : arguments) {
    if (!x.defined()) continue;
    if (x.device() != device_) fail("compile", "expected arguments on " + to_string(device_) + " but got one on " + to_string(x.device()));
    if (detail::carries_tangent(x)) fail("compile", "expected arguments without tangents: within jvp call the function itself");
  }
  if (context().recording || Trace::is_active()) return f(arguments);  // a part of what another one keeps
  for (const Tensor& x : arguments)
    if (x.defined() && context().grad && x.requires_grad())
      fail("compile", "expected arguments that need no gradient but got one of shape " + to_string(x.shape()) +
                          " that does: call backward within the function, and pass a parameter by reference");
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
  if (!has_run_) {  // libraries load their kernels, optimizers create their moments
    has_run_ = true;
    Tensors results = f(detail::copies_of(arguments));
    // Nodes that live on with a caller's result would have others run in another order in the next call.
    for (Tensor& x : results)
      if (x.defined()) x = x.detach();
    return results;
  }
  Entry& entry = entry_for(key_of(arguments));
  ++entry.calls;
  if (entry.calls == 1 || is_compared(entry.calls) || !entry.program->finds_memory() || !entry.program->finds_versions())
    return for_caller(trace(entry, f, arguments), options_.copied_bytes);
  entry.program->check(arguments);
  replay(entry, arguments);
  ++runs_;
  entry.program->settle();
  return for_caller(entry.program->results(), options_.copied_bytes);
}

Programs::Entry& Programs::entry_for(Key key) {
  // Kinds of arguments differ by the gradients that leaves have as well: none at the first of several passes, a sum at the others.
  constexpr std::int64_t max_kinds = 8;
  for (key.push_back(0); key.back() < max_kinds; ++key.back())
    if (const auto found = entries_.find(key); found == entries_.end() || !found->second.program || found->second.program->finds_sums())
      break;
  if (key.back() == max_kinds) key.back() = 0, entries_.erase(key);
  if (const auto found = entries_.find(key);
      found != entries_.end() && found->second.program && found->second.mode_changes != mode_changes())
    entries_.erase(found);
  if (entries_.size() >= max_programs && !entries_.contains(key))
    entries_.erase(std::min_element(entries_.begin(), entries_.end(),
                                    [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
  Entry& entry = entries_[key];
  entry.last_use = ++calls_;
  return entry;
}

Tensors Programs::trace(Entry& entry, const Function& f, const Tensors& arguments) {
  // The first passes after gradients were dropped put them elsewhere; those that move at each call are an error.
  constexpr std::int64_t max_moves = 8;
  try {
    if (entry.program && !entry.program->finds_memory()) ++entry.moves;
    std::vector<Program*> unedited;
    for (auto& [key, other] : entries_)
      if (other.program && other.program->finds_versions()) unedited.push_back(&*other.program);
    const bool is_gpu = device_.type == DeviceType::cuda || options_.as_on_gpu;
    Trace trace(detail::copies_of(arguments), device_, !options_.fuse ? Grouping::none : is_gpu ? Grouping::of_gpu : Grouping::of_cpu);
    Tensors results = f(trace.inputs());
    write_lazy_zeros();
    Program program = trace.finish(std::move(results));
    program.check(arguments);
    for (Program* const other : unedited) other->note_versions();  // this call's edits are the function's own
    if (program.mends()) {
      --entry.calls;
      if (entry.program) entry.program->note_versions();
      return program.results();
    }
    if (entry.program)
      if (const std::string found = entry.program->difference(program, entry.moves <= max_moves); !found.empty())
        fail("compile", "expected a function that does the same at each call but got, in " + found);
    entry.graph = nullptr;
    entry.program = std::move(program);
    entry.counts.add(entry.program->counts());
    entry.mode_changes = mode_changes();  // those of the function itself are in the program
    return entry.program->results();
  } catch (...) {
    entry = {};  // the next call begins anew
    throw;
  }
}

void Programs::replay(Entry& entry, const Tensors& arguments) {
  const NoGrad unrecorded;
  Program& program = *entry.program;
  // A graph takes as long as a few launches, and reads copies of the arguments.
  constexpr std::size_t few = 4;
  if (!stream_ || program.steps() <= few) {
    give_memory(program);
    program.bind(arguments);
    return program.run();
  }
  if (!entry.graph || (program.draws() && entry.seed != context().generator.seed())) record(entry);
  Tensors sources;
  std::vector<const void*> places;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!program.reads(i)) continue;
    if (places.size() >= backend::GraphStream::max_inputs) {
      copy_(program.inputs()[i], arguments[i]);
      continue;
    }
    sources.push_back(contiguous(arguments[i]));
    places.push_back(sources.back().view().data);
  }
  Generator& generator = context().generator;
  entry.graph->launch(places, generator.position());
  program.advance();
}

/// Gives a program the memory that all share, which grows to what the largest needs.
void Programs::give_memory(Program& program) {
  if (!arena_ || arena_->bytes() < program.arena_bytes()) {
    arena_ = nullptr;
    for (auto& [key, entry] : entries_)
      if (entry.program && !entry.graph) entry.program->use(nullptr);
    arena_ = make_ref<Storage>(program.arena_bytes(), context().stream(device_));
  }
  program.use(arena_);
}

void Programs::record(Entry& entry) {
  Program& program = *entry.program;
  if (!position_.defined()) position_ = zeros({}, DType::i64, device_);
  std::vector<backend::GraphStream::Input> inputs;
  for (std::size_t i = 0; i < program.inputs().size(); ++i)
    if (const Tensor& x = program.inputs()[i]; program.reads(i) && inputs.size() < backend::GraphStream::max_inputs)
      inputs.push_back({x.view().data, static_cast<std::size_t>(x.numel()) * size_of(x.dtype())});
  give_memory(program);
  program.link();
  program.write_addresses();
  entry.seed = context().generator.seed();
  const ScopedValue<bool> recording(context().recording, true);
  Generator& generator = context().generator;
  const Generator before = generator;
  generator.set_position(0);
  generator.set_base(static_cast<const std::uint64_t*>(position_.view().data));
  try {
    entry.graph = stream_->record([&] { program.run(); }, inputs, static_cast<std::uint64_t*>(position_.view().data));
  } catch (...) {
    generator = before;
    throw;
  }
  generator = before;
}

std::string Programs::report() const {
  std::string text = fmt::format("{} program{}\n", entries_.size(), entries_.size() == 1 ? "" : "s");
  for (const auto& [key, entry] : entries_) {
    if (!entry.program) continue;
    std::string arguments;
    for (const Tensor& x : entry.program->inputs())
      arguments += fmt::format("{}{}", arguments.empty() ? "" : ", ",
                               x.defined() ? fmt::format("{} {}", name(x.dtype()), to_string(x.shape())) : "none");
    text += fmt::format("({}): {} kernels in {} steps, arena {:.1f} MiB for {:.1f} MiB, {} calls{}\n", arguments, entry.program->size(),
                        entry.program->steps(), static_cast<double>(entry.program->arena_bytes()) / (1 << 20),
                        static_cast<double>(entry.program->inner_bytes()) / (1 << 20), entry.calls,
                        entry.graph ? fmt::format(", a graph of {} nodes", entry.graph->nodes()) : "");
    if (entry.program->generated() > 0)
      text += fmt::format("  {} kernels generated: {} compiled and {} from the cache in {:.2f} s\n", entry.program->generated(),
                          entry.counts.compiled, entry.counts.kept, entry.counts.seconds);
    if (entry.program->not_generated() > 0)
      text += fmt::format("  {} groups run op by op: {}\n", entry.program->not_generated(), entry.program->failure());
  }
  return text;
}

const Program* Programs::latest() const {
  const Entry* latest = nullptr;
  for (const auto& [key, entry] : entries_)
    if (entry.program && (!latest || entry.last_use > latest->last_use)) latest = &entry;
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
