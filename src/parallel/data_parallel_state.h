#pragma once
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "backend/observer.h"
#include "nn/module.h"
#include "ops/factory.h"
#include "parallel/data_parallel.h"
#include "parallel/process_group.h"

namespace tern::parallel {

/// The path of the element of a list of modules that a parameter belongs to, e.g. "blocks.3."; "" if there is none.
std::string block_of(const std::string& path);

/// Note [Sharded parameters]
/// ZeRO's third stage, "fully sharded data parallel" (Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel",
/// 2023): a rank keeps 1/N of a unit's parameters, which are stored in one flat block, and has the memory of the rest only while they are
/// used. Each module's forward is wrapped (nn::Module::before_forward):
///  * Before a module's forward the units of its parameters are gathered, but for those of elements of lists within it, which are gathered
///    at their own turn. All ranks run the same model and so gather in the same order; a forward on one rank alone hangs until the timeout.
///  * Before the backward of an op that saved a weight, its unit is gathered again.
///  * Prefetch. Units are numbered in the order of backward, from the model's end. A gather in forward starts the all_gather of the unit
///    numbered one lower; a gather in backward, and the first gradient of a unit, that of the unit numbered one higher. The all_gather
///    overlaps the computation of the current unit.
///  * Release. In forward a block is released when another one is gathered; the last one stays for backward. In backward a unit is released
///    when its last gradient is final, as everything that reads it has then run. The root (tables, heads) and the vectors stay from their
///    first use in forward to the end of backward: they are used at both ends, and one kernel reads the vectors of two blocks.
///  * Autocast. Under autocast the f32 matrices of a block are gathered in its 16-bit dtype, half the bytes, into memory of their own,
///    which autocast takes for its casts of them (Autocast::use).
///  * Elsewhere parameters have no memory, and reading one is an error. DataParallel::gather() brings them, e.g. for files and averages.
///  * Writes. An in-place write to gathered parameters is detected by the block's version; at release the rank's part is copied back. All
///    ranks have to make the same write.
/// Peak memory: 1/N of all parameters, the root and the vectors, and two blocks.
class ShardedParameters final : public std::enable_shared_from_this<ShardedParameters> {
 public:
  explicit ShardedParameters(ProcessGroup& group) : group_(group) {}

  /// Moves parameters of one dtype into a new unit, in this order, broadcasts rank 0's values, and returns the unit's number. Parameters of
  /// 16 bits also have sharded masters. `is_block`: the unit is released in forward when another one is gathered.
  std::size_t add(const Tensors& parameters, bool is_block);
  /// Wraps the forwards of the module and of those below it.
  void wrap(nn::Module& module);

  /// (n), padded to N parts.
  const Tensor& values(std::size_t unit) const { return units_[unit].values.whole; }
  /// (n / N): the rank's part, always in memory. Masters are undefined unless the parameters have 16 bits.
  const Tensor& own_values(std::size_t unit) const { return units_[unit].values.own; }
  const Tensor& own_masters(std::size_t unit) const { return units_[unit].masters.own; }

  /// Gathers the units that hold these tensors, parameters or masters, in the place of other blocks.
  void gather(const Tensors& xs);
  /// To be called in backward when the first gradient of a unit is final.
  void begin_gradients(std::size_t unit) { prefetch(unit + 1); }
  /// To be called in backward when the last gradient of a unit is final: all ops that read the unit have run.
  void end_gradients(std::size_t unit);
  /// Releases all units, after copying writes back. To be called before an update.
  void release_all();
  /// To be called after an update: raises the versions, so that a graph that has saved the old values refuses to read the new ones.
  void note_update();
  /// Gathers all units for good.
  void keep();

 private:
  struct Block {
    Tensor whole, own, arriving;  ///< all elements, the rank's part, and the destination of a gather in progress
    Work work;                    ///< the gather in progress
    std::uint32_t version = 0;    ///< of `whole` when `own` was equal to its part; a write raises that of `whole`
  };
  struct Unit {
    Block values, masters, lowered;  ///< `lowered`: the values in autocast's dtype, once it has been used; its `own` exists during a gather
    Tensors parameters;
    bool is_block = false;
  };
  using Kind = Block Unit::*;

  static FlatStorage& storage_of(const Block& block);
  static bool is_here(const Block& block);
  Tensor freed(std::int64_t own_count, DType dtype, std::size_t unit, Kind kind);
  void begin_forward(const std::set<std::size_t>& needed);
  template <class F>
  void gather(std::size_t unit, Kind kind, const F& stays);
  void begin(Unit& unit, Kind kind);
  void install(Unit& unit, Kind kind);
  void write_back_edits(Block& block);
  void release(Block& block);
  void prefetch(std::size_t unit);

  ProcessGroup& group_;
  std::vector<Unit> units_;
  Kind block_kind_ = &Unit::values;  ///< the last gather of a block was of its `values` or of `lowered`
  bool is_kept_ = false;
};

/// Parameters whose gradients are adjacent in memory and are reduced together.
struct DataParallel::Bucket {
  Tensors parameters;     ///< from the last one in memory to the first
  Tensor values;          ///< (n): the elements of all parameters
  Tensor gradients;       ///< (n): their gradients
  std::int64_t part = 0;  ///< see Segment
  Tensor own_gradients;   ///< see Segment
  /// Padding between parameters in sharded gradients, whose memory is new in each pass; it counts in the norm.
  std::vector<std::pair<std::int64_t, std::int64_t>> gaps;
  std::size_t ready = 0;          ///< parameters whose gradients are final, since the last synchronisation
  std::size_t ready_in_pass = 0;  ///< the same, in this backward pass
  Tensor sent;                    ///< gradients that are being reduced, in the reduction's dtype
  Work work, rest;                ///< the reductions of the ranks' parts, or of all; and of the remainder
};

/// The state of data parallel training, which DataParallel and the optimizers of its model share: buckets, their reductions and gathers.
struct DataParallel::State {
  static constexpr std::size_t max_pending = 2;  ///< buckets of sharded gradients in reduction at a time, each with full gradients

  State(ProcessGroup& group_, const DataParallelOptions& options_) : group(group_), options(options_) {
    options.scatter_gradients = options.scatter_gradients || shards_gradients();
    if (options.shard == Shard::parameters) sharded = std::make_shared<ShardedParameters>(group);
  }

  /// Starts the reduction of a bucket.
  void begin(Bucket& bucket) {
    const NoGrad unrecorded;
    const backend::PassScope observed("communication");
    // grad() fills in zeros that have not been written yet.
    for (const Tensor& x : bucket.parameters) static_cast<void>(x.grad());
    const Tensor& gradients = bucket.gradients;
    for (const auto& [from, to] : bucket.gaps) fill_(elements_of(gradients, from, to), 0);
    bucket.sent = is_lowered(bucket) ? cast(gradients, *options.reduce_dtype) : gradients;
    if (!options.scatter_gradients) {
      bucket.work = group.all_reduce(bucket.sent, ReduceOp::mean);
      return;
    }
    const std::int64_t shared = bucket.part * group.size();
    const Tensor own = part_of(bucket, bucket.sent), kept = bucket.own_gradients;
    const bool writes_result = kept.defined() && !is_lowered(bucket);  // reduce_scatter may write to own_gradients directly
    bucket.work =
        group.reduce_scatter(writes_result ? elements_of(kept, 0, bucket.part) : own, elements_of(bucket.sent, 0, shared), ReduceOp::mean);
    bucket.rest = group.all_reduce(elements_of(bucket.sent, shared, gradients.numel()), ReduceOp::mean);
    if (kept.defined() && is_lowered(bucket)) release_gradients(bucket);
  }

  /// True if the bucket's gradients are reduced in another dtype.
  bool is_lowered(const Bucket& bucket) const { return options.reduce_dtype && *options.reduce_dtype != bucket.gradients.dtype(); }
  /// The rank's own part of a bucket's elements.
  Tensor part_of(const Bucket& bucket, const Tensor& x) const {
    return elements_of(x, bucket.part * group.rank(), bucket.part * (group.rank() + 1));
  }

  bool begins_in_backward() const { return options.sync == GradientSync::overlapped || options.sync == GradientSync::bucketed; }
  void begin_next() {
    if (shards_gradients())
      while (next - ended >= max_pending) end(buckets[ended++]);
    begin(buckets[next++]);
  }

  /// To be called when a gradient of bucket `number` is final.
  void on_ready(std::size_t number) {
    if (shards_gradients() && context().recording)
      fail("DataParallel",
           "expected a step as written, but a graph is being recorded: the memory of sharded gradients is at other addresses in each step");
    if (sharded) count_in_pass(number);
    if (!is_syncing || !begins_in_backward()) return;
    if (number < next)
      fail("DataParallel",
           "expected one backward pass between two calls of finish_gradient_synchronization(): put the others within NoSync");
    is_finished = false;
    // Started in the order of the buckets, as all ranks have to, and not in the order of completion.
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

  /// Resets the state for the next backward pass.
  void complete() {
    next = ended = 0;
    if (!sharded) return;
    sharded->release_all();
    for (Bucket& bucket : buckets) bucket.ready_in_pass = 0;
  }

  /// Note [Updates by bucket]
  /// An optimizer updates buckets in order, each as soon as its gradients are reduced. If it is not sharded, all buckets before the last
  /// four are one update: only the gradients of these four (a table used at both ends of a model, its neighbours, the first layers,
  /// deferred sums) are final at the end of backward. A step calls begin_reductions(); for each bucket, in order, wait_for_gradients() and,
  /// once it is updated, begin_gathers(); then wait_for_gathers() and end_reductions().
  static constexpr std::size_t single_updates = 4;
  /// Starts the reductions that backward has not started.
  void begin_reductions() {
    if (is_finished || !is_syncing) return;
    if (!begins_in_backward()) return finish();
    while (next < buckets.size()) begin_next();
  }
  /// Waits, as Work::wait does, for the gradients of the buckets up to number `last`.
  void wait_for_gradients(std::size_t last) {
    while (ended < next && ended <= last) end(buckets[ended++]);
  }
  /// Ends the synchronisation of a step, after all updates.
  void end_reductions() {
    is_finished = false;
    if (is_syncing) complete();
  }
  /// With a sharded optimizer: starts the gathers of the parameters of the buckets up to number `last`, of which each rank has updated its
  /// part.
  void begin_gathers(std::size_t last) {
    if (!has_sharded_optimizer || sharded) return;  // sharded parameters are gathered on use
    const backend::PassScope observed("communication");
    const NoGrad unrecorded;
    while (gathers.size() < buckets.size() && gathers.size() <= last) {
      const Bucket& bucket = buckets[gathers.size()];
      const Tensor shared = elements_of(bucket.values, 0, group.size() * bucket.part);
      gathers.push_back(group.all_gather(shared, part_of(bucket, shared)));
    }
  }
  /// Starts the gathers of the remaining buckets, and waits for all.
  void wait_for_gathers() {
    begin_gathers(buckets.size());
    const backend::PassScope observed("communication");
    for (Work& work : gathers) work.wait();
    gathers.clear();
  }

  /// Counts a final gradient of a unit of sharded parameters.
  void count_in_pass(std::size_t number) {
    Bucket& bucket = buckets[number];
    if (bucket.ready_in_pass == 0) sharded->begin_gradients(number);
    if (++bucket.ready_in_pass < bucket.parameters.size()) return;
    bucket.ready_in_pass = 0;
    sharded->end_gradients(number);
  }

  /// Waits for a bucket's reduction, and copies its result to the gradients.
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

  /// Makes a bucket's gradients, whose memory is allocated when one is written and freed by release_gradients().
  void make_gradients(Bucket& bucket) const {
    const Tensor& values = bucket.values;
    std::int64_t end = 0;
    for (auto x = bucket.parameters.rbegin(); x != bucket.parameters.rend(); ++x) {
      const std::int64_t begin = x->offset() - values.offset();
      if (begin > end) bucket.gaps.emplace_back(end, begin);
      end = begin + x->numel();
    }
    if (values.numel() > end) bucket.gaps.emplace_back(end, values.numel());
    bucket.gradients = flat_freed(values.numel(), values.dtype(), values.device());
    for (const Tensor& x : bucket.parameters)
      Tensor(x).set_grad(bucket.gradients.window(x.shape(), contiguous_strides(x.shape()), x.offset() - values.offset()));
    release_gradients(bucket);
    const std::int64_t rest = values.numel() - bucket.part * group.size();
    bucket.own_gradients = zeros({bucket.part + rest}, values.dtype(), values.device());
  }

  /// Frees the memory of the gradients; grad() is zeros until one is written.
  static void release_gradients(const Bucket& bucket) {
    flat_storage(bucket.gradients)->free();
    nn::zero_grad(bucket.parameters);
  }

  ProcessGroup& group;
  DataParallelOptions options;
  std::shared_ptr<ShardedParameters> sharded;  ///< with units of the buckets' numbers; null if parameters are not sharded
  std::vector<Bucket> buckets;
  std::size_t next = 0;   ///< the first bucket whose reduction has not started
  std::size_t ended = 0;  ///< the first bucket whose reduction has not ended
  bool is_syncing = true, has_sharded_optimizer = false;
  bool is_finished = false;   ///< finish() has been called since the last backward pass
  std::vector<Work> gathers;  ///< of the buckets' parameters, in order
};

}  // namespace tern::parallel
