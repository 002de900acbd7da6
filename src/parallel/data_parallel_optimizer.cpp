#include "parallel/data_parallel_optimizer.h"

#include <algorithm>
#include <memory>

#include "autodiff/parameter_buffer.h"
#include "backend/observer.h"
#include "parallel/data_parallel_state.h"
#include "tensor/context.h"

namespace tern::parallel {

/// Note [Update groups] as the optimizer's interface.
class BucketArrival final : public train::GradientArrival {
 public:
  explicit BucketArrival(DataParallel& model) : model_(model) {}

  std::vector<Window> windows(const Tensor& segment) const override {
    std::vector<Window> all;
    const std::vector<DataParallel::Segment> buckets = model_.segments();
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const Tensor& values = buckets[i].parameters;
      if (values.impl().storage == segment.impl().storage)
        all.push_back({values.offset(), values.offset() + values.numel(), model_.state_->update_group_of(i)});
    }
    std::sort(all.begin(), all.end(), [](const Window& a, const Window& b) { return a.begin < b.begin; });
    std::vector<Window> result;
    for (const Window& each : all)
      if (!result.empty() && result.back().number == each.number) result.back().end = each.end;  // with the padding between them
      else result.push_back(each);
    return result;
  }
  std::size_t size() const override { return model_.state_->update_groups(); }
  void begin() override {
    const backend::PassScope observed("communication");
    model_.state_->begin_reductions();
  }
  void wait(std::size_t number) override {
    const backend::PassScope observed("communication");
    model_.state_->wait_for_gradients(number);
  }
  void updated(std::size_t number) override { model_.state_->begin_gathers(number); }
  void end() override { model_.state_->end_reductions(); }

 private:
  DataParallel& model_;
};

/// Sharding by buckets: each rank owns its part of each bucket (DataParallel::Segment), and all ranks the remainder.
class BucketSharding final : public train::Sharding {
 public:
  explicit BucketSharding(DataParallel& model) : model_(model) {}

  std::vector<Window> own(const Tensor& segment) const override {
    const ProcessGroup& group = model_.group();
    const std::int64_t first = segment.offset(), last = first + segment.numel();
    std::vector<Window> windows;
    bool is_known = false;
    for (const DataParallel::Segment& bucket : model_.segments()) {
      if (!(bucket.parameters.impl().storage == segment.impl().storage)) continue;
      is_known = true;
      const std::int64_t begin = bucket.parameters.offset(), end = begin + bucket.parameters.numel(),
                         rest = begin + group.size() * bucket.part;
      // `own_offset`: offset of element `from` in Segment::own_gradients.
      const auto add = [&](std::int64_t from, std::int64_t to, bool is_counted, std::int64_t own_offset) {
        Window window{std::max(from, first), std::min(to, last), is_counted};
        if (window.begin >= window.end) return;
        if (bucket.own_gradients.defined())
          window.gradients = elements_of(bucket.own_gradients, own_offset + window.begin - from, own_offset + window.end - from);
        if (bucket.own_parameters.defined()) window.parameters = elements_of(bucket.own_parameters, window.begin - from, window.end - from);
        if (bucket.own_masters.defined()) window.masters = elements_of(bucket.own_masters, window.begin - from, window.end - from);
        windows.push_back(std::move(window));
      };
      add(begin + group.rank() * bucket.part, begin + (group.rank() + 1) * bucket.part, true, 0);
      add(rest, end, group.rank() == 0, bucket.part);
    }
    if (!is_known) fail("shard_optimizer", "expected parameters of the data parallel model: call its add() for others");
    std::sort(windows.begin(), windows.end(), [](const Window& a, const Window& b) { return a.begin < b.begin; });
    return windows;
  }

  /// Releases gathered parameters, as the update is of the rank's own part.
  void prepare() override {
    if (const auto& sharded = model_.state_->sharded) sharded->release_all();
  }

  void gather_parameters() override {
    if (const auto& sharded = model_.state_->sharded) sharded->note_update();
    model_.state_->wait_for_gathers();
  }

  void sum(const Tensor& x) override { model_.group().all_reduce(x).wait(); }

 private:
  DataParallel& model_;
};

void shard_optimizer(train::Optimizer& optimizer, DataParallel& model) {
  optimizer.set_sharding(std::make_shared<BucketSharding>(model));
  model.state_->has_sharded_optimizer = true;
  overlap_optimizer(optimizer, model);
}

void overlap_optimizer(train::Optimizer& optimizer, DataParallel& model) { optimizer.set_arrival(std::make_shared<BucketArrival>(model)); }

}  // namespace tern::parallel
