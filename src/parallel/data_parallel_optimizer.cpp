#include "parallel/data_parallel_optimizer.h"

#include <algorithm>
#include <memory>

#include "autodiff/parameter_buffer.h"
#include "backend/observer.h"
#include "parallel/data_parallel_state.h"
#include "tensor/context.h"

namespace tern::parallel {

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
