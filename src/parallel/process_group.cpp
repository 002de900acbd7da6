#include "parallel/process_group.h"

#include <fmt/format.h>

#include "backend/error.h"
#include "ops/factory.h"
#include "ops/view.h"
#include "tensor/context.h"

namespace tern::parallel {

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
  return x.numel() == 0 ? Work() : start_all_reduce(x, op);
}

Work ProcessGroup::broadcast(const Tensor& x, int root) {
  check("broadcast", x);
  if (root < 0 || root >= size_) fail("broadcast", fmt::format("expected a root in [0, {}) but got {}", size_, root));
  return x.numel() == 0 ? Work() : start_broadcast(x, root);
}

Work ProcessGroup::reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op) {
  check_parts("reduce_scatter", y, x);
  check_op("reduce_scatter", x, op);
  return x.numel() == 0 ? Work() : start_reduce_scatter(y, x, op);
}

Work ProcessGroup::all_gather(const Tensor& y, const Tensor& x) {
  check_parts("all_gather", x, y);
  return x.numel() == 0 ? Work() : start_all_gather(y, x);
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
