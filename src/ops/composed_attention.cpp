#include "ops/composed_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autodiff/engine.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

// Attention composed of other ops, and the softmax of its scores, composed and fused.
namespace tern {

void detail::check_mask(const char* op, const Shape& scores, DType dtype, Device device, const AttentionMask& mask) {
  if (!is_floating(dtype)) fail(op, fmt::format("expected floating scores but got {}", name(dtype)));
  const auto& [causal, padding, prefix, key_lengths, window] = mask;
  const int needed = padding.defined() || prefix.defined() || key_lengths.defined() ? 3 : 2;
  if (scores.size() < needed)
    fail(op, fmt::format("expected scores of at least {} dimensions, (B, ..., T, S), but got {}", needed, to_string(scores)));
  const auto check = [&](const char* what, const Tensor& x, const Shape& shape, bool dtype_fits, const char* dtypes) {
    if (!x.defined()) return;
    if (x.shape() != shape || !dtype_fits)
      fail(op, fmt::format("expected {} {} of {} for scores {} but got {} {}", what, to_string(shape), dtypes, to_string(scores),
                           name(x.dtype()), to_string(x.shape())));
    if (x.device() != device)
      fail(op, fmt::format("expected tensors on one device but got {} and {}", to_string(device), to_string(x.device())));
  };
  if (padding.defined())
    check("padding", padding, {scores[0], scores.back()}, padding.dtype() == DType::boolean || is_floating(padding.dtype()),
          "bool or floats");
  if (prefix.defined()) check("a prefix", prefix, {scores[0]}, prefix.dtype() == DType::i64, "i64");
  if (key_lengths.defined()) check("key_lengths", key_lengths, {scores[0]}, key_lengths.dtype() == DType::i64, "i64");
  if (prefix.defined() && !causal) fail(op, "expected causal = true with a prefix: a prefix shows keys that causal hides");
  if (window < 0 || (window > 0 && (!causal || prefix.defined())))
    fail(op, fmt::format("expected a window >= 0, with causal = true and without a prefix, but got window {}, causal {} and {} prefix",
                         window, causal, prefix.defined() ? "a" : "no"));
}

namespace {

void check_mask(const char* op, const Tensor& scores, const AttentionMask& mask) {
  detail::check_mask(op, scores.shape(), scores.dtype(), scores.device(), mask);
}

/// x (B, ...) as (B, 1, .., 1, ...) with the scores' number of dimensions.
Tensor aligned_with(const Tensor& x, const Tensor& scores) {
  Shape shape = {x.size(0)};
  for (int d = 1; d < scores.dims() - x.dims() + 1; ++d) shape.push_back(1);
  for (int d = 1; d < x.dims(); ++d) shape.push_back(x.size(d));
  return reshape(x, shape);
}
/// As aligned_with, for one number per batch row.
Tensor per_batch_row(const Tensor& x, const Tensor& scores) { return aligned_with(reshape(x, {x.size(0), 1, 1}), scores); }

/// Hidden keys: true where a row does not see a key, in a shape that broadcasts to the scores'; undefined if no key is hidden. `past` (B),
/// i64: query t has position t + past among the keys; undefined: S - T.
Tensor hidden_keys(const Tensor& scores, const AttentionMask& mask, const Tensor& past) {
  const std::int64_t queries = scores.size(-2), keys = scores.size(-1);
  const Tensor columns = mask.causal || mask.key_lengths.defined() ? arange(keys, DType::i64, scores.device()) : Tensor();
  Tensor hidden;
  const auto hide = [&](const Tensor& more) { hidden = hidden.defined() ? logical_or(hidden, more) : more; };
  if (mask.causal) {
    const Tensor rows = reshape(arange(queries, DType::i64, scores.device()), {queries, 1});
    const Tensor own = past.defined() ? rows + per_batch_row(past, scores) : rows + static_cast<double>(keys - queries);
    hide(gt(columns, mask.prefix.defined() ? maximum(own, per_batch_row(mask.prefix, scores) - 1) : own));
    if (mask.window > 0) hide(le(columns, own - static_cast<double>(std::min(mask.window, std::int64_t(1) << 40))));
  }
  if (mask.key_lengths.defined()) hide(ge(columns, per_batch_row(mask.key_lengths, scores)));
  if (mask.padding.defined()) {
    const bool is_boolean = mask.padding.dtype() == DType::boolean;
    const Tensor padded = is_boolean ? mask.padding : le(cast(mask.padding, DType::f32), static_cast<double>(kernels::hidden_padding));
    hide(aligned_with(unsqueeze(padded, 1), scores));
  }
  return hidden;
}

/// The composed op, with `past` of hidden_keys.
Tensor masked_softmax(const Tensor& scores, const AttentionMask& mask, const Tensor& past) {
  const auto softmax_of = [](const Tensor& x) { return detail::softmax(x, x.dims() - 1, detail::Hidden::is_zero); };
  const Tensor hidden = hidden_keys(scores, mask, past);
  if (!hidden.defined()) return softmax_of(scores);
  const bool adds = mask.padding.defined() && mask.padding.dtype() != DType::boolean;
  const Tensor sum = adds ? scores + cast(aligned_with(unsqueeze(mask.padding.detach(), 1), scores), scores.dtype()) : scores;
  // -inf, below every score, hides a key. The second fill keeps NaN of a visible score from the hidden keys of its row.
  return masked_fill(softmax_of(masked_fill(sum, hidden, -std::numeric_limits<double>::infinity())), hidden, 0);
}

}  // namespace

/// Padding in the form that is added to the scores.
static Tensor additive_padding(const Tensor& padding, DType scores) {
  if (!padding.defined()) return {};
  const DType dtype = scores == DType::f64 ? scores : DType::f32;
  if (padding.dtype() != DType::boolean) return contiguous(cast(padding.detach(), dtype));
  return masked_fill(zeros(padding.shape(), dtype, padding.device()), padding, -std::numeric_limits<double>::infinity());
}

AttentionMask detail::kernel_mask(const AttentionMask& mask, DType scores) {
  return {.causal = mask.causal,
          .padding = additive_padding(mask.padding, scores),
          .prefix = contiguous_or_none(mask.prefix),
          .key_lengths = contiguous_or_none(mask.key_lengths),
          .window = std::min(mask.window, std::int64_t(1) << 40)};  // wider ones hide nothing either, and kernels add positions to it
}

kernels::AttentionMask detail::mask_view(const AttentionMask& mask) {
  return {view_of(mask.padding), view_of(mask.prefix), view_of(mask.key_lengths), mask.window, mask.causal};
}

namespace {

constexpr Op softmax_op{.name = "attention_softmax", .autocast = CastTo::f32, .tangent = Tangent::symmetric};

/// The composed op; sequences of different lengths have `past`.
struct ComposedAttentionSoftmax {
  static constexpr Op op = softmax_op;
  AttentionMask mask;
  Tensor past;

  Tensor forward(const Tensor& scores) const {
    check_mask(op.name, scores, mask);
    return masked_softmax(scores, mask, past);
  }
};

struct FusedAttentionSoftmax {
  static constexpr Op op = softmax_op;
  AttentionMask mask;

  struct Kept {
    Tensor y;
  };
  Tensor plain(const Tensor& scores) const { return call(ComposedAttentionSoftmax{mask, {}}, scores); }
  Result<Tensor, Kept> forward(const Tensor& scores) const {
    check_mask(op.name, scores, mask);
    const Tensor source = contiguous(scores), y = empty_like(source);
    const AttentionMask masking = detail::kernel_mask(mask, scores.dtype());
    launch(y.device(), kernels::AttentionSoftmax{source, detail::mask_view(masking), y});
    return {y, {y}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor& p = kept.y;
    if (context().grad) return {detail::softmax_gradient(p, call.grad(), -1)};  // the scores themselves are not kept
    const Tensor g = contiguous(call.grad()), dx = empty_like(p);
    launch(dx.device(), kernels::AttentionSoftmaxGrad{p, g, dx});
    return {dx};
  }
};

}  // namespace

Tensor detail::attention_softmax(const Tensor& scores, const AttentionMask& mask, const Tensor& query_lengths, const Tensor& key_lengths) {
  AttentionMask shortened = mask;
  shortened.key_lengths = mask.key_lengths.defined() ? minimum(mask.key_lengths, key_lengths) : key_lengths;
  return call(ComposedAttentionSoftmax{shortened, key_lengths - query_lengths}, scores);
}

Tensor attention_softmax(const Tensor& scores, const AttentionMask& mask) {
  const FusedAttentionSoftmax f{mask};
  return scores.device() == cpu || (mask.window == 0 && !mask.key_lengths.defined()) ? call(f, scores) : f.plain(scores);
}

namespace detail {

double scale_of(const AttentionSizes& sizes, const AttentionParams& params) {
  return params.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(sizes.width, 1))));
}

namespace {

constexpr Op attention_op{.name = "scaled_dot_product_attention"};

/// Conversion between packed sequences and a batch of them, padded to the longest.
class Packing {
 public:
  Packing(const Tensor& starts, std::int64_t total, std::int64_t longest) : total_(total), longest_(longest), count_(starts.size(0) - 1) {
    begins_ = slice(starts, 0, 0, count_);
    ends_ = slice(starts, 0, 1);
  }
  Tensor lengths() const { return ends_ - begins_; }

  /// x (total, H, D) as (N, longest, H, D), with zeros after the end of a sequence.
  Tensor unpacked(const Tensor& x) const {
    const Tensor columns = arange(longest_, DType::i64, x.device());
    const Tensor rows =
        where(lt(columns, unsqueeze(lengths(), 1)), unsqueeze(begins_, 1) + columns, static_cast<double>(total_));  // else the row of zeros
    return reshape(index_select(pad(x, 0, 0, 1), 0, reshape(rows, {count_ * longest_})), {count_, longest_, x.size(1), x.size(2)});
  }
  /// y (N, longest, H, D) as (total, H, D).
  Tensor packed(const Tensor& y) const {
    const Tensor rows = arange(total_, DType::i64, y.device());
    const Tensor sequence = sum(ge(unsqueeze(rows, 1), ends_), {1});
    const Tensor places = sequence * static_cast<double>(longest_) + rows - index_select(begins_, 0, sequence);
    return index_select(reshape(y, {count_ * longest_, y.size(2), y.size(3)}), 0, places);
  }

 private:
  Tensor begins_, ends_;
  std::int64_t total_, longest_, count_;
};

/// scores + bias. A sum below f16's range becomes its lowest number: -inf would hide the key.
Tensor biased(const Tensor& scores, const Tensor& bias_) {
  const Tensor bias = cast(bias_, scores.dtype()), sum = scores + bias;
  if (scores.dtype() != DType::f16) return sum;
  constexpr double lowest = -65504;
  return where(logical_and(lt(sum, lowest), ne(bias, -std::numeric_limits<double>::infinity())), lowest, sum);
}

/// The composition for contiguous heads, with `softmax` applied to the scores and `dropped` to the probabilities.
template <class Softmax, class Dropped>
Tensor compose_heads(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
                     Softmax softmax, Dropped dropped) {
  // The query heads of a group share keys and values: (B, Hkv, H / Hkv, T, D) with (B, Hkv, 1, S, D).
  const std::int64_t group = sizes.kv_heads == 0 ? 1 : sizes.heads / sizes.kv_heads;
  const auto grouped = [&](const Tensor& x, const Shape& shape) { return group == 1 ? x : reshape(x, shape); };
  const auto heads = [&](const Tensor& x) { return group == 1 ? transpose(x, 1, 2) : unsqueeze(transpose(x, 1, 2), 2); };
  const Shape by_group{sizes.batch, sizes.kv_heads, group, sizes.queries, sizes.width};
  Shape scores_by_group = by_group;
  scores_by_group[4] = sizes.keys;
  const Tensor queries = group == 1
                             ? transpose(q, 1, 2)
                             : permute(reshape(q, {sizes.batch, sizes.queries, sizes.kv_heads, group, sizes.width}), {0, 2, 3, 1, 4});
  Tensor scores = grouped(matmul(queries, transpose(heads(k), -1, -2), scale_of(sizes, params)), sizes.scores());
  if (params.bias.defined()) scores = biased(scores, params.bias);
  const Tensor weights = dropped(softmax(scores));
  const Tensor y = matmul(grouped(weights, scores_by_group), heads(v));
  return transpose(grouped(y, {sizes.batch, sizes.heads, sizes.queries, sizes.width}), 1, 2);
}

template <class Dropped>
Tensor compose(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
               Dropped dropped) {
  if (!sizes.is_packed)
    return compose_heads(
        sizes, q, k, v, params, [&](const Tensor& scores) { return tern::attention_softmax(scores, params.mask); }, dropped);
  if (sizes.batch == 0) return clone(q);
  const Packing queries(params.query_starts, q.size(0), sizes.queries), keys(params.key_starts, k.size(0), sizes.keys);
  return queries.packed(compose_heads(
      sizes, queries.unpacked(q), keys.unpacked(k), keys.unpacked(v), params,
      [&](const Tensor& scores) { return detail::attention_softmax(scores, params.mask, queries.lengths(), keys.lengths()); }, dropped));
}

}  // namespace

Tensor compose(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
  return compose(sizes, q, k, v, params, [&](const Tensor& weights) { return dropout(weights, params.dropout, params.training); });
}

Tensors compose_again(const AttentionSizes& sizes, const Tensors& in, AttentionParams params, PhiloxState draws) {
  const PlainKernels reference;
  if (in.size() > 3) params.bias = in[3];
  return {compose(sizes, in[0], in[1], in[2], params, [&](const Tensor& weights) {
    return params.training && params.dropout > 0 ? dropout_at(weights, params.dropout, draws) : weights;
  })};
}

PhiloxState draws_for(const AttentionSizes& sizes, const AttentionParams& params) {
  return params.training && params.dropout > 0 ? context().generator.reserve(numel(sizes.scores())) : PhiloxState{};
}

namespace {

/// A chunk of queries, first to last - 1, and the keys that they may see.
struct Chunk {
  std::int64_t first, last, first_key, last_key;

  Chunk(const AttentionSizes& sizes, const AttentionMask& mask, std::int64_t first_, std::int64_t count)
      : first(first_), last(std::min(first_ + count, sizes.queries)), first_key(0), last_key(sizes.keys) {
    const std::int64_t offset = sizes.keys - sizes.queries;  // query t is at key t + offset
    if (mask.causal) last_key = std::max<std::int64_t>(last + offset, 0);
    if (mask.window > 0) first_key = std::clamp<std::int64_t>(first + offset - mask.window + 1, 0, last_key);
  }
  bool sees_any() const { return last_key > first_key; }
  Tensor queries_of(const Tensor& x) const { return slice(x, 1, first, last); }
  Tensor keys_of(const Tensor& x) const { return slice(x, 1, first_key, last_key); }
  /// The chunk's slice of a bias that broadcasts to (B, H, T, S).
  Tensor scores_of(const Tensor& x) const {
    Tensor result = x;
    if (x.dims() > 0 && x.size(-1) > 1) result = slice(result, -1, first_key, last_key);
    if (x.dims() > 1 && x.size(-2) > 1) result = slice(result, -2, first, last);
    return result;
  }
  /// Slices of q, k, v and the bias. The last query of a chunk is aligned to its last key, as in the whole, so that the mask means the
  /// same.
  Tensors inputs_of(const Tensors& in) const {
    return {queries_of(in[0]), keys_of(in[1]), keys_of(in[2]), in[3].defined() ? scores_of(in[3]) : in[3]};
  }
  Tensor attend(AttentionSizes sizes, AttentionParams params, const Tensors& in) const {
    sizes.queries = last - first, sizes.keys = last_key - first_key;
    params.bias = in[3];
    AttentionMask& mask = params.mask;
    if (mask.padding.defined()) mask.padding = slice(mask.padding, 1, first_key, last_key);
    if (mask.key_lengths.defined())
      mask.key_lengths = clamp(mask.key_lengths - static_cast<double>(first_key), 0, static_cast<double>(sizes.keys));
    const FusedKernels as_in_forward;  // the thread of a backward pass may have another choice
    return compose(sizes, in[0], in[1], in[2], params);
  }
};

template <class F>
void for_each_chunk(const AttentionSizes& sizes, const AttentionMask& mask, std::int64_t count, F&& f) {
  for (std::int64_t first = 0; first < sizes.queries; first += count) f(Chunk(sizes, mask, first, count));
}

struct AttentionInChunks {
  static constexpr Op op = attention_op;
  AttentionSizes sizes;
  AttentionParams params;
  std::int64_t count;  ///< queries in a chunk

  struct Kept {
    Tensor q, k, v, bias;
  };
  Result<Tensor, Kept> forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias) const {
    const auto in_chunks = [&]() -> Tensors {
      const NoGrad unrecorded;
      const ScopedValue<SavedTensorHooks*> unkept(context().saved_tensor_hooks, nullptr);  // no scores of chunks are kept
      const Tensor result = zeros(q.shape(), q.dtype(), q.device());
      for_each_chunk(sizes, params.mask, count, [&](const Chunk& chunk) {
        if (chunk.sees_any()) copy_(chunk.queries_of(result), chunk.attend(sizes, params, chunk.inputs_of({q, k, v, bias})));
      });
      return {result};
    };
    return {costly(in_chunks)[0], {q, k, v, bias}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensors in = {kept.q, kept.k, kept.v, kept.bias};
    if (context().grad) return vjp(call, in, [&](const Tensors& xs) { return compose_again(sizes, xs, params, {}); });
    const Tensor g = call.grad();
    // Each chunk gives a part of the gradients of keys and values: sums in 16 bits would round each time.
    Tensors results;
    for (const Tensor& x : in)
      results.push_back(x.defined() ? zeros(x.shape(), x.dtype() == DType::f64 ? DType::f64 : DType::f32, x.device()) : Tensor());
    for_each_chunk(sizes, params.mask, count, [&](const Chunk& chunk) {
      if (!chunk.sees_any()) return;
      Tensors leaves, parts, to = chunk.inputs_of(results);
      for (const Tensor& x : chunk.inputs_of(in))
        if (leaves.emplace_back(x.defined() ? x.detach() : x); x.defined()) leaves.back().set_requires_grad();
      {
        const GradMode recorded(true);
        const Tensor part = chunk.attend(sizes, params, leaves);
        if (!leaves[3].defined()) leaves.pop_back();
        parts = grad({part}, leaves, {chunk.queries_of(g)});
      }
      for (std::size_t i = 0; i < parts.size(); ++i) add_(to[i], cast(parts[i], to[i].dtype()));
    });
    for (std::size_t i = 0; i < in.size(); ++i)
      if (in[i].defined()) results[i] = cast(results[i], in[i].dtype());
    return results;
  }
};

}  // namespace

Tensor attention_in_chunks(const AttentionSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
                           std::int64_t bytes) {
  const std::int64_t row_bytes = sizes.batch * sizes.heads * sizes.keys * static_cast<std::int64_t>(size_of(q.dtype()));
  const std::int64_t count = std::max<std::int64_t>(bytes / std::max<std::int64_t>(row_bytes, 1), 16);
  AttentionParams given = params;  // without the bias, which is an operand
  given.bias = {};
  return call(AttentionInChunks{sizes, given, count}, q, k, v, params.bias);
}

}  // namespace detail

}  // namespace tern
