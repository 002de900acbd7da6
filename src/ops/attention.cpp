#include "ops/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/composed_attention.h"
#include "ops/factory.h"
#include "ops/kernels/attention.h"
#include "ops/op.h"
#include "ops/view.h"

// Scaled dot-product attention: the choice among its ways, and flash attention in tiles. Rotary positions.
namespace tern {

using namespace detail;

namespace {

/// Products run in the lowered dtype, and the bias is added to their result.
constexpr Op attention_op{.name = "scaled_dot_product_attention", .autocast = CastTo::lower};

/// Checks starts on the CPU, where they can be read without a wait: ascending from 0 to the number of rows, in steps of at most `longest`.
void check_starts(const char* op, const char* what, const Tensor& starts, std::int64_t rows, std::int64_t longest) {
  if (starts.device() != cpu) return;
  const std::vector<std::int64_t> at = starts.to_vector<std::int64_t>();
  bool fits = at.front() == 0 && at.back() == rows;
  for (std::size_t n = 1; fits && n < at.size(); ++n) fits = at[n] >= at[n - 1] && at[n] - at[n - 1] <= longest;
  if (!fits)
    fail(op, fmt::format("expected {} that ascend from 0 to {}, by {} at most, but got ({})", what, rows, longest, fmt::join(at, ", ")));
}

AttentionSizes check_packed(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
  const auto &starts = params.query_starts, &key_starts = params.key_starts;
  if (!starts.defined() || !key_starts.defined()) fail(op, "expected query_starts and key_starts, or neither, but got one of them");
  if (starts.dims() != 1 || starts.size(0) < 1 || starts.shape() != key_starts.shape() || starts.dtype() != DType::i64 ||
      key_starts.dtype() != DType::i64)
    fail(op, fmt::format("expected query_starts and key_starts (N + 1) of i64 but got {} {} and {} {}", name(starts.dtype()),
                         to_string(starts.shape()), name(key_starts.dtype()), to_string(key_starts.shape())));
  if (q.dims() != 3 || k.dims() != 3 || k.shape() != v.shape() || k.size(2) != q.size(2))
    fail(op, fmt::format("expected packed q (total, H, D), and k and v (total, Hkv, D), but got {}, {} and {}", to_string(q.shape()),
                         to_string(k.shape()), to_string(v.shape())));
  check_starts(op, "query_starts", starts, q.size(0), params.max_queries);
  check_starts(op, "key_starts", key_starts, k.size(0), params.max_keys);
  return {starts.size(0) - 1, params.max_queries, params.max_keys, q.size(1), k.size(1), q.size(2), true};
}

AttentionSizes check_shapes(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
  if (params.query_starts.defined() || params.key_starts.defined()) return check_packed(op, q, k, v, params);
  if (q.dims() != 4 || k.dims() != 4 || k.shape() != v.shape() || k.size(0) != q.size(0) || k.size(3) != q.size(3))
    fail(op, fmt::format("expected q (B, T, H, D), and k and v (B, S, Hkv, D), but got {}, {} and {}", to_string(q.shape()),
                         to_string(k.shape()), to_string(v.shape())));
  return {q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3)};
}

AttentionSizes check(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
  const Tensor& bias = params.bias;
  check_one_device(op, {&q, &params.query_starts, &params.key_starts});
  if (!is_floating(q.dtype()) || k.dtype() != q.dtype() || v.dtype() != q.dtype() || (bias.defined() && bias.dtype() != q.dtype()))
    fail(op, fmt::format("expected q, k, v and bias of one floating dtype but got {}, {}, {}{}", name(q.dtype()), name(k.dtype()),
                         name(v.dtype()), bias.defined() ? fmt::format(" and {}", name(bias.dtype())) : ""));
  const AttentionSizes sizes = check_shapes(op, q, k, v, params);
  if (sizes.heads > 0 && (sizes.kv_heads == 0 || sizes.heads % sizes.kv_heads != 0))
    fail(op, fmt::format("expected heads of k and v whose number divides q's but got q {} and k {}", to_string(q.shape()),
                         to_string(k.shape())));
  check_probability(op, params.dropout);
  if (bias.defined()) {
    const Shape scores = sizes.scores();
    bool fits = bias.dims() <= 4;
    for (int d = 1; fits && d <= bias.dims(); ++d) fits = bias.size(-d) == 1 || bias.size(-d) == scores[4 - d];
    if (!fits) fail(op, fmt::format("expected a bias that broadcasts to {} but got {}", to_string(scores), to_string(bias.shape())));
  }
  detail::check_mask(op, sizes.scores(), q.dtype(), q.device(), params.mask);
  return sizes;
}

// Note [Packed projection]: q, k and v are often slices of one projection's output, (.., 3, H, D), or k and v of (.., 2, Hkv, D). Their
// gradients are then written as slices of one tensor in the same order, which unstack and split return as it is (ops/view.cpp), without a
// copy that joins them.

/// True if b's heads follow a's in each row of one tensor.
bool is_adjacent_to(const Tensor& a, const Tensor& b) {
  const int d = a.dims();
  if (a.numel() == 0 || b.numel() == 0 || a.impl().storage != b.impl().storage || a.strides() != b.strides()) return false;
  for (int i = 0; i < d - 2; ++i)
    if (a.size(i) != b.size(i)) return false;
  return a.strides()[d - 1] == 1 && a.strides()[d - 2] == a.size(-1) && b.offset() - a.offset() == a.size(-2) * a.size(-1);
}

/// Memory for the gradients of tensors: slices of one tensor where the inputs are adjacent slices of one.
Tensors adjacent_gradients(const Tensors& xs) {
  Tensors results;
  for (std::size_t first = 0, last = 0; first < xs.size(); first = last) {
    Shape shape = xs[first].shape();
    const int dim = shape.size() - 2;
    for (last = first + 1; last < xs.size() && is_adjacent_to(xs[last - 1], xs[last]); ++last) shape[dim] += xs[last].size(dim);
    const Tensor whole = empty(shape, xs[first].dtype(), xs[first].device());
    std::int64_t start = 0;
    for (std::size_t i = first; i < last; start += xs[i++].size(dim))
      results.push_back(whole.window(xs[i].shape(), whole.strides(), xs[i].numel() == 0 ? 0 : start * whole.strides()[dim]));
  }
  return results;
}

/// x with last stride 1, as the kernels take it.
Tensor with_contiguous_rows(const Tensor& x) { return x.size(-1) <= 1 || x.strides().back() == 1 ? x : contiguous(x); }

/// View as the kernels take it: packed sequences are rows of one batch.
View batched(const Tensor& x) {
  View view = x.view();
  view.strides[view.dims() - 1] = 1;
  if (view.dims() == 4) return view;
  view.shape.insert(0, 1);
  view.strides.insert(0, 0);
  return view;
}

/// Flop count for the profiler: `products` products, each of D multiply-adds for each visible pair of query and key. Not counted where the
/// mask is in tensors.
void count_products(const AttentionSizes& sizes, const AttentionParams& params, double products) {
  const AttentionMask& mask = params.mask;
  if (!backend::observer || sizes.is_packed || mask.prefix.defined() || mask.key_lengths.defined()) return;
  double pairs = 0;
  for (std::int64_t t = 0; t < sizes.queries; ++t) {
    const std::int64_t end = mask.causal ? std::clamp<std::int64_t>(t + 1 + sizes.keys - sizes.queries, 0, sizes.keys) : sizes.keys;
    pairs += static_cast<double>(mask.window > 0 ? std::min(end, mask.window) : end);
  }
  backend::count_flops(2 * products * pairs * static_cast<double>(sizes.batch * sizes.heads * sizes.width), false);
}

/// Parameters of a call as kernels take them, with the tensors that their views point to. Without the bias, which is an
/// operand of the ops.
struct KernelParams {
  AttentionSizes sizes;
  AttentionParams params;
  AttentionMask mask;  ///< that of the parameters by kernel_mask()

  KernelParams(const AttentionSizes& sizes_, const AttentionParams& params_, DType dtype)
      : sizes(sizes_), params(params_), mask(kernel_mask(params_.mask, dtype)) {
    params.bias = {};
    for (Tensor* const starts : {&params.query_starts, &params.key_starts}) *starts = contiguous_or_none(*starts);
  }
  kernels::Attention with(const Tensor& bias, PhiloxState draws = {}) const {
    return {.mask = mask_view(mask),
            .bias = bias.defined() ? broadcast_to(bias.detach(), sizes.scores()).view() : View{},
            .scale = scale_of(sizes, params),
            .dropout = params.training ? params.dropout : 0,
            .draws = draws,
            .query_starts = view_of(params.query_starts),
            .key_starts = view_of(params.key_starts),
            .max_queries = params.max_queries,
            .max_keys = params.max_keys};
  }
};

/// Flash attention: memory does not grow with T S.
struct TiledAttention {
  static constexpr Op op = attention_op;
  KernelParams given;
  PhiloxState draws;

  struct Kept {
    Tensor q, k, v, bias, y, log_sums;
  };
  Result<Tensor, Kept> forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias) const {
    const AttentionSizes& sizes = given.sizes;
    const auto in_tiles = [&]() -> Tensors {
      // By rows also where sequences are packed: some may be much shorter than the longest.
      Shape rows = sizes.is_packed ? Shape{1, sizes.heads, q.size(0)} : Shape{sizes.batch, sizes.heads, sizes.queries};
      if (bias.defined()) rows.insert(0, 2);
      const Tensor out = empty(q.shape(), q.dtype(), q.device());
      const Tensor sums = empty(rows, q.dtype() == DType::f64 ? DType::f64 : DType::f32, q.device());
      const backend::KernelScope observed(nullptr);
      count_products(sizes, given.params, 2);
      launch(q.device(), kernels::FlashAttention{batched(q), batched(k), batched(v), given.with(bias, draws), batched(out), sums});
      return {out, sums};
    };
    const Tensors results = detail::costly(in_tiles);
    return {results[0], {q, k, v, bias, results[0], results[1]}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensors in = {kept.q, kept.k, kept.v, kept.bias};
    if (context().grad) return vjp(call, in, [&](const Tensors& xs) { return compose_again(given.sizes, xs, given.params, draws); });
    const Tensor g = contiguous(call.grad()), &bias = kept.bias;
    Tensors results = adjacent_gradients({kept.q, kept.k, kept.v});
    results.emplace_back();
    if (bias.defined() && call.needs(3)) {
      Shape shape = bias.shape();
      while (shape.size() < 4) shape.insert(0, 1);
      results[3] = empty(shape, g.dtype(), g.device());
    }
    const backend::KernelScope observed(nullptr);
    count_products(given.sizes, given.params, 5);
    launch(g.device(), kernels::FlashAttentionGrad{batched(kept.q),
                                                   batched(kept.k),
                                                   batched(kept.v),
                                                   batched(kept.y),
                                                   kept.log_sums,
                                                   batched(g),
                                                   given.with(bias, draws),
                                                   {batched(results[0]), batched(results[1]), batched(results[2]), view_of(results[3])}});
    if (results[3].defined()) results[3] = results[3].window(bias.shape(), contiguous_strides(bias.shape()), 0);
    return results;
  }
};

/// Attention of one query per sequence, without gradients: keys and values are read once, in place.
struct DecodeAttention {
  static constexpr Op op = attention_op;
  KernelParams given;

  Result<Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias) const {
    const Tensor y = empty(q.shape(), q.dtype(), q.device());
    launch(q.device(), kernels::DecodeAttention{batched(q), batched(k), batched(v), given.with(bias), batched(y)});
    return {y};
  }
};

/// The whole (B, T, 3, H, D) of which q, k and v are slices; undefined if they are not.
Tensor whole_projection(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Shape& s = q.shape();
  if (!is_adjacent_to(q, k) || !is_adjacent_to(k, v) || q.strides()[1] != 3 * s[2] * s[3] || q.strides()[0] != s[1] * q.strides()[1])
    return {};
  const Shape shape{s[0], s[1], 3, s[2], s[3]};
  return q.window(shape, contiguous_strides(shape), q.offset());
}

/// On a GPU, by the single-tile kernels for short sequences, one head in one tile. q, k and v are slices of one projection.
struct SingleTileAttention {
  static constexpr Op op = attention_op;
  KernelParams given;
  PhiloxState draws;

  struct Kept {
    Tensor q, k, v;
  };
  Result<Tensor, Kept> forward(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const auto in_one_tile = [&]() -> Tensors {
      const Tensor y = empty(q.shape(), q.dtype(), q.device());
      launch(Cuda{}, kernels::SelfAttention{whole_projection(q, k, v).view(), given.with({}, draws), y});
      return {y};
    };
    return {detail::costly(in_one_tile)[0], {q, k, v}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensors in = {kept.q, kept.k, kept.v};
    if (context().grad) return vjp(call, in, [&](const Tensors& xs) { return compose_again(given.sizes, xs, given.params, draws); });
    const auto projection = [](const Tensors& xs) { return whole_projection(xs[0], xs[1], xs[2]).view(); };
    const Tensor g = contiguous(call.grad());
    const Tensors results = adjacent_gradients(in);
    launch(Cuda{}, kernels::SelfAttentionGrad{projection(in), g, given.with({}, draws), projection(results)});
    return results;
  }
};

AttentionParams with_bias(AttentionParams params, const Tensor& bias) {
  params.bias = bias;
  return params;
}

/// The choice among the ways.
struct Attention {
  static constexpr Op op = attention_op;
  AttentionParams params;

  Tensor plain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias) const {
    const AttentionParams all = with_bias(params, bias);
    return compose(check(op.name, q, k, v, all), q, k, v, all);
  }
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias) const {
    const AttentionParams all = with_bias(params, bias);
    const AttentionSizes sizes = check(op.name, q, k, v, all);
    const KernelParams given(sizes, all, q.dtype());
    const Tensor rows[] = {with_contiguous_rows(q), with_contiguous_rows(k), with_contiguous_rows(v)};
    const kernels::AttentionWay way = with_backend(q.device(), [&](auto dev) {
      return kernels::attention_way(dev, batched(rows[0]), batched(rows[1]), batched(rows[2]), given.with(bias),
                                    needs_record({q, k, v, bias}));
    });
    const auto draws = [&] { return draws_for(sizes, all); };
    switch (way) {
      using enum kernels::AttentionWay;
      case decode: return call(DecodeAttention{given}, rows[0], rows[1], rows[2], bias);
      case flash: return call(TiledAttention{given, draws()}, rows[0], rows[1], rows[2], bias);
      case flash_dense: return call(TiledAttention{given, draws()}, contiguous(q), contiguous(k), contiguous(v), bias);
      case chunks: return attention_in_chunks(sizes, q, k, v, all);
      case single_tile: {
        const bool is_projection = whole_projection(rows[0], rows[1], rows[2]).defined();
        const Tensors parts = is_projection ? Tensors{rows[0], rows[1], rows[2]} : unstack(stack({rows[0], rows[1], rows[2]}, 2), 2);
        return call(SingleTileAttention{given, draws()}, parts[0], parts[1], parts[2]);
      }
      default: return compose(sizes, q, k, v, all);
    }
  }
};

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
  return call(Attention{with_bias(params, {})}, q, k, v, params.bias);
}

/// Scaled angle between neighbouring positions of a pair.
static double scaled_frequency(double frequency, const RopeScaling& s) {
  const double slowed = frequency / s.factor;
  if (s.original_length == 0) return slowed;
  const double turns = frequency * static_cast<double>(s.original_length) / (2 * std::numbers::pi);
  const double kept = std::clamp((turns - s.low_turns) / (s.high_turns - s.low_turns), 0.0, 1.0);
  return kept * frequency + (1 - kept) * slowed;
}

Tensor rope_table(std::int64_t length, std::int64_t head_dim, double base, Device device, const RopeScaling& scaling) {
  if (length < 0 || head_dim < 0 || head_dim % 2 != 0 || !(base > 0))
    fail("rope_table", fmt::format("expected a length, an even head_dim and a base > 0 but got {}, {} and {}", length, head_dim, base));
  if (!(scaling.factor > 0) || scaling.original_length < 0 || !(scaling.low_turns < scaling.high_turns))
    fail("rope_table",
         fmt::format("expected a scaling with a factor > 0, an original_length >= 0 and low_turns < high_turns but got {}, {}, "
                     "{} and {}",
                     scaling.factor, scaling.original_length, scaling.low_turns, scaling.high_turns));
  // Made before the numbers: a size beyond memory is an error here.
  const Tensor table = empty({length, head_dim / 2, 2}, DType::f32, cpu);
  if (table.numel() == 0) return to(table, device);
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_dim; i += 2)
    frequencies.push_back(scaled_frequency(std::pow(base, -static_cast<double>(i) / static_cast<double>(head_dim)), scaling));
  float* number = table.data<float>();
  for (std::int64_t t = 0; t < length; ++t)
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(t) * frequency;
      *number++ = static_cast<float>(std::cos(angle));
      *number++ = static_cast<float>(std::sin(angle));
    }
  return to(table, device);
}

/// Memory for a result like x (B, H, T, D): if x is a view of a projection, in its order, with a position's heads adjacent.
static Tensor empty_in_order_of(const Tensor& x) {
  if (x.strides()[1] >= x.strides()[2]) return empty(x.shape(), x.dtype(), x.device());
  return transpose(empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.dtype(), x.device()), 1, 2);
}

namespace {

/// A rotation is orthogonal: its derivative rotates back. The table is a constant.
struct Rope {
  static constexpr Op op{.name = "rope", .tangent = Tangent::product};
  std::int64_t heads;
  RopePairs pairs;
  bool inverse = false;

  struct Kept {
    Tensor table;
  };
  Result<Tensor, Kept> forward(const Tensor& x, const Tensor& table) const {
    const Tensor source = x.strides().back() == 1 || x.size(-1) <= 1 ? x : clone(x);
    const Tensor y = empty_in_order_of(source);
    const bool halves = pairs == RopePairs::halves;
    launch(y.device(), kernels::Rope{source, table, y, heads, halves, inverse});
    return {y, {table}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    return {tern::call(Rope{heads, pairs, !inverse}, call.grad(), kept.table)};
  }
};

}  // namespace

Tensor rope(const Tensor& x, const Tensor& table, std::optional<std::int64_t> heads, RopePairs pairs) {
  if (!is_floating(x.dtype()) || !is_floating(table.dtype()))
    fail("rope", fmt::format("expected floating x and table but got {} and {}", name(x.dtype()), name(table.dtype())));
  if (x.dims() != 4 || table.dims() != 3 || x.size(3) % 2 != 0 || table.size(0) < x.size(2) || table.size(1) != x.size(3) / 2 ||
      table.size(2) != 2)
    fail("rope", fmt::format("expected x (B, H, T, D), D even, and a table (at least T, D / 2, 2) but got {} and {}", to_string(x.shape()),
                             to_string(table.shape())));
  if (heads && (*heads < 0 || *heads > x.size(1)))
    fail("rope", fmt::format("expected at most the {} heads of x but got {}", x.size(1), *heads));
  const Tensor angles = contiguous(cast(slice(table.detach(), 0, 0, x.size(2)), x.dtype() == DType::f64 ? DType::f64 : DType::f32));
  return call(Rope{heads.value_or(x.size(1)), pairs}, x, angles);
}

}  // namespace tern
