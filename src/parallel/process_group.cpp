#include "parallel/process_group.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "backend/error.h"
#include "ops/factory.h"
#include "ops/kernels/collective.h"
#include "ops/view.h"
#include "tensor/context.h"

namespace tern::parallel {

using kernels::CollectiveKind;

Work& Work::operator=(Work&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Work::~Work() {
  if (!state_) return;
  try {
    state_->wait();
  } catch (...) {
    // Not lost: the group's next collective throws it again.
  }
}

void Work::wait() {
  if (const std::unique_ptr<State> state = std::move(state_)) state->wait();
}

/// The collectives of a group that have begun, by their numbers.
struct ProcessGroup::Collectives final : kernels::Communicator {
  ProcessGroup* group = nullptr;  ///< null after its end
  Tensor order;
  std::map<std::int64_t, Work> begun;
  std::mutex mutex;  ///< a thread may wait while another begins

  void begin(const kernels::BeginCollective& collective) override {
    const std::vector<Ref<Storage>> held = std::exchange(memory, {});
    if (!group)
      fail(name(collective.kind), "expected a group that lives longer than the functions compiled with it but got one that has ended");
    const auto tensor_of = [](const View& view, const Ref<Storage>& storage) {
      if (!view.data) return Tensor();
      const auto bytes = static_cast<const std::byte*>(view.data) - static_cast<const std::byte*>(storage->data());
      auto impl = make_ref<TensorImpl>();
      impl->storage = storage;
      impl->offset = bytes / static_cast<std::int64_t>(size_of(view.dtype));
      impl->shape = view.shape;
      impl->strides = view.strides;
      impl->dtype = view.dtype;
      return Tensor(std::move(impl));
    };
    Work work = group->start(collective.kind, collective.how, tensor_of(collective.y, held.at(0)), tensor_of(collective.x, held.at(1)));
    const std::lock_guard lock(mutex);
    std::swap(begun[collective.number], work);  // one that has not ended, outside of a program or left by an error in one, is waited for
  }
  void end(std::int64_t number) override {
    Work work;
    {
      const std::lock_guard lock(mutex);
      const auto found = begun.find(number);
      if (found == begun.end()) return;
      work = std::move(found->second);
      begun.erase(found);
    }
    work.wait();
  }
  bool is_done(std::int64_t number) {
    const std::lock_guard lock(mutex);
    const auto found = begun.find(number);
    return found == begun.end() || found->second.is_done();
  }
  std::int64_t free_number() {
    const std::lock_guard lock(mutex);
    std::int64_t number = 0;
    while (begun.contains(number)) ++number;
    return number;
  }
};

/// A collective that a caller has begun. Its end is a kernel on the tensors, which are held until then.
class ProcessGroup::Begun final : public Work::State {
 public:
  Begun(kernels::EndCollective end, std::shared_ptr<Collectives> collectives, Tensors tensors)
      : end_(std::move(end)), collectives_(std::move(collectives)), tensors_(std::move(tensors)) {}
  void wait() override {
    end_.run(Cpu{});
    detail::tell_kernel(end_);
  }
  bool is_done() override { return collectives_->is_done(end_.number); }

 private:
  const kernels::EndCollective end_;
  const std::shared_ptr<Collectives> collectives_;
  const Tensors tensors_;
};

ProcessGroup::ProcessGroup(int rank, int size, Device device)
    : rank_(rank), size_(size), device_(device), collectives_(std::make_shared<Collectives>()) {
  collectives_->group = this;
  if (size > 1) collectives_->order = empty({1}, DType::u8, device);
}
ProcessGroup::~ProcessGroup() {
  end_all();
  collectives_->group = nullptr;
}
void ProcessGroup::end_all() { collectives_->begun.clear(); }

Work ProcessGroup::start(CollectiveKind kind, std::int64_t how, const Tensor& y, const Tensor& x) {
  switch (kind) {
    case CollectiveKind::all_reduce: return start_all_reduce(y, static_cast<ReduceOp>(how));
    case CollectiveKind::broadcast: return start_broadcast(y, static_cast<int>(how));
    case CollectiveKind::reduce_scatter: return start_reduce_scatter(y, x, static_cast<ReduceOp>(how));
    case CollectiveKind::all_gather: break;
  }
  return start_all_gather(y, x);
}

/// Begins a collective: Note [Collectives as kernels]. That of a single process is none, or a copy.
Work ProcessGroup::begin(CollectiveKind kind, std::int64_t how, const Tensor& y, const Tensor& x) {
  if (y.numel() == 0) return {};
  if (size_ == 1) return start(kind, how, y, x);
  const std::int64_t number = collectives_->free_number();
  const View from = x.defined() ? x.view() : View();
  const kernels::BeginCollective begin{kind, how, number, y, from, collectives_->order, collectives_};
  detail::tell_kernel(begin);
  collectives_->memory = {y.impl().storage, x.defined() ? x.impl().storage : Ref<Storage>()};
  begin.run(Cpu{});
  const kernels::EndCollective end{kind, number, begin.y, begin.x, begin.order, collectives_};
  return Work(std::make_unique<Begun>(end, collectives_, Tensors{y, x}));
}

void ProcessGroup::check(const char* op, const Tensor& x) const {
  if (!x.defined()) fail(op, "expected a tensor but got none");
  if (x.device() != device_)
    fail(op, fmt::format("expected a tensor on {}, the group's device, but got one on {}", to_string(device_), to_string(x.device())));
  if (!x.is_contiguous())
    fail(op, fmt::format("expected a contiguous tensor but got {} of strides {}", to_string(x.shape()), to_string(x.strides())));
  if (x.dtype() == DType::boolean) fail(op, "expected a dtype of numbers but got bool");
}

void ProcessGroup::check_parts(const char* op, const Tensor& part, const Tensor& whole) const {
  check(op, part);
  check(op, whole);
  if (part.dtype() != whole.dtype() || part.numel() * size_ != whole.numel())
    fail(op, fmt::format("expected one of {} equal parts and the whole but got {} {} and {} {}", size_, name(part.dtype()),
                         to_string(part.shape()), name(whole.dtype()), to_string(whole.shape())));
}

static void check_op(const char* op, const Tensor& x, ReduceOp how) {
  if (how == ReduceOp::mean && !is_floating(x.dtype()))
    fail(op, fmt::format("expected a floating dtype for a mean but got {}", name(x.dtype())));
}

Work ProcessGroup::all_reduce(const Tensor& x, ReduceOp op) {
  check("all_reduce", x);
  check_op("all_reduce", x, op);
  return begin(CollectiveKind::all_reduce, static_cast<std::int64_t>(op), x, {});
}

Work ProcessGroup::broadcast(const Tensor& x, int root) {
  check("broadcast", x);
  if (root < 0 || root >= size_) fail("broadcast", fmt::format("expected a root in [0, {}) but got {}", size_, root));
  return begin(CollectiveKind::broadcast, root, x, {});
}

Work ProcessGroup::reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op) {
  check_parts("reduce_scatter", y, x);
  check_op("reduce_scatter", x, op);
  return begin(CollectiveKind::reduce_scatter, static_cast<std::int64_t>(op), y, x);
}

Work ProcessGroup::all_gather(const Tensor& y, const Tensor& x) {
  check_parts("all_gather", x, y);
  return begin(CollectiveKind::all_gather, 0, y, x);
}

void ProcessGroup::barrier() { wait_for_all(); }

namespace {

/// The group of a single process: collectives change nothing.
class LocalGroup final : public ProcessGroup {
 public:
  explicit LocalGroup(Device device) : ProcessGroup(0, 1, device) {}
  const char* engine() const override { return "local"; }

 protected:
  Work start_all_reduce(const Tensor&, ReduceOp) override { return {}; }
  Work start_broadcast(const Tensor&, int) override { return {}; }
  Work start_reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp) override { return copied(y, x); }
  Work start_all_gather(const Tensor& y, const Tensor& x) override { return copied(y, x); }
  void wait_for_all() override {}

 private:
  static Work copied(const Tensor& y, const Tensor& x) {
    const NoGrad unrecorded;
    if (y.view().data != x.view().data) copy_(reshape(y.detach(), x.shape()), x.detach());
    return {};
  }
};

}  // namespace

bool has_engine(DeviceType type) {
  bool has_it = false;
#ifdef TERN_GLOO
  has_it |= type == DeviceType::cpu;
#endif
#ifdef TERN_NCCL
  has_it |= type == DeviceType::cuda;
#endif
  static_cast<void>(type);
  return has_it;
}

std::unique_ptr<ProcessGroup> make_process_group(const LaunchEnvironment& environment, std::shared_ptr<Store> store, Device device,
                                                 const std::string& name, [[maybe_unused]] const GroupOptions& options) {
  if (environment.size == 1) return std::make_unique<LocalGroup>(device);
  store = std::make_shared<PrefixStore>(name + "/", std::move(store));
  if (device.type == DeviceType::cuda) {
    if (device.index >= cuda_device_count())
      fail("parallel", fmt::format("expected {} for rank {} but this process sees {} GPUs: start as many processes on a machine as it has",
                                   to_string(device), environment.rank, cuda_device_count()));
#ifdef TERN_NCCL
    return make_nccl_group(environment, std::move(store), device, options);
#else
    fail("parallel",
         "this build has no NCCL, which processes on GPUs talk through: install it beside the CUDA toolkit and configure again");
#endif
  }
#ifdef TERN_GLOO
  return make_gloo_group(environment, std::move(store), options);
#else
  fail("parallel", "this build has no Gloo, which processes on CPUs talk through: install libgloo-dev and configure again");
#endif
}

std::unique_ptr<ProcessGroup> make_process_group(Device device, const GroupOptions& options) {
  const LaunchEnvironment environment = launch_environment().value_or(LaunchEnvironment{});
  return make_process_group(environment, environment.size > 1 ? open_store(environment, options.timeout) : nullptr, device, "world",
                            options);
}

}  // namespace tern::parallel
