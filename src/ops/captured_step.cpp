#include "ops/captured_step.h"

#include <algorithm>
#include <atomic>

#include "autodiff/autograd_state.h"
#include "backend/stream.h"
#include "ops/autocast.h"
#include "ops/factory.h"

namespace tern {

struct CapturedStep::Recording {
  Tensors inputs;  ///< memory that the graph reads its inputs from
  Tensor result;
  std::unique_ptr<backend::Graph> graph;
  std::int64_t runs = 0;      ///< number of runs as written
  std::int64_t last_use = 0;  ///< as a number of calls
  std::uint64_t seed = 0;
  std::uint64_t draws = 0;  ///< random numbers that a step draws
};

std::vector<std::int64_t> detail::key_of(const Tensors& inputs) {
  std::vector<std::int64_t> key;
  for (const Tensor& x : inputs) {
    key.push_back(x.defined() ? static_cast<std::int64_t>(x.dtype()) : -1);
    if (!x.defined()) continue;
    key.push_back(x.dims());
    key.insert(key.end(), x.shape().begin(), x.shape().end());
  }
  // Data parallel: the rows of the batch for which this process draws random numbers are constants of a recording.
  if (const BatchRows& rows = context().generator.rows(); rows.total > 0) key.insert(key.end(), {rows.first, rows.count, rows.total});
  return key;
}

Tensors detail::copies_of(const Tensors& inputs) {
  const NoGrad unrecorded;
  Tensors result;
  for (const Tensor& x : inputs) result.push_back(x.defined() ? clone(x) : Tensor());
  return result;
}

static std::atomic<std::uint64_t> sum_of_modes = 0;
std::uint64_t detail::module_modes() noexcept { return sum_of_modes.load(std::memory_order_relaxed); }
void detail::note_module_mode(const void* module, bool is_training) noexcept {
  // Spread over all bits, so that no sum of some modules is that of others.
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(module);
  bits = (bits ^ (bits >> 32)) * 0x9E3779B97F4A7C15;
  bits = (bits ^ (bits >> 29)) * 0xBF58476D1CE4E5B9;
  bits ^= bits >> 32;
  sum_of_modes.fetch_add(is_training ? -bits : bits, std::memory_order_relaxed);
}

CapturedStep::CapturedStep(Function step, Device device, std::int64_t runs_as_written)
    : step_(std::move(step)), device_(device), runs_as_written_(runs_as_written) {
  if (!step_) fail("CapturedStep", "expected a function but got none");
  if (runs_as_written < 1) fail("CapturedStep", "expected one run as written or more but got " + std::to_string(runs_as_written));
  stream_ = with_backend(device, [&](auto dev) { return backend::graph_stream(dev, device); });
}
CapturedStep::~CapturedStep() = default;
CapturedStep::CapturedStep(CapturedStep&&) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&&) noexcept = default;

std::size_t CapturedStep::recordings() const { return recordings_.size(); }

void CapturedStep::forget() { recordings_.clear(); }

Tensor CapturedStep::operator()(const Tensors& inputs) {
  if (!stream_) return step_(inputs);
  for (const Tensor& x : inputs) {
    if (!x.defined()) continue;
    if (x.device() != device_) fail("CapturedStep", "expected inputs on " + to_string(device_));
    if (detail::carries_tangent(x)) fail("CapturedStep", "expected inputs without tangents: within jvp call the function itself");
  }
  if (backend::observer) backend::tell([](backend::Observer& told) { told.on_host_access("CapturedStep", {}); });
  detail::OnStream here(stream_->get());
  write_lazy_zeros();  // the recorded work reads and leaves written elements
  const Tensor result = run(inputs);
  if (context().autocast) context().autocast->forget();  // a replay edits weights, which no version counts
  here.finish();
  return result;
}

Tensor CapturedStep::run(const Tensors& inputs) {
  const Key key = detail::key_of(inputs);
  if (const auto found = recordings_.find(key); found == recordings_.end() || found->second.runs < runs_as_written_) {
    // Run as written: libraries load their kernels, optimizers create their moments, and every tensor gets its memory.
    nodes_ = 0;
    Tensors own = detail::copies_of(inputs);
    Tensor result = step_(own);
    Recording& recording = recording_for(key);
    if (++recording.runs == runs_as_written_) {
      recording.inputs = std::move(own);
      if (result.defined()) recording.result = empty_like(result.detach());
    }
    return result;
  }
  Recording& recording = recording_for(key);
  // The seed is a constant in every recorded kernel that draws.
  if (!recording.graph || (recording.draws > 0 && recording.seed != context().generator.seed())) record(recording);
  const NoGrad unrecorded;
  Tensors sources;
  std::vector<const void*> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    if (places.size() >= backend::GraphStream::max_inputs) {
      copy_(recording.inputs[i], inputs[i]);
      continue;
    }
    sources.push_back(contiguous(inputs[i]));
    places.push_back(sources.back().view().data);
  }
  Generator& generator = context().generator;
  recording.graph->launch(places, generator.position());
  generator.set_position(generator.position() + recording.draws);
  nodes_ = recording.graph->nodes();
  return recording.result;
}

CapturedStep::Recording& CapturedStep::recording_for(const Key& key) {
  if (recordings_.size() >= max_recordings && !recordings_.contains(key)) {
    // Its graph may still run: CUDA destroys it afterwards, and its memory is reused on the same stream alone.
    recordings_.erase(std::min_element(recordings_.begin(), recordings_.end(),
                                       [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
  }
  Recording& recording = recordings_[key];
  recording.last_use = ++calls_;
  return recording;
}

void CapturedStep::record(Recording& recording) {
  if (!position_.defined()) position_ = zeros({}, DType::i64, device_);
  Generator& generator = context().generator;
  const Generator before = generator;
  // Draws are recorded from position 0; each launch writes the position at which its replay begins to device memory, where it is added.
  recording.seed = generator.seed();
  std::vector<backend::GraphStream::Input> inputs;
  for (const Tensor& x : recording.inputs)
    if (x.defined() && inputs.size() < backend::GraphStream::max_inputs)
      inputs.push_back({x.view().data, static_cast<std::size_t>(x.numel()) * size_of(x.dtype())});
  // Graphs that were recorded before may use the memory that this one gets for its result: Note [Memory of graphs].
  const bool shares_memory =
      std::any_of(recordings_.begin(), recordings_.end(), [&](const auto& x) { return &x.second != &recording && x.second.graph; });
  const ScopedValue<bool> recording_now(context().recording, true);
  generator.set_position(0);
  generator.set_base(static_cast<const std::uint64_t*>(position_.view().data));
  try {
    recording.graph = stream_->record(
        [&] {
          const Tensor result = step_(recording.inputs);
          const NoGrad unrecorded;
          if (shares_memory && result.defined()) copy_(recording.result, result);
          else recording.result = result;
          recording.draws = generator.position();
          write_lazy_zeros();
        },
        inputs, static_cast<std::uint64_t*>(position_.view().data));
  } catch (...) {
    generator = before;
    throw;
  }
  generator = before;
}

}  // namespace tern
