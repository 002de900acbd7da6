// The life of a compiled function: what it traces, compares, replays and refuses.
#include "compile/compile.h"

#include <cmath>

#include "catch.h"
#include "message.h"
#include "nn/nn.h"
#include "ops/autocast.h"
#include "ops/captured_step.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "skip.h"
#include "tensor/context.h"
#include "train/training.h"

using namespace tern;

namespace {

Tensor counted(std::int64_t n, double first, Device device) { return arange(first, first + static_cast<double>(n), 1, DType::f32, device); }

/// All that a training leaves behind: losses, moments, masters, the scale, the position of the random stream.
std::vector<float> train_steps(bool is_compiled, bool is_fused, train::Precision precision, Device device, CompileOptions options = {}) {
  Training training(is_fused, precision, device);
  auto step = tern::compile([&](const Tensor& ids) { return training.step(ids); }, device, options);
  std::vector<float> result;
  manual_seed(8);
  for (unsigned i = 0; i < 30; ++i) {
    training.optimizer.set_lr_factor(1 / (1 + 0.1 * i));
    const Tensor ids = remainder(counted(4 * (i % 3 == 2 ? 7 : 9), i, device), 19).reshape({4, -1}).to(DType::i64);
    result.push_back((is_compiled ? step(ids) : training.step(ids)).item<float>());
    if (i == 15) rand({5}, 0, 1, DType::f32, device);  // somebody else draws
    if (i == 20) manual_seed(77);
  }
  CHECK(step.programs() == (is_compiled ? 2 : 0));
  const auto append = [&](const Tensor& x) {
    for (const float value : cast(x, DType::f32).to_vector<float>()) result.push_back(value);
  };
  for (const NamedTensor& entry : training.optimizer.state()) append(entry.tensor);
  for (const NamedTensor& entry : nn::named_masters(training.model)) append(entry.tensor);
  for (const Tensor& x : nn::parameters(training.model)) append(x);
  if (training.scaler) append(training.scaler->scale());
  result.push_back(static_cast<float>(context().generator.position()));
  return result;
}

void check_training(Device device, CompileOptions options) {
  for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16, train::Precision::fp16})
    for (const bool is_fused : {false, true}) {
      INFO(train::name(precision) << (is_fused ? ", fused" : ", plain"));
      CHECK(train_steps(true, is_fused, precision, device, options) == train_steps(false, is_fused, precision, device));
    }
}

}  // namespace

TEST_CASE("A compiled training step is bitwise the one as written, dropout included") {
  for (const bool fuse : {false, true}) check_training(cpu, {.fuse = fuse});
}
TEST_CASE("A compiled training step on a GPU without fusion is bitwise the one as written, dropout included", "[cuda]") {
  check_training(cuda(), {.fuse = false});
}
TEST_CASE("A compiled training step on a GPU has the losses of the one as written, and the same bits in each run", "[cuda]") {
  for (const bool is_fused : {false, true}) {
    const auto compiled = train_steps(true, is_fused, train::Precision::fp32, cuda());
    CHECK(compiled == train_steps(true, is_fused, train::Precision::fp32, cuda()));
    const auto written = train_steps(false, is_fused, train::Precision::fp32, cuda());
    for (std::size_t i = 0; i < 30; ++i) CHECK(std::fabs(compiled[i] - written[i]) <= 1e-4F);
  }
  for (const train::Precision precision : {train::Precision::bf16, train::Precision::fp16})
    CHECK(train_steps(true, false, precision, cuda()) == train_steps(true, false, precision, cuda()));
}

TEST_CASE("Without fusion each kernel is a step of its own") {
  const auto f = [](const Tensor& x) { return exp(x * 2.0) + 1.0; };
  auto fused = tern::compile(f), alone = tern::compile(f, cpu, {.fuse = false});
  const Tensor x = zeros({1 << 20});
  for (int call = 0; call < 3; ++call) fused(x), alone(x);
  CHECK(contains(fused.report(), "3 kernels in 1 steps"));
  CHECK(contains(alone.report(), "3 kernels in 3 steps"));
}

TEST_CASE("Parameters of 16 bits that are written between steps are those that the next step trains") {
  for (const bool is_whole : {false, true}) {
    Training plain(true, train::Precision::bf16, cpu), mine(true, train::Precision::bf16, cpu);
    if (is_whole)
      for (Training* training : {&plain, &mine}) nn::flatten_parameters(training->model);
    auto f = tern::compile([&](const Tensor& ids) { return mine.step(ids); });
    for (std::int64_t call = 0; call < 40; ++call) {
      INFO("call " << call);
      const Tensor ids =
          remainder(counted(4 * (call % 2 == 0 ? 7 : 9), static_cast<double>(call), cpu), 19).reshape({4, -1}).to(DType::i64);
      manual_seed(static_cast<std::uint64_t>(call));
      const float want = plain.step(ids).item<float>();
      manual_seed(static_cast<std::uint64_t>(call));
      CHECK(f(ids).item<float>() == want);
      if (call != 2 && call != 13 && call != 25) continue;
      for (Training* training : {&plain, &mine}) {
        const NoGrad unrecorded;
        const Tensor w = nn::parameters(training->model)[2];
        copy_(w, full(w.shape(), 0.01 * static_cast<double>(call), w.dtype()));
      }
    }
    for (std::size_t i = 0; i < nn::parameters(plain.model).size(); ++i)
      CHECK(cast(nn::parameters(mine.model)[i], DType::f32).to_vector<float>() ==
            cast(nn::parameters(plain.model)[i], DType::f32).to_vector<float>());
  }
}

TEST_CASE("A number of the host that changes is found and named") {
  double lr = 0.125;
  const Tensor x = ones({3});
  auto step = tern::compile([&](const Tensor& g) {
    const NoGrad unrecorded;
    sub_(x, g * lr);
  });
  step(ones({3}));
  step(ones({3}));
  lr = 0.25;
  const std::string message = message_of([&] { step(ones({3})); });
  INFO(message);
  CHECK(contains(message, "[compile] expected a function that does the same at each call"));
  CHECK(contains(message, "kernel 1 of 2, Binary of mul: numbers 0.125 and 0.25"));
  CHECK(step.programs() == 1);
  for (int i = 0; i < 4; ++i) step(ones({3}));  // it begins anew
  CHECK(x.to_vector<float>() == std::vector<float>(3, 1 - 0.125f * 2 - 0.25f * 5));
}

TEST_CASE("A tensor that the host writes within the step is a constant, and is compared") {
  float value = 2;
  auto f = tern::compile([&](const Tensor& x) { return x * Tensor::scalar(value); });
  for (int call = 0; call < 5; ++call) CHECK(f(ones({2})).to_vector<float>() == std::vector<float>{2, 2});
  auto changes = tern::compile([&](const Tensor& x) { return x * Tensor::scalar(value); });
  changes(ones({2}));
  changes(ones({2}));
  value = 3;
  CHECK(contains(message_of([&] { changes(ones({2})); }), "Binary of mul: uses other elements that the host wrote"));
  auto edits = tern::compile([&](const Tensor& x) { return add_(Tensor::scalar(1.0f), sum(x)); });
  edits(ones({2}));
  CHECK(contains(message_of([&] { edits(ones({2})); }), "expected no edit in place of a tensor that the host writes within the step"));
}

TEST_CASE("A number of the host that changes late is found at the tenth call") {
  double factor = 2;
  auto f = tern::compile([&](const Tensor& x) { return x * factor; });
  f(ones({2}));
  for (int call = 1; call < 10; ++call) CHECK(f(ones({2})).to_vector<float>() == std::vector<float>{2, 2});
  factor = 3;
  CHECK(contains(message_of([&] { f(ones({2})); }), "numbers 2 and 3"));
}

TEST_CASE("A branch, a tensor that is replaced and another shape are found and named") {
  int calls = 0;
  Tensor state = zeros({4});
  const auto found = [&](auto f) {
    calls = 0;
    auto step = tern::compile(f);
    step(ones({4}));
    step(ones({4}));
    return message_of([&] { step(ones({4})); });
  };
  CHECK(contains(found([&](const Tensor& x) { return ++calls < 3 ? exp(x) : exp(x) + 1; }), "1 kernels and 2"));
  CHECK(contains(found([&](const Tensor& x) { return ++calls < 3 ? x + 1 : x * 1; }), "Binary of add: numbers 0 and 2"));
  CHECK(contains(found([&](const Tensor& x) { return ++calls < 3 ? exp(x) : sum(x); }), "Unary of exp: then Reduce"));
  CHECK(contains(found([&](const Tensor& x) { return sum(x + zeros({calls < 2 ? 1 : 4, ++calls < 3 ? 1 : 4})); }), "shapes"));
  const std::string replaced = found([&](const Tensor& x) {
    const Tensor y = state + x;
    if (++calls == 2) state = ones({4});
    return y;
  });
  INFO(replaced);
  CHECK(contains(replaced, "uses another tensor from outside: write into it by copy_, do not replace it"));
}

TEST_CASE("A step that reads a tensor on the host, or is called with a tangent, is refused by name") {
  auto reads = tern::compile([](const Tensor& x) { return x * sum(x).item<float>(); });
  CHECK(reads(ones({2})).to_vector<float>() == std::vector<float>{2, 2});  // as written
  CHECK(message_of([&] { reads(ones({2})); }) ==
        "[compile] expected a step that stays on the device but got item(): return the tensor, and read it outside");
  auto lists = tern::compile([](const Tensor& x) { return x * static_cast<double>(x.to_vector<float>().size()); });
  lists(ones({2}));
  CHECK(contains(message_of([&] { lists(ones({2})); }), "to_vector()"));
}

TEST_CASE("A function that throws leaves nothing behind, and the next call is well") {
  Tensor w = ones({3});
  w.set_requires_grad();
  bool throws = false;
  auto f = tern::compile([&](const Tensor& x) {
    const Tensor y = sum(w * x);
    if (throws) fail("mine", "expected better");
    y.backward();
    return y;
  });
  float sum_of_factors = 0;
  for (int call = 0; call < 40; ++call) {
    throws = call < 4 ? call % 2 == 1 : call == 13;  // as written, noted, compared; the tenth since it was noted
    if (!throws) sum_of_factors += static_cast<float>(call + 1);
    if (throws) CHECK(message_of([&] { f(ones({3})); }) == "[mine] expected better");
    else CHECK(f(ones({3}) * (call + 1)).item<float>() == 3.0f * static_cast<float>(call + 1));
  }
  CHECK(w.grad().to_vector<float>() == std::vector<float>(3, sum_of_factors));
}

TEST_CASE("Gradients, results and constants of the host are there after each call") {
  Tensor w = counted(3, 1, cpu);
  w.set_requires_grad();
  auto f = tern::compile([&](const Tensor& x) -> Tensors {
    w.set_grad({});
    const Tensor y = w * x * Tensor::from<float>({1, 2, 3}, {3});
    sum(y).backward();
    return {y, sum(y), Tensor()};
  });
  Tensors kept;
  for (int call = 0; call < 6; ++call) {
    const float k = static_cast<float>(call + 1);
    const Tensors y = f(full({3}, k));
    CHECK(y[0].to_vector<float>() == std::vector<float>{k, 4 * k, 9 * k});
    CHECK_FALSE(y[0].requires_grad());
    CHECK_FALSE(y[2].defined());
    CHECK(w.grad().to_vector<float>() == std::vector<float>{k, 2 * k, 3 * k});
    kept.push_back(y[1]);
  }
  for (std::size_t call = 0; call < kept.size(); ++call) CHECK(kept[call].item<float>() == 14 * static_cast<float>(call + 1));
}

/// The weight is 0, and each step adds 1 to it: what an autocast scope around the steps multiplies by it after them.
template <class Step>
static void check_autocast(Device device) {
  Tensor w = zeros({1, 1}, DType::f32, device);
  w.set_requires_grad();
  const Tensor x = ones({1, 1}, DType::f32, device);
  Step step(
      [&](const Tensors& in) {
        const NoGrad unrecorded;
        add_(w, in[0]);
        return sum(matmul(in[0], w));
      },
      device);
  const Autocast autocast(DType::bf16);
  for (int i = 1; i <= 6; ++i) {
    CHECK(step(Tensors{x}).template item<float>() == static_cast<float>(i));
    CHECK(matmul(x, w).item<float>() == static_cast<float>(i));
  }
}
/// compile() with the arguments of a CapturedStep.
struct CompiledList {
  CompiledList(std::function<Tensor(const Tensors&)> f, Device device) : step_([f](const Tensor& x) { return f({x}); }, device) {}
  Tensor operator()(const Tensors& in) { return step_(in[0]); }
  Compiled<std::function<Tensor(const Tensor&)>> step_;
};

TEST_CASE("An autocast scope around compiled steps casts the weights that they have edited") { check_autocast<CompiledList>(cpu); }
TEST_CASE("An autocast scope around steps on a GPU casts the weights that they have edited", "[cuda]") {
  check_autocast<CompiledList>(cuda());
  check_autocast<CapturedStep>(cuda());
}

TEST_CASE("Products keep the precision of their scope within the function", "[cuda]") {
  const Tensor x = rand({64, 64}, -1, 1, DType::f32, cuda());
  const auto product = [](const Tensor& a) {
    const MatmulPrecisionMode mode(MatmulPrecision::tf32);
    return matmul(a, a);
  };
  auto f = tern::compile(product, cuda());
  const auto want = product(x).to_vector<float>();
  CHECK(want != matmul(x, x).to_vector<float>());
  for (int call = 0; call < 5; ++call) CHECK(f(x).to_vector<float>() == want);
}

TEST_CASE("Each mode has programs of its own, and a frozen parameter begins anew") {
  nn::Dropout drop(0.5);
  Tensor w = ones({64});
  w.set_requires_grad();
  std::int64_t runs = 0;
  auto f = tern::compile([&](const Tensor& x) { return ++runs, drop(w * x); });
  const Tensor x = ones({64});
  const auto call = [&](float least, std::int64_t as_written) {
    runs = 0;
    for (int i = 0; i < 5; ++i) CHECK(min(f(x)).item<float>() == least);
    CHECK(runs == as_written);
  };
  call(0, 3);
  drop.eval();
  call(1, 2);
  drop.train();
  call(0, 0);
  CHECK(f.programs() == 2);
  CHECK(f.runs() == 2 + 3 + 5);
  w.set_requires_grad(false);
  call(0, 2);
  const NoGrad unrecorded;
  f(x);
  CHECK(f.programs() == 3);
}

TEST_CASE("As many programs are kept as were used last") {
  auto f = tern::compile([](const Tensor& x) { return sum(x); });
  for (int round = 0; round < 2; ++round)
    for (std::int64_t n = 1; n <= 70; ++n) CHECK(f(ones({n})).item<float>() == static_cast<float>(n));
  CHECK(f.programs() == 64);
  f.forget();
  CHECK(f.programs() == 0);
  CHECK(f(ones({5})).item<float>() == 5);
}

TEST_CASE("Tensors that do not live at the same time share memory, and a trace needs no more than the function") {
  const auto chain = [](Tensor x) {
    for (int i = 0; i < 20; ++i) x = exp(x) - 1;
    return sum(x);
  };
  const NoGrad unrecorded;
  const Tensor x = zeros({1 << 16});
  auto f = tern::compile(chain);
  f(x);
  reset_peak_memory(cpu);
  const std::size_t before = memory_statistics(cpu).allocated;
  chain(x);
  const std::size_t as_written = memory_statistics(cpu).peak_allocated - before;
  reset_peak_memory(cpu);
  f(x);
  CHECK(memory_statistics(cpu).peak_allocated - before <= as_written + (std::size_t{1} << 18) + 4096);  // its own copy of x
  for (int call = 0; call < 3; ++call) CHECK(f(x).item<float>() == 0);
  INFO(f.report());
  CHECK(contains(f.report(), "(f32 (65536,)): 41 kernels in 2 steps, arena 0.2 MiB for 0.2 MiB, 4 calls"));
  CHECK(contains(f.show(), "exp"));
  // Nor does a later one that is compared, beside the programs' own copies of x.
  for (int call = 5; call < 10; ++call) f(x);
  reset_peak_memory(cpu);
  f(x);
  CHECK(memory_statistics(cpu).peak_allocated - before <= as_written + (std::size_t{2} << 18) + 4096);
}

TEST_CASE("Programs of several shapes share memory") {
  const NoGrad unrecorded;
  constexpr std::int64_t columns = 1 << 18;
  auto f = tern::compile([](const Tensor& x) { return sum(softmax(unsqueeze(x, 1) * ones({1, columns}))); });
  f(ones({1}));
  const std::size_t before = memory_statistics(cpu).allocated;
  for (int round = 0; round < 3; ++round)
    for (std::int64_t rows = 1; rows <= 8; ++rows) CHECK(f(ones({rows})).item<float>() == Approx(static_cast<double>(rows)));
  INFO(f.report());
  CHECK(f.programs() == 8);
  const std::size_t kept = memory_statistics(cpu).allocated - before, row = columns * sizeof(float);
  CHECK((kept >= 8 * row && kept < 20 * row));  // the eighth needs two tensors, and a row
  f.forget();
  CHECK(memory_statistics(cpu).allocated <= before + 4096);
}

TEST_CASE("A compiled function within another is a part of it") {
  int runs = 0;
  auto inner = tern::compile([&](const Tensor& x) { return ++runs, x * 2; });
  auto outer = tern::compile([&](const Tensor& x) { return inner(x) + 1; });
  for (int call = 0; call < 12; ++call) CHECK(min(outer(full({2}, call))).item<float>() == 2 * static_cast<float>(call) + 1);
  CHECK(runs == 4);  // as written, and at the traced calls
  for (int call = 0; call < 12; ++call) CHECK(min(inner(full({2}, call))).item<float>() == 2 * static_cast<float>(call));
}

TEST_CASE("An argument may be a result of the call before") {
  auto f = tern::compile([](const Tensor& x) -> Tensors {
    const Tensor y = x * 2 + 1;
    return {y, y - x};
  });
  Tensor x = zeros({1 << 16});  // a result of more than 64 KiB is the program's own memory
  for (int call = 0; call < 6; ++call) {
    const Tensors y = f(x);
    const float before = static_cast<float>((1 << call) - 1);
    CHECK(min(y[0]).item<float>() == 2 * before + 1);
    CHECK(min(y[1]).item<float>() == before + 1);
    x = y[0];
  }
}

TEST_CASE("An argument may come back as a result") {
  auto f = tern::compile([](const Tensor& x) -> Tensors { return {x, x.reshape({2, 1 << 15})}; });
  for (int call = 0; call < 6; ++call) {
    const Tensors y = f(full({1 << 16}, call));
    CHECK(max(y[0]).item<float>() == static_cast<float>(call));
    CHECK(max(y[1]).item<float>() == static_cast<float>(call));
  }
}

TEST_CASE("A trace makes no copy that the function does not make") {
  Tensor w = ones({1 << 12});
  w.set_requires_grad();
  auto f = tern::compile([&](const Tensor& x) {
    w.set_grad({});
    sum(w * x).backward();
  });
  for (int call = 0; call < 4; ++call) {
    f(full({1 << 12}, call));
    CHECK(max(w.grad()).item<float>() == static_cast<float>(call));
  }
  INFO(f.show());
  CHECK_FALSE(contains(f.show(), "copy_gradient"));  // the gradient is the product's memory
}

TEST_CASE("A result that is kept to the next call does not change it") {
  Tensors parameters{counted(4, 1, cpu), counted(4, 2, cpu), counted(4, 3, cpu)};
  for (Tensor& x : parameters) x.set_requires_grad();
  train::AdamW optimizer(parameters);
  auto step = tern::compile([&](const Tensor& x) {
    Tensor y = x;
    for (const Tensor& parameter : parameters) y = tanh(y) * parameter;
    const Tensor loss = mean(y * y);
    train::update(loss, optimizer);
    return loss;
  });
  Tensor loss;
  for (int call = 0; call < 12; ++call) {
    loss = step(ones({3, 4}));
    CHECK_FALSE(loss.requires_grad());
  }
  CHECK(step.runs() > 5);
}

TEST_CASE("A result that a call overwrites is not used for an older gradient") {
  Tensor w = ones({1 << 16});
  w.set_requires_grad();
  auto f = tern::compile([](const Tensor& x) { return x * 2; });
  for (int call = 0; call < 3; ++call) f(ones({1 << 16}));
  const Tensor before = sum(w * f(ones({1 << 16})));
  f(zeros({1 << 16}));
  CHECK(contains(message_of([&] { before.backward(); }), "edited in place"));
}

TEST_CASE("Gradients that are dropped, zeroed or summed between the calls are those as written") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Tensor plain = ones({5}, dtype), mine = ones({5}, dtype);
    for (Tensor* w : {&plain, &mine}) w->set_requires_grad();
    const auto step = [](const Tensor& w, const Tensor& x) { sum(w * x).backward(); };
    auto f = tern::compile([&](const Tensor& x) { step(mine, x); });
    for (int call = 0; call < 60; ++call) {
      INFO("call " << call << ", " << name(dtype));
      const Tensor x = full({5}, 1 + call / 7.0, dtype);
      step(plain, x);
      f(x);
      REQUIRE(mine.grad().defined());
      CHECK(cast(mine.grad(), DType::f32).to_vector<float>() == cast(plain.grad(), DType::f32).to_vector<float>());
      for (Tensor* w : {&plain, &mine})
        if (call < 20 || call % 4 == 0) w->set_grad({});
    }
    CHECK(f.programs() <= 5);
    const std::string moves = message_of([&] {
      for (int call = 0; call < 12; ++call) mine.set_grad(ones({5}, dtype)), f(ones({5}, dtype));
    });
    CHECK(contains(moves, "uses another tensor from outside: write into it by copy_"));
  }
}

TEST_CASE("A batch with names is an argument, and arguments are not edited") {
  struct Batch {
    Tensor x, weights;
  };
  auto f = tern::compile([](const Batch& batch) {
    const NoGrad unrecorded;
    return sum(batch.weights.defined() ? add_(batch.x, batch.weights) : batch.x);
  });
  const Tensor x = ones({3});
  f(Batch{x, ones({3})});
  for (int call = 0; call < 4; ++call) CHECK(f(Batch{x, ones({3})}).item<float>() == 6);
  for (int call = 0; call < 4; ++call) CHECK(f(Batch{x, {}}).item<float>() == 3);
  CHECK(x.to_vector<float>() == std::vector<float>(3, 1));
}
