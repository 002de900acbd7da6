#include "dist/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "backend/observer.h"
#include "ops/copy.h"

namespace tern::dist {

namespace {

constexpr const char* names[] = {"per-parameter", "flat", "overlapped", "bucketed"};

bool begins_in_backward(GradientSync sync) { return sync == GradientSync::overlapped || sync == GradientSync::bucketed; }

}  // namespace

const char* name(GradientSync sync) { return names[static_cast<int>(sync)]; }

std::optional<GradientSync> gradient_sync_of(const std::string& name) {
  const auto* const place = std::find(std::begin(names), std::end(names), name);
  if (place == std::end(names)) return {};
  return static_cast<GradientSync>(place - names);
}

/// Parameters whose gradients lie side by side, and go over the wire together.
struct DataParallel::Bucket {
  Tensors parameters;
  Tensor gradients;       ///< (n), from the first one's to the last one's
  std::int64_t part = 0;  ///< of one rank, see Segment
  std::size_t ready = 0;
  Tensor sent;  ///< gradients on their way, perhaps in another dtype
  Work work, rest;
};

struct DataParallel::State {
  State(ProcessGroup& group_, const DataParallelOptions& options_) : group(group_), options(options_) {}

  void begin(Bucket& bucket) {
    const NoGrad unrecorded;
    const backend::PassScope observed("communication");
    // Looked at, a gradient of zeros that were not written yet is written.
    for (const Tensor& x : bucket.parameters) static_cast<void>(x.grad());
    const Tensor& gradients = bucket.gradients;
    bucket.sent = is_lowered(bucket) ? cast(gradients, *options.reduce_dtype) : gradients;
    if (!options.scatter_gradients) {
      bucket.work = group.all_reduce(bucket.sent, ReduceOp::mean);
      return;
    }
    const auto [begin, end] = own(bucket);
    const std::int64_t shared = bucket.part * group.size();
    bucket.work = group.reduce_scatter(elements_of(bucket.sent, begin, end), elements_of(bucket.sent, 0, shared), ReduceOp::mean);
    bucket.rest = group.all_reduce(elements_of(bucket.sent, shared, gradients.numel()), ReduceOp::mean);
  }

  bool is_lowered(const Bucket& bucket) const { return options.reduce_dtype && *options.reduce_dtype != bucket.gradients.dtype(); }
  std::pair<std::int64_t, std::int64_t> own(const Bucket& bucket) const {
    return {bucket.part * group.rank(), bucket.part * (group.rank() + 1)};
  }

  void on_ready(std::size_t number) {
    if (!is_syncing || !begins_in_backward(options.sync)) return;
    if (number < next)
      fail("DataParallel",
           "expected one backward pass between two calls of finish_gradient_synchronization(): put the others within NoSync");
    // In the order of the buckets, which all ranks keep, whatever order their gradients come in.
    ++buckets[number].ready;
    while (next < buckets.size() && buckets[next].ready == buckets[next].parameters.size()) begin(buckets[next++]);
  }

  void finish() {
    for (; next < buckets.size(); ++next) {
      begin(buckets[next]);
      if (options.sync == GradientSync::per_parameter) end(buckets[next]);
    }
    for (Bucket& bucket : buckets) end(bucket);
    next = 0;
  }

  void end(Bucket& bucket) {
    const NoGrad unrecorded;
    bucket.work.wait();
    bucket.rest.wait();
    if (is_lowered(bucket)) {
      const auto take = [&](std::int64_t begin, std::int64_t end) {
        copy_(elements_of(bucket.gradients, begin, end), elements_of(bucket.sent, begin, end));
      };
      const std::int64_t count = bucket.gradients.numel();
      if (options.scatter_gradients) {
        const auto [begin, end] = own(bucket);
        take(begin, end);
        take(bucket.part * group.size(), count);
      } else {
        take(0, count);
      }
    }
    bucket.sent = {};
    bucket.ready = 0;
  }

  ProcessGroup& group;
  const DataParallelOptions options;
  std::vector<Bucket> buckets;
  std::size_t next = 0;  ///< the first bucket that has not begun
  bool is_syncing = true;
};

DataParallel::DataParallel(nn::Module& module, ProcessGroup& group, const DataParallelOptions& options)
    : group_(group), state_(std::make_shared<State>(group, options)) {
  constexpr const char* who = "DataParallel";
  if (!(options.bucket_size_mb > 0)) fail(who, fmt::format("expected a bucket_size_mb above 0 but got {}", options.bucket_size_mb));
  if (options.reduce_dtype && !is_floating(*options.reduce_dtype))
    fail(who, fmt::format("expected a floating reduce_dtype but got {}", tern::name(*options.reduce_dtype)));
  Tensors trained = nn::parameters(module);
  std::erase_if(trained, [](const Tensor& x) { return !x.requires_grad(); });
  if (trained.empty()) fail(who, "expected a module with parameters that require gradients");
  check(trained);
  const std::vector<nn::FlatParameters> flat = nn::flatten_parameters(module);
  send_values(flat);
  const NoGrad unrecorded;
  // Frozen parameters, and buffers.
  Tensors rest;
  for (const Tensor& x : nn::parameters(module))
    if (!x.requires_grad()) rest.push_back(x);
  for (const NamedTensor& buffer : nn::named_buffers(module)) rest.push_back(buffer.tensor);
  for (const Tensor& x : rest) {
    if (x.dtype() == DType::boolean) continue;  // masks, which no training makes
    Tensor sent = contiguous(x.detach());
    group.broadcast(sent).wait();
    if (!x.is_contiguous()) copy_(x.detach(), sent);
  }
  make_buckets(trained, flat);
}

void DataParallel::add(const Tensors& parameters) {
  if (parameters.empty()) return;
  check(parameters);
  const std::vector<nn::FlatParameters> flat = nn::flatten_parameters(parameters);
  send_values(flat);
  make_buckets(parameters, flat);
}

void DataParallel::check(const Tensors& trained) const {
  for (const Tensor& x : trained) {
    if (x.device() != group_.device())
      fail("DataParallel", fmt::format("expected parameters on {}, the group's device, but got one on {}", to_string(group_.device()),
                                       to_string(x.device())));
    if (!x.requires_grad()) fail("DataParallel", "expected parameters that require gradients");
    for (const Bucket& bucket : state_->buckets)
      for (const Tensor& known : bucket.parameters)
        if (known.is_same(x)) fail("DataParallel", fmt::format("expected each parameter once but {} came twice", to_string(x.shape())));
  }
}

/// Rank 0's.
void DataParallel::send_values(const std::vector<nn::FlatParameters>& flat) {
  const NoGrad unrecorded;
  std::vector<Work> works;
  for (const nn::FlatParameters& each : flat) {
    works.push_back(group_.broadcast(each.parameters));
    if (each.masters.defined()) works.push_back(group_.broadcast(each.masters));
  }
  for (Work& work : works) work.wait();
}

void DataParallel::make_buckets(Tensors trained, const std::vector<nn::FlatParameters>& flat) {
  const DataParallelOptions& options = state_->options;
  // In an order that is the same on all ranks: from the end of each buffer, as backward comes from a model's end; but vectors last, whose
  // gradients are sums that kernels defer to the end of the pass.
  const auto place = [&](const Tensor& x) {
    const Tensor gradient = x.grad();
    const auto own = std::find_if(flat.begin(), flat.end(),
                                  [&](const nn::FlatParameters& each) { return each.gradients.impl().storage == gradient.impl().storage; });
    return std::tuple(own - flat.begin(), options.sync != GradientSync::flat && x.dims() < 2, -gradient.offset());
  };
  std::sort(trained.begin(), trained.end(), [&](const Tensor& a, const Tensor& b) { return place(a) < place(b); });
  const double most = options.sync == GradientSync::bucketed ? options.bucket_size_mb * 0x1p20
                      : options.sync == GradientSync::flat   ? std::numeric_limits<double>::infinity()
                                                             : 0;
  const std::size_t first = state_->buckets.size();
  double bytes = 0;
  for (const Tensor& x : trained) {
    const auto own = static_cast<double>(padded_size(x.numel(), x.dtype())) * static_cast<double>(size_of(x.dtype()));
    const bool is_beside = state_->buckets.size() > first && is_adjacent(x.grad(), state_->buckets.back().parameters.back().grad());
    if (!is_beside || bytes + own > most) {
      state_->buckets.emplace_back();
      bytes = 0;
    }
    state_->buckets.back().parameters.push_back(x);
    bytes += own;
  }
  for (std::size_t i = first; i < state_->buckets.size(); ++i) {
    Bucket& bucket = state_->buckets[i];
    bucket.gradients = segment_between(bucket.parameters.back().grad(), bucket.parameters.front().grad());
    const std::int64_t vector = padded_size(1, bucket.gradients.dtype());
    bucket.part = bucket.gradients.numel() / (group_.size() * vector) * vector;
    for (const Tensor& x : bucket.parameters)
      on_gradient_ready(x, [weak = std::weak_ptr<State>(state_), i](const Tensor&) {
        if (const auto state = weak.lock()) state->on_ready(i);
      });
  }
}

std::vector<DataParallel::Segment> DataParallel::segments() const {
  std::vector<Segment> result;
  for (const Bucket& bucket : state_->buckets)
    result.push_back({segment_between(bucket.parameters.back(), bucket.parameters.front()).detach(), bucket.gradients, bucket.part});
  return result;
}

DataParallel::~DataParallel() = default;

void DataParallel::finish_gradient_synchronization() { state_->finish(); }

std::vector<std::size_t> DataParallel::bucket_bytes() const {
  std::vector<std::size_t> result;
  for (const Bucket& bucket : state_->buckets)
    result.push_back(static_cast<std::size_t>(bucket.gradients.numel()) * size_of(bucket.gradients.dtype()));
  return result;
}

DataParallel::NoSync::NoSync(DataParallel& model) : model_(model), before_(std::exchange(model.state_->is_syncing, false)) {}
DataParallel::NoSync::~NoSync() { model_.state_->is_syncing = before_; }

}  // namespace tern::dist
