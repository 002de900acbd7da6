// Rows of scores at their limits, in every way to compute attention: rows that see no key, biases of -inf and of the lowest finite number,
// and large scores. All ways agree with the definition in float64 loops, in result and gradients.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/attention.h"
#include "ops/composed_attention.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"

namespace tern {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
using Doubles = std::vector<double>;

enum class MaskKind { none, causal, window, lengths, prefix, padding, packed };
/// hidden: row 1 is -inf throughout, and key 0 of row 2; lowest: row 1 is the lowest finite number throughout; mixed: both in one row, some
/// rows -inf, some finite; large: scores of q k^T beyond 1e30, without a bias.
enum class Kind { plain, hidden, lowest, mixed, large };

double lowest_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return std::numeric_limits<double>::lowest();
    case DType::f32: return std::numeric_limits<float>::lowest();
    case DType::bf16: return -0x1.FEp127;
    default: return -65504;
  }
}
double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-52;
    case DType::f32: return 0x1p-23;
    case DType::bf16: return 0x1p-8;
    default: return 0x1p-11;
  }
}

/// A problem and what the definition gives.
struct Problem {
  static constexpr std::int64_t B = 2, T = 6, H = 2;
  std::int64_t S, D;
  DType dtype;
  MaskKind mask_kind;
  Kind kind;
  Tensor q, k, v, bias, g;  ///< on the CPU
  Doubles y, dq, dk, dv, dbias;
  double scale;

  Problem(std::int64_t keys, std::int64_t width, DType dtype_, MaskKind mask, Kind kind_)
      : S(keys), D(width), dtype(dtype_), mask_kind(mask), kind(kind_), scale(1 / std::sqrt(double(width))) {
    manual_seed(3);
    const auto made = [&](const Shape& shape) { return cast(randn(shape, DType::f64) * 0.5, dtype); };
    q = made({B, T, H, D}), k = made({B, S, H, D}), v = made({B, S, H, D}), g = made({B, T, H, D});
    if (kind == Kind::large) {
      // Scores from -1e30 on, or from -4e4 to -5e4 in f16, so far apart that 16 bits tell them from each other.
      const double size = dtype == DType::f16 ? 160 : 1e15;
      q = full({B, T, H, D}, size / std::sqrt(double(D)), dtype);
      Doubles steps;
      for (std::int64_t s = 0; s < S; ++s)
        steps.push_back(-1.5 * size * (dtype == DType::f16 ? 1 + 0.3 * double(s) / double(S) : std::pow(1.03, double(s))));
      k = cast(broadcast_to(Tensor::from(steps, {1, S, 1, 1}), {B, S, H, D}), dtype);
    } else if (kind != Kind::plain) {
      // In f16 the lowest number is not much larger than a score: q k^T is 0 there.
      if (dtype == DType::f16 && kind != Kind::hidden) q = zeros(q.shape(), dtype);
      Tensor values = randn({B, H, T, S}, DType::f64) * 0.5;
      const auto set_row = [&](std::int64_t t, double number) { fill_(select(values, 2, t), number); };
      const double lowest = lowest_of(dtype);
      if (kind == Kind::hidden) {
        set_row(1, -infinity);
        set_row(T - 1, -infinity);
        fill_(select(select(values, 2, 2), -1, 0), -infinity);
      } else if (kind == Kind::lowest) {
        set_row(1, lowest);
        set_row(T - 1, lowest);
      } else {
        set_row(0, -infinity);
        set_row(3, lowest);
        fill_(slice(select(values, 2, 3), -1, 0, S, 2), -infinity);  // every second key
        set_row(4, lowest);
        fill_(select(select(values, 2, 4), -1, 0), 0);
        set_row(T - 1, lowest);
        fill_(select(select(values, 2, T - 1), -1, S - 1), -infinity);
      }
      bias = cast(values, dtype);
    }
    solve();
  }

  /// Largest length of a mask's batch row.
  std::int64_t length(std::int64_t b) const { return b == 0 ? S - 2 : 0; }
  bool is_visible(std::int64_t b, std::int64_t t, std::int64_t s) const {
    const std::int64_t own = t + S - T;
    switch (mask_kind) {
      case MaskKind::none: return true;
      case MaskKind::causal:
      case MaskKind::packed: return s <= own;
      case MaskKind::window: return s <= own && s > own - 3;
      case MaskKind::lengths: return s < length(b);
      case MaskKind::prefix: return s <= own || s < 2 * b;
      default: return s % 3 != 0 && b == 0;
    }
  }
  AttentionParams params(Device device) const {
    AttentionParams result;
    AttentionMask& mask = result.mask;
    mask.causal = mask_kind != MaskKind::none && mask_kind != MaskKind::lengths && mask_kind != MaskKind::padding;
    if (mask_kind == MaskKind::window) mask.window = 3;
    if (mask_kind == MaskKind::lengths) mask.key_lengths = Tensor::from(std::vector<std::int64_t>{length(0), length(1)}, {2}, device);
    if (mask_kind == MaskKind::prefix) mask.prefix = Tensor::from(std::vector<std::int64_t>{0, 2}, {2}, device);
    if (mask_kind == MaskKind::padding) {
      const Tensor third = eq(remainder(arange(S, DType::i64, device), 3), 0);
      mask.padding = stack({third, full({S}, 1, DType::boolean, device)}, 0);
    }
    if (mask_kind == MaskKind::packed) {
      result.query_starts = Tensor::from(std::vector<std::int64_t>{0, T, 2 * T}, {3}, device);
      result.key_starts = Tensor::from(std::vector<std::int64_t>{0, S, 2 * S}, {3}, device);
      result.max_queries = T, result.max_keys = S;
    }
    return result;
  }

  void solve() {
    const auto list = [](const Tensor& x) { return x.defined() ? cast(x, DType::f64).to_vector<double>() : Doubles(); };
    const Doubles qs = list(q), ks = list(k), vs = list(v), gs = list(g), biases = list(bias);
    y.assign(qs.size(), 0), dq.assign(qs.size(), 0), dk.assign(ks.size(), 0), dv.assign(vs.size(), 0), dbias.assign(biases.size(), 0);
    const auto n = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    for (std::int64_t b = 0; b < B; ++b)
      for (std::int64_t h = 0; h < H; ++h)
        for (std::int64_t t = 0; t < T; ++t) {
          const auto query = [&](std::int64_t d) { return n(((b * T + t) * H + h) * D + d); };
          const auto key = [&](std::int64_t s, std::int64_t d) { return n(((b * S + s) * H + h) * D + d); };
          Doubles p(n(S), -infinity), dp(n(S), 0);
          for (std::int64_t s = 0; s < S; ++s) {
            double score = 0;
            for (std::int64_t d = 0; d < D; ++d) {
              score += qs[query(d)] * ks[key(s, d)];
              dp[n(s)] += gs[query(d)] * vs[key(s, d)];
            }
            score *= scale;
            if (!biases.empty()) score += biases[n(((b * H + h) * T + t) * S + s)];
            if (is_visible(b, t, s)) p[n(s)] = score;
          }
          const double top = *std::max_element(p.begin(), p.end());
          double total = 0, delta = 0;
          for (double& x : p) total += x = x == -infinity ? 0 : std::exp(x - top);
          for (double& x : p) x = total > 0 ? x / total : 0;
          for (std::int64_t s = 0; s < S; ++s) delta += p[n(s)] * dp[n(s)];
          for (std::int64_t s = 0; s < S; ++s) {
            const double ds = p[n(s)] * (dp[n(s)] - delta);
            if (!biases.empty()) dbias[n(((b * H + h) * T + t) * S + s)] = ds;
            for (std::int64_t d = 0; d < D; ++d) {
              y[query(d)] += p[n(s)] * vs[key(s, d)];
              dq[query(d)] += scale * ds * ks[key(s, d)];
              dk[key(s, d)] += scale * ds * qs[query(d)];
              dv[key(s, d)] += p[n(s)] * gs[query(d)];
            }
          }
        }
  }
};

/// got is near want: 16-bit scores and probabilities are rounded a few times on the way.
void check_near(const char* what, const Tensor& got_, const Doubles& want, DType dtype, double roundings) {
  const Doubles got = to(cast(got_, DType::f64), cpu).to_vector<double>();
  REQUIRE(got.size() == want.size());
  double size = 1, most = 0;
  for (const double x : want) size = std::max(size, std::abs(x));
  for (std::size_t i = 0; i < got.size(); ++i) most = std::max(most, std::isnan(got[i]) ? infinity : std::abs(got[i] - want[i]));
  INFO(what);
  CHECK(most <= roundings * epsilon_of(dtype) * size);
}

using Way = std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params)>;

void check_way(const Problem& p, Device device, const Way& attend, bool with_gradients, double more = 1) {
  Tensors leaves;
  for (const Tensor& x : {p.q, p.k, p.v, p.bias})
    if (x.defined()) leaves.push_back(to(x, device).set_requires_grad());
  const bool is_packed = p.mask_kind == MaskKind::packed;
  const auto rows = [&](const Tensor& x) { return is_packed ? reshape(x, {x.size(0) * x.size(1), x.size(2), x.size(3)}) : x; };
  AttentionParams params = p.params(device);
  if (p.bias.defined()) params.bias = leaves[3];
  const auto result = [&] { return reshape(attend(rows(leaves[0]), rows(leaves[1]), rows(leaves[2]), params), p.q.shape()); };
  if (!with_gradients) {
    const NoGrad unrecorded;
    return check_near("y", result(), p.y, p.dtype, 8 * more);
  }
  const Tensor y = result();
  check_near("y", y, p.y, p.dtype, 8 * more);
  const Tensors gradients = grad({y}, leaves, {to(p.g, device)}, false, true);
  // The sums of products of q and k with a gradient that is 0 but for roundings are as inexact as q and k are large.
  if (p.kind != Kind::large) {
    check_near("dq", gradients[0], p.dq, p.dtype, 24 * more);
    check_near("dk", gradients[1], p.dk, p.dtype, 24 * more);
  }
  check_near("dv", gradients[2], p.dv, p.dtype, 24 * more);
  if (p.bias.defined()) check_near("dbias", gradients[3], p.dbias, p.dtype, 24 * more);
  if (p.kind == Kind::large) return;
  // Both orders: the gradient that is differentiated again is the same one, and its own gradient has no NaN.
  const Tensors again = grad({y}, leaves, {to(p.g, device)}, true);
  check_near("dv, recorded", again[2], p.dv, p.dtype, 24 * more);
  Tensor weight;
  for (const Tensor& x : again) weight = weight.defined() ? weight + sum(cast(x, DType::f64) * 0.5) : sum(cast(x, DType::f64) * 0.5);
  for (const Tensor& x : grad({weight}, leaves)) CHECK(all(isfinite(x)).item<bool>());
}

constexpr MaskKind masks[] = {MaskKind::none,   MaskKind::causal,  MaskKind::window, MaskKind::lengths,
                              MaskKind::prefix, MaskKind::padding, MaskKind::packed};
constexpr Kind kinds[] = {Kind::plain, Kind::hidden, Kind::lowest, Kind::mixed, Kind::large};

/// Attention of the composition's own parts: products and the masked softmax.
Tensor by_softmax(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
  Tensor scores = matmul(transpose(q, 1, 2), transpose(transpose(k, 1, 2), -1, -2), 1 / std::sqrt(double(q.size(-1))));
  if (params.bias.defined()) scores = scores + params.bias;
  return transpose(matmul(attention_softmax(scores, params.mask), transpose(v, 1, 2)), 1, 2);
}

void check_all(Device device, std::int64_t width, const std::vector<std::int64_t>& lengths, const std::vector<DType>& dtypes,
               double more = 1) {
  for (const DType dtype : dtypes)
    for (const std::int64_t keys : lengths)
      for (const MaskKind mask : masks)
        for (const Kind kind : kinds) {
          const Problem p(keys, width, dtype, mask, kind);
          INFO(name(dtype) << ", keys " << keys << ", width " << width << ", mask " << int(mask) << ", kind " << int(kind));
          // Scores beyond 2^30 give no gradient in a GPU's kernels; those of f16 reach them nowhere.
          const bool has_gradients = device == cpu || kind != Kind::large || dtype == DType::f16;
          check_way(p, device, test::plain(scaled_dot_product_attention), true, more);
          check_way(p, device, scaled_dot_product_attention, has_gradients, more);
          check_way(p, device, scaled_dot_product_attention, false, more);
          if (mask == MaskKind::packed) continue;
          check_way(p, device, test::plain(by_softmax), true, more);
          check_way(p, device, by_softmax, true, more);
          if (mask == MaskKind::prefix) continue;
          check_way(
              p, device,
              [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
                const detail::AttentionSizes sizes{p.B, p.T, p.S, p.H, p.H, p.D};
                return detail::attention_in_chunks(sizes, q, k, v, params, 1);
              },
              true, more);
          // One query at a time, as in decoding: the last of the keys that it may see.
          if (mask == MaskKind::none || mask == MaskKind::lengths || mask == MaskKind::padding)
            check_way(
                p, device,
                [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
                  Tensors rows;
                  for (std::int64_t t = 0; t < p.T; ++t) {
                    AttentionParams one = params;
                    if (one.bias.defined()) one.bias = slice(one.bias, 2, t, t + 1);
                    rows.push_back(scaled_dot_product_attention(slice(q, 1, t, t + 1), k, v, one));
                  }
                  return cat(rows, 1);
                },
                false, more);
        }
}

}  // namespace

TEST_CASE("Rows of scores at their limits are right in every way to compute attention") {
  check_all(cpu, 8, {6, 9}, {DType::f64, DType::f32, DType::f16, DType::bf16});
  check_all(cpu, 40, {130}, {DType::f32, DType::bf16});  // more than a tile of keys
}

TEST_CASE("A bias of the lowest number shows keys, also where f16 cannot hold the sum") {
  for (const double k : {2.5, -2.5, -0.25})
    for (const bool fused : {false, true}) {
      const FusedKernels kernels(fused);
      const Tensor q = full({1, 1, 1, 16}, 2, DType::f16), keys = full({1, 2, 1, 16}, k, DType::f16), v = ones({1, 2, 1, 16}, DType::f16);
      AttentionParams params;
      params.bias = full({1, 1, 1, 2}, lowest_of(DType::f16), DType::f16);
      for (const double y : cast(scaled_dot_product_attention(q, keys, v, params), DType::f64).to_vector<double>()) CHECK(y == 1);
      fill_(params.bias, -infinity);
      for (const double y : cast(scaled_dot_product_attention(q, keys, v, params), DType::f64).to_vector<double>()) CHECK(y == 0);
    }
}

/// Rows of scores: a NaN that is seen, and one that is not; -inf alone, and beside numbers; +inf; NaN alone; scores of any size.
static void check_special_scores(Device device) {
  const DeviceScope scope(device);
  const double nan = std::nan("");
  for (const bool fused : {false, true})
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const std::int64_t keys : {4, 7, 33, 1500, 3001}) {
        INFO(name(dtype) << " " << keys << " keys, fused " << fused);
        const FusedKernels kernels(fused);
        const double big = dtype == DType::f16 ? 6e4 : 1e9;
        const Tensor scores = cast(randn({8, 1, keys}), dtype);
        const auto at = [&](std::int64_t row, std::int64_t key) { return select(select(select(scores, 0, row), 0, 0), 0, key); };
        const std::int64_t lone = keys - 1, hidden = 2;
        fill_(at(0, keys - 1), nan);
        fill_(at(1, hidden), nan);
        fill_(select(scores, 0, 2), -infinity);
        fill_(at(3, lone), -infinity);
        fill_(at(4, lone), infinity);
        fill_(select(scores, 0, 5), nan);
        fill_(select(scores, 0, 6), lowest_of(dtype));
        fill_(select(scores, 0, 7), -big);
        fill_(at(7, lone), big);
        const Tensor padding = zeros({8, keys}, dtype == DType::f64 ? dtype : DType::f32);
        fill_(select(padding, 1, hidden), -1e30);
        const Doubles p = cast(attention_softmax(scores, {.padding = padding}), DType::f64).to_vector<double>();
        const auto row = [&](std::int64_t r) { return std::span(p).subspan(std::size_t(r * keys), std::size_t(keys)); };
        const auto other = [&](std::int64_t i) { return i != hidden; };
        for (std::int64_t i = 0; i < keys; ++i) {
          const auto k = std::size_t(i);
          for (const std::int64_t r : {0, 4, 5}) CHECK(std::isnan(row(r)[k]) == other(i));
          for (const std::int64_t r : {1, 3, 6, 7}) CHECK(std::isfinite(row(r)[k]));
          CHECK(row(2)[k] == 0);
          if (other(i)) CHECK(row(6)[k] == Approx(1.0 / double(keys - 1)).epsilon(1e-2));
          CHECK(row(7)[k] == (i == lone));
          if (!other(i))
            for (std::int64_t r = 0; r < 8; ++r) CHECK(row(r)[k] == 0);
        }
        for (const std::int64_t r : {1, 3}) CHECK(std::accumulate(row(r).begin(), row(r).end(), 0.0) == Approx(1).margin(0.01));
        CHECK(row(3)[std::size_t(lone)] == 0);
      }
}
TEST_CASE("Rows of scores with NaN, infinities and numbers of any size are those of their visible keys") { check_special_scores(cpu); }
TEST_CASE("Rows of scores with NaN, infinities and numbers of any size are those of their visible keys, on a GPU", "[cuda]") {
  check_special_scores(cuda());
}

TEST_CASE("Rows of scores at their limits are right in every way to compute attention, on a GPU", "[cuda]") {
  const std::vector<DType> halves = {DType::f16, DType::bf16};
  check_all(cuda(), 8, {6, 9}, {DType::f64, DType::f32, DType::f16, DType::bf16});
  check_all(cuda(), 32, {6}, {DType::f32});    // single tile
  check_all(cuda(), 64, {6, 9, 200}, halves);  // Hopper and mma
  check_all(cuda(), 128, {130}, halves);
  for (const auto& [precision, more] : {std::pair(MatmulPrecision::tf32x3, 4.0), std::pair(MatmulPrecision::tf32, 0x1p13)}) {
    const MatmulPrecisionMode mode(precision);
    check_all(cuda(), 64, {6, 9, 200}, {DType::f32}, more);  // single tile, and Hopper's float32
  }
}

}  // namespace tern
