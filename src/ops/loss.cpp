#include "ops/loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/factory.h"
#include "ops/index.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/loss.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/reduce.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

/// Dtype of the losses of logits of that dtype.
DType loss_dtype(DType dtype) { return dtype == DType::f64 ? dtype : DType::f32; }

/// Targets of N rows of logits.
struct Tokens {
  Tensor targets, weights;      ///< (N), contiguous; weights, in the losses' dtype, may be undefined
  CrossEntropyOptions options;  ///< without the weights

  kernels::TokenTargets view() const { return {targets.view(), view_of(weights), options.ignore_index, options.label_smoothing}; }
  Tokens part(std::int64_t first, std::int64_t count) const {
    return {slice(targets, 0, first, first + count), weights.defined() ? slice(weights, 0, first, first + count) : Tensor(), options};
  }
};

/// Targets of logits (..., V), flattened and checked; `logits` is their shape.
Tokens flat_tokens(const char* op, const Tensor& x, const Shape& logits, const Tensor& given, const CrossEntropyOptions& options) {
  check_one_device(op, {&x, &given, &options.token_weights});
  if (!is_floating(x.dtype())) fail(op, fmt::format("expected floating logits but got {}", name(x.dtype())));
  const Tensor targets = detail::as_indices(op, given);
  const Tensor& weights = options.token_weights;
  Shape expected = logits;
  if (!expected.empty()) expected.pop_back();
  if (logits.empty() || targets.shape() != expected || (weights.defined() && weights.shape() != expected))
    fail(op, fmt::format("expected logits (..., V), targets (...) and weights (...) but got {}, {} and {}", to_string(logits),
                         to_string(targets.shape()), detail::shape_or_none(weights)));
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    fail(op, fmt::format("expected label smoothing in [0, 1] but got {}", options.label_smoothing));
  const std::int64_t rows = targets.numel();
  Tokens tokens{contiguous(reshape(targets, {rows})), {}, options};
  tokens.options.token_weights = {};
  if (weights.defined()) tokens.weights = contiguous(reshape(cast(weights.detach(), loss_dtype(x.dtype())), {rows}));
  return tokens;
}

/// Losses (N) of logits x (N, V) in ops, divided by the reduction's total if there is one: the reference of the kernels.
Tensor composed_losses(const Tensor& x, const Tokens& tokens, const Tensor& total) {
  const DType dtype = loss_dtype(x.dtype());
  const double smoothing = tokens.options.label_smoothing;
  const Tensor share = one_hot(tokens.targets, x.size(1), dtype) * (1 - smoothing) + smoothing / static_cast<double>(x.size(1));
  const Tensor each = neg(sum(share * log_softmax(cast(x, dtype), 1), {1}));
  Tensor losses = where(eq(tokens.targets, static_cast<double>(tokens.options.ignore_index)), 0.0, each);
  if (tokens.weights.defined()) losses = losses * tokens.weights;
  if (!total.defined()) return losses;
  return sum(losses) / where(eq(total, 0), std::numeric_limits<double>::infinity(), total);  // a mean over nothing has a gradient of 0
}

/// Reduced losses and the divisor of the reduction: 1 for a sum.
struct Reduced {
  Tensor value, total;
};
Reduced reduce(const Tensor& losses, const Tokens& tokens) {
  const Reduction reduction = tokens.options.reduction;
  if (reduction == Reduction::none) return {losses, {}};
  const Reduced result{empty({}, losses.dtype(), losses.device()), empty({}, losses.dtype(), losses.device())};
  launch(losses.device(), kernels::ReduceLosses{losses, tokens.view(), reduction == Reduction::mean, result.value, result.total});
  return result;
}

/// Gradient of N losses from that of their reduction.
kernels::LossGradient of_losses(const Tensor& g, const Tensor& total, std::int64_t count) {
  View each = g.view();
  if (total.defined()) {
    each.shape = {count};
    each.strides = {0};
  }
  return {each, view_of(total)};
}

/// Losses of rows of logits (N, V). The kernels compute 16-bit logits in float32: autocast has nothing to cast.
struct CrossEntropy {
  static constexpr Op op{.name = "cross_entropy"};
  CrossEntropyOptions options;

  struct Kept {
    Tensor x, lse, targets, weights, total;
  };
  Result<Tensor, Kept> forward(const Tensor& rows, const Tensor& targets, const Tensor& weights) const {
    const Tensor x = rows.strides()[1] == 1 ? rows : contiguous(rows);
    const Tokens tokens{targets, weights, options};
    const Tensor losses = empty({x.size(0)}, loss_dtype(x.dtype()), x.device()), lse = empty_like(losses);
    launch(x.device(), kernels::CrossEntropy{x, tokens.view(), lse, losses});
    const auto [value, total] = reduce(losses, tokens);
    return {value, {x, lse, targets, weights, total}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor& x = kept.x;
    const Tokens tokens{kept.targets, kept.weights, options};
    if (context().grad) return vjp(call, {x}, [&](const Tensors& in) -> Tensors { return {composed_losses(in[0], tokens, kept.total)}; });
    const Tensor dx = empty(x.shape(), x.dtype(), x.device());
    launch(dx.device(), kernels::CrossEntropyGrad{x, kept.lse, tokens.view(), of_losses(call.grad(), kept.total, x.size(0)), dx});
    return {dx};
  }
};

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  const Tokens tokens = flat_tokens(CrossEntropy::op.name, logits, logits.shape(), targets, options);
  const Tensor rows = reshape(logits, {targets.numel(), logits.size(-1)});
  const Tensor result = call(CrossEntropy{tokens.options}, rows, tokens.targets, tokens.weights);
  return options.reduction == Reduction::none ? reshape(result, targets.shape()) : result;
}

// Note [Chunks of logits]
// The logits of a language model are its largest tensor: (8192, 50304) in bf16 take 0.8 GB, and their gradient as much again. But the
// gradient of a row depends on that row alone. So a chunk of rows at a time is multiplied by the head's weight, overwritten by its gradient
// while its losses are computed, and multiplied into the gradients of x, weight and bias; one buffer serves all chunks. These gradients are
// computed in forward, with the loss, so that logits are computed once: three products, as many as without chunks. They are the gradients
// of the sum of all losses. The gradient that arrives in backward (it includes any loss scale) and the division by the number of tokens are
// one factor on the device; it scales tensors of width D: x's gradient, and the weight's as it is added to the leaf's gradient. (If divided
// before, the logits' gradients would underflow in float16.) After Hsu et al., "Liger Kernel", 2024. If each token's loss has its own
// factor, which forward cannot know, the logits are computed again in backward. Memory: one chunk, and between forward and backward the
// gradients of x, weight and bias.
//
// Short chunks cost time: each reads and writes the weight's gradient, and products of few rows leave most of a GPU idle.

namespace {

/// Bytes of logits in a chunk.
std::int64_t chunk_bytes(Device device) { return std::int64_t{1} << (device.type == DeviceType::cpu ? 26 : 28); }

/// Operands of the language model head, a linear layer: rows (N, D), weight (V, D), bias (V) or undefined. All but the bias have contiguous
/// rows.
struct LmHead {
  Tensor rows, weight, bias;

  std::int64_t classes() const { return weight.size(0); }
};

/// Outputs for the gradients of the head's operands; an undefined one is not computed.
struct HeadGradients {
  Tensor rows, weight, bias;
  Write weight_write = Write::overwrite;  ///< for the first chunk

  bool any() const { return rows.defined() || weight.defined() || bias.defined(); }
};

/// Elements in 16 bytes, the unit of a GPU's fast products.
std::int64_t word_size(const LmHead& head) { return 16 / static_cast<std::int64_t>(size_of(head.rows.dtype())); }

/// Memory for logits (rows, V) with each row at an aligned address, even where V is odd.
Tensor make_logits(const LmHead& head, std::int64_t rows) {
  const std::int64_t stride = round_up(head.classes(), word_size(head));
  return slice(empty({rows, stride}, head.rows.dtype(), head.rows.device()), 1, 0, head.classes());
}

/// Range of classes [begin, end).
struct Range {
  std::int64_t begin, end;
};

/// Ranges of classes for the products: all of them, or if their number is odd, a multiple of word_size and the rest. For GPT-2's 50,257
/// classes that is five times as fast.
std::vector<Range> ranges(const LmHead& head) {
  const std::int64_t whole = head.classes() / word_size(head) * word_size(head);
  if (whole == 0 || whole == head.classes() || head.rows.device().type == DeviceType::cpu) return {{0, head.classes()}};
  return {{0, whole}, {whole, head.classes()}};
}

std::int64_t rows_of_chunk(const LmHead& head) {
  const auto row_bytes = std::max<std::int64_t>(head.classes(), 1) * static_cast<std::int64_t>(size_of(head.rows.dtype()));
  const std::int64_t rows = head.rows.size(0);
  const std::int64_t most = std::max<std::int64_t>(chunk_bytes(head.rows.device()) / row_bytes, 1), chunks = ceil_div(rows, most);
  constexpr std::int64_t tile = 128;  // rows and columns of a product's tile
  return chunks <= 1 ? rows : round_up(ceil_div(rows, chunks), tile);
}

/// The weight's gradient, a sum over chunks. Note [Sums in 16 bits]: many chunks are added up in f32, some of them at a time.
class WeightSum {
 public:
  WeightSum(const HeadGradients& gradients, std::int64_t chunks)
      : whole_(gradients.weight), part_(whole_), last_(chunks - 1), first_write_(gradients.weight_write) {
    if (!whole_.defined() || !detail::is_narrow(whole_.dtype()) || chunks <= kernels::max_rounded_sums) return;
    part_ = empty_like(whole_);
    if (first_write_ == Write::overwrite) zero_(whole_);
    exact_ = cast(whole_, DType::f32);
  }
  /// Weight gradient of a chunk: its target and how it is written.
  const Tensor& target() const { return part_; }
  Write write(std::int64_t chunk) const {
    if (!exact_.defined()) return chunk == 0 ? first_write_ : Write::accumulate;
    return chunk % kernels::max_rounded_sums == 0 ? Write::overwrite : Write::accumulate;
  }
  void end(std::int64_t chunk) {
    if (!exact_.defined() || (chunk != last_ && (chunk + 1) % kernels::max_rounded_sums != 0)) return;
    launch(whole_.device(), kernels::AddRounded{part_, exact_, whole_});
  }

 private:
  Tensor whole_, part_, exact_;
  std::int64_t last_;
  Write first_write_;
};

/// Writes losses (N), and the gradients of their sum, each loss weighted by its factor in g, (N) of any stride, or all 1 if g has no data.
void chunked_cross_entropy(const LmHead& head, const Tokens& tokens, const View& g, const Tensor& losses, const HeadGradients& gradients,
                           std::int64_t chunk_rows) {
  const NoGrad unrecorded;
  const std::int64_t count = head.rows.size(0),
                     step = chunk_rows > 0 ? std::min(chunk_rows, std::max<std::int64_t>(count, 1)) : rows_of_chunk(head);
  if (count == 0 && gradients.weight.defined() && gradients.weight_write == Write::overwrite) zero_(gradients.weight);
  if (count == 0 && gradients.bias.defined()) zero_(gradients.bias);
  if (count == 0) return;
  const Tensor buffer = make_logits(head, std::min(step, count));
  const std::vector<Range> classes = ranges(head);
  const std::int64_t chunks = ceil_div(count, step);
  Tensor bias_parts;  // the column sums of each chunk
  if (gradients.bias.defined()) bias_parts = empty({chunks, head.classes()}, buffer.dtype(), buffer.device());
  WeightSum weight_sum(gradients, chunks);
  const Device device = head.rows.device();
  for (std::int64_t first = 0; first < count; first += step) {
    const std::int64_t n = std::min(step, count - first), chunk = first / step;
    const auto part = [&](const Tensor& x) { return slice(x, 0, first, first + n); };
    const Tensor x = part(head.rows), logits = slice(buffer, 0, 0, n);
    for (const Range& some : classes) {
      const Tensor y = slice(logits, 1, some.begin, some.end), weight = slice(head.weight, 0, some.begin, some.end);
      const View bias = head.bias.defined() ? slice(head.bias, 0, some.begin, some.end).view() : View{};
      if (y.is_contiguous()) launch(device, kernels::Linear{x, weight, bias, y});
      else kernels::plain_linear([&](const auto& kernel) { launch(device, kernel); }, x.view(), weight.view(), bias, y.view());
    }
    const Tokens targets = tokens.part(first, n);
    if (!gradients.any()) {
      launch(device, kernels::CrossEntropy{logits, targets.view(), empty({n}, losses.dtype(), losses.device()), part(losses)});
      continue;
    }
    View factors = g;
    if (g.data) {
      factors.data = static_cast<std::byte*>(g.data) + first * g.strides[0] * static_cast<std::int64_t>(size_of(g.dtype));
      factors.shape = {n};
    }
    launch(device, kernels::CrossEntropyWithGrad{logits, targets.view(), {factors, {}}, part(losses)});
    for (const Range& some : classes) {
      const Tensor y = slice(logits, 1, some.begin, some.end);
      if (gradients.rows.defined())
        launch(device, kernels::Matmul{y, slice(head.weight, 0, some.begin, some.end), part(gradients.rows), 1,
                                       some.begin == 0 ? Write::overwrite : Write::accumulate});
      if (gradients.weight.defined())
        launch(device,
               kernels::Matmul{transpose(y, 0, 1), x, slice(weight_sum.target(), 0, some.begin, some.end), 1, weight_sum.write(chunk)});
    }
    weight_sum.end(chunk);
    if (!gradients.bias.defined()) continue;
    launch(device, kernels::Reduce{kernels::ReduceFunction::sum, logits, slice(bias_parts, 0, chunk, chunk + 1), 1});
  }
  if (gradients.bias.defined()) launch(device, kernels::Reduce{kernels::ReduceFunction::sum, bias_parts, unsqueeze(gradients.bias, 0), 1});
}

HeadGradients make_gradients(const LmHead& head, bool rows, bool weight, bool bias) {
  const auto made = [](const Tensor& x, bool wanted) { return wanted ? empty(x.shape(), x.dtype(), x.device()) : Tensor(); };
  return {made(head.rows, rows), made(head.weight, weight), made(head.bias, bias)};
}

/// The saved gradients of the first inputs, times the incoming gradient.
Tensors scaled(const Backward& call, const Tensors& kept, const kernels::LossGradient& of_loss) {
  Tensors gradients(kept.size());
  std::vector<kernels::Scaling> all;
  for (std::size_t input = 0; input < kept.size(); ++input) {
    const Tensor& x = kept[input];
    if (!x.defined()) continue;
    const GradientTarget to = call.sink(input, x.shape(), x);
    gradients[input] = to.result();
    all.push_back({x.view(), to.view(), to.write});
  }
  launch(call.grad().device(), kernels::Scale{std::move(all), of_loss});
  return gradients;
}

/// Losses of a head's rows.
struct ChunkedCrossEntropy {
  static constexpr Op op{.name = "linear_cross_entropy"};
  CrossEntropyOptions options;
  std::int64_t chunk_rows;

  struct Kept {
    Tensor x, weight, bias, targets, token_weights, total;
    Tensor dx, dweight, dbias;  ///< gradients of the sum of the losses, if they are reduced
  };
  Tensor plain(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets, const Tensor& token_weights) const {
    return call(CrossEntropy{options}, linear(x, weight, bias), targets, token_weights);
  }
  Result<Tensor, Kept> forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets,
                               const Tensor& token_weights) const {
    const LmHead head{x, weight, bias};
    const Tokens tokens{targets, token_weights, options};
    HeadGradients d;
    if (options.reduction != Reduction::none && needs_record({x, weight, bias}))
      d = make_gradients(head, x.requires_grad(), weight.requires_grad(), bias.defined() && bias.requires_grad());
    const Tensor losses = empty({x.size(0)}, loss_dtype(x.dtype()), x.device());
    chunked_cross_entropy(head, tokens, {}, losses, d, chunk_rows);
    const auto [value, total] = reduce(losses, tokens);
    return {value, {x, weight, bias, targets, token_weights, total, d.rows, d.weight, d.bias}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const LmHead head{kept.x, kept.weight, kept.bias};
    const Tokens tokens{kept.targets, kept.token_weights, options};
    if (context().grad)
      return vjp(call, {head.rows, head.weight, head.bias},
                 [&](const Tensors& in) -> Tensors { return {composed_losses(linear(in[0], in[1], in[2]), tokens, kept.total)}; });
    if (options.reduction != Reduction::none)
      return scaled(call, {kept.dx, kept.dweight, kept.dbias}, {call.grad().view(), kept.total.view()});
    const GradientTarget dweight = call.sink(1, head.weight.shape(), head.weight);
    HeadGradients d = make_gradients(head, call.needs(0), false, call.needs(2));
    d.weight = dweight.gradient;
    d.weight_write = dweight.write;
    chunked_cross_entropy(head, tokens, call.grad().view(), empty_like(call.grad()), d, chunk_rows);
    return {d.rows, dweight.result(), d.bias};
  }
};

struct LinearCrossEntropy {
  static constexpr Op op{.name = "linear_cross_entropy", .autocast = CastTo::lower};
  CrossEntropyOptions options;
  std::int64_t chunk_rows;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets) const {
    if (weight.dims() != 2 || x.dims() == 0 || x.size(-1) != weight.size(1) || (bias.defined() && bias.shape() != Shape{weight.size(0)}))
      fail(op.name, fmt::format("expected x (..., D), weight (V, D) and bias (V) but got {}, {} and {}", to_string(x.shape()),
                                to_string(weight.shape()), detail::shape_or_none(bias)));
    for (const Tensor* parameter : {&weight, &bias})
      if (parameter->defined() && parameter->dtype() != x.dtype())
        fail(op.name, fmt::format("expected parameters of x's dtype {} but got {}", name(x.dtype()), name(parameter->dtype())));
    if (chunk_rows < 0) fail(op.name, fmt::format("expected chunks of at least one row, or 0, but got {}", chunk_rows));
    Shape logits = x.shape();
    logits.back() = weight.size(0);
    const Tokens tokens = flat_tokens(op.name, x, logits, targets, options);
    const auto with_rows = [](const Tensor& matrix) {
      return matrix.strides()[1] == 1 && matrix.strides()[0] >= matrix.size(1) ? matrix : contiguous(matrix);
    };
    const Tensor result = call(ChunkedCrossEntropy{tokens.options, chunk_rows}, with_rows(reshape(x, {targets.numel(), x.size(-1)})),
                               with_rows(weight), bias, tokens.targets, tokens.weights);
    return options.reduction == Reduction::none ? reshape(result, targets.shape()) : result;
  }
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets,
                            const CrossEntropyOptions& options, std::int64_t chunk_rows) {
  return call(LinearCrossEntropy{options, chunk_rows}, x, weight, bias, targets);
}

// Compositions.

namespace {

Tensor reduced(const Tensor& losses, Reduction reduction, DType dtype) {
  return cast(reduction == Reduction::none ? losses : reduction == Reduction::sum ? sum(losses) : mean(losses), dtype);
}

DType check_pair(const char* op, const Tensor& a, const Tensor& b) {
  check_one_device(op, {&a, &b});
  if (a.shape() != b.shape())
    fail(op, fmt::format("expected operands of one shape but got {} and {}", to_string(a.shape()), to_string(b.shape())));
  if (!is_floating(a.dtype()) || !is_floating(b.dtype()))
    fail(op, fmt::format("expected floating dtypes but got {} and {}", name(a.dtype()), name(b.dtype())));
  return promote(a.dtype(), b.dtype());
}

struct MseLoss {
  static constexpr Op op{.name = "mse_loss", .autocast = CastTo::f32};
  Reduction reduction;

  Tensor forward(const Tensor& a, const Tensor& b) const {
    if (a.shape() != b.shape())
      fail(op.name, fmt::format("expected operands of one shape but got {} and {}", to_string(a.shape()), to_string(b.shape())));
    const DType dtype = promote(a.dtype(), b.dtype());
    if (!is_floating(dtype)) fail(op.name, fmt::format("expected a floating dtype but got {} and {}", name(a.dtype()), name(b.dtype())));
    return reduced(square(detail::widened(a) - detail::widened(b)), reduction, dtype);
  }
};

}  // namespace

Tensor mse_loss(const Tensor& a, const Tensor& b, const LossOptions& options) { return call(MseLoss{options.reduction}, a, b); }

Tensor binary_cross_entropy(const Tensor& probabilities, const Tensor& targets, const LossOptions& options) {
  const DType dtype = check_pair("binary_cross_entropy", probabilities, targets);
  const Tensor p = detail::widened(probabilities), t = detail::widened(targets);
  const auto bounded_log = [](const Tensor& x) { return log(clamp(x, 1e-38, INFINITY)); };
  return reduced(neg(t * bounded_log(p) + (1 - t) * bounded_log(1 - p)), options.reduction, dtype);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& targets, const LossOptions& options) {
  const DType dtype = check_pair("binary_cross_entropy_with_logits", logits, targets);
  const Tensor x = detail::widened(logits), t = detail::widened(targets);
  return reduced(t * softplus(neg(x)) + (1 - t) * softplus(x), options.reduction, dtype);
}

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& given, const NllLossOptions& options) {
  check_one_device("nll_loss", {&log_probabilities, &given});
  const Tensor targets = detail::as_indices("nll_loss", given), x = detail::widened(log_probabilities);
  Shape rows = x.shape();
  if (!rows.empty()) rows.pop_back();
  if (x.dims() < 1 || targets.shape() != rows || !is_floating(x.dtype()))
    fail("nll_loss", fmt::format("expected floating log-probabilities (..., V) and targets (...) but got {} {} and {}",
                                 name(log_probabilities.dtype()), to_string(x.shape()), to_string(targets.shape())));
  const Tensor is_ignored = eq(targets, static_cast<double>(options.ignore_index));
  const Tensor picked = squeeze(gather(x, -1, unsqueeze(where(is_ignored, 0.0, targets), -1)), -1);
  // where, not a factor of 0: an ignored row may hold an infinity.
  const Tensor losses = where(is_ignored, 0.0, neg(picked));
  if (options.reduction != Reduction::mean) return reduced(losses, options.reduction, log_probabilities.dtype());
  return cast(sum(losses) / sum(cast(logical_not(is_ignored), x.dtype())), log_probabilities.dtype());
}

Tensor kl_div(const Tensor& input, const Tensor& target, const LossOptions& options) {
  const DType dtype = check_pair("kl_div", input, target);
  const Tensor x = detail::widened(input), t = detail::widened(target);
  const Tensor is_zero = eq(t, 0), difference = log(where(is_zero, 1.0, t)) - where(is_zero, 0.0, x);
  return reduced(t * difference, options.reduction, dtype);
}

Tensor l1_loss(const Tensor& a, const Tensor& b, const LossOptions& options) {
  const DType dtype = check_pair("l1_loss", a, b);
  return reduced(abs(detail::widened(a) - detail::widened(b)), options.reduction, dtype);
}

Tensor huber_loss(const Tensor& a, const Tensor& b, const HuberLossOptions& options) {
  const DType dtype = check_pair("huber_loss", a, b);
  const double delta = options.delta;
  if (!(delta > 0)) fail("huber_loss", fmt::format("expected delta > 0 but got {}", delta));
  const Tensor difference = detail::widened(a) - detail::widened(b);
  // c (d - c / 2) with c = d clamped to +-delta: quadratic within, linear outside, and no large number is squared.
  const Tensor limited = clamp(difference, -delta, delta);
  return reduced(limited * (difference - limited * 0.5), options.reduction, dtype);
}

}  // namespace tern
