// A sharded optimizer: the weights, the state and the norm of one that is not, with the moments of a part alone on each rank.
#include <span>

#include "ops/reduce.h"
#include "ops/view.h"
#include "parallel/data_parallel.h"
#include "toy_model.h"
#include "train/train.h"

namespace tern::parallel {

using test::batch, test::check_close, test::check_none, test::data, test::model_of, test::Rank, test::run_ranks, test::trained,
    test::ToyModel, test::Weights, test::weights_of;

namespace {

std::unique_ptr<train::Optimizer> adamw(const Tensors& parameters) {
  return std::make_unique<train::AdamW>(parameters, train::AdamWOptions{.lr = 0.1, .weight_decay = 0.1});
}
std::unique_ptr<train::Optimizer> momentum(const Tensors& parameters) {
  return std::make_unique<train::SGD>(parameters, train::SGDOptions{.lr = 0.1, .momentum = 0.9});
}

std::unique_ptr<train::Optimizer> rmsprop(const Tensors& parameters) {
  return std::make_unique<train::RMSprop>(parameters, train::RMSpropOptions{.lr = 0.01, .momentum = 0.9, .centered = true});
}

Tensor loss_of(const Rank& rank, const ToyModel& model, std::uint64_t step) {
  const std::int64_t rows = batch / rank.group->size(), first = rank.group->rank() * rows;
  const auto part = [&](const Tensor& x) { return slice(x, 0, first, first + rows); };
  const Device device = rank.group->device();
  return mean(square(model.forward(part(data(100 + step, 10, device))) - part(data(200 + step, 5, device))));
}

/// A model in training, whose optimizer is sharded or not.
struct Training {
  Training(const Rank& rank_, bool is_sharded, const DataParallelOptions& options,
           std::unique_ptr<train::Optimizer> (*make)(const Tensors&) = adamw, train::Precision precision = train::Precision::fp32)
      : rank(rank_), model(model_of<ToyModel>(rank_, 1)) {
    if (precision != train::Precision::fp32) train::set_precision(model, precision);
    parallel.emplace(model, *rank.group, options);
    optimizer = make(make == momentum ? nn::parameters(model) : trained(model));  // with those that are frozen, or without
    if (is_sharded) shard_optimizer(*optimizer, *parallel);
  }
  double step(std::uint64_t number, double max_norm = std::numeric_limits<double>::infinity()) {
    const Tensor norm = train::update(loss_of(rank, model, number), *optimizer,
                                      {.max_norm = max_norm, .synchronize = [&] { parallel->finish_gradient_synchronization(); }});
    return norm.defined() ? norm.item<double>() : 0;
  }
  std::vector<NamedTensor> state() { return optimizer->state(nn::named_parameters(model)); }

  const Rank& rank;
  ToyModel model;
  std::optional<DataParallel> parallel;
  std::unique_ptr<train::Optimizer> optimizer;
};

struct Form {
  GradientSync sync;
  double bucket_size_mb;
  bool scatter_gradients;
  DataParallelOptions options() const { return {.sync = sync, .bucket_size_mb = bucket_size_mb, .scatter_gradients = scatter_gradients}; }
};
constexpr Form forms[] = {{GradientSync::bucketed, 25, false},    {GradientSync::bucketed, 25, true},
                          {GradientSync::bucketed, 0.0016, true}, {GradientSync::per_parameter, 25, true},
                          {GradientSync::flat, 25, true},         {GradientSync::overlapped, 25, true},
                          {GradientSync::bucketed, 0.0016, false}};

void check_same_state(const std::vector<NamedTensor>& got, const std::vector<NamedTensor>& want, double tolerance, double absolute) {
  if (got.size() != want.size()) throw Error(fmt::format("{} tensors of state and not {}", got.size(), want.size()));
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i].name != want[i].name) throw Error(got[i].name + " and not " + want[i].name);
    check_close({got[i].tensor.to_vector<float>()}, {want[i].tensor.to_vector<float>()}, tolerance, absolute);
  }
}

}  // namespace

TEST_CASE("Ten steps of a sharded optimizer are those of the optimizer alone, with the moments of a part, by both transports", "[ranks]") {
  for (int ranks : {1, 2, 3, 4})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      for (const Form& form : std::span(forms).first(ranks == 2 ? std::size(forms) : 3)) {
        const auto make = form.sync == GradientSync::flat ? momentum : form.sync == GradientSync::per_parameter ? rmsprop : adamw;
        Training sharded(rank, true, form.options(), make),
            whole(rank, false, {.sync = form.sync, .bucket_size_mb = form.bucket_size_mb}, make);
        // all_reduce gives the same gradients, and of two ranks a sum has but one order. In another order it is rounded otherwise, and an
        // Adam step, a tenth of m / sqrt(v) here, with it.
        const bool is_equal = !form.scatter_gradients || ranks <= 2;
        const double tolerance = is_equal ? 1e-7 : 1e-4, absolute = is_equal ? 1e-8 : 1e-6;
        for (std::uint64_t step = 0; step < 10; ++step) {
          sharded.step(step);
          whole.step(step);
          check_close(weights_of(sharded.model), weights_of(whole.model), tolerance, absolute);
        }
        check_same_state(sharded.state(), whole.state(), tolerance, absolute);
        // The norm that gradients are clipped to is that of all ranks' parts together.
        const double got = sharded.step(10, 0.05), want = whole.step(10, 0.05);
        if (!(std::abs(got - want) <= 1e-5 * want) || !(want > 0.05)) throw Error(fmt::format("the norm is {} and not {}", got, want));
        check_close(weights_of(sharded.model), weights_of(whole.model), 1e-4, 1e-6);
        // Of each bucket fewer than `ranks` vectors of four elements more, and padding.
        std::int64_t elements = 0, kept = 0;
        for (const Tensor& x : trained(sharded.model)) elements += x.numel();
        for (const Tensor& x : sharded.optimizer->memory())
          if (x.dims() > 0) kept += x.numel();
        const auto buckets = static_cast<std::int64_t>(sharded.parallel->segments().size());
        if (kept > (make == rmsprop ? 3 : 2) * (elements / ranks + buckets * 4 * (ranks + 1)))
          throw Error(fmt::format("{} elements of moments for {} parameters on {} ranks", kept, elements, ranks));
      }
    }));
}

TEST_CASE("An optimizer that does not wait for the last buckets gives the same weights", "[ranks]") {
  for (int ranks : {1, 2, 3})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      for (const GradientSync sync : {GradientSync::bucketed, GradientSync::overlapped, GradientSync::flat, GradientSync::per_parameter})
        for (const bool clips : {false, true}) {
          const DataParallelOptions options{.sync = sync, .bucket_size_mb = 0.0016};
          Training overlapped(rank, false, options), plain(rank, false, options);
          overlap_optimizer(*overlapped.optimizer, *overlapped.parallel);
          for (std::uint64_t step = 0; step < 6; ++step) {
            const double norm = clips ? 0.05 : std::numeric_limits<double>::infinity();
            if (step == 3) {  // the parts of a batch, of which the last one alone goes over the wire
              for (Training* each : {&overlapped, &plain}) {
                each->optimizer->zero_grad();
                {
                  const DataParallel::NoSync unsynchronized(*each->parallel);
                  loss_of(rank, each->model, 50).backward();
                }
                loss_of(rank, each->model, 51).backward();
                train::apply(*each->optimizer,
                             {.max_norm = norm, .synchronize = [&] { each->parallel->finish_gradient_synchronization(); }});
              }
            } else if (step == 4) {  // gradients that were waited for before
              overlapped.optimizer->zero_grad();
              loss_of(rank, overlapped.model, step).backward();
              overlapped.parallel->finish_gradient_synchronization();
              train::apply(*overlapped.optimizer, {.max_norm = norm});
              plain.step(step, norm);
            } else {
              overlapped.step(step, norm);
              plain.step(step, norm);
            }
            if (weights_of(overlapped.model) != weights_of(plain.model)) throw Error(fmt::format("other weights after step {}", step));
          }
          const std::size_t buckets = overlapped.parallel->bucket_bytes().size();
          if (overlapped.optimizer->launches() < std::min<std::size_t>(buckets, 5)) throw Error("all parameters were updated at once");
        }
    }));
}

TEST_CASE("The state of a sharded optimizer is whole, and is taken over by any number of ranks", "[ranks]") {
  for (int ranks : {2, 4})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      const DataParallelOptions options{.bucket_size_mb = 0.0016};
      Training first(rank, true, options), whole(rank, false, options);
      for (std::uint64_t step = 0; step < 3; ++step) first.step(step), whole.step(step);
      const auto state = first.state();
      for (const bool is_sharded : {true, false}) {
        // Other buckets, and so other parts.
        Training next(rank, is_sharded, {.scatter_gradients = is_sharded});
        {
          const NoGrad unrecorded;
          const Tensors from = nn::parameters(first.model), into = nn::parameters(next.model);
          for (std::size_t i = 0; i < from.size(); ++i) copy_(into[i], from[i].detach());
        }
        next.optimizer->load_moments(state, nn::named_parameters(next.model));
        const NoGrad unrecorded;
        copy_(next.optimizer->steps(), first.optimizer->steps());
        check_same_state(next.state(), whole.state(), 1e-7, 1e-8);
        const GradMode recorded(true);
        Training same(rank, false, options);
        for (std::uint64_t step = 0; step < 5; ++step) same.step(step);
        for (std::uint64_t step = 3; step < 5; ++step) next.step(step);
        check_close(weights_of(next.model), weights_of(same.model), 1e-4, 1e-6);
      }
      const auto error = message_of([&] { first.optimizer->load_moments({}); });
      if (!contains(error, "expected \"m.0\" but there is no tensor of this name")) throw Error("another error: " + error);
    }));
}

TEST_CASE("A sharded optimizer takes its model's parameters alone, and is sharded once") {
  const auto group = make_process_group({}, nullptr, cpu);
  nn::Linear model(4, 4), other(4, 4);
  DataParallel parallel(model, *group);
  train::AdamW optimizer(nn::parameters(other));
  shard_optimizer(optimizer, parallel);
  for (const Tensor& x : nn::parameters(other)) Tensor(x).set_grad(zeros(x.shape()));
  CHECK(contains(message_of([&] { optimizer.step(); }), "[shard_optimizer] expected parameters of the data parallel model"));
  train::AdamW own(nn::parameters(model));
  shard_optimizer(own, parallel);
  own.step();
  CHECK(contains(message_of([&] { shard_optimizer(own, parallel); }), "expected moments that are not sharded yet"));
  CHECK(contains(message_of([&] { parallel.add(nn::parameters(model)); }), "expected each parameter once"));
}

}  // namespace tern::parallel
