#include "trainer/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>

#include "autodiff/parameter_buffer.h"
#include "io/files.h"
#include "nn/module.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "parallel/socket.h"
#include "tensor/sizes.h"
#include "trainer/terminal.h"

namespace tern::train {

bool is_failure_of_other_rank(const Error& error) {
  const std::string_view text = error.what();
  return text.starts_with("[parallel] ") && (text.find(" failed: ") != text.npos || text.find(" found no way to ") != text.npos ||
                                             text.find(" has set ") != text.npos || text.find(" did not come ") != text.npos);
}

RankPart part_of(std::int64_t rows, std::int64_t multiple, int rank, int size) {
  const std::int64_t blocks = ceil_div(rows, multiple);
  const std::int64_t first = blocks * rank / size * multiple, end = std::min(blocks * (rank + 1) / size * multiple, rows);
  if (first >= end) return {.rows = {.first = 0, .count = 1, .total = rows}, .is_empty = true};
  return {.rows = {.first = first, .count = end - first, .total = rows}};
}

std::int64_t rows_multiple(std::int64_t columns, std::int64_t width, std::int64_t hidden) {
  return 4 / std::gcd(std::int64_t{4}, columns * std::gcd(columns, std::gcd(width, hidden)));
}

/// The result of f, called on a thread of its own. Throws Stopped if a signal has asked for a stop and f does not return in the time that
/// connecting takes, such as when another process of the launcher has ended before. The thread is then abandoned, so that f has to own all
/// that it uses.
template <class F>
static auto unless_stopped(F f) -> decltype(f()) {
  using namespace std::chrono_literals;
  std::packaged_task<decltype(f())()> task(std::move(f));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  std::optional<parallel::Deadline> last;
  while (result.wait_for(20ms) != std::future_status::ready) {
    if (stop_signal() != 0 && !last) last = parallel::deadline_in(1s);
    if (last && parallel::has_passed(*last)) stop(stop_signal(), "while it waited for the other processes");
  }
  return result.get();
}

Ranks::Ranks(const RankOptions& options, Device device) : options_(options) {
  const parallel::GroupOptions group{.timeout = options.timeout};
  const parallel::LaunchEnvironment environment = parallel::launch_environment().value_or(parallel::LaunchEnvironment{});
  // Until the end of the process: when another process has failed, the launcher's signal must not keep this one from reporting its error.
  static std::optional<StopSignals> to_the_end;
  if (environment.size > 1 && !to_the_end) to_the_end.emplace();
  struct Groups {
    std::unique_ptr<parallel::ProcessGroup> group, host;
  };
  const auto meet = [environment, device, group] {
    const std::shared_ptr<parallel::Store> store = environment.size > 1 ? parallel::open_store(environment, group.timeout) : nullptr;
    Groups made{.group = parallel::make_process_group(environment, store, device, "world", group), .host = nullptr};
    if (environment.size > 1 && device != cpu && parallel::has_engine(DeviceType::cpu))
      made.host = parallel::make_process_group(environment, store, cpu, "host", group);
    return made;
  };
  // A GPU's group has to be made by the thread that uses it.
  Groups made = environment.size > 1 && device == cpu ? unless_stopped(meet) : meet();
  group_ = std::move(made.group);
  host_ = std::move(made.host);
  if (!is_first()) mute_output();
}

Ranks::~Ranks() = default;

std::string Ranks::describe() const { return is_alone() ? "" : fmt::format("{} processes of ", size()); }

parallel::Shard Ranks::shard() const { return is_alone() ? parallel::Shard::none : parallel::shard_of(options_.shard).value(); }

std::unique_ptr<parallel::DataParallel> Ranks::parallel(nn::Module& model) {
  if (is_alone()) return nullptr;
  return std::make_unique<parallel::DataParallel>(
      model, *group_,
      parallel::DataParallelOptions{.sync = parallel::gradient_sync_of(options_.gradient_sync).value(),
                                    .bucket_size_mb = options_.bucket_size_mb,
                                    .scatter_gradients = shard() != parallel::Shard::none,
                                    .shard = shard()});
}

namespace {

/// A tensor of numbers on the group's device, for a collective.
template <class T, class F>
void through(parallel::ProcessGroup& group, std::vector<T>& values, F&& collective) {
  const NoGrad unrecorded;
  const Tensor x = Tensor::from(values, {static_cast<std::int64_t>(values.size())}, group.device());
  collective(x).wait();
  values = x.template to_vector<T>();
}

}  // namespace

int Ranks::stop_signal() {
  if (is_on_its_own()) return train::stop_signal();
  if (agreed_signal_ == 0) {
    parallel::ProcessGroup& group = host_ ? *host_ : *group_;
    std::vector<std::int64_t> signal{train::stop_signal()};
    through(group, signal, [&](const Tensor& x) { return group.all_reduce(x, parallel::ReduceOp::max); });
    agreed_signal_ = static_cast<int>(signal[0]);
  }
  return agreed_signal_;
}

void Ranks::average(const Tensor& x) {
  if (is_on_its_own()) return;
  const NoGrad unrecorded;
  group_->all_reduce(x, parallel::ReduceOp::mean).wait();
}

void Ranks::broadcast(std::vector<double>& values) {
  if (is_on_its_own()) return;
  parallel::ProcessGroup& group = host_ ? *host_ : *group_;
  through(group, values, [&](const Tensor& x) { return group.broadcast(x, 0); });
}

void Ranks::barrier() {
  if (!is_on_its_own()) (host_ ? *host_ : *group_).barrier();
}

void Ranks::require_same(const std::string& what, const std::string& text) {
  if (is_on_its_own()) return;
  const std::int64_t digest = std::stoll(io::checksum(text), nullptr, 16);
  std::vector<std::int64_t> extremes{digest, -digest};
  parallel::ProcessGroup& group = host_ ? *host_ : *group_;
  through(group, extremes, [&](const Tensor& x) { return group.all_reduce(x, parallel::ReduceOp::max); });
  if (extremes[0] != -extremes[1])
    throw Error(fmt::format("rank {} of {} has other {} than another rank: start all with the same", rank(), size(), what));
}

void Ranks::leave() {
  barrier();
  has_left_ = true;
}

namespace detail {

std::vector<NamedTensor> copies(parallel::DataParallel* ranks, const std::vector<NamedTensor>& tensors) {
  const NoGrad unrecorded;
  std::vector<NamedTensor> result;
  for (const NamedTensor& entry : tensors) {
    gather(ranks, {entry.tensor});
    result.push_back({entry.name, entry.tensor.device() == cpu ? clone(entry.tensor) : to(entry.tensor.detach(), cpu)});
  }
  return result;
}

void round_masters(parallel::DataParallel* ranks, const nn::Module& model) {
  const NoGrad unrecorded;
  for (const NamedTensor& entry : nn::named_parameters(model)) {
    const Tensor master = master_of(entry.tensor);
    if (!master.defined()) continue;
    gather(ranks, {entry.tensor, master});
    copy_(entry.tensor, cast(master, entry.tensor.dtype()));
  }
}

void write_parameters(parallel::DataParallel* ranks, const nn::Module& model, const std::vector<NamedTensor>& values) {
  const NoGrad unrecorded;
  std::map<std::string, Tensor> by_name;
  for (const NamedTensor& entry : values) by_name[entry.name] = entry.tensor;
  for (const NamedTensor& entry : nn::named_masters(model)) {
    gather(ranks, {entry.tensor});  // of all, as ranks do it together
    if (const auto found = by_name.find(entry.name); found != by_name.end()) copy_(entry.tensor, found->second);
  }
  round_masters(ranks, model);
}

bool is_finite(parallel::DataParallel* ranks, const std::vector<NamedTensor>& tensors) {
  const NoGrad unrecorded;
  Tensor sums;
  for (const NamedTensor& entry : tensors) {
    gather(ranks, {entry.tensor});
    const Tensor zero = sum(entry.tensor.detach() * 0.0);  // 0 * inf and 0 * NaN are NaN
    sums = sums.defined() ? sums + zero : zero;
  }
  return !sums.defined() || std::isfinite(sums.item<double>());
}

}  // namespace detail

}  // namespace tern::train
