#pragma once
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "backend/observer.h"
#include "dist/data_parallel.h"
#include "dist/sharded_parameters.h"
#include "ops/copy.h"
#include "ops/factory.h"

// The buckets of data parallel training: their reductions and gathers, for DataParallel and the optimizers of a data parallel model.
namespace tern::dist {

/// Parameters whose gradients lie side by side, and go over the wire together.
struct DataParallel::Bucket {
  Tensors parameters;      ///< from the last one in memory to the first
  Tensor values;           ///< (n), from the first parameter's to the last one's
  Tensor gradients;        ///< (n), likewise
  std::int64_t part = 0;   ///< of one rank, see Segment
  Tensor own_gradients;    ///< see Segment
  std::size_t ready = 0;   ///< parameters whose gradients are there, since the last synchronisation
  std::size_t passed = 0;  ///< and in this backward pass
  Tensor sent;             ///< gradients on their way, perhaps in another dtype
  Work work, rest;
};

struct DataParallel::State {
  static constexpr std::size_t max_pending = 2;  ///< sharded buckets that are being reduced, each with whole gradients
  static constexpr std::size_t max_update_groups = 5;

  State(ProcessGroup& group_, const DataParallelOptions& options_) : group(group_), options(options_) {
    options.scatter_gradients = options.scatter_gradients || shards_gradients();
    if (options.shard == Shard::parameters) sharded = std::make_shared<ShardedParameters>(group);
  }

  /// Begins to reduce the gradients of a bucket.
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
    const std::int64_t shared = bucket.part * group.size();
    const Tensor own = part_of(bucket, bucket.sent), kept = bucket.own_gradients;
    const bool is_straight = kept.defined() && !is_lowered(bucket);
    bucket.work =
        group.reduce_scatter(is_straight ? elements_of(kept, 0, bucket.part) : own, elements_of(bucket.sent, 0, shared), ReduceOp::mean);
    bucket.rest = group.all_reduce(elements_of(bucket.sent, shared, gradients.numel()), ReduceOp::mean);
    if (kept.defined() && is_lowered(bucket)) release_gradients(bucket);
  }

  bool is_lowered(const Bucket& bucket) const { return options.reduce_dtype && *options.reduce_dtype != bucket.gradients.dtype(); }
  /// The rank's own of a bucket's elements.
  Tensor part_of(const Bucket& bucket, const Tensor& x) const {
    return elements_of(x, bucket.part * group.rank(), bucket.part * (group.rank() + 1));
  }

  bool begins_in_backward() const { return options.sync == GradientSync::overlapped || options.sync == GradientSync::bucketed; }
  void begin_next() {
    if (shards_gradients())
      while (next - ended >= max_pending) end(buckets[ended++]);
    begin(buckets[next++]);
  }

  /// A gradient of bucket `number` is final.
  void on_ready(std::size_t number) {
    if (sharded) pass(number);
    if (!is_syncing || !begins_in_backward()) return;
    if (number < next)
      fail("DataParallel",
           "expected one backward pass between two calls of finish_gradient_synchronization(): put the others within NoSync");
    is_finished = false;
    // In the order of the buckets, which all ranks keep, whatever order their gradients come in.
    ++buckets[number].ready;
    while (next < buckets.size() && buckets[next].ready == buckets[next].parameters.size()) begin_next();
    if (shards_gradients())
      while (ended < next && buckets[ended].work.is_done() && buckets[ended].rest.is_done()) end(buckets[ended++]);
  }

  void finish() {
    while (next < buckets.size()) {
      begin_next();
      if (options.sync == GradientSync::per_parameter) end(buckets[ended++]);
    }
    while (ended < buckets.size()) end(buckets[ended++]);
    is_finished = true;
    complete();
  }

  /// Ready for the next backward pass.
  void complete() {
    next = ended = 0;
    if (!sharded) return;
    sharded->release_all();
    for (Bucket& bucket : buckets) bucket.passed = 0;
  }

  /// Note [Update groups]
  /// An optimizer updates buckets group by group, each as soon as its gradients are reduced. Of a sharded optimizer each bucket is a group.
  /// Of another one the last four buckets, whose gradients come at the end of backward (a table used at both ends of a model, its
  /// neighbours, the first layers, deferred sums), are a group each, and the first group is all buckets before them.
  /// A step calls begin_reductions(); for each group, in order, wait_for_gradients() and, once it is updated, begin_gathers(); then
  /// end_reductions() and wait_for_gathers().
  std::size_t update_groups() const { return has_sharded_optimizer ? buckets.size() : std::min(buckets.size(), max_update_groups); }
  /// In [0, update_groups()).
  std::size_t update_group_of(std::size_t bucket) const {
    const std::size_t last_of_first = buckets.size() - update_groups();
    return bucket < last_of_first ? 0 : bucket - last_of_first;
  }
  /// Begins the reductions that backward has not begun.
  void begin_reductions() {
    if (is_finished || !is_syncing) return;
    if (!begins_in_backward()) return finish();
    while (next < buckets.size()) begin_next();
  }
  /// Waits, as Work::wait does, for the gradients of the groups up to this one.
  void wait_for_gradients(std::size_t update_group) {
    while (ended < next && update_group_of(ended) <= update_group) end(buckets[ended++]);
  }
  /// Ready for the next backward pass.
  void end_reductions() {
    is_finished = false;
    if (is_syncing) complete();
  }
  /// Begins to gather the parameters of the groups up to this one, which the ranks have updated in parts; of others nothing.
  void begin_gathers(std::size_t update_group) {
    if (!has_sharded_optimizer || sharded) return;  // sharded parameters are gathered where they are used
    const backend::PassScope observed("communication");
    while (gathers.size() < buckets.size() && update_group_of(gathers.size()) <= update_group) begin_gather(buckets[gathers.size()]);
  }
  /// Begins the gathers of all groups that were not begun, and waits for all.
  void wait_for_gathers() {
    begin_gathers(buckets.size());
    const backend::PassScope observed("communication");
    for (Work& work : gathers) work.wait();
    gathers.clear();
  }

  void begin_gather(const Bucket& bucket) {
    const NoGrad unrecorded;
    const Tensor shared = elements_of(bucket.values, 0, group.size() * bucket.part);
    gathers.push_back(group.all_gather(shared, part_of(bucket, shared)));
  }

  /// A gradient of a unit of sharded parameters is final.
  void pass(std::size_t number) {
    Bucket& bucket = buckets[number];
    if (bucket.passed == 0) sharded->begin_gradients(number);
    if (++bucket.passed < bucket.parameters.size()) return;
    bucket.passed = 0;
    sharded->end_gradients(number);
  }

  /// Waits for a bucket's reduction, and copies its result into place.
  void end(Bucket& bucket) {
    const NoGrad unrecorded;
    bucket.work.wait();
    bucket.rest.wait();
    const std::int64_t shared = bucket.part * group.size(), count = bucket.gradients.numel();
    const auto take = [](const Tensor& into, const Tensor& from) {
      if (into.numel() > 0) copy_(into, from);
    };
    if (const Tensor& kept = bucket.own_gradients; kept.defined()) {
      if (is_lowered(bucket)) take(elements_of(kept, 0, bucket.part), part_of(bucket, bucket.sent));
      take(elements_of(kept, bucket.part, kept.numel()), elements_of(bucket.sent, shared, count));
      if (!is_lowered(bucket)) release_gradients(bucket);
    } else if (is_lowered(bucket) && options.scatter_gradients) {
      take(part_of(bucket, bucket.gradients), part_of(bucket, bucket.sent));
      take(elements_of(bucket.gradients, shared, count), elements_of(bucket.sent, shared, count));
    } else if (is_lowered(bucket)) {
      take(bucket.gradients, bucket.sent);
    }
    bucket.sent = {};
    bucket.ready = 0;
  }

  bool shards_gradients() const { return options.shard >= Shard::gradients; }

  /// Gives the gradients of a bucket memory that comes when one is written, and goes with release_gradients().
  void make_gradients(Bucket& bucket) const {
    const Tensor& values = bucket.values;
    // Padding, which belongs to no parameter, is zero.
    std::vector<std::pair<std::int64_t, std::int64_t>> gaps;
    std::int64_t end = 0;
    for (auto x = bucket.parameters.rbegin(); x != bucket.parameters.rend(); ++x) {
      const std::int64_t begin = x->offset() - values.offset();
      if (begin > end) gaps.emplace_back(end, begin);
      end = begin + x->numel();
    }
    if (values.numel() > end) gaps.emplace_back(end, values.numel());
    const auto fetch = [gaps, count = values.numel(), dtype = values.dtype(), device = values.device()](FlatStorage& storage) {
      require_no_recording();
      const NoGrad unrecorded;
      const Tensor memory = empty({count}, dtype, device);
      for (const auto& [from, to] : gaps) fill_(elements_of(memory, from, to), 0);
      storage.take(memory);
    };
    bucket.gradients = flat_on_demand(values.numel(), values.dtype(), values.device(), fetch);
    for (const Tensor& x : bucket.parameters)
      Tensor(x).set_grad(bucket.gradients.window(x.shape(), contiguous_strides(x.shape()), x.offset() - values.offset()));
    release_gradients(bucket);
    const std::int64_t rest = values.numel() - bucket.part * group.size();
    bucket.own_gradients = zeros({bucket.part + rest}, values.dtype(), values.device());
  }

  /// The gradients stand for zeros from then on.
  static void release_gradients(const Bucket& bucket) {
    nn::zero_grad(bucket.parameters);
    flat_storage(bucket.gradients)->free_until_fetched();
  }

  static void require_no_recording() {
    if (context().recording)
      fail("DataParallel",
           "expected a step as written, but a graph is being recorded: the memory of sharded gradients is at other addresses in each step");
  }

  ProcessGroup& group;
  DataParallelOptions options;
  std::shared_ptr<ShardedParameters> sharded;  ///< of which each bucket is the unit of its number; else null
  std::vector<Bucket> buckets;
  std::size_t next = 0;   ///< the first bucket that has not begun
  std::size_t ended = 0;  ///< the first one that has not ended
  bool is_syncing = true, has_sharded_optimizer = false;
  bool is_finished = false;   ///< since the last backward pass
  std::vector<Work> gathers;  ///< of the parameters of buckets, in order
};

}  // namespace tern::dist
