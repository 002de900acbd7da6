// Data parallel training: every way gives the gradients and the weights of one process with the whole batch, on every rank, step by step.
#include "parallel/data_parallel.h"

#include <fmt/format.h>

#include "nn/nn.h"
#include "ops/captured_step.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "toy_model.h"
#include "train/train.h"

namespace tern::parallel {

using test::batch, test::check_close, test::check_none, test::data, test::model_of, test::Rank, test::run_ranks, test::ToyModel,
    test::Weights, test::weights_of;

namespace {

enum class Kind { sgd, adam };

std::unique_ptr<train::Optimizer> optimizer_of(Kind kind, const nn::Module& model) {
  Tensors trained = nn::parameters(model);
  std::erase_if(trained, [](const Tensor& x) { return !x.requires_grad(); });
  if (kind == Kind::sgd) return std::make_unique<train::SGD>(trained, train::SGDOptions{.lr = 0.1});
  return std::make_unique<train::AdamW>(trained, train::AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
}

/// The weights after each of five steps with the whole batch in one process.
std::vector<Weights> alone(bool is_tied, Kind kind, std::uint64_t seed) {
  manual_seed(seed);
  ToyModel model(is_tied);
  const Device device = test::is_launched() ? cuda() : cpu;
  nn::to(model, device);
  nn::flatten_parameters(model);
  const auto optimizer = optimizer_of(kind, model);
  std::vector<Weights> result;
  for (std::uint64_t step = 0; step < 5; ++step) {
    train::update(mean(square(model.forward(data(100 + step, 10, device)) - data(200 + step, 5, device))), *optimizer);
    result.push_back(weights_of(model));
  }
  return result;
}

constexpr GradientSync syncs[] = {GradientSync::per_parameter, GradientSync::flat, GradientSync::overlapped, GradientSync::bucketed};

}  // namespace

TEST_CASE("Five steps on any number of ranks are those of one process, whatever the way, the buckets and the model", "[ranks]") {
  struct Form {
    GradientSync sync;
    double bucket_size_mb;
  };
  std::vector<Form> forms;
  for (GradientSync sync : syncs) forms.push_back({sync, 25});
  for (double size : {0.0016, 0.0001, 0.01}) forms.push_back({GradientSync::bucketed, size});
  for (bool is_tied : {false, true})
    for (Kind kind : {Kind::sgd, Kind::adam}) {
      const std::vector<Weights> want = alone(is_tied, kind, 1);  // rank 0's seed
      for (int ranks : {1, 2, 4})
        check_none(run_ranks(ranks, [&](Rank& rank) {
          const int own = rank.environment.rank;
          const std::int64_t rows = batch / ranks;
          const Device device = rank.group->device();
          for (const Form& form : forms) {
            auto model = model_of<ToyModel>(rank, static_cast<std::uint64_t>(1 + own), is_tied);  // others begin with other weights
            DataParallel parallel(model, *rank.group, {.sync = form.sync, .bucket_size_mb = form.bucket_size_mb});
            const auto optimizer = optimizer_of(kind, model);
            for (std::uint64_t step = 0; step < 5; ++step) {
              const auto part = [&](const Tensor& x) { return slice(x, 0, own * rows, (own + 1) * rows); };
              const Tensor loss = mean(square(model.forward(part(data(100 + step, 10, device))) - part(data(200 + step, 5, device))));
              train::update(loss, *optimizer, {.synchronize = [&] { parallel.finish_gradient_synchronization(); }});
              // A step of Adam is 0.01 m / sqrt(v), whatever the size of a gradient, so that its relative error is that of the step: eight
              // roundings of a sum of parts. On a GPU products of other shapes add up in another order as well.
              const double of_adam = 0.01 * static_cast<double>(step + 1) * 0x1p-20;
              check_close(weights_of(model), want[step], 1e-5, test::is_launched() ? 1e-6 : kind == Kind::adam ? of_adam : 1e-8);
            }
          }
        }));
    }
}

TEST_CASE("Parts of a batch go over the wire once, with the last of them", "[ranks]") {
  for (GradientSync sync : syncs)
    check_none(run_ranks(2, [&](Rank& rank) {
      auto model = model_of<ToyModel>(rank, 1);
      DataParallel parallel(model, *rank.group, {.sync = sync});
      const auto optimizer = optimizer_of(Kind::sgd, model);
      const auto want = alone(false, Kind::sgd, 1);
      const Tensor x = data(100, 10, rank.group->device()), y = data(200, 5, rank.group->device());
      optimizer->zero_grad();
      for (int part = 0; part < 2; ++part) {
        const std::int64_t first = 10 * rank.environment.rank + 5 * part;
        const auto rows = [&](const Tensor& t) { return slice(t, 0, first, first + 5); };
        std::optional<DataParallel::NoSync> unsynchronized;
        if (part == 0) unsynchronized.emplace(parallel);
        (mean(square(model.forward(rows(x)) - rows(y))) * 0.5).backward();
      }
      parallel.finish_gradient_synchronization();
      optimizer->step();
      check_close(weights_of(model), want[0], 1e-5);
    }));
}

TEST_CASE("Adapters train on two ranks as in one process, beside frozen weights", "[ranks]") {
  const auto adapted = [](nn::Module& model) { nn::add_low_rank(model, {.rank = 2, .layers = {"fc"}}); };
  const auto step = [](const ToyModel& model, train::Optimizer& optimizer, const Tensor& x, const Tensor& y,
                       const train::UpdateOptions& o) { train::update(mean(square(model.forward(x) - y)), optimizer, o); };
  check_none(run_ranks(2, [&](Rank& rank) {
    const Device device = rank.group->device();
    auto alone = model_of<ToyModel>(rank, 1), model = model_of<ToyModel>(rank, 1);
    manual_seed(2);
    adapted(alone);
    manual_seed(static_cast<std::uint64_t>(2 + rank.environment.rank));  // others begin with other adapters
    adapted(model);
    const auto of_alone = optimizer_of(Kind::sgd, alone);
    DataParallel parallel(model, *rank.group);
    const auto optimizer = optimizer_of(Kind::sgd, model);
    const auto part = [&](const Tensor& x) { return slice(x, 0, 10 * rank.environment.rank, 10 * (rank.environment.rank + 1)); };
    for (std::uint64_t i = 0; i < 4; ++i) {
      const Tensor x = data(100 + i, 10, device), y = data(200 + i, 5, device);
      step(alone, *of_alone, x, y, {});
      step(model, *optimizer, part(x), part(y), {.synchronize = [&] { parallel.finish_gradient_synchronization(); }});
    }
    if (test::trained(model).size() != 6) throw Error("expected six matrices of adapters");
    check_close(weights_of(model), weights_of(alone), 1e-5, 1e-6);
  }));
}

TEST_CASE("Gradients go over the wire in 16 bits where that is asked for, and parameters of 16 bits train", "[ranks]") {
  check_none(run_ranks(2, [](Rank& rank) {
    const Device device = rank.group->device();
    for (GradientSync sync : {GradientSync::flat, GradientSync::bucketed})
      for (DType dtype : {DType::bf16, DType::f64}) {
        auto model = model_of<ToyModel>(rank, 1);
        DataParallel parallel(model, *rank.group, {.sync = sync, .bucket_size_mb = 0.001, .reduce_dtype = dtype});
        mean(square(model.forward(data(100, 10, device)) * (1.0 + rank.environment.rank))).backward();
        parallel.finish_gradient_synchronization();
        Weights gradients;
        for (const Tensor& x : nn::parameters(model))
          if (x.requires_grad()) gradients.push_back(cast(x.grad(), DType::f32).to_vector<float>());
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          const Tensor own = to(Tensor::from(gradients[i], {static_cast<std::int64_t>(gradients[i].size())}), device);
          const Tensor most = own, least = clone(own);
          rank.group->all_reduce(most, ReduceOp::max).wait();
          rank.group->all_reduce(least, ReduceOp::min).wait();
          if (most.to_vector<float>() != least.to_vector<float>()) throw Error("ranks have other gradients");
          if (dtype == DType::bf16)
            for (float value : gradients[i])
              if (float(bf16(value)) != value) throw Error("a gradient was not rounded to bf16");
        }
      }
    auto model = model_of<nn::Linear>(rank, 1, 10, 5);
    nn::flatten_parameters(model, DType::bf16);
    DataParallel parallel(model, *rank.group);
    train::SGD optimizer(nn::parameters(model), {.lr = 0.1});
    for (std::uint64_t step = 0; step < 3; ++step)
      train::update(
          mean(square(cast(model.forward(cast(data(100 + step + 10 * rank.environment.rank, 10, device), DType::bf16)), DType::f32))),
          optimizer, {.synchronize = [&] { parallel.finish_gradient_synchronization(); }});
    const Tensor weight = cast(model.weight.detach(), DType::f32), first = clone(weight);
    rank.group->broadcast(first).wait();
    if (first.to_vector<float>() != weight.to_vector<float>()) throw Error("weights of 16 bits differ");
  }));
}

TEST_CASE("A parameter that one rank alone uses gets that rank's part on all", "[ranks]") {
  check_none(run_ranks(2, [](Rank& rank) {
    for (GradientSync sync : syncs) {
      auto a = model_of<nn::Linear>(rank, 1, 3, 2), b = model_of<nn::Linear>(rank, 1, 3, 2);
      struct Both final : nn::Module {
        Both(nn::Linear& x, nn::Linear& y) : a(x), b(y) {}
        void visit(nn::Visitor& v) override { v("a", a), v("b", b); }
        nn::Linear &a, &b;
      } model(a, b);
      DataParallel parallel(model, *rank.group, {.sync = sync});
      for (int step = 0; step < 2; ++step) {
        nn::zero_grad(model);
        sum((rank.environment.rank == 0 ? a : b).forward(ones({1, 3}, DType::f32, rank.group->device()))).backward();
        parallel.finish_gradient_synchronization();
        for (const Tensor& x : nn::parameters(model))
          for (float value : x.grad().to_vector<float>())
            if (value != 0.5f) throw Error(fmt::format("a gradient is {} and not 0.5", value));
      }
    }
  }));
}

TEST_CASE("A captured step takes the collectives in, and is bitwise the step as written", "[ranks]") {
  for (int ranks : {2, 3, 4})
    check_none(run_ranks(ranks, [](Rank& rank) {
      const Device device = rank.group->device();
      for (GradientSync sync : syncs) {
        std::vector<Weights> found[2];
        for (bool is_captured : {false, true}) {
          auto model = model_of<ToyModel>(rank, 1);
          DataParallel parallel(model, *rank.group, {.sync = sync, .bucket_size_mb = 0.0016});
          const auto optimizer = optimizer_of(Kind::adam, model);
          const auto step = [&](const Tensors& inputs) {
            const Tensor loss = mean(square(model.forward(inputs[0]) - inputs[1]));
            train::update(loss, *optimizer, {.synchronize = [&] { parallel.finish_gradient_synchronization(); }});
            return loss.detach();
          };
          CapturedStep captured(step, device);
          for (std::uint64_t i = 0; i < 6; ++i) {
            const std::uint64_t seed = 10 * i + static_cast<std::uint64_t>(rank.environment.rank);
            const Tensors inputs{data(100 + seed, 10, device), data(200 + seed, 5, device)};
            is_captured ? captured(inputs) : step(inputs);
            found[is_captured].push_back(weights_of(model));
          }
          if (is_captured && device.type == DeviceType::cuda && captured.recordings() != 1) throw Error("expected one recording");
        }
        if (found[0] != found[1]) throw Error(fmt::format("{}: other weights", name(sync)));
        if (found[0][5] == found[0][0]) throw Error("the weights did not change");
      }
    }));
}

TEST_CASE("Buckets have the size that is asked for, from the model's end, with vectors last") {
  const auto group = make_process_group({}, nullptr, cpu);
  const auto bytes = [&](const DataParallelOptions& options) {
    ToyModel model;
    return DataParallel(model, *group, options).bucket_bytes();
  };
  using Bytes = std::vector<std::size_t>;
  // fc3 (5, 50), fc2 (50, 10), fc1 (10, 10), and the vector of 3 in its place of 4.
  CHECK(bytes({.sync = GradientSync::per_parameter}) == Bytes{1000, 2000, 400, 12});
  CHECK(bytes({.sync = GradientSync::flat}) == Bytes{3420});
  CHECK(bytes({.bucket_size_mb = 0.0016}) == Bytes{1000, 2000, 400, 12});
  CHECK(bytes({.bucket_size_mb = 3008.0 / (1 << 20)}) == Bytes{3000, 400, 12});
  CHECK(bytes({}) == Bytes{3400, 12});
}

TEST_CASE("Data parallel training refuses what it cannot do") {
  const auto group = make_process_group({}, nullptr, cpu);
  const auto refusal_of = [&](nn::Module& model, const DataParallelOptions& options) {
    return message_of([&] { DataParallel(model, *group, options); });
  };
  nn::Linear model(2, 2), frozen(2, 2);
  nn::set_requires_grad(frozen, false);
  CHECK(refusal_of(model, {.bucket_size_mb = 0}) == "[DataParallel] expected a bucket_size_mb above 0 but got 0");
  CHECK(refusal_of(model, {.reduce_dtype = DType::i64}) == "[DataParallel] expected a floating reduce_dtype but got i64");
  CHECK(refusal_of(frozen, {}) == "[DataParallel] expected a module with parameters that require gradients");
  DataParallel parallel(model, *group);
  const auto pass = [&] { sum(model.forward(ones({1, 2}))).backward(); };
  pass();
  CHECK_THROWS_AS(pass(), Error);
  for (GradientSync sync : syncs) CHECK(gradient_sync_of(name(sync)) == sync);
  CHECK(!gradient_sync_of("none").has_value());
}

}  // namespace tern::parallel
