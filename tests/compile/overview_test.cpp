// The groups and the memory that a program shows.
#include <algorithm>

#include "autodiff/engine.h"
#include "catch.h"
#include "compile/compile.h"
#include "message.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "train/train.h"

using namespace tern;

namespace {

constexpr std::int64_t size = 1 << 16;

/// A chain that is one group, and a sum of it.
Tensor chain(const Tensor& x, const Tensor& row) { return sum(tanh(x * 2.0 + row) + x); }

struct Net final : nn::Callable<Net> {
  void visit(nn::Visitor& v) override { v("in", in), v("out", out); }
  Tensor forward(const Tensor& x) const { return out(tanh(in(x))); }
  nn::Linear in{5, 8}, out{8, 3};
};

}  // namespace

TEST_CASE("A program shows its groups, with what they read and write") {
  auto f = tern::compile([](const Tensor& x, const Tensor& row) { return chain(x, row); });
  const Tensor x = randn({64, size / 64}), row = randn({size / 64});
  CHECK(f.show(Stage::groups).empty());
  CHECK(f.overview().groups.empty());
  for (int i = 0; i < 3; ++i) f(x, row);
  const ProgramOverview program = f.overview();
  CHECK(program.kernels == 5);
  REQUIRE(program.groups.size() == 2);
  CHECK(program.groups[0].kernels == std::vector<std::string>{"mul", "add", "tanh", "add"});
  CHECK(program.groups[1].kernels == std::vector<std::string>{"sum"});
  const auto& operands = program.groups[0].operands;
  REQUIRE(operands.size() == 3);  // x once, though two kernels read it, and nothing of what stays within
  std::int64_t read = 0, written = 0;
  for (const ProgramOverview::Operand& operand : operands) (operand.is_written ? written : read) += operand.bytes;
  CHECK(read == 4 * (size + size / 64));  // a row that is broadcast, once
  CHECK(written == 4 * size);
  CHECK(std::none_of(operands.begin(), operands.end(), [](const auto& operand) { return operand.is_read && operand.is_written; }));
  const std::string text = f.show(Stage::groups);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK(contains(text, "   1   4 kernels     0.504 MiB  mul, add x2, tanh: input%0 f32 (64, 1024) input%1 f32 (64, 1024) -> %"));
  CHECK(contains(text, "   2   1 kernel      0.250 MiB  sum: %"));
}

TEST_CASE("A group does not read what it has written itself") {
  auto f = tern::compile([](const Tensor& x) -> Tensors {
    const Tensor y = x * 2.0;
    return {y, tanh(y) + x};
  });
  for (int i = 0; i < 3; ++i) f(randn({size}));
  const ProgramOverview program = f.overview();
  REQUIRE(program.groups.size() == 1);
  for (const ProgramOverview::Operand& operand : program.groups[0].operands)
    CHECK(operand.is_read == (program.blocks[operand.block].kind == "input"));
  CHECK(contains(f.show(Stage::groups), "0.750 MiB"));
}

TEST_CASE("A group of hundreds of operands is a line of bounded length") {
  Tensors all;
  for (int i = 0; i < 300; ++i) all.push_back(zeros({size}));
  auto f = tern::compile([&](const Tensor& x) {
    Tensor y = x;
    for (const Tensor& other : all) y = y + other;
    return y;
  });
  for (int i = 0; i < 3; ++i) f(all[0]);
  const std::string text = f.show(Stage::groups);
  CHECK(contains(text, " more"));
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) CHECK(text.find('\n', at) - at < 500);
}

TEST_CASE("A program shows where its temporary tensors are, and for how long") {
  const Net net;
  train::AdamW optimizer(nn::parameters(net));
  auto step = tern::compile([&](const Tensor& x) {
    const Tensor y = net(x), loss = mean(y * y);
    train::update(loss, optimizer);
    return loss;
  });
  for (int i = 0; i < 3; ++i) step(randn({7, 5}));
  const ProgramOverview program = step.overview();
  std::int64_t end = 0, lines = 0;
  for (const ProgramOverview::Block& a : program.blocks) {
    if (!a.kind.empty() || !a.is_used) continue;
    ++lines;
    end = std::max(end, a.offset + a.bytes);
    CHECK(a.first <= a.last);
    CHECK(a.last < program.groups.size());
    for (const ProgramOverview::Block& b : program.blocks)
      if (&a != &b && b.kind.empty() && b.is_used && a.first <= b.last && b.first <= a.last)
        CHECK((a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset));
  }
  CHECK(lines > 5);
  CHECK(end <= program.arena_bytes);
  CHECK(program.alive_bytes() <= program.arena_bytes);
  CHECK(program.alive_bytes() < program.separate_bytes());
  std::int64_t most = 0;
  for (std::size_t i = 0; i < program.groups.size(); ++i) {
    std::int64_t alive = 0;
    for (const ProgramOverview::Block& block : program.blocks)
      if (block.kind.empty() && block.is_used && block.first <= i && i <= block.last) alive += block.bytes;
    most = std::max(most, alive);
  }
  CHECK(program.alive_bytes() == most);
  const std::string text = step.show(Stage::memory);
  CHECK(std::count(text.begin(), text.end(), '\n') == lines + 1);
  CHECK(contains(text, "arena 0.0"));
}

TEST_CASE("Kernels of a backward pass are of the module whose forward recorded them") {
  const Net net;
  const ModuleNames names = nn::module_names(net);
  auto step = tern::compile([&](const Tensor& x) {
    Tensors parameters;
    for (const Tensor& parameter : nn::parameters(net)) parameters.push_back(parameter);
    return grad({mean(net(x))}, parameters);
  });
  {
    const ScopedValue<const ModuleNames*> scope(context().diagnosis.names, &names);
    for (int i = 0; i < 3; ++i) step(randn({7, 5}));
  }
  std::vector<std::string> modules;
  for (const ProgramOverview::Group& group : step.overview().groups)
    if (modules.empty() || modules.back() != group.module) modules.push_back(group.module);
  // Forward, the mean and its gradient, and back.
  CHECK(modules == std::vector<std::string>{"in (Linear)", "Net", "out (Linear)", "", "out (Linear)", "Net", "in (Linear)"});
  CHECK(contains(step.show(Stage::groups), "# in (Linear)"));
}
