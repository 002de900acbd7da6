#include "bench/mixer_cost.h"

#include "backend/observer.h"
#include "catch.h"
#include "nn/transformer.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "tensor/context.h"

using namespace tern;
using namespace tern::bench;
using nn::MixerKind;

namespace {

/// Operations that the kernels of a scope have counted.
struct Counted : backend::Observer {
  Counted() { watch(); }
  ~Counted() override { unwatch(); }
  void count_flops(double more, bool) override { flops += more; }

  double flops = 0;
};

constexpr std::int64_t width = 48, heads = 4, dim = width / heads;

nn::TransformerLayer layer_of(MixerKind kind, std::int64_t length) {
  manual_seed(1);
  const nn::TransformerOptions options{.length = length, .width = width, .heads = heads, .ff = 0, .mixers = {{.kind = kind}}, .dropout = 0};
  nn::TransformerLayer layer(options, false, rope_table(length, dim));
  layer.eval();
  return layer;
}

double flops_of(MixerKind kind, std::int64_t batch, std::int64_t length) {
  const NoGrad unrecorded;
  const nn::TransformerLayer layer = layer_of(kind, length);
  const Tensor x = randn({batch, length, width});
  const Counted counted;
  layer.forward(x, {.causal = true});
  return counted.flops;
}

/// Bytes of the state after so many tokens; of attention, of the cache of so many.
double state_of(MixerKind kind, std::int64_t length, DType dtype) {
  const NoGrad unrecorded;
  nn::TransformerLayer layer = layer_of(kind, length);
  nn::to(layer, dtype);
  const auto bytes = [](const Tensor& x) { return static_cast<double>(x.numel()) * static_cast<double>(size_of(x.dtype())); };
  if (!layer.mixer) {
    nn::KvCache cache(1, length, 1);
    const Tensor ids = zeros({1, length}, DType::i64);
    cache.begin(ids);
    return bytes(cache.layer(0).append(zeros({1, length, 2 * heads, dim}, dtype)));
  }
  nn::MixerState state;
  for (std::int64_t t = 0; t < length; ++t) (*layer.mixer)->forward(cast(randn({1, 1, width}), dtype), &state);
  double sum = 0;
  for (const Tensor& kept : state.kept) sum += bytes(kept);
  return sum;
}

MixerKind kind_of(int i) { return static_cast<MixerKind>(i); }

}  // namespace

TEST_CASE("A mixer's operations are those that its kernels count") {
  for (int i = 0; i < static_cast<int>(MixerKind::own); ++i) {
    const MixerKind kind = kind_of(i);
    INFO(nn::name(kind));
    const auto counted = [&](std::int64_t batch, std::int64_t length) { return count_mixer(kind, {batch, length, width, heads, 4}).flops; };
    CHECK(flops_of(kind, 3, 50) == counted(3, 50));
    CHECK(flops_of(kind, 2, 64) == counted(2, 64));
    CHECK(flops_of(kind, 1, 274) == counted(1, 274));
  }
}

TEST_CASE("A mixer's state has the bytes that decoding keeps") {
  for (int i = 0; i < static_cast<int>(MixerKind::own); ++i) {
    const MixerKind kind = kind_of(i);
    INFO(nn::name(kind));
    for (const DType dtype : {DType::f32, DType::bf16}) {
      // Below the window, beyond which its cache has tokens that no one reads.
      const std::int64_t length = kind == MixerKind::window ? 20 : 40;
      CHECK(count_mixer(kind, {2, length, width, heads, static_cast<int>(size_of(dtype))}).state_bytes == state_of(kind, length, dtype));
    }
  }
  CHECK(count_mixer(MixerKind::window, {1, 1000, width, heads, 2}).state_bytes == 32 * 2 * width * 2);
}

TEST_CASE("Mixers that cannot be counted are an error") {
  CHECK_THROWS_AS(count_mixer(MixerKind::own, {1, 1, 1, 1}), Error);
  CHECK_THROWS_AS(count_mixer(MixerKind::gla, {1, 1, 3, 2}), Error);
  CHECK_THROWS_AS(count_mixer(MixerKind::gla, {1, 0, 2, 2}), Error);
}
