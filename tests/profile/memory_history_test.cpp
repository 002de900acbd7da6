// A memory history: every block has one category, the categories sum to what the allocator counted, and blocks have the op and the module.
#include "profile/memory_history.h"

#include <algorithm>
#include <map>
#include <optional>
#include <thread>

#include "backend/memory.h"
#include "catch.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "train/train.h"

using namespace tern;
using profile::MemoryBlock;
using profile::MemoryCategory;
using profile::MemoryHistory;
using profile::MemoryPass;

namespace {

nn::DecoderLMOptions tiny(CheckpointPolicy policy, Device device) {
  nn::DecoderLMOptions options;
  options.vocab = 33;
  options.length = 9;
  options.width = 24;
  options.layers = 2;
  options.heads = 3;
  options.ff = 40;
  options.dropout = 0.1;
  options.activation_checkpointing = policy;
  options.device = device;
  return options;
}

struct Trained {
  Trained(train::Precision precision, bool is_fused, CheckpointPolicy policy, Device device)
      : kernels(is_fused), model(tiny(policy, device)) {
    train::set_precision(model, precision);
    optimizer.emplace(nn::parameters(model), train::AdamOptions{});
    ids = zeros({5, 9}, DType::i64, device);
  }
  void step() { train::update(model.loss(ids, ids), *optimizer); }

  FusedKernels kernels;
  nn::DecoderLM model;
  std::optional<train::Adam> optimizer;
  Tensor ids;
};

void check_peak(const MemoryHistory& history, Device device) {
  const profile::MemoryPeak peak = history.peak();
  CHECK(peak.bytes == memory_statistics(device).peak_allocated);
  CHECK(peak.categories.total() == peak.bytes);
  CHECK(history.is_complete());
}

std::size_t bytes_of(const MemoryHistory& history, MemoryCategory category) { return history.peak().categories.of(category); }

void check_training(Device device) {
  for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16})
    for (const bool is_fused : {false, true})
      for (const CheckpointPolicy policy : {CheckpointPolicy::none, CheckpointPolicy::selective, CheckpointPolicy::full}) {
        INFO(train::name(precision) << " fused " << is_fused << " policy " << int(policy));
        const std::size_t others = memory_statistics(device).allocated;
        reset_peak_memory(device);
        MemoryHistory history(device);
        Trained training(precision, is_fused, policy, device);
        history.set_names(nn::module_names(training.model));
        for (int i = 0; i < 3; ++i) training.step();
        history.name(training.model);
        history.name(*training.optimizer);
        history.end();
        check_peak(history, device);
        const auto count = static_cast<std::size_t>(nn::count_parameters(training.model));
        const std::size_t size = size_of(train::dtype_of(precision));
        // Rounding adds something to each block.
        for (const MemoryCategory category : {MemoryCategory::parameters, MemoryCategory::gradients}) {
          CHECK(bytes_of(history, category) >= count * size);
          CHECK(bytes_of(history, category) < count * size + count * size / 4 + 8192);
        }
        const std::size_t state = count * (precision == train::Precision::bf16 ? 12 : 8);
        CHECK(bytes_of(history, MemoryCategory::optimizer) >= state);
        CHECK(bytes_of(history, MemoryCategory::optimizer) < state + state / 4 + 8192);
        CHECK(bytes_of(history, MemoryCategory::activations) > 0);
        CHECK(bytes_of(history, MemoryCategory::before) == others);
        const bool has_recompute = std::any_of(history.blocks().begin(), history.blocks().end(),
                                               [](const MemoryBlock& block) { return block.pass == MemoryPass::recompute; });
        CHECK(has_recompute == (policy != CheckpointPolicy::none));
      }
}

}  // namespace

TEST_CASE("The categories at the peak sum to the allocator's peak, whatever the precision, kernels and checkpoints") {
  check_training(cpu);
}

TEST_CASE("The categories at the peak sum to the allocator's peak on a GPU", "[cuda]") { check_training(cuda()); }

TEST_CASE("A history that begins after the model was made counts what was there before") {
  const Tensor other = zeros({1000});
  Trained training(train::Precision::fp32, false, CheckpointPolicy::none, cpu);
  training.step();
  reset_peak_memory(cpu);
  const std::size_t allocated = memory_statistics(cpu).allocated;
  const auto history = profile::memory_of_step(cpu, training.model, &*training.optimizer, [&] { training.step(); });
  check_peak(*history, cpu);
  CHECK(history->at_begin().total() == allocated);
  CHECK(history->at_begin().of(MemoryCategory::before) == history->unknown_before());
  CHECK(history->unknown_before() >= 4000);
  const auto count = static_cast<std::size_t>(nn::count_parameters(training.model));
  CHECK(history->at_begin().of(MemoryCategory::parameters) >= 4 * count);
  CHECK(history->at_begin().of(MemoryCategory::optimizer) >= 8 * count);
  CHECK(history->unknown_before() + 16 * count <= allocated);
  const auto is_older = [&](std::size_t place) { return history->blocks()[place].begin == MemoryBlock::never; };
  const std::vector<std::size_t> within = history->largest(5, false), at_peak = history->largest(5, true);
  REQUIRE((within.size() == 5 && at_peak.size() == 5));
  CHECK(std::none_of(within.begin(), within.end(), is_older));
  CHECK(std::any_of(at_peak.begin(), at_peak.end(), is_older));  // the flat weights, beside the panels of a product
  CHECK(history->blocks()[within[0]].bytes >= history->blocks()[within[4]].bytes);
}

TEST_CASE("What selective checkpointing keeps is activations") {
  const Tensor x = rand({8, 32}).set_requires_grad(), fc = rand({64, 32}), fc_bias = rand({64}), proj = rand({16, 64});
  MemoryHistory history(cpu);
  // Within, the result of the first product is no op's result: backward alone needs it.
  const Tensor y = checkpoint([&](const Tensor& in) { return feed_forward_gelu(in, fc, fc_bias, proj); }, x, CheckpointPolicy::selective);
  history.end();
  CHECK(history.at_end().of(MemoryCategory::activations) >= (8 * 64 + 8 * 16) * sizeof(float));
  CHECK(history.at_end().of(MemoryCategory::workspace) == 0);
}

TEST_CASE("Gradients that a later step gives back are gradients") {
  nn::Linear linear(31, 33, false);
  const Tensor x = ones({5, 31});
  MemoryHistory history(cpu);
  for (int i = 0; i < 3; ++i) {
    nn::zero_grad(linear);  // its own, in no flat buffer: they go
    sum(linear.forward(x)).backward();
  }
  history.name(linear);
  history.end();
  const auto count = std::count_if(history.blocks().begin(), history.blocks().end(), [](const MemoryBlock& block) {
    return block.category == MemoryCategory::gradients && block.requested == 31 * 33 * 4;
  });
  CHECK(count == 3);
}

TEST_CASE("Blocks have the op, the module and the pass that asked for them") {
  struct Net final : nn::Module {
    void visit(nn::Visitor& v) override { v("in", in); }
    nn::Linear in{7, 1025};
  };
  Net net;
  const Tensor x = zeros({33, 7});
  MemoryHistory history(cpu, nn::module_names(net));
  const Tensor product = net.in.forward(x);
  const Tensor y = gelu(product);
  sum(y).backward();
  const Tensor unrecorded = exp(x);
  history.name(net);
  history.end();
  const auto block_of = [&](const Tensor& tensor) {
    for (const MemoryBlock& block : history.blocks())
      if (block.address == tensor.impl().storage->data() && block.end == MemoryBlock::never) return block;
    FAIL("no block of the tensor");
    return MemoryBlock{};
  };
  const MemoryBlock of_product = block_of(product), of_y = block_of(y), of_gradient = block_of(net.in.weight.grad());
  REQUIRE(of_product.module);
  CHECK(*of_product.module == "in (Linear)");
  CHECK(of_product.pass == MemoryPass::forward);
  CHECK(of_product.category == MemoryCategory::activations);
  CHECK(of_product.requested == 33 * 1025 * 4);
  REQUIRE(of_y.op);
  CHECK(*of_y.op == "gelu");
  CHECK(of_y.module == nullptr);
  CHECK(of_y.category == MemoryCategory::activations);  // backward kept it
  CHECK(of_gradient.pass == MemoryPass::backward);
  CHECK(of_gradient.category == MemoryCategory::gradients);
  REQUIRE(of_gradient.module);
  CHECK(*of_gradient.module == "in (Linear)");
  CHECK(*of_gradient.op == *of_product.op);
  CHECK(block_of(unrecorded).category == MemoryCategory::workspace);
  const bool is_backward_of_gelu = std::any_of(history.blocks().begin(), history.blocks().end(), [](const MemoryBlock& block) {
    return block.op && *block.op == "gelu" && block.pass == MemoryPass::backward && block.category == MemoryCategory::workspace;
  });
  CHECK(is_backward_of_gelu);
}

TEST_CASE("A history has the events of all threads, in order, and none from before or after") {
  const Tensor early = zeros({100});
  MemoryHistory history(cpu, {}, {.stacks = true});
  CHECK_THROWS_AS(MemoryHistory(cpu), Error);
  std::thread([] { zeros({31}); }).join();
  {
    const Tensor own = zeros({33});
  }
  history.end();
  zeros({77});
  CHECK(backend::observer == nullptr);
  CHECK(context().diagnosis.names == nullptr);
  std::vector<std::size_t> requested;
  for (const auto& event : history.events())
    if (event.action == backend::MemoryAction::alloc) requested.push_back(history.blocks()[event.block].requested);
  CHECK(requested == std::vector<std::size_t>{124, 132});
  for (const MemoryBlock& block : history.blocks()) {
    CHECK(block.begin < block.end);
    CHECK(block.end < history.events().size());
    CHECK(history.events()[block.end].action == backend::MemoryAction::free);
    CHECK(history.events()[block.end].bytes == block.bytes);
    CHECK(block.stack.size() > 2);
  }
  MemoryHistory again(cpu);  // the first one has let go
}

TEST_CASE("What a graph keeps for backward is counted once a storage, by op, without parameters") {
  const Tensor w = ones({33, 31}).set_requires_grad(), x = ones({5, 33});
  const Tensor h = matmul(x, w);   // keeps x and w, a leaf
  const Tensor loss = sum(h * h);  // keeps h, twice
  std::map<std::string, std::size_t> by_op;
  for (const profile::SavedBytes& part : profile::saved_for_backward(loss)) by_op[part.op] += part.bytes;
  std::size_t total = 0;
  for (const auto& [op, bytes] : by_op) total += bytes;
  CHECK(by_op["matmul"] == 5 * 33 * 4);
  CHECK(total == 5 * 33 * 4 + 5 * 31 * 4);
}

TEST_CASE("An allocation that fails is an event") {
  MemoryHistory history(cpu);
  CHECK_THROWS_AS(empty({std::int64_t{1} << 58}), OutOfMemory);
  history.end();
  REQUIRE(!history.events().empty());
  CHECK(history.events().back().action == backend::MemoryAction::out_of_memory);
  CHECK(history.events().back().bytes >= std::size_t{1} << 60);
  CHECK(history.peak().bytes == history.at_begin().total());
}
