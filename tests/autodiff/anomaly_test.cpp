// Anomaly mode: a NaN is reported with the op and the module that made it, in the forward and in the backward pass.
#include "autodiff/anomaly.h"

#include <limits>

#include "autodiff/engine.h"
#include "catch.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "values.h"

namespace tern {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("Without anomaly mode a NaN goes through") {
  const Tensor x = leaf({-1});
  sum(log(x)).backward();
  CHECK(std::isnan(log(x).item<double>()));
}

TEST_CASE("A NaN in forward names its op") {
  const AnomalyMode mode;
  const std::string message = message_of([] { log(leaf({1, -1})); });
  CHECK(contains(message, "[log]"));
  CHECK(contains(message, "the forward of 'log' made a NaN, shape (2,)"));
  CHECK(contains(message_of([] { exp(leaf({1, 800})); }), "the forward of 'exp' made an Inf, shape (2,)"));
  CHECK(contains(message_of([] { log(leaf({1, 0, -1})); }), "made a NaN"));  // which says more than the Inf beside it
  CHECK(contains(message_of([] { leaf({0}) / zeros({1}, DType::f64); }), "'div'"));
  const NoGrad unrecorded;
  CHECK(contains(message_of([] { sqrt(full({1}, -1.0)); }), "'sqrt'"));
}

TEST_CASE("An Inf that an op was given passes, and one that it makes does not") {
  const AnomalyMode mode;
  const Tensor x = leaf({1, 2}), mask = Tensor::from(std::vector<std::uint8_t>{1, 0}, {2});
  const Tensor masked = masked_fill(x, gt(mask, 0), -infinity);
  CHECK(exp(masked).to_vector<double>() == std::vector<double>{0, std::exp(2.0)});
  CHECK(message_of([&] { masked + x; }) == "");
  CHECK(contains(message_of([] { leaf({1}) / zeros({1}, DType::f64); }), "the forward of 'div' made an Inf"));
  const Tensor y = leaf({0});
  CHECK(contains(message_of([&] { sum(sqrt(y)).backward(); }), "the backward of 'sqrt' made an Inf in the gradient of its input 0"));
}

TEST_CASE("A NaN names the module by its path and type") {
  const int outer = 0, inner = 0, stranger = 0;
  ModuleNames names;
  names.add(&outer, "");
  names.add(&inner, "blocks.0.fc");
  const AnomalyMode mode(names);
  CHECK(running_module() == "");
  const ModuleFrame a(&outer, "DecoderLM");
  CHECK(running_module() == "DecoderLM");
  {
    const ModuleFrame b(&inner, "Linear");
    CHECK(running_module() == "blocks.0.fc (Linear)");
    CHECK(contains(message_of([] { log(leaf({-1})); }), "the forward of 'log' in module blocks.0.fc (Linear) made a NaN"));
    const ModuleFrame c(&stranger, "GELU");
    CHECK(running_module() == "GELU");
  }
  CHECK(running_module() == "DecoderLM");
}

TEST_CASE("A NaN in backward names the op and the module whose forward called it") {
  const int module = 0;
  ModuleNames names;
  names.add(&module, "head");
  const AnomalyMode mode(names);
  const auto in_module = [&](auto f) {
    const ModuleFrame scope(&module, "Linear");
    return f();
  };
  // A kernel's gradient: 0 * infinity.
  Tensor x = leaf({0});
  Tensor y = in_module([&] { return sqrt(x) * 0.0; });
  std::string message = message_of([&] { sum(y).backward(); });
  CHECK(contains(message, "[sqrt]"));
  CHECK(contains(message, "the backward of 'sqrt' in module head (Linear) made a NaN in the gradient of its input 0, shape (1,)"));
  // A gradient that is composed of ops: the op that was called is named, not one of those.
  x = leaf({0});
  const Tensor factor = full({1}, infinity, DType::f64);
  y = in_module([&] { return (x + 1) * factor; });
  message = message_of([&] { sum(where(gt(factor, 0), 0.0, y)).backward(); });
  CHECK(contains(message, "[mul]"));
  CHECK(contains(message, "the backward of 'mul' in module head (Linear) made a NaN in the gradient of its input 0"));
  // The same where the gradient is recorded.
  x = leaf({0});
  y = in_module([&] { return sqrt(x) * 0.0; });
  message = message_of([&] { grad({sum(y)}, {x}, {}, true); });
  CHECK(contains(message, "the backward of 'sqrt' in module head (Linear)"));
  CHECK(context().diagnosis.anomaly);
}

TEST_CASE("Anomaly mode ends with its scope, also after an error") {
  {
    const AnomalyMode mode;
    CHECK(context().diagnosis.anomaly);
    {
      const AnomalyMode nested;
      CHECK(context().diagnosis.anomaly);
    }
    CHECK(context().diagnosis.anomaly);
    CHECK(message_of([] { log(leaf({-1})); }) != "");
  }
  CHECK_FALSE(context().diagnosis.anomaly);
  CHECK(context().diagnosis.names == nullptr);
  CHECK(message_of([] { log(leaf({-1})); }) == "");
}

TEST_CASE("A view did not make the NaN that it shows") {
  const Tensor bad = full({2, 3}, std::nan(""));  // as memory that nobody has written yet
  const AnomalyMode mode;
  const Tensor viewed = transpose(slice(reshape(bad, {3, 2}), 0, 0, 2), 0, 1);
  CHECK(contains(message_of([&] { log(viewed); }), "the forward of 'log'"));
}

TEST_CASE("Ops without NaN work as ever in anomaly mode") {
  const AnomalyMode mode;
  const Tensor x = leaf({1, 2, 3, 4});
  const Tensor m = reshape(x, {2, 2});
  sum(matmul(m, m)).backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>{7, 11, 9, 13});
}

}  // namespace tern
