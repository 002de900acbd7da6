// Sharded gradients and parameters: the training of a transformer whose ranks keep their parts is that of ranks which keep all of it.
#include <array>
#include <map>
#include <mutex>

#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "nn/transformer.h"
#include "ops/autocast.h"
#include "ops/pointwise.h"
#include "parallel/data_parallel.h"
#include "toy_model.h"
#include "train/train.h"

namespace tern::parallel {

using test::check_close, test::check_none, test::Rank, test::run_ranks, test::trained, test::Weights;

namespace {

constexpr std::int64_t rows = 12, columns = 5, vocab = 23;  // 1, 2, 3 and 4 ranks have equal parts

struct Form {
  std::int64_t width = 16;
  bool is_fused = true;
  CheckpointPolicy checkpointing = CheckpointPolicy::none;
  train::Precision precision = train::Precision::fp32;
  std::optional<DType> autocast = {};
  bool is_partly_frozen = false;
  double bucket_size_mb = 0.008;
  GradientSync sync = GradientSync::bucketed;
  std::optional<DType> reduce_dtype = {};
};

/// A tied table, three blocks.
nn::DecoderLM model_of(const Rank& rank, const Form& form, std::uint64_t seed) {
  manual_seed(seed);
  nn::DecoderLMOptions options;
  options.vocab = vocab, options.length = columns, options.width = form.width, options.ff = 2 * form.width, options.heads = 2;
  options.layers = 3, options.dropout = 0;
  options.tied_head = true;
  options.activation_checkpointing = form.checkpointing;
  nn::DecoderLM model(options);
  nn::to(model, rank.group->device());
  if (form.is_partly_frozen) {
    for (const NamedTensor& entry : nn::named_parameters(model))
      if (entry.name == "blocks.1.ff.fc.weight" || entry.name == "blocks.2.norm1.weight") Tensor(entry.tensor).set_requires_grad(false);
  }
  train::set_precision(model, form.precision);
  return model;
}

Tensor ids(const Rank& rank, std::uint64_t seed, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> values;
  std::uint64_t state = 77 + seed;
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values.push_back(static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(vocab)));
  }
  return Tensor::from(
      std::span<const std::int64_t>(values).subspan(static_cast<std::size_t>(first * columns), static_cast<std::size_t>(count * columns)),
      {count, columns}, rank.group->device());
}

/// A model in training, of which each rank keeps all or a part.
struct Training {
  Training(const Rank& rank_, Shard shard, const Form& form_ = {}, std::uint64_t seed = 1)
      : rank(rank_), form(form_), model(model_of(rank_, form, seed + 10 * static_cast<std::uint64_t>(rank_.group->rank()))) {
    parallel.emplace(
        model, *rank.group,
        DataParallelOptions{.sync = form.sync, .bucket_size_mb = form.bucket_size_mb, .reduce_dtype = form.reduce_dtype, .shard = shard});
    // eps: gradients that are nothing but rounding, as those of the keys' biases, are to move little.
    optimizer.emplace(trained(model), train::AdamWOptions{.lr = 0.01, .eps = 1e-4, .weight_decay = 0.1});
    if (shard != Shard::none) shard_optimizer(*optimizer, *parallel);
  }

  /// Of rows [first, first + count) of the rank's part of the batch.
  Tensor loss(std::uint64_t number, std::int64_t first, std::int64_t count) const {
    const std::int64_t own = rows / rank.group->size() * rank.group->rank();
    const train::PrecisionScope scope(form.precision);
    const FusedKernels kernels(form.is_fused);
    std::optional<Autocast> autocast;
    if (form.autocast) autocast.emplace(*form.autocast);
    return model.loss(ids(rank, 2 * number, own + first, count), ids(rank, 2 * number + 1, own + first, count));
  }
  train::UpdateOptions update(double max_norm = std::numeric_limits<double>::infinity()) {
    return {.max_norm = max_norm, .synchronize = [&] { parallel->finish_gradient_synchronization(); }};
  }
  double step(std::uint64_t number, double max_norm = std::numeric_limits<double>::infinity()) {
    const Tensor norm = train::update(loss(number, 0, rows / rank.group->size()), *optimizer, update(max_norm));
    return norm.defined() ? norm.item<double>() : 0;
  }
  /// The same batch in two parts.
  void step_in_parts(std::uint64_t number) {
    const std::int64_t part = rows / rank.group->size(), half = part / 2;
    optimizer->zero_grad();
    {
      const DataParallel::NoSync own(*parallel);
      train::accumulate(loss(number, 0, half) * (static_cast<double>(half) / static_cast<double>(part)));
    }
    train::accumulate(loss(number, half, part - half) * (static_cast<double>(part - half) / static_cast<double>(part)));
    train::apply(*optimizer, update());
  }

  Weights weights() const {
    Weights result;
    for (const Tensor& x : nn::parameters(model)) {
      parallel->gather({x});
      result.push_back(cast(x.detach(), DType::f32).to_vector<float>());
    }
    return result;
  }

  const Rank& rank;
  const Form form;
  nn::DecoderLM model;
  mutable std::optional<DataParallel> parallel;
  std::optional<train::AdamW> optimizer;
};

constexpr Shard both[] = {Shard::gradients, Shard::parameters}, ways[] = {Shard::optimizer, Shard::gradients, Shard::parameters};

/// A sum of two is the same in any order.
double tolerance_of(const Rank& rank) { return rank.group->size() <= 2 && rank.group->device() == cpu ? 1e-7 : 2e-5; }
/// On a GPU a product's last bits may depend on where its operands lie; of 16 bits they are many.
double slack_of(const Rank& rank) { return rank.group->device() == cpu ? 1 : 1e4; }

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(what);
}

bool is_here(const Tensor& x) { return x.impl().storage->is_here(); }

/// Matrices of blocks: every unit but the table and the vectors.
std::size_t blocks_here(const DataParallel& parallel) {
  std::size_t count = 0;
  const auto segments = parallel.segments();
  for (std::size_t i = 0; i + 2 < segments.size(); ++i) count += is_here(segments[i].parameters);
  return count;
}

}  // namespace

TEST_CASE("Ten steps with sharded gradients or parameters are those without", "[ranks]") {
  const Form forms[] = {
      {.is_partly_frozen = true},
      {.is_fused = false, .checkpointing = CheckpointPolicy::full, .bucket_size_mb = 25},
      {.checkpointing = CheckpointPolicy::selective, .sync = GradientSync::flat},
      {.width = 18, .sync = GradientSync::overlapped},
      {.autocast = DType::bf16, .is_partly_frozen = true},
      {.is_fused = false, .checkpointing = CheckpointPolicy::full, .autocast = DType::bf16},
  };
  for (int ranks : {1, 2, 3, 4})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      for (const Form& form : std::span(forms).first(ranks == 2 ? std::size(forms) : 1)) {
        Training gradients(rank, Shard::gradients, form), parameters(rank, Shard::parameters, form), whole(rank, Shard::none, form);
        const std::uint64_t steps = &form != forms ? 2 : ranks <= 2 ? 10 : 4;
        for (std::uint64_t step = 0; step < steps; ++step) {
          for (Training* training : {&gradients, &parameters, &whole}) training->step(step);
          if (step != 0 && step != 5 && step + 1 != steps) continue;
          const Weights want = whole.weights();
          for (Training* training : {&gradients, &parameters})
            check_close(training->weights(), want, tolerance_of(rank), tolerance_of(rank) / 10);
        }
      }
    }));
}

TEST_CASE("Matrices of sharded blocks come in autocast's 16 bits", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    const Form form{.width = 64, .autocast = DType::bf16};
    Training training(rank, Shard::parameters, form);
    for (std::uint64_t step = 0; step < 2; ++step) {
      const Tensor loss = training.loss(step, 0, rows / 2);
      require(blocks_here(*training.parallel) == 0, fmt::format("{} blocks came in 32 bits", blocks_here(*training.parallel)));
      training.optimizer->zero_grad();
      train::accumulate(loss);
      require(blocks_here(*training.parallel) == 0, fmt::format("{} blocks came in 32 bits for backward", blocks_here(*training.parallel)));
      train::apply(*training.optimizer, training.update());
    }
    // What is written to one that is here in 32 bits is in the 16 bits as well.
    Training whole(rank, Shard::none, form);
    for (std::uint64_t step = 0; step < 2; ++step) whole.step(step);
    const auto loss_of_edited = [](Training& edited) {
      const NoGrad unrecorded;
      for (const NamedTensor& entry : nn::named_parameters(edited.model))
        if (entry.name == "blocks.1.ff.fc.weight") {
          edited.parallel->gather({entry.tensor});
          mul_(entry.tensor, 3.0);
        }
      return edited.loss(2, 0, 3).item<double>();
    };
    const double got = loss_of_edited(training), want = loss_of_edited(whole);
    require(std::abs(got - want) <= 1e-4 * slack_of(rank) * want, fmt::format("the loss is {} and not {}", got, want));
  }));
}

// On the CPU alone, as a device's allocator rounds up.
TEST_CASE("A graph of sharded parameters keeps no 16-bit copies of them") {
  check_none(run_ranks(2, [&](Rank& rank) {
    const auto allocated = [&] {
      rank.group->barrier();  // threads have one memory
      const auto bytes = static_cast<double>(memory_statistics(cpu).allocated);
      rank.group->barrier();
      return bytes / rank.group->size();
    };
    double bytes[2], blocks = 0;  // of a graph; of all matrices of blocks in 16 bits
    for (const bool is_sharded : {false, true}) {
      Training training(rank, is_sharded ? Shard::parameters : Shard::gradients, {.width = 64, .autocast = DType::bf16});
      training.step(0);
      blocks = 0;
      for (const Tensor& x : nn::parameters(training.model))
        if (x.dims() == 2 && x.size(0) != vocab) blocks += 2 * static_cast<double>(x.numel());
      const double before = allocated();
      const Tensor loss = training.loss(1, 0, 1);
      bytes[is_sharded] = allocated() - before;
    }
    // One of three stays for backward.
    require(bytes[0] - bytes[1] > 0.5 * blocks, fmt::format("{} bytes of a graph, {} where no parameters are sharded", bytes[1], bytes[0]));
  }));
}

TEST_CASE("Gradients that are sharded go over the wire in another dtype", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    for (const Shard shard : both) {
      const Form form{.reduce_dtype = DType::bf16};
      Training sharded(rank, shard, form), whole(rank, Shard::none, form), exact(rank, Shard::none);
      for (std::uint64_t step = 0; step < 3; ++step) sharded.step(step), whole.step(step), exact.step(step);
      check_close(sharded.weights(), whole.weights(), 1e-7 * slack_of(rank), 1e-8 * slack_of(rank));
      require(whole.weights() != exact.weights(), "the dtype made no difference");
    }
  }));
}

TEST_CASE("The norm of sharded gradients is that of all ranks' parts together", "[ranks]") {
  for (int ranks : {2, 3})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      for (const Shard shard : ways) {
        const Form form{.width = 18};  // with padding between vectors
        Training sharded(rank, shard, form), whole(rank, Shard::none, form);
        for (std::uint64_t step = 0; step < 3; ++step) {
          const double got = sharded.step(step, 0.05), want = whole.step(step, 0.05);
          require(std::abs(got - want) <= 1e-5 * want && want > 0.05, fmt::format("the norm is {} and not {}", got, want));
          check_close(sharded.weights(), whole.weights(), 1e-4, 1e-6);
        }
      }
    }));
}

TEST_CASE("A batch in parts adds its gradients up before they are sharded", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    for (const Shard shard : both)
      for (const CheckpointPolicy policy : {CheckpointPolicy::none, CheckpointPolicy::full}) {
        const Form form{.checkpointing = policy};
        Training sharded(rank, shard, form), whole(rank, Shard::none, form), at_once(rank, shard, form);
        for (std::uint64_t step = 0; step < 4; ++step) sharded.step_in_parts(step), whole.step_in_parts(step), at_once.step(step);
        check_close(sharded.weights(), whole.weights(), tolerance_of(rank), tolerance_of(rank) / 10);
        check_close(sharded.weights(), at_once.weights(), 1e-4, 1e-5);
      }
  }));
}

TEST_CASE("A rank keeps its part of gradients and parameters, and no more than two blocks beside it", "[ranks]") {
  for (int ranks : {2, 3})
    check_none(run_ranks(ranks, [&](Rank& rank) {
      const Device device = rank.group->device();
      const auto allocated = [&] {
        rank.group->barrier();  // threads have one memory
        const auto bytes = static_cast<double>(memory_statistics(device).allocated);
        rank.group->barrier();
        return test::is_launched() ? bytes : bytes / rank.group->size();
      };
      const Form form{.width = 64, .bucket_size_mb = 0.04};
      Training(rank, Shard::none, form).step(0);  // kernels keep memory of their own
      double taken_by_whole = 0;
      const double at_first = allocated();
      for (const Shard shard : {Shard::none, Shard::optimizer, Shard::gradients, Shard::parameters}) {
        const double before = allocated();
        Training training(rank, shard, form);
        std::size_t max_gradients = 0, max_blocks = 0, passes = 0;
        for (const Tensor& x : trained(training.model))
          on_gradient_ready(x, [&](const Tensor&) {
            std::size_t here = 0;
            const auto segments = training.parallel->segments();
            for (const auto& segment : segments) here += is_here(segment.gradients);
            max_gradients = std::max(max_gradients, here);
            max_blocks = std::max(max_blocks, blocks_here(*training.parallel));
            ++passes;
          });
        for (std::uint64_t step = 0; step < 2; ++step) training.step(step);
        double elements = 0;
        for (const Tensor& x : nn::parameters(training.model)) elements += static_cast<double>(x.numel());
        const double n = rank.group->size();
        auto got = static_cast<double>(training.parallel->bytes_here());
        for (const Tensor& x : training.optimizer->memory())
          got += static_cast<double>(x.numel()) * static_cast<double>(size_of(x.dtype()));
        const auto of = [&](Shard least, double bytes) { return bytes * elements / (shard >= least ? n : 1); };
        const double want = of(Shard::parameters, 4) + of(Shard::gradients, 4) + of(Shard::optimizer, 8);
        require(std::abs(got - want) <= 0.02 * want, fmt::format("{}: {} bytes and not {}", name(shard), got, want));
        // By the allocator, which rounds sizes up.
        const double taken = allocated() - before;
        if (shard == Shard::none) taken_by_whole = taken;
        if (shard == Shard::parameters && n > 1)
          require(taken <= 0.7 * taken_by_whole, fmt::format("{} bytes of memory and {} without", taken, taken_by_whole));
        const std::size_t buckets = training.parallel->segments().size();
        require(passes > 0 && buckets >= 5, "expected several buckets");
        // The bucket that fills, two on their way, the table and the vectors, which wait for the end of the pass.
        if (shard >= Shard::gradients) require(max_gradients <= 5, fmt::format("{} buckets of gradients", max_gradients));
        if (shard == Shard::gradients) require(buckets > 7, fmt::format("{} buckets", buckets));
        if (shard == Shard::parameters) require(max_blocks <= 2, fmt::format("{} blocks", max_blocks));
        if (shard == Shard::parameters) require(blocks_here(*training.parallel) == 0, "blocks stay after the step");
      }
      const double at_last = allocated();
      if (device == cpu) require(at_last <= at_first, fmt::format("{} bytes of memory stay", at_last - at_first));
    }));
}

TEST_CASE("A forward pass has two blocks of sharded parameters at a time", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    Training sharded(rank, Shard::parameters), whole(rank, Shard::none);
    sharded.step(0), whole.step(0);
    {
      const NoGrad unrecorded;
      const double got = sharded.loss(1, 0, 3).item<double>(), want = whole.loss(1, 0, 3).item<double>();
      require(std::abs(got - want) <= 10 * tolerance_of(rank), fmt::format("the loss is {} and not {}", got, want));
    }
    require(blocks_here(*sharded.parallel) == 1, fmt::format("{} blocks are here after forward", blocks_here(*sharded.parallel)));
    check_close(sharded.weights(), whole.weights(), tolerance_of(rank), tolerance_of(rank) / 10);
    sharded.step(1), whole.step(1);  // not with values from before
    check_close(sharded.weights(), whole.weights(), tolerance_of(rank), tolerance_of(rank) / 10);
    // Nor with those that somebody reads between backward and the update.
    for (Training* training : {&sharded, &whole}) {
      training->optimizer->zero_grad();
      train::accumulate(training->loss(2, 0, 6));
      training->parallel->finish_gradient_synchronization();
      const Weights before = training->weights();
      training->optimizer->step();
      require(training->weights() != before, "the update is not seen");
    }
    check_close(sharded.weights(), whole.weights(), tolerance_of(rank), tolerance_of(rank) / 10);
  }));
}

TEST_CASE("Sharded training goes on in any number of ranks", "[ranks]") {
  if (test::is_launched()) return;  // another number of ranks is another launch
  for (const Shard shard : both) {
    std::map<std::string, std::pair<std::vector<float>, Shape>> saved;
    Weights want;
    check_none(run_ranks(2, [&](Rank& rank) {
      Training first(rank, shard), whole(rank, Shard::none);
      for (std::uint64_t step = 0; step < 3; ++step) first.step(step);
      for (std::uint64_t step = 0; step < 6; ++step) whole.step(step);
      std::vector<NamedTensor> all = first.optimizer->state(nn::named_parameters(first.model));
      for (const NamedTensor& entry : nn::named_masters(first.model)) all.push_back({"model." + entry.name, entry.tensor});
      for (const NamedTensor& entry : all) {
        first.parallel->gather({entry.tensor});  // by all, as a collective
        const std::vector<float> values = entry.tensor.detach().to_vector<float>();
        if (rank.group->rank() == 0) saved[entry.name] = {values, entry.tensor.shape()};
      }
      const Weights weights = whole.weights();
      if (rank.group->rank() == 0) want = weights;
    }));
    for (int ranks : {1, 3, 4})
      check_none(run_ranks(ranks, [&](Rank& rank) {
        Training next(rank, shard, {.bucket_size_mb = 25}, 5);
        std::vector<NamedTensor> state;
        {
          const NoGrad unrecorded;
          for (const auto& [name, value] : saved) state.push_back({name, Tensor::from(value.first, value.second)});
          for (const NamedTensor& entry : nn::named_masters(next.model))
            for (const NamedTensor& from : state)
              if (from.name == "model." + entry.name) next.parallel->gather({entry.tensor}), copy_(entry.tensor, from.tensor);
          for (const NamedTensor& from : state)
            if (from.name == "step") copy_(next.optimizer->steps(), from.tensor);
        }
        next.optimizer->load_moments(state, nn::named_parameters(next.model));
        for (std::uint64_t step = 3; step < 6; ++step) next.step(step);
        check_close(next.weights(), want, 1e-4, 2e-5);
      }));
  }
}

TEST_CASE("Masters of sharded 16-bit parameters are in parts, and whole where they are read", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    for (const Shard shard : ways) {
      const Form form{.precision = train::Precision::bf16};
      Training sharded(rank, shard, form), whole(rank, Shard::none, form);
      const auto masters = [](Training& training) {
        training.optimizer->gather_masters();
        Weights result;
        for (const NamedTensor& entry : nn::named_masters(training.model)) {
          require(entry.tensor.dtype() == DType::f32, entry.name + " has no master");
          training.parallel->gather({entry.tensor});
          result.push_back(entry.tensor.to_vector<float>());
        }
        return result;
      };
      for (std::uint64_t step = 0; step < 5; ++step) {
        sharded.step(step), whole.step(step);
        if (step == 2) check_close(masters(sharded), masters(whole), 1e-6 * slack_of(rank), 1e-8 * slack_of(rank));
      }
      check_close(sharded.weights(), whole.weights(), 1e-7 * slack_of(rank), 1e-8 * slack_of(rank));
      check_close(masters(sharded), masters(whole), 1e-6 * slack_of(rank), 1e-8 * slack_of(rank));
      if (shard != Shard::parameters) continue;
      std::int64_t bytes = 0, elements = 0;
      for (const Tensor& x : sharded.optimizer->memory()) bytes += x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
      for (const Tensor& x : trained(sharded.model)) elements += x.numel();
      require(bytes <= (12 * elements / 2) * 102 / 100 + 100, fmt::format("{} bytes of moments and masters", bytes));
    }
  }));
}

TEST_CASE("Averages of sharded parameters take their place, and give it back", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    Training sharded(rank, Shard::parameters), whole(rank, Shard::none);
    train::Ema average(sharded.model, {.gather = [&](const Tensors& x) { sharded.parallel->gather(x); }}), of_whole(whole.model);
    for (std::uint64_t step = 0; step < 3; ++step) {
      sharded.step(step), average.update();
      whole.step(step), of_whole.update();
      {
        const train::EmaScope here(average), there(of_whole);
        const NoGrad unrecorded;
        const double got = sharded.loss(9, 0, 6).item<double>(), want = whole.loss(9, 0, 6).item<double>();
        require(std::abs(got - want) <= 10 * tolerance_of(rank), fmt::format("the loss is {} and not {}", got, want));
      }
      check_close(sharded.weights(), whole.weights(), tolerance_of(rank), tolerance_of(rank) / 10);
    }
  }));
}

TEST_CASE("Sharded parameters stay where they are kept, and cannot be recorded or outlive their group's model", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    for (const Shard shard : both) {
      Training training(rank, shard);
      training.step(0);
      {
        const ScopedValue<bool> recording(context().recording, true);
        const std::string error = message_of([&] { training.step(1); });
        require(contains(error, "[DataParallel] expected a step as written, but a graph is being recorded"), "another error: " + error);
      }
    }
    Training training(rank, Shard::parameters), whole(rank, Shard::none);
    training.step(0), whole.step(0);
    training.parallel->keep_parameters();
    rank.group->barrier();
    if (rank.group->rank() == 0) {
      const NoGrad unrecorded;
      const double got = training.loss(1, 0, 3).item<double>(), want = whole.loss(1, 0, 3).item<double>();
      require(std::abs(got - want) <= 10 * tolerance_of(rank), "another loss");
      check_close(training.weights(), whole.weights(), tolerance_of(rank), tolerance_of(rank) / 10);
    }
    Training unsharded(rank, Shard::none);
    DataParallel forgotten(unsharded.model, *rank.group, {.shard = Shard::gradients});
    const std::string missing = message_of([&] { forgotten.finish_gradient_synchronization(); });
    require(contains(missing, "sharded gradients need shard_optimizer"), "another error: " + missing);
    Training gone(rank, Shard::parameters);
    const auto read = [&] { return message_of([&] { gone.model.blocks[0].attn.proj.weight.to_vector<float>(); }); };
    require(contains(read(), "[data] expected memory but it is freed: sharded parameters have theirs in"), "another error: " + read());
    gone.parallel->gather(nn::parameters(gone.model));
    const nn::DecoderLM clone = nn::clone(gone.model);
    gone.step(0);
    if (rank.group->rank() == 0) clone.loss(ids(rank, 0, 0, 1), ids(rank, 1, 0, 1)).item<double>();  // on one rank alone
    gone.parallel->gather({gone.model.blocks[0].attn.proj.weight, gone.model.blocks[1].attn.proj.weight});
    require(read() == "" && blocks_here(*gone.parallel) == 2, "two blocks were to be here but " + read());
    gone.parallel.reset();
    gone.model.blocks[0].attn.proj.weight.to_vector<float>();
    const std::string error = message_of([&] { gone.loss(0, 0, 1); });
    require(contains(error, "[data] expected memory but it is freed"), "another error: " + error);
  }));
}

TEST_CASE("A parameter joins sharded training later", "[ranks]") {
  check_none(run_ranks(2, [&](Rank& rank) {
    for (const Shard shard : ways) {
      Weights found[2];
      for (const bool is_sharded : {false, true}) {
        Training training(rank, is_sharded ? shard : Shard::none, {.is_partly_frozen = true});
        for (std::uint64_t step = 0; step < 4; ++step) {
          if (step == 2) {
            Tensor& weight = training.model.blocks[1].ff.fc.weight;
            {
              const NoGrad unrecorded;  // of other values on each rank, until it joins
              mul_(weight, 1.0 + rank.group->rank());
            }
            weight.set_requires_grad();
            training.parallel->add({weight});
            training.optimizer->add_group({{weight}, {.lr = 0.05, .eps = 1e-4}});
          }
          training.step(step);
        }
        found[is_sharded] = training.weights();
      }
      check_close(found[1], found[0], tolerance_of(rank), tolerance_of(rank) / 10);
    }
  }));
}

}  // namespace tern::parallel
