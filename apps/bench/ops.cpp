#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "autodiff/engine.h"
#include "bench/commands.h"
#include "bench/timing.h"
#include "common/program.h"
#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/recurrent.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/optimizer.h"
#include "train/step.h"

namespace tern::bench {
namespace {

struct Options : TimingOptions {
  std::string op = "softmax,layernorm", dtype = "fp32,bf16";
};

/// An operator on a shape. The bytes are the least traffic of each direction.
struct Case {
  std::string op;
  Shape shape;
  DType dtype;
  std::int64_t forward_bytes, backward_bytes;
  Tensors leaves;  ///< differentiated inputs
  std::function<Tensor()> plain, fused;
  std::function<void()> update = {};  ///< instead of forward and backward, for an op without a gradient; moves forward_bytes
  bool together = false;              ///< one figure for both directions, as they share work
};

struct Size {
  std::int64_t rows, columns;
};

Tensor leaf(const Shape& shape, DType dtype, Device device) {
  return cast(randn(shape, 0, 1, DType::f32, device), dtype).set_requires_grad();
}

/// f with its ops composed of others.
template <class F>
std::function<Tensor()> composed(F f) {
  return [f] {
    const PlainKernels scope;
    return f();
  };
}

/// Attention scores with the last three keys padded.
Case softmax_case(const Shape& shape, DType dtype, Device device) {
  const std::int64_t bytes = numel(shape) * static_cast<std::int64_t>(size_of(dtype));
  const Tensor x = leaf(shape, dtype, device);
  const std::int64_t batch = shape[0], keys = shape[3];
  const Tensor is_padded = ge(broadcast_to(arange(keys, DType::i64, device), {batch, keys}), static_cast<double>(keys - 3));
  const Tensor padding = masked_fill(zeros({batch, keys}, DType::f32, device), is_padded, -1e30);
  const Tensor additive = reshape(cast(padding, dtype), {batch, 1, 1, keys});
  return {"softmax",
          shape,
          dtype,
          2 * bytes,
          3 * bytes,
          {x},
          [=] { return softmax(x + additive); },
          [=] { return attention_softmax(x, {.padding = padding}); }};
}

Case long_softmax_case(const Shape& shape, DType dtype, Device device) {
  const std::int64_t bytes = numel(shape) * static_cast<std::int64_t>(size_of(dtype));
  const Tensor x = leaf(shape, dtype, device);
  return {"softmax", shape, dtype, 2 * bytes, 3 * bytes, {x}, [=] { return softmax(x); }, [=] { return attention_softmax(x); }};
}

Case norm_case(bool centered, Size size, DType dtype, Device device) {
  const std::int64_t bytes = size.rows * size.columns * static_cast<std::int64_t>(size_of(dtype));
  const Tensor x = leaf({size.rows, size.columns}, dtype, device), gamma = leaf({size.columns}, dtype, device);
  Case result{centered ? "layernorm" : "rmsnorm", {size.rows, size.columns}, dtype, 2 * bytes, 3 * bytes, {x, gamma}, {}, {}};
  if (centered) {
    const Tensor beta = leaf({size.columns}, dtype, device);
    result.leaves.push_back(beta);
    result.fused = [=] { return layer_norm(x, gamma, beta); };
  } else {
    result.fused = [=] { return rms_norm(x, gamma); };
  }
  result.plain = composed(result.fused);
  return result;
}

/// Bias, dropout, residual and norm, as between the layers of a transformer, without the gradient of the sum.
Case residual_case(Size size, DType dtype, Device device) {
  const std::int64_t bytes = size.rows * size.columns * static_cast<std::int64_t>(size_of(dtype));
  const Shape shape = {size.rows, size.columns};
  const Tensor x = leaf(shape, dtype, device), residual = leaf(shape, dtype, device);
  const Tensor bias = leaf({size.columns}, dtype, device), gamma = leaf({size.columns}, dtype, device),
               beta = leaf({size.columns}, dtype, device);
  const BranchOptions branch{.bias = bias, .dropout = 0.1};
  const auto joined = [=] { return residual_layer_norm(x, residual, gamma, beta, 1e-5, branch).y; };
  return {"residual_layernorm", shape, dtype, 4 * bytes, 4 * bytes, {x, residual, bias, gamma, beta}, composed(joined), joined};
}

/// An update reads parameter, gradient and two moments and writes all but the gradient; with 16 bits, the parameter is written and
/// its f32 master read and written: 28 bytes an element too.
Case adamw_case(std::int64_t count, DType dtype, Device device) {
  const Tensor x = leaf({count}, dtype, device);
  Tensor(x).set_grad(cast(randn({count}, 0, 1, DType::f32, device), dtype));
  const auto optimizer = std::make_shared<train::AdamW>(Tensors{x});
  return {"adamw", {count}, dtype, count * (dtype == DType::f64 ? 56 : 28), 0, {x}, {}, {}, [=] { optimizer->step(); }};
}

/// The norm of all gradients and the clipping factor, which read the gradients once.
Case grad_norm_case(std::int64_t count, DType dtype, Device device) {
  const Tensor x = leaf({count}, dtype, device);
  Tensor(x).set_grad(cast(randn({count}, 0, 1, DType::f32, device), dtype));
  return {
      "grad_norm", {count}, dtype, count * static_cast<std::int64_t>(size_of(dtype)), 0, {x}, {}, {}, [=] { train::clip_factor({x}, 1); }};
}

std::vector<std::int64_t> parameter_counts(Device device) {
  if (device.type == DeviceType::cpu) return {10'000'000};
  return {10'000'000, 124'000'000, 1'000'000'000};
}

Tensor classes_of(std::int64_t rows, std::int64_t classes, Device device) {
  return minimum(cast(rand({rows}, 0, static_cast<double>(classes), DType::f64, device), DType::i64), static_cast<double>(classes - 1));
}

/// The mean cross-entropy of rows of logits. The plain variant is composed of ops.
Case loss_case(Size size, DType dtype, Device device) {
  const std::int64_t bytes = size.rows * size.columns * static_cast<std::int64_t>(size_of(dtype));
  const Tensor x = leaf({size.rows, size.columns}, dtype, device), targets = classes_of(size.rows, size.columns, device);
  const auto plain = [=] { return -mean(gather(log_softmax(cast(x, DType::f32)), 1, unsqueeze(targets, 1))); };
  return {"xent", {size.rows, size.columns}, dtype, bytes, 2 * bytes, {x}, plain, [=] { return cross_entropy(x, targets); }};
}

struct Head {
  std::int64_t rows, classes, width;
};

/// The head of a language model and its loss, without bias. The bytes are those of the operands and their gradients.
Case head_case(Head size, DType dtype, Device device) {
  const std::int64_t bytes = (size.rows + size.classes) * size.width * static_cast<std::int64_t>(size_of(dtype));
  const Tensor x = leaf({size.rows, size.width}, dtype, device), targets = classes_of(size.rows, size.classes, device);
  const Tensor weight = (leaf({size.classes, size.width}, dtype, device).detach() * 0.02).set_requires_grad();
  return {"linear_xent",
          {size.rows, size.classes, size.width},
          dtype,
          bytes,
          bytes,
          {x, weight},
          [=] { return cross_entropy(linear(x, weight), targets); },
          [=] { return linear_cross_entropy(x, weight, {}, targets); },
          {},
          true};
}

/// A feed-forward layer, compared with linear and linear_gelu as two ops. The bytes are those of the tensors between its GEMMs.
Case feed_forward_case(Head size, DType dtype, Device device) {
  const std::int64_t weights = 2 * size.classes * size.width, narrow = 2 * size.rows * size.width, hidden = size.rows * size.classes,
                     bytes = static_cast<std::int64_t>(size_of(dtype));
  const Tensor x = leaf({size.rows, size.width}, dtype, device), bias = leaf({size.classes}, dtype, device);
  const auto weight = [&](const Shape& shape) { return (leaf(shape, dtype, device).detach() * 0.02).set_requires_grad(); };
  const Tensor fc = weight({size.classes, size.width}), proj = weight({size.width, size.classes});
  return {"feed_forward",
          {size.rows, size.classes, size.width},
          dtype,
          bytes * (weights + narrow + 3 * hidden),
          bytes * (2 * weights + 3 * narrow / 2 + 5 * hidden),
          {x, fc, bias, proj},
          [=] { return linear(linear_gelu(x, fc, bias), proj); },
          [=] { return feed_forward_gelu(x, fc, bias, proj); }};
}

/// The recurrence of GLA, with a decay of each channel, or of Gated DeltaNet, with one of the head and the delta rule, of shape (B, T, H,
/// D). The bytes are those of the operands and results.
Case recurrence_case(bool is_delta, const Shape& shape, DType dtype, Device device) {
  const std::int64_t bytes = numel(shape) * static_cast<std::int64_t>(size_of(dtype)), decays = is_delta ? 0 : 1;
  const auto as_leaf = [](const Tensor& x) { return x.detach().set_requires_grad(); };
  const Shape tokens{shape[0], shape[1], shape[2]};
  const Tensor q = leaf(shape, dtype, device), v = leaf(shape, dtype, device), keys = leaf(shape, dtype, device);
  const Tensor k = as_leaf(keys * (1 / std::sqrt(static_cast<double>(shape[3]))));
  const auto decay_of = [&](const Shape& of, DType type) { return as_leaf(softplus(leaf(of, type, device)) * (-1.0 / 16)); };
  LinearRecurrenceParams params{.log_decay = is_delta ? decay_of(tokens, DType::f32) : decay_of(shape, dtype)};
  Tensors leaves{q, k, v, params.log_decay};
  if (is_delta) leaves.push_back(params.beta = as_leaf(sigmoid(leaf(tokens, DType::f32, device))));
  const auto call = [=] { return linear_recurrence(q, k, v, params).y; };
  return {is_delta ? "gated_deltanet" : "gla", shape, dtype, (4 + decays) * bytes, (7 + 2 * decays) * bytes, leaves, composed(call), call};
}

std::vector<Shape> score_shapes(Device device) {
  if (device.type == DeviceType::cpu)
    return {{32, 8, 40, 40}, {8, 8, 128, 128}, {8, 8, 256, 256}, {4, 8, 512, 512}, {2, 8, 1024, 1024}, {1, 8, 2048, 2048}};
  std::vector<Shape> shapes;
  for (const std::int64_t length : {32, 64, 128, 256, 512, 1024, 2048})
    shapes.push_back({std::min<std::int64_t>(64, (std::int64_t{1} << 27) / (8 * length * length)), 8, length, length});
  return shapes;
}

std::vector<Size> norm_sizes(Device device) {
  if (device.type == DeviceType::cpu) return {{1280, 256}, {2048, 768}, {2048, 1024}, {2048, 1600}, {2048, 4096}, {1024, 8192}};
  std::vector<Size> sizes;
  for (const std::int64_t columns : {256, 768, 1024, 1600, 2560, 4096, 8192}) sizes.push_back({8192, columns});
  return sizes;
}

/// Rows of many lengths in tensors of 256 Mi elements, far larger than any cache.
std::vector<Size> long_sizes(Device device) {
  if (device.type == DeviceType::cpu) return {};
  std::vector<Size> sizes;
  for (const std::int64_t columns : {256, 1000, 1024, 4096, 8192, 16384, 32768, 50257, 65536})
    sizes.push_back({(std::int64_t{1} << 28) / columns, columns});
  return sizes;
}

std::vector<Size> loss_sizes(Device device) {
  if (device.type == DeviceType::cpu) return {{1280, 10000}, {256, 50257}};
  return {{4992, 10000}, {8192, 32000}, {8192, 50257}, {8192, 50304}};
}

/// The heads of the classic translator and of GPT-2, the latter with the original and a padded vocabulary.
std::vector<Head> head_sizes(Device device) {
  if (device.type == DeviceType::cpu) return {{1280, 10000, 256}};
  return {{5120, 10000, 256}, {8192, 50257, 768}, {8192, 50304, 768}};
}

/// Hidden units and width of GPT-2 small, of its largest model, and of a model of 7 G parameters.
std::vector<Head> feed_forward_sizes(Device device) {
  if (device.type == DeviceType::cpu) return {{1280, 1024, 256}};
  return {{8192, 3072, 768}, {8192, 6400, 1600}, {8192, 16384, 4096}};
}

/// Makes each case just before it is measured, as all cases together would not fit in memory.
std::vector<std::function<Case()>> cases_of(const std::string& op, DType dtype, Device device) {
  std::vector<std::function<Case()>> cases;
  const auto add = [&](const std::vector<Size>& sizes, const auto& make) {
    for (const Size& size : sizes) cases.push_back([=] { return make(size); });
  };
  if (op == "softmax") {
    for (const Shape& shape : score_shapes(device)) cases.push_back([=] { return softmax_case(shape, dtype, device); });
    add(long_sizes(device), [=](Size size) { return long_softmax_case({size.rows, size.columns}, dtype, device); });
  } else if (op == "adamw" || op == "grad_norm") {
    const auto make = op == "adamw" ? adamw_case : grad_norm_case;
    for (const std::int64_t count : parameter_counts(device)) cases.push_back([=] { return make(count, dtype, device); });
  } else if (op == "xent") {
    add(loss_sizes(device), [=](Size size) { return loss_case(size, dtype, device); });
  } else if (op == "linear_xent") {
    for (const Head& size : head_sizes(device)) cases.push_back([=] { return head_case(size, dtype, device); });
  } else if (op == "feed_forward") {
    for (const Head& size : feed_forward_sizes(device)) cases.push_back([=] { return feed_forward_case(size, dtype, device); });
  } else if (op == "gla" || op == "gated_deltanet") {
    const Shape shape = device.type == DeviceType::cpu ? Shape{1, 512, 4, 64} : Shape{8, 4096, 16, 64};
    cases.push_back([=] { return recurrence_case(op != "gla", shape, dtype, device); });
  } else if (op == "residual_layernorm") {
    add({{5120, 256}}, [=](Size size) { return residual_case(size, dtype, device); });
    add(norm_sizes(device), [=](Size size) { return residual_case(size, dtype, device); });
  } else {
    for (const std::vector<Size>& sizes : {norm_sizes(device), long_sizes(device)})
      add(sizes, [=, centered = op == "layernorm"](Size size) { return norm_case(centered, size, dtype, device); });
  }
  return cases;
}

const std::vector<std::string> op_names = {"softmax",   "layernorm",    "rmsnorm", "residual_layernorm", "xent", "linear_xent", "adamw",
                                           "grad_norm", "feed_forward", "gla",     "gated_deltanet"};

class Bench : OpTimer {
 public:
  using OpTimer::OpTimer;

  /// Measures the bandwidth of a large copy, counting reads and writes, as the reference for the others.
  void copy() {
    const double ms = measure_peak();
    emit("copy", {peak_count()}, "fp32", "tern", ms, 8 * peak_count());
    fmt::print("{}: a copy moves {:.0f} GB/s, reading and writing counted\n", apps::describe(device()), peak_gbs());
    fmt::print("{:<24} {:<20} {:<5} {:>11} {:>11} {:>7} {:>8} {:>7} {:>13}\n", "op", "shape", "mode", "plain us", "fused us", "ratio",
               "GB/s", "of copy", "of equal copy");
  }

  void run(const Case& c, const std::string& mode) {
    if (c.update) return report_update(c, mode);
    if (c.together) return run_together(c, mode);
    double forward[2], backward[2];
    for (const bool fused : {false, true}) {
      const auto& call = fused ? c.fused : c.plain;
      forward[fused] = measure([&] { call(); });
      const Tensor y = call(), g = cast(randn(y.shape(), 0, 1, DType::f32, device()), y.dtype());
      backward[fused] = measure([&] { grad({y}, c.leaves, {g}, false, true); });
    }
    report(c, "_fwd", mode, forward[0], forward[1], c.forward_bytes);
    report(c, "_bwd", mode, backward[0], backward[1], c.backward_bytes);
  }

 private:
  void run_together(const Case& c, const std::string& mode) {
    double ms[2], peak_mb[2];
    for (const bool fused : {false, true}) {
      const auto& call = fused ? c.fused : c.plain;
      ms[fused] = measure([&] { grad({call()}, c.leaves, {}); });
      synchronize(device());
      const std::size_t before = memory_statistics(device()).allocated;
      reset_peak_memory(device());
      grad({call()}, c.leaves, {});
      peak_mb[fused] = static_cast<double>(memory_statistics(device()).peak_allocated - before) / 1e6;
    }
    report(c, "_fwd_bwd", mode, ms[0], ms[1], c.forward_bytes + c.backward_bytes);
    fmt::print("  memory beyond the operands at the peak: plain {:.0f} MB, fused {:.0f} MB\n", peak_mb[0], peak_mb[1]);
  }

  void report(const Case& c, const char* direction, const std::string& mode, double plain, double fused, std::int64_t bytes) {
    const std::string op = c.op + direction;
    const double equal = equal_ms(bytes), rate = gbs(bytes, fused);
    emit(op, c.shape, mode, "tern-plain", plain, bytes);
    emit(op, c.shape, mode, "tern-fused", fused, bytes);
    emit(op, c.shape, mode, "copy", equal, bytes);
    fmt::print("{:<24} {:<20} {:<5} {:11.2f} {:11.2f} {:6.2f}x {:8.0f} {:6.1f}% {:12.1f}%\n", op, to_string(c.shape), mode, plain * 1e3,
               fused * 1e3, plain / fused, rate, 100 * rate / peak_gbs(), 100 * equal / fused);
    std::fflush(stdout);
  }

  void report_update(const Case& c, const std::string& mode) {
    const double ms = measure(c.update), rate = gbs(c.forward_bytes, ms);
    emit(c.op, c.shape, mode, "tern", ms, c.forward_bytes);
    fmt::print("{:<24} {:<20} {:<5} {:>11} {:11.2f} {:>7} {:8.0f} {:6.1f}%\n", c.op, to_string(c.shape), mode, "-", ms * 1e3, "-", rate,
               100 * rate / peak_gbs());
    std::fflush(stdout);
  }

  void emit(const std::string& op, const Shape& shape, const std::string& mode, const char* impl, double ms, std::int64_t bytes) {
    const double rate = gbs(bytes, ms);
    rows_.add(row(op, {shape.begin(), shape.end()}, mode, impl, ms)
                  .set("gbs", rounded(rate, 10))
                  .set("of_copy", rounded(rate / peak_gbs(), 1e4)));
  }
};

void ops(const Options& options) {
  manual_seed(0);
  Bench bench(options);
  bench.copy();
  const Device device = apps::use(options);
  for (const std::string& op : words(options.op))
    for (const std::string& mode : words(options.dtype))
      for (const auto& make : cases_of(op, float_modes().at(mode).first, device)) bench.run(make(), mode);
}

}  // namespace

void add_ops(CLI::App& app) {
  auto* command = app.add_subcommand("ops", "time single operators, plain and fused, beside a copy");
  const auto options = std::make_shared<Options>();
  add_list(*command, "--op", options->op, op_names);
  add_list(*command, "--dtype", options->dtype, {"fp32", "bf16", "fp16", "fp64"});
  add_timing_options(*command, *options);
  command->callback([options] { ops(*options); });
}

}  // namespace tern::bench
