// Collectives in compiled functions: each in its place on every rank, also while others compute; what a program cannot do again is refused.
#include <fmt/format.h>

#include <random>

#include "compile/compile.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "parallel/data_parallel.h"
#include "toy_model.h"
#include "train/train.h"

namespace tern::parallel {

using test::batch, test::check_close, test::check_none, test::data, test::model_of, test::Rank, test::run_ranks, test::ToyModel,
    test::trained, test::Weights, test::weights_of;

namespace {

/// Random work with all collectives, of which some are in progress while others begin and end, on fresh tensors, parts of others, and
/// memory from outside.
Tensors random_work(ProcessGroup& group, std::uint64_t seed, const Tensor& x, const Tensor& outside) {
  const NoGrad unrecorded;
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::int64_t size = group.size(), count = x.numel();
  const auto own_part = [&](const Tensor& t) { return slice(t, 0, group.rank() * count / size, (group.rank() + 1) * count / size); };
  Tensors ready{x, mul(outside, 0.5)};
  std::vector<std::pair<Work, Tensor>> begun;
  const auto end = [&](std::size_t i) {
    begun[i].first.wait();
    ready.push_back(begun[i].second);
    begun.erase(begun.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (int i = 0; i < 24; ++i) {
    const Tensor a = ready[below(ready.size())], b = ready[below(ready.size())];
    const ReduceOp how = std::array{ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min}[below(4)];
    switch (below(8)) {
      case 0: ready.push_back(tanh(a + b)); break;
      case 1: ready.push_back(a * 0.75 - b); break;
      case 2: {
        const Tensor y = tanh(a);
        begun.emplace_back(group.all_reduce(y, how), y);
        break;
      }
      case 3: {
        const Tensor y = a * 0.5;
        begun.emplace_back(group.broadcast(y, static_cast<int>(below(static_cast<std::size_t>(size)))), y);
        break;
      }
      case 4: {
        const Tensor whole = tanh(b);
        if (below(2) == 0) {  // within one tensor
          group.reduce_scatter(own_part(whole), whole, how).wait();
          begun.emplace_back(group.all_gather(whole, own_part(whole)), whole);
          break;
        }
        const Tensor part = empty({count / size}, x.dtype(), x.device()), all = empty({count}, x.dtype(), x.device());
        Work scattered = group.reduce_scatter(part, whole, how);
        ready.push_back(a * 1.5);
        scattered.wait();
        begun.emplace_back(group.all_gather(all, part), all);
        break;
      }
      case 5:
        add_(outside, a * 0.125);
        group.all_reduce(outside, ReduceOp::mean).wait();
        break;
      default:
        if (!begun.empty()) end(below(begun.size()));
    }
  }
  while (!begun.empty()) end(below(begun.size()));
  Tensor sum = ready[0];
  for (const Tensor& each : ready) sum = sum * 0.5 + each;
  return {sum, ready.back()};
}

/// A training in data parallel, compiled or as written.
struct Training {
  using Options = DataParallelOptions;
  Training(const Rank& rank, const Options& options, bool is_sharded, std::optional<CompileOptions> compiled)
      : model(model_of<ToyModel>(rank, 1)), parallel(model, *rank.group, options), optimizer(trained(model), {.lr = 0.01}) {
    if (is_sharded) shard_optimizer(optimizer, parallel);
    else if (options.scatter_gradients || options.sync == GradientSync::flat) overlap_optimizer(optimizer, parallel);
    if (compiled) program.emplace([this](const Tensors& inputs) { return step(inputs); }, rank.group->device(), *compiled);
  }
  Tensor step(const Tensors& inputs) {
    const Tensor loss = mean(square(model.forward(inputs[0]) - inputs[1]));
    train::update(loss, optimizer, {.max_norm = 0.5, .synchronize = [this] { parallel.finish_gradient_synchronization(); }});
    return loss.detach();
  }
  Tensor operator()(const Tensors& inputs) { return program ? (*program)(inputs) : step(inputs); }

  ToyModel model;
  DataParallel parallel;
  train::AdamW optimizer;
  std::optional<Compiled<StepFunction>> program;
};

Tensors inputs_of(const Rank& rank, std::uint64_t step) {
  const std::uint64_t seed = 10 * step + static_cast<std::uint64_t>(rank.environment.rank);
  return {data(100 + seed, 10, rank.group->device()), data(200 + seed, 5, rank.group->device())};
}

/// The reason for which a function of x with collectives is refused, at some of five calls.
std::string refusal_of(const Rank& rank, const std::function<Tensor(const Tensor&)>& f, const std::function<void()>& before = [] {}) {
  auto compiled = compile(f, rank.group->device());
  return message_of([&] {
    for (int call = 0; call < 5; ++call) before(), compiled(ones({6}, DType::f32, rank.group->device()));
  });
}
void expect(const std::string& got, const std::string& want) {
  if (got != want) throw Error(fmt::format("got '{}' and not '{}'", got, want));
}

}  // namespace

TEST_CASE("Random functions with collectives are bitwise what they are as written, on every rank", "[ranks]") {
  for (int ranks : {2, 3})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      const Device device = rank.group->device();
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        const DType dtype = std::array{DType::f32, DType::f64, DType::bf16}[seed % 3];
        const std::int64_t count = ranks * std::array{1, 5, 33, 700}[seed % 4];
        const auto random = [&](std::uint64_t from) {
          manual_seed(from + 1000 * seed + 7 * static_cast<std::uint64_t>(rank.environment.rank));
          return to(cast(rand({count}, -1, 1), dtype), device);
        };
        const Tensor outside[] = {random(0), random(0)};
        auto compiled = compile([&](const Tensors& in) { return random_work(*rank.group, seed, in[0], outside[1]); }, device,
                                {.fuse = seed % 5 != 0, .as_on_gpu = seed % 5 > 2});
        for (std::uint64_t call = 0; call < 5; ++call) {
          const Tensor x = random(call + 1);
          const Tensors want = random_work(*rank.group, seed, x, outside[0]), got = compiled(Tensors{x});
          for (std::size_t i = 0; i < want.size(); ++i)
            if (cast(got[i], DType::f64).to_vector<double>() != cast(want[i], DType::f64).to_vector<double>())
              throw Error(fmt::format("seed {}, call {}: another result {}", seed, call, i));
        }
        if (cast(outside[0], DType::f64).to_vector<double>() != cast(outside[1], DType::f64).to_vector<double>())
          throw Error(fmt::format("seed {}: other memory outside", seed));
        if (compiled.runs() != 2) throw Error("expected two runs of a program");
      }
    }));
}

TEST_CASE("A compiled step takes the collectives in, whatever the way and the optimizer, and is bitwise the step as written", "[ranks]") {
  struct Form {
    GradientSync sync;
    bool scatters, is_sharded;
    std::optional<DType> reduce_dtype = std::nullopt;
  };
  const Form forms[] = {{GradientSync::per_parameter, false, false},
                        {GradientSync::flat, false, false},
                        {GradientSync::overlapped, false, false},
                        {GradientSync::bucketed, false, false},
                        {GradientSync::bucketed, true, false},
                        {GradientSync::bucketed, true, true},
                        {GradientSync::flat, false, true},
                        {GradientSync::bucketed, false, false, DType::bf16},
                        {GradientSync::overlapped, true, true, DType::bf16}};
  for (int ranks : {2, 3})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      for (const Form& form : forms) {
        const DataParallelOptions options{
            .sync = form.sync, .bucket_size_mb = 0.0016, .reduce_dtype = form.reduce_dtype, .scatter_gradients = form.scatters};
        Training written(rank, options, form.is_sharded, std::nullopt),
            exact(rank, options, form.is_sharded, CompileOptions{.fuse = false}), fused(rank, options, form.is_sharded, CompileOptions{}),
            as_on_gpu(rank, options, form.is_sharded, CompileOptions{.as_on_gpu = true});
        for (std::uint64_t i = 0; i < (ranks == 2 ? 12 : 5); ++i) {
          const Tensors inputs = inputs_of(rank, i);
          for (Training* each : {&written, &exact, &fused, &as_on_gpu}) (*each)(inputs);
          if (weights_of(exact.model) != weights_of(written.model)) throw Error(fmt::format("{}: other weights", name(form.sync)));
          for (Training* each : {&fused, &as_on_gpu}) check_close(weights_of(each->model), weights_of(written.model), 1e-5, 1e-6);
        }
        for (const Training* each : {&exact, &fused, &as_on_gpu})
          if (each->program->runs() != (ranks == 2 ? 8 : 2)) throw Error("expected programs to run");
        const std::string text = fused.program->show();
        if (text.find(form.scatters ? "reduce_scatter" : "all_reduce") == std::string::npos)
          throw Error("expected collectives in the program but got\n" + text);
      }
    }));
}

TEST_CASE("A compiled model is a part of a data parallel step", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    Training written(rank, {}, false, std::nullopt), compiled(rank, {}, false, std::nullopt);
    auto forward = compile([&](const Tensor& x) { return compiled.model.forward(x); }, rank.group->device());
    for (std::uint64_t i = 0; i < 6; ++i) {
      const Tensors inputs = inputs_of(rank, i);
      written(inputs);
      train::update(mean(square(forward(inputs[0]) - inputs[1])), compiled.optimizer,
                    {.max_norm = 0.5, .synchronize = [&] { compiled.parallel.finish_gradient_synchronization(); }});
      check_close(weights_of(compiled.model), weights_of(written.model), 1e-5, 1e-6);
    }
    if (forward.runs() == 0) throw Error("expected a program to run");
  }));
}

TEST_CASE("Ranks whose calls have other kinds run programs and functions as written beside each other", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    Training written(rank, {}, false, std::nullopt), compiled(rank, {}, false, CompileOptions{});
    for (std::uint64_t i = 0; i < 12; ++i) {
      Tensors inputs = inputs_of(rank, i);
      const std::int64_t rows = rank.environment.rank == 0 ? 20 : 8 + 4 * static_cast<std::int64_t>(i % 3);
      for (Tensor& x : inputs) x = contiguous(slice(x, 0, 0, rows));
      written(inputs), compiled(inputs);
      check_close(weights_of(compiled.model), weights_of(written.model), 1e-5, 1e-6);
    }
    if (compiled.program->programs() != (rank.environment.rank == 0 ? 1 : 3)) throw Error("expected a program for each number of rows");
  }));
}

TEST_CASE("Ranks begin collectives in one order, whether a program groups what is around them or not", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    ProcessGroup& group = *rank.group;
    const auto f = [&](const Tensor& x, const Tensor& y) {
      const Tensor p = x * 2.0;  // in one group with q, which comes after both collectives
      Work first = group.all_reduce(p);
      const Tensor r = y * 3.0;
      Work second = group.all_reduce(r);
      const Tensor q = x * 5.0;
      first.wait();
      second.wait();
      return Tensors{p, q, r};
    };
    auto compiled = compile([&](const Tensors& in) { return f(in[0], in[1]); }, group.device());
    for (int call = 0; call < 6; ++call) {
      const Tensor x = full({4}, call, DType::f32, group.device()), y = full({3}, call, DType::f32, group.device());
      const Tensors found = rank.environment.rank == 0 ? f(x, y) : compiled(Tensors{x, y});
      const std::array want{4.f, 5.f, 6.f};
      for (std::size_t i = 0; i < 3; ++i)
        for (const float value : found[i].to_vector<float>())
          if (value != want[i] * static_cast<float>(call)) throw Error(fmt::format("result {} is {} at call {}", i, value, call));
    }
  }));
}

TEST_CASE("A function whose collectives change, or end outside of it, is refused by name", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    ProcessGroup& group = *rank.group;
    const Device device = group.device();
    int calls = 0;
    const auto differs = [&](const std::function<void(const Tensor& y, bool is_second)>& f, const std::string& what) {
      calls = 0;
      const std::string found = refusal_of(rank, [&](const Tensor& x) {
        const Tensor y = x * 2.0;
        f(y, ++calls == 3);
        return y;
      });
      expect(found, "[compile] expected a function that does the same at each call but got, in kernel 2 of 3, BeginCollective of " + what);
    };
    differs([&](const Tensor& y, bool is_second) { group.all_reduce(y, is_second ? ReduceOp::max : ReduceOp::sum).wait(); },
            "all_reduce: numbers 0 and 2");
    differs([&](const Tensor& y, bool is_second) { group.broadcast(y, is_second ? 1 : 0).wait(); }, "broadcast: numbers 0 and 1");
    differs([&](const Tensor& y, bool is_second) { (is_second ? group.all_reduce(y) : group.broadcast(y)).wait(); },
            "broadcast: numbers 1 and 0");
    differs([&](const Tensor& y, bool is_second) { group.all_reduce(slice(y, 0, 0, is_second ? 4 : 6)).wait(); },
            "all_reduce: shapes (6,) and (4,)");
    const auto other = make_process_group(rank.environment, rank.store, device, "other");
    differs([&](const Tensor& y, bool is_second) { (is_second ? *other : group).all_reduce(y).wait(); },
            "all_reduce: uses another tensor from outside: write into it by copy_, do not replace it");

    Work work;
    const auto begin_alone = [&](const Tensor& x) {
      work = group.all_reduce(x * 2.0);
      return x * 1.0;
    };
    expect(refusal_of(rank, begin_alone, [&] { work = {}; }),
           "[compile] expected collectives that end within the function but got all_reduce that does not: wait for it there");
    work = {};
    expect(refusal_of(
               rank, [&](const Tensor& x) { return work.wait(), x * 1.0; }, [&] { work = group.broadcast(ones({5}, DType::f32, device)); }),
           "[compile] expected waits for collectives that the function begins but got one for broadcast from outside: wait before");
    // The group goes on.
    const Tensor y = full({3}, 1, DType::f32, device);
    group.all_reduce(y).wait();
    if (y.to_vector<float>() != std::vector<float>{2, 2, 2}) throw Error("a sum is wrong");
  }));
}

TEST_CASE("Sharded gradients and parameters are refused", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    for (const Shard shard : {Shard::gradients, Shard::parameters}) {
      Training training(rank, {.shard = shard}, true, CompileOptions{});
      const std::string found = message_of([&] {
        for (std::uint64_t i = 0; i < 5; ++i) training(inputs_of(rank, i));
      });
      expect(found.substr(0, found.find(", in module")),
             "[compile] expected work that a program can do again but got sharded gradients or parameters");
    }
  }));
}

TEST_CASE("A collective in progress outside does not disturb those of a program", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    ProcessGroup& group = *rank.group;
    const Device device = group.device();
    auto compiled = compile(
        [&](const Tensor& x) {
          const Tensor y = x * 2.0;
          group.all_reduce(y).wait();
          return y;
        },
        device);
    for (int call = 0; call < 6; ++call) {
      const Tensor outer = full({1000}, rank.environment.rank + call, DType::f32, device);
      Work work;
      if (call > 3 && device == cpu) work = group.all_reduce(outer);
      if (compiled(full({2}, rank.environment.rank, DType::f32, device)).to_vector<float>() != std::vector<float>{2, 2})
        throw Error("a sum of the program is wrong");
      work.wait();
      if (call > 3 && device == cpu && outer.to_vector<float>()[999] != static_cast<float>(2 * call + 1)) throw Error("a sum is wrong");
    }
  }));
}

TEST_CASE("A rank that leaves makes programs of the others errors, and so does a group that has ended") {
  const auto errors = run_ranks(2, [](Rank& rank) {
    auto compiled = compile(
        [&](const Tensor& x) {
          const Tensor y = x * 2.0;
          rank.group->all_reduce(y).wait();
          return y;
        },
        cpu);
    for (int call = 0; call < 100; ++call) {
      if (call == 5 && rank.environment.rank == 1) throw Error("out of luck");
      const std::string error = message_of([&] { compiled(ones({1000})); });
      if (error.empty()) continue;
      if (message_of([&] { compiled(ones({1000})); }) != error) throw Error("expected the same error again");
      throw Error(error);
    }
  });
  CHECK(errors[0] == "[parallel] all_reduce on rank 0 of 2 failed: rank 1 has given up");
  CHECK(errors[1] == "out of luck");
  check_none(run_ranks(2, [](Rank& rank) {
    auto compiled = compile([&](const Tensor& x) { return rank.group->all_reduce(x).wait(), x * 2.0; }, cpu);
    for (int call = 0; call < 5; ++call) compiled(ones({3}));
    rank.group = nullptr;
    expect(message_of([&] { compiled(ones({3})); }),
           "[all_reduce] expected a group that lives longer than the functions compiled with it but got one that has ended");
  }));
}

}  // namespace tern::parallel
