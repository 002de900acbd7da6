#include "dist/sharded_optimizer.h"

#include <algorithm>
#include <memory>

#include "autodiff/parameter_buffer.h"
#include "backend/observer.h"
#include "tensor/context.h"

namespace tern::dist {

namespace {

/// Each rank has its part of each bucket, and all of them have what remains.
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
      // `kept`: where the rank keeps the gradients of such elements, if these are sharded.
      const auto add = [&](std::int64_t from, std::int64_t to, bool is_counted, std::int64_t kept) {
        Window window{std::max(from, first), std::min(to, last), is_counted};
        if (window.begin >= window.end) return;
        if (bucket.own_gradients.defined())
          window.gradients = elements_of(bucket.own_gradients, kept + window.begin - from, kept + window.end - from);
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

  void prepare() override { model_.begin_update(); }

  void gather_parameters() override {
    model_.end_update();
    if (model_.shard() == Shard::parameters) return;  // they are gathered where they are used
    const backend::PassScope observed("communication");
    const NoGrad unrecorded;
    ProcessGroup& group = model_.group();
    std::vector<Work> works;
    for (const DataParallel::Segment& bucket : model_.segments()) {
      const Tensor shared = elements_of(bucket.parameters, 0, group.size() * bucket.part);
      works.push_back(group.all_gather(shared, elements_of(shared, group.rank() * bucket.part, (group.rank() + 1) * bucket.part)));
    }
    for (Work& work : works) work.wait();
  }

  void sum(const Tensor& x) override { model_.group().all_reduce(x).wait(); }

 private:
  DataParallel& model_;
};

}  // namespace

void shard_optimizer(train::Optimizer& optimizer, DataParallel& model) {
  optimizer.set_sharding(std::make_shared<BucketSharding>(model));
  model.note_sharded_optimizer();
}

}  // namespace tern::dist
