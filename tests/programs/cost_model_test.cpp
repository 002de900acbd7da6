// The cost of several devices, against values by hand, brute force, and what models really have.
#include "bench/cost_model.h"

#include <cmath>

#include "backend/error.h"
#include "catch.h"
#include "common/training_settings.h"
#include "nn/module.h"
#include "train/train.h"

using namespace tern;
using namespace tern::bench;

TEST_CASE("Bus bandwidth counts what the best algorithm sends") {
  CHECK(bus_factor("all_reduce", 2) == 1);
  CHECK(bus_factor("all_reduce", 4) == 1.5);
  CHECK(bus_factor("all_reduce", 1) == 0);
  CHECK(bus_factor("all_gather", 4) == 0.75);
  CHECK(bus_factor("reduce_scatter", 5) == 0.8);
  CHECK(bus_factor("broadcast", 7) == 1);
  CHECK_THROWS_AS(bus_factor("gather", 2), Error);
  CHECK_THROWS_AS(bus_factor("all_reduce", 0), Error);
}

TEST_CASE("Overhead and bandwidth of calls are fitted to their relative errors") {
  // 2 ms and 1 GB/s, exactly.
  std::vector<Transfer> calls;
  for (const double bytes : {1e6, 1e7, 1e8, 1e9}) calls.push_back({bytes, 2e-3 + bytes / 1e9});
  const TransferFit exact = fit_transfers(calls);
  CHECK(exact.overhead == Approx(2e-3).epsilon(1e-9));
  CHECK(exact.bandwidth == Approx(1e9).epsilon(1e-9));
  CHECK(exact.seconds(3e6) == Approx(5e-3));

  // With errors no other pair nearby is better.
  for (std::size_t i = 0; i < calls.size(); ++i) calls[i].seconds *= i % 2 ? 1.2 : 0.9;
  const auto loss = [&](double overhead, double bandwidth) {
    double sum = 0;
    for (const Transfer& x : calls) sum += std::pow((overhead + x.bytes / bandwidth) / x.seconds - 1, 2);
    return sum;
  };
  const TransferFit fit = fit_transfers(calls);
  for (const double a : {0.97, 1.0, 1.03})
    for (const double b : {0.97, 1.0, 1.03})
      if (a != 1 || b != 1) CHECK(loss(fit.overhead, fit.bandwidth) < loss(a * fit.overhead, b * fit.bandwidth));

  // Small calls that are faster than in proportion leave no overhead.
  const TransferFit none = fit_transfers(std::vector<Transfer>{{1e6, 1e-4}, {1e7, 1e-2}});
  CHECK(none.overhead == 0);
  CHECK(none.bandwidth > 0);
  CHECK_THROWS_AS(fit_transfers(std::vector<Transfer>{{1e6, 1e-3}, {1e6, 2e-3}}), Error);
  CHECK_THROWS_AS(fit_transfers(std::vector<Transfer>{{1e6, 1e-3}, {0, 2e-3}}), Error);
  CHECK_THROWS_AS(fit_transfers(std::vector<Transfer>{{1e6, 1e-2}, {1e8, 1e-3}}), Error);
}

TEST_CASE("The best number of buckets has the least cost of all") {
  // s = 400 MB, w = 1 GB/s, o = 1 ms: n* = sqrt(0.4 / 1e-3) = 20, b* = 20 MB, 20 ms of transfer and 20 of overheads.
  const TransferFit fit{.overhead = 1e-3, .bandwidth = 1e9};
  const Buckets best = best_buckets(4e8, fit);
  CHECK(best.count == Approx(20));
  CHECK(best.bytes == Approx(2e7));
  CHECK(bucket_seconds(4e8, best.count, fit) == Approx(0.04));
  for (int n = 1; n < 100; ++n) CHECK(bucket_seconds(4e8, n, fit) >= Approx(0.04));
  CHECK(best_buckets(1e3, fit).count == 1);  // a model that is smaller than its best bucket
  CHECK(std::isinf(best_buckets(1e3, {.overhead = 0, .bandwidth = 1e9}).count));
  CHECK(best_buckets(1e3, {.overhead = 0, .bandwidth = 1e9}).bytes == 0);
}

TEST_CASE("Parameters are counted without making them") {
  std::vector<nn::DecoderLMOptions> models(8, {.vocab = 13, .length = 7, .width = 12, .layers = 2, .heads = 4, .ff = 20});
  models[1].head_bias = false;
  models[2].tied_head = true;
  models[3].bias = false;
  models[3].norm = nn::NormKind::rms;
  models[3].gated = true;
  models[3].positions = nn::Positions::rotary;
  models[3].heads = 3;
  models[4].kv_heads = 2;
  models[4].head_dim = 5;
  models[5].ff = 0;
  models[6].positions = nn::Positions::sinusoidal;
  models[6].final_norm = false;
  models[7].norm = nn::NormKind::none;
  for (std::size_t i = 0; i < models.size(); ++i) {
    INFO("model " << i);
    nn::DecoderLM model(models[i]);
    CHECK(apps::count_parameters(models[i]) == nn::count_parameters(model));
    nn::EncoderDecoderOptions both;
    static_cast<nn::TransformerOptions&>(both) = models[i];
    both.encoder_layers = static_cast<std::int64_t>(i % 2) * 3;
    const nn::EncoderDecoder translator(both);
    CHECK(apps::count_parameters(both) == nn::count_parameters(translator));
  }
}

TEST_CASE("Ranks divide what their way of training divides") {
  // 10 parameters: 40 bytes of weights, 40 of gradients, 80 of moments.
  const auto totals = [](Sharding sharding, int ranks) {
    const StateBytes x = state_bytes(10, sharding, ranks);
    return std::vector<double>{x.after_init(), x.before_step(), x.after_step()};
  };
  CHECK(totals(Sharding::none, 4) == std::vector<double>{40, 80, 160});
  CHECK(totals(Sharding::moments, 4) == std::vector<double>{40, 80, 100});
  CHECK(totals(Sharding::gradients, 4) == std::vector<double>{40, 50, 70});
  CHECK(totals(Sharding::full, 4) == std::vector<double>{10, 20, 40});
  for (const Sharding each : shardings) CHECK(totals(each, 1) == totals(Sharding::none, 1));
  CHECK_THROWS_AS(state_bytes(10, Sharding::full, 0), Error);
  // The course's xl on two GPUs: 30.49 GiB, and 22.9 with ZeRO-1.
  const double xl = 30.49 * 0x1p30 / 16;
  CHECK(state_bytes(xl, Sharding::moments, 2).after_step() / 0x1p30 == Approx(22.87).epsilon(1e-3));
  // Gradients there and back, 40 bytes of which a rank of four has a quarter already; and weights once more.
  CHECK(sent_bytes(10, Sharding::none, 4) == 60);
  CHECK(sent_bytes(10, Sharding::moments, 4) == 60);
  CHECK(sent_bytes(10, Sharding::full, 4) == 90);
  CHECK(sent_bytes(10, Sharding::none, 1) == 0);
}

TEST_CASE("A mesh of devices computes longer than it talks from so many tokens on") {
  const MeshBounds bounds = mesh_bounds({}, 53248);
  CHECK(bounds.tokens == Approx(319.444).epsilon(1e-5));  // 4.6e14 / (4 * 1.8e11 * 2)
  CHECK(bounds.tensor == Approx(20.8362).epsilon(1e-5));  // 53248 * 1.8e11 / 4.6e14
  // At the bound the two times of the Note are equal: D = 100, F = 1000.
  const Mesh mesh{.fsdp = 8, .tensor = 2, .fsdp_axes = 1, .tensor_axes = 3, .bandwidth = 1e10, .flops = 1e13};
  const MeshBounds other = mesh_bounds(mesh, 1000);
  const double batch = other.tokens * 16;
  CHECK(4 * batch * 100 * 1000 / (16 * 1e13) == Approx(4 * 100 * 1000 / (2 * 1e10 * 1)));
  CHECK(4 * batch * 100 * 1000 / (8 * other.tensor * 1e13) == Approx(4 * batch * 100 / (8 * 1e10 * 3)));
  CHECK_THROWS_AS(mesh_bounds({.bandwidth = 0}, 1), Error);
}

TEST_CASE("The state of a training takes the memory that is accounted for") {
  // Flat buffers a little smaller than a block of the allocator, whose rounding is not what is accounted for.
  const nn::DecoderLMOptions options{.vocab = 484, .length = 16, .width = 64, .layers = 2, .heads = 2, .ff = 256};
  const StateBytes expected = state_bytes(static_cast<double>(apps::count_parameters(options)), Sharding::none, 1);
  const std::size_t before = memory_statistics(cpu).allocated;
  const auto taken = [&] { return static_cast<double>(memory_statistics(cpu).allocated - before); };
  nn::DecoderLM model(options);
  CHECK(taken() == Approx(expected.after_init()).epsilon(0.03));  // many small blocks
  nn::flatten_parameters(model);
  train::AdamW optimizer(nn::parameters(model), {.lr = 0.01});
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4}, {1, 4});
  model.loss(ids, ids).backward();
  CHECK(taken() == Approx(expected.before_step()).epsilon(0.02));
  optimizer.step();
  CHECK(taken() == Approx(expected.after_step()).epsilon(0.02));
}
