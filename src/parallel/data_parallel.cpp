#include "parallel/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <tuple>

#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "backend/observer.h"
#include "backend/parse.h"
#include "ops/factory.h"
#include "parallel/data_parallel_state.h"
#include "tensor/context.h"
#include "train/optimizer.h"

namespace tern::parallel {

namespace {

constexpr const char* names[] = {"per-parameter", "flat", "overlapped", "bucketed"};
constexpr const char* shard_names[] = {"none", "optimizer", "gradients", "parameters"};

}  // namespace

const char* name(GradientSync sync) { return names[static_cast<int>(sync)]; }

std::optional<GradientSync> gradient_sync_of(const std::string& name) { return backend::enum_of<GradientSync>(name, std::size(names)); }

const char* name(Shard shard) { return shard_names[static_cast<int>(shard)]; }

std::optional<Shard> shard_of(const std::string& name) { return backend::enum_of<Shard>(name, std::size(shard_names)); }

DataParallel::DataParallel(nn::Module& module, ProcessGroup& group, const DataParallelOptions& options)
    : module_(module), group_(group), state_(std::make_shared<State>(group, options)) {
  constexpr const char* who = "DataParallel";
  if (!(options.bucket_size_mb > 0)) fail(who, fmt::format("expected a bucket_size_mb above 0 but got {}", options.bucket_size_mb));
  if (options.reduce_dtype && !is_floating(*options.reduce_dtype))
    fail(who, fmt::format("expected a floating reduce_dtype but got {}", tern::name(*options.reduce_dtype)));
  Tensors trained = nn::parameters(module);
  std::erase_if(trained, [](const Tensor& x) { return !x.requires_grad(); });
  if (trained.empty()) fail(who, "expected a module with parameters that require gradients");
  check(trained);
  if (state_->shards_gradients())
    for (Tensor& x : trained) x.set_grad({});  // frees full gradients (as of set_precision), which would double the memory of the parts
  if (state_->sharded) {
    std::vector<NamedTensor> named = nn::named_parameters(module);
    std::erase_if(named, [](const NamedTensor& x) { return !x.tensor.requires_grad(); });
    make_units(named);
  } else {
    const std::vector<nn::FlatParameters> flat = nn::flatten_parameters(trained, !state_->shards_gradients());
    send_values(flat);
    make_buckets(trained, flat);
  }
  const NoGrad unrecorded;
  // Frozen parameters, and buffers.
  Tensors rest;
  for (const Tensor& x : nn::parameters(module))
    if (!x.requires_grad()) rest.push_back(x);
  for (const NamedTensor& buffer : nn::named_buffers(module)) rest.push_back(buffer.tensor);
  for (const Tensor& x : rest) {
    if (x.dtype() == DType::boolean) continue;  // masks, which are the same on all ranks
    Tensor sent = contiguous(x.detach());
    group.broadcast(sent).wait();
    if (!x.is_contiguous()) copy_(x.detach(), sent);
  }
}

void DataParallel::add(const Tensors& parameters) {
  if (parameters.empty()) return;
  check(parameters);
  if (state_->sharded) {
    std::vector<NamedTensor> named;
    for (const Tensor& x : parameters) named.push_back({"", x});
    return make_units(named);
  }
  const std::vector<nn::FlatParameters> flat = nn::flatten_parameters(parameters, !state_->shards_gradients());
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

/// Broadcasts rank 0's parameters and masters.
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
  // The order of buckets, the same on all ranks: from the end of each buffer, as backward goes; but vectors last, whose gradients are sums
  // that kernels defer to the end of the pass.
  const auto sort_key = [&](const Tensor& x) {
    const auto own = std::find_if(flat.begin(), flat.end(),
                                  [&](const nn::FlatParameters& each) { return each.parameters.impl().storage == x.impl().storage; });
    return std::tuple(own - flat.begin(), options.sync != GradientSync::flat && x.dims() < 2, -x.offset());
  };
  std::sort(trained.begin(), trained.end(), [&](const Tensor& a, const Tensor& b) { return sort_key(a) < sort_key(b); });
  const double max_bytes = options.sync == GradientSync::bucketed ? options.bucket_size_mb * 0x1p20
                           : options.sync == GradientSync::flat   ? std::numeric_limits<double>::infinity()
                                                                  : 0;
  const std::size_t first = state_->buckets.size();
  double bytes = 0;
  for (const Tensor& x : trained) {
    const auto own = static_cast<double>(padded_size(x.numel(), x.dtype())) * static_cast<double>(size_of(x.dtype()));
    const bool extends_last = state_->buckets.size() > first && is_adjacent(x, state_->buckets.back().parameters.back());
    if (!extends_last || bytes + own > max_bytes) {
      state_->buckets.emplace_back();
      bytes = 0;
    }
    state_->buckets.back().parameters.push_back(x);
    bytes += own;
  }
  for (std::size_t i = first; i < state_->buckets.size(); ++i) {
    Bucket& bucket = state_->buckets[i];
    bucket.values = segment_between(bucket.parameters.back(), bucket.parameters.front()).detach();
    complete_bucket(i);
  }
}

void DataParallel::make_units(const std::vector<NamedTensor>& trained) {
  struct Unit {
    std::string block;
    bool is_vectors = false;
    Tensors parameters;
  };
  std::vector<Unit> units;
  for (const NamedTensor& entry : trained) {
    const bool is_vector = entry.tensor.dims() < 2;
    const std::string block = is_vector ? "" : block_of(entry.name);
    auto own = std::find_if(units.begin(), units.end(), [&](const Unit& unit) {
      return unit.block == block && unit.is_vectors == is_vector && unit.parameters[0].dtype() == entry.tensor.dtype();
    });
    if (own == units.end()) own = units.insert(units.end(), {block, is_vector, {}});
    own->parameters.push_back(entry.tensor);
  }
  // The order of backward: blocks from the model's end, then parameters used at both ends, then vectors, whose sums are deferred.
  std::reverse(units.begin(), units.end());
  std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) {
    return std::tuple(a.block.empty(), a.is_vectors) < std::tuple(b.block.empty(), b.is_vectors);
  });
  for (const Unit& unit : units) {
    const std::size_t number = state_->sharded->add(unit.parameters, !unit.block.empty());
    Bucket& bucket = state_->buckets.emplace_back();
    bucket.parameters.assign(unit.parameters.rbegin(), unit.parameters.rend());
    bucket.values = state_->sharded->values(number);
    complete_bucket(number);
  }
  state_->sharded->wrap(module_);
}

/// Completes a bucket that has its parameters and values: sets its gradients and their hooks.
void DataParallel::complete_bucket(std::size_t number) {
  Bucket& bucket = state_->buckets[number];
  const std::int64_t vector = padded_size(1, bucket.values.dtype());
  bucket.part = bucket.values.numel() / (group_.size() * vector) * vector;
  if (state_->shards_gradients()) state_->make_gradients(bucket);
  else bucket.gradients = segment_between(bucket.parameters.back().grad(), bucket.parameters.front().grad());
  for (const Tensor& x : bucket.parameters)
    on_gradient_ready(x, [weak = std::weak_ptr<State>(state_), number](const Tensor&) {
      if (const auto state = weak.lock()) state->on_ready(number);
    });
}

std::vector<DataParallel::Segment> DataParallel::segments() const {
  std::vector<Segment> result;
  for (std::size_t i = 0; i < state_->buckets.size(); ++i) {
    const Bucket& bucket = state_->buckets[i];
    result.push_back({bucket.values, bucket.gradients, bucket.part, bucket.own_gradients});
    if (!state_->sharded) continue;
    result.back().own_parameters = state_->sharded->own_values(i);
    result.back().own_masters = state_->sharded->own_masters(i);
  }
  return result;
}

std::size_t DataParallel::bytes_here() const {
  std::set<const Storage*> counted;
  std::size_t bytes = 0;
  for (const Segment& segment : segments())
    for (const Tensor& x : {segment.parameters, segment.gradients, segment.own_gradients, segment.own_parameters})
      if (x.defined() && x.impl().storage->is_here() && counted.insert(x.impl().storage.get()).second) bytes += x.impl().storage->bytes();
  return bytes;
}

Shard DataParallel::shard() const { return state_->options.shard; }

void DataParallel::gather(const Tensors& parameters) {
  if (state_->sharded) state_->sharded->gather(parameters);
}

void DataParallel::keep_parameters() {
  if (state_->sharded) state_->sharded->keep();
}

DataParallel::~DataParallel() = default;

void DataParallel::finish_gradient_synchronization() {
  if (state_->shards_gradients() && !state_->has_sharded_optimizer)
    fail("DataParallel", "expected an optimizer of the rank's parts: sharded gradients need shard_optimizer(optimizer, model)");
  state_->finish();
}

std::vector<std::size_t> DataParallel::bucket_bytes() const {
  std::vector<std::size_t> result;
  for (const Bucket& bucket : state_->buckets)
    result.push_back(static_cast<std::size_t>(bucket.gradients.numel()) * size_of(bucket.gradients.dtype()));
  return result;
}

DataParallel::NoSync::NoSync(DataParallel& model) : model_(model), before_(std::exchange(model.state_->is_syncing, false)) {}
DataParallel::NoSync::~NoSync() { model_.state_->is_syncing = before_; }

/// The exchange of a data parallel model. Parts are its buckets, or, for a sharded optimizer, the rank's part of each bucket
/// (DataParallel::Segment) and the remainder; they arrive in the order of the buckets (Note [Updates by bucket]).
class BucketExchange final : public train::Exchange {
 public:
  BucketExchange(DataParallel& model, bool is_sharded) : model_(model), is_sharded_(is_sharded) {}

  bool is_sharded() const override { return is_sharded_; }
  std::vector<Part> parts(const Tensor& segment) const override {
    std::vector<Part> parts;
    const std::vector<DataParallel::Segment> buckets = model_.segments();
    const std::int64_t first = segment.offset(), last = first + segment.numel();
    bool is_known = false;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const DataParallel::Segment& bucket = buckets[i];
      if (!(bucket.parameters.impl().storage == segment.impl().storage)) continue;
      is_known = true;
      const ProcessGroup& group = model_.group();
      const std::int64_t begin = bucket.parameters.offset(), end = begin + bucket.parameters.numel(),
                         rest = begin + group.size() * bucket.part;
      // `own_offset`: offset of element `from` in Segment::own_gradients.
      const auto add = [&](std::int64_t from, std::int64_t to, bool is_counted, std::int64_t own_offset) {
        Part part{std::max(from, first), std::min(to, last), i, is_counted};
        if (part.begin >= part.end) return;
        if (bucket.own_gradients.defined())
          part.gradients = elements_of(bucket.own_gradients, own_offset + part.begin - from, own_offset + part.end - from);
        if (bucket.own_parameters.defined()) part.parameters = elements_of(bucket.own_parameters, part.begin - from, part.end - from);
        if (bucket.own_masters.defined()) part.masters = elements_of(bucket.own_masters, part.begin - from, part.end - from);
        parts.push_back(std::move(part));
      };
      if (!is_sharded_) {
        add(begin, end, true, 0);
        continue;
      }
      add(begin + group.rank() * bucket.part, begin + (group.rank() + 1) * bucket.part, true, 0);
      add(rest, end, group.rank() == 0, bucket.part);
    }
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
    if (is_sharded_ && !is_known) fail("shard_optimizer", "expected parameters of the data parallel model: call its add() for others");
    if (is_sharded_) return parts;
    if (!is_known) return {{first, last}};
    std::vector<Part> joined;
    const auto is_single = [&](const Part& each) { return each.arrival + DataParallel::State::single_updates >= buckets.size(); };
    for (const Part& each : parts) {
      if (joined.empty() || is_single(each) || is_single(joined.back())) {
        joined.push_back(each);
        continue;
      }
      joined.back().end = each.end;  // with the padding between them
      joined.back().arrival = std::max(joined.back().arrival, each.arrival);
    }
    return joined;
  }
  std::size_t size() const override { return std::max<std::size_t>(model_.state_->buckets.size(), 1); }

  void begin() override {
    {
      const backend::PassScope observed("communication");
      model_.state_->begin_reductions();
    }
    // The update is of the rank's own part of sharded parameters.
    if (const auto& sharded = model_.state_->sharded) sharded->release_all();
  }
  void wait(std::size_t number) override {
    const backend::PassScope observed("communication");
    model_.state_->wait_for_gradients(number);
  }
  void updated(std::size_t number) override { model_.state_->begin_gathers(number); }
  void end() override {
    if (const auto& sharded = model_.state_->sharded) sharded->note_update();
    if (is_sharded_) model_.state_->wait_for_gathers();
    model_.state_->end_reductions();
  }
  void sum(const Tensor& x) override { model_.group().all_reduce(x).wait(); }

 private:
  DataParallel& model_;
  const bool is_sharded_;
};

void shard_optimizer(train::Optimizer& optimizer, DataParallel& model) {
  optimizer.set_exchange(std::make_shared<BucketExchange>(model, true));
  model.state_->has_sharded_optimizer = true;
}

void overlap_optimizer(train::Optimizer& optimizer, DataParallel& model) {
  optimizer.set_exchange(std::make_shared<BucketExchange>(model, false));
}

}  // namespace tern::parallel
