#include <algorithm>
#include <deque>
#include <limits>
#include <map>

#include "autodiff/engine.h"
#include "compile/match.h"
#include "compile/rewrite.h"
#include "ops/attention.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/pointwise.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::compiler {

namespace {

/// The members of an AttentionMask that are set.
struct MaskOfOp {
  bool causal = false, window = false, padding = false, prefix = false, key_lengths = false;
  bool operator==(const MaskOfOp&) const = default;
};

/// How attention is written in ops: by a user, or by scaled_dot_product_attention() itself under plain kernels.
struct Spelling {
  enum class Scale : std::uint8_t { none, times, divided } scale = Scale::none;
  enum class Mask : std::uint8_t { none, added, visible, hidden } mask = Mask::none;
  std::optional<MaskOfOp> op = {};  ///< its mask, with which it makes all the rest
  int dims = 4;                     ///< of products: 3 without heads, 5 where several heads of q share one of k and v
  bool is_cast = false;             ///< scores are f32 between products of 16 bits
  bool is_softmax = false, has_dropout = false, has_gradient = false;
  bool operator==(const Spelling&) const = default;
};

// Sizes and numbers of the patterns: Note [Patterns].
constexpr std::int64_t batch = 2, heads = 3, group = 17, queries = 5, keys = 23, head_dim = 11, window = 13;
constexpr double scale = 0.37109375, p = 0.28125, past = keys - queries;

constexpr double infinity = std::numeric_limits<double>::infinity();

enum Argument : std::size_t { q_in, k_in, v_in, mask_in, g_in, padding_in, prefix_in, key_lengths_in };
enum Result : std::size_t { y_out, dq_out, dk_out, dv_out };

/// The op of q (B, H, T, D) or (B, H, G, T, D), k and v (B, H, S, D), and the pattern's arguments.
Tensor op_itself(const Spelling& s, const Tensor& q, const Tensor& k, const Tensor& v, const Tensors& in) {
  std::optional<Autocast> autocast;
  if (s.is_cast) autocast.emplace(q.dtype());
  AttentionParams params{.scale = scale, .dropout = s.has_dropout ? p : 0, .training = true};
  params.mask.causal = s.op->causal;
  if (s.op->window) params.mask.window = window;
  if (s.op->padding) params.mask.padding = in[padding_in];
  if (s.op->prefix) params.mask.prefix = in[prefix_in];
  if (s.op->key_lengths) params.mask.key_lengths = in[key_lengths_in];
  const Tensor rows = s.dims == 5 ? reshape(permute(q, {0, 3, 1, 2, 4}), {batch, queries, heads * group, head_dim}) : transpose(q, 1, 2);
  return transpose(scaled_dot_product_attention(rows, transpose(k, 1, 2), transpose(v, 1, 2), params), 1, 2);
}

/// Attention of q (B, H, T, D), k and v (B, H, S, D) with a mask that broadcasts to (B, H, T, S), as it is spelled; any may be without H,
/// and q (B, H, G, T, D).
Tensor written(const Spelling& s, const Tensor& q, const Tensor& k_, const Tensor& v_, const Tensors& in) {
  if (s.op) return op_itself(s, q, k_, v_, in);
  const Tensor k = s.dims == 5 ? unsqueeze(k_, 2) : k_, v = s.dims == 5 ? unsqueeze(v_, 2) : v_;
  const Tensor& mask = in[mask_in];
  Tensor x = matmul(q, transpose(k, -2, -1));
  if (s.is_cast) x = cast(x, DType::f32);
  if (s.scale == Spelling::Scale::times) x = x * scale;
  if (s.scale == Spelling::Scale::divided) x = x / scale;
  if (s.mask == Spelling::Mask::added) x = x + mask;
  if (s.mask == Spelling::Mask::visible) x = where(mask, x, -infinity);
  if (s.mask == Spelling::Mask::hidden) x = masked_fill(x, mask, -infinity);
  if (s.is_softmax) {
    x = softmax(x, -1);
  } else {
    const Tensor e = exp(x - max(x, -1, true));
    x = e / sum(e, -1, true);
  }
  if (s.is_cast) x = cast(x, q.dtype());
  if (s.has_dropout) x = dropout(x, p);
  return matmul(x, v);
}

Pattern pattern_of(const Spelling& s, DType dtype, Device device) {
  const ScopedValue<bool> with_gradients(context().grad, true);
  const auto f = [&](const Tensors& in) -> Tensors {
    Tensors heads_of;
    for (const Argument i : {q_in, k_in, v_in}) heads_of.push_back(in[i].detach().set_requires_grad());
    const Tensor y = written(s, heads_of[0], heads_of[1], heads_of[2], in);
    if (!s.has_gradient) return {y};
    const Tensors gradients = grad({y}, heads_of, {in[g_in]});
    return {y, gradients[0], gradients[1], gradients[2]};
  };
  const auto of = [&](Shape shape, DType type) {
    if (s.dims == 3) shape.erase(1);
    return zeros(shape, type, device);
  };
  const bool is_grouped = s.dims == 5;
  const Shape q = is_grouped ? Shape{batch, heads, group, queries, head_dim} : Shape{batch, heads, queries, head_dim};
  const Shape g = is_grouped && s.op ? Shape{batch, heads * group, queries, head_dim} : q, k{batch, heads, keys, head_dim};
  const Shape scores = is_grouped ? Shape{batch, heads, 1, queries, keys} : Shape{batch, heads, queries, keys};
  const DType mask = s.mask == Spelling::Mask::added ? s.is_cast ? DType::f32 : dtype : DType::boolean;
  const Tensor padding = zeros({batch, keys}, dtype == DType::f64 ? dtype : DType::f32, device);
  const Tensor numbers = zeros({batch}, DType::i64, device);
  return Pattern(f, {of(q, dtype), of(k, dtype), of(k, dtype), of(scores, mask), of(g, dtype), padding, numbers, clone(numbers)},
                 {scale, p, past, window});
}

class AttentionRule {
 public:
  AttentionRule(std::vector<Call>& calls, std::vector<Block>& blocks, Device device)
      : calls_(calls), blocks_(blocks), device_(device), uses_(uses_of(calls, blocks.size())), taken_(calls.size(), false) {}

  std::vector<Ref<Storage>> run() {
    for (std::size_t i = 0; i < calls_.size(); ++i)
      if (!taken_[i]) begins_at(i);
    if (new_calls_.empty()) return {};
    std::vector<Call> kept;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (const auto found = new_calls_.find(i); found != new_calls_.end())
        std::move(found->second.begin(), found->second.end(), std::back_inserter(kept));
      if (!taken_[i]) kept.push_back(std::move(calls_[i]));
    }
    calls_ = std::move(kept);
    return std::move(read_);
  }

 private:
  /// Attention whose first call is this one, if it is.
  void begins_at(std::size_t first) {
    const auto* const product = calls_[first].kernel->as<kernels::Matmul>();
    if (!product || product->c.dims() < 3 || product->c.dims() > 5 || !is_floating(product->c.dtype) || product->write != Write::overwrite)
      return;
    std::optional<Spelling> spelling = spelling_of(first);
    if (!spelling) return;
    spelling->dims = product->c.dims();
    if (spelling->dims == 3) spelling->op.reset();  // it has heads
    const ScopedValue<Context::Kernels> ways(context().kernels, calls_[first].ways);
    const auto is_found = [&] {
      const Pattern& pattern = pattern_for(*spelling, product->c.dtype, calls_[first].ways);
      const auto match = pattern.match(calls_, uses_, first);
      return match && replaces(*spelling, pattern, *match);
    };
    const bool may_cast = size_of(product->c.dtype) == 2, may_be_op = spelling->dims > 3 && spelling->mask == Spelling::Mask::none;
    for (int bits = may_cast ? 16 : 8; bits-- > 0;) {
      spelling->is_softmax = bits & 1, spelling->has_dropout = bits & 2, spelling->has_gradient = bits & 4, spelling->is_cast = bits & 8;
      if (spelling->op && !spelling->is_softmax) continue;
      if (is_found()) return;
      if (!may_be_op || !spelling->is_softmax) continue;
      spelling->op.emplace();
      if (is_found()) return;
      spelling->op.reset();
    }
  }

  const Pattern& pattern_for(const Spelling& s, DType dtype, const Context::Kernels& ways) {
    for (const Known& known : patterns_)
      if (known.spelling == s && known.dtype == dtype && known.ways.fused == ways.fused &&
          known.ways.matmul_precision == ways.matmul_precision)
        return known.pattern;
    return patterns_.push_back({s, dtype, ways, pattern_of(s, dtype, device_)}), patterns_.back().pattern;
  }

  /// The spelling that a chain of calls from a product to a maximum of rows has, if it may be attention.
  std::optional<Spelling> spelling_of(std::size_t first) const {
    Spelling result;
    std::size_t at = first;
    for (int length = 0; length < 5; ++length) {
      const std::size_t block = written_by(at);
      const auto next = block == Call::Place::none ? uses_[0].end() : std::upper_bound(uses_[block].begin(), uses_[block].end(), at);
      if (block == Call::Place::none || next == uses_[block].end()) return std::nullopt;
      at = *next;
      const KernelCall& kernel = *calls_[at].kernel;
      if (const auto* const copy = kernel.as<kernels::Copy>()) {
        if (copy->y.dtype != DType::f32) return std::nullopt;
      } else if (const auto* const binary = kernel.as<kernels::Binary>()) {
        if (binary->a.view.data && binary->b.view.data) result.mask = Spelling::Mask::added;
        else result.scale = is_division(binary->f) ? Spelling::Scale::divided : Spelling::Scale::times;
      } else if (const auto* const choice = kernel.as<kernels::Where>()) {
        result.mask = choice->a.view.data ? Spelling::Mask::visible : Spelling::Mask::hidden;
        if (MaskOfOp mask; is_of_op(calls_[at].places[0].block, mask)) result.op = mask;
      } else {
        return kernel.as<kernels::Reduce>() ? std::optional(result) : std::nullopt;
      }
    }
    return std::nullopt;
  }
  /// Notes in `mask` what hides the keys of a block, if the op did.
  bool is_of_op(std::size_t block, MaskOfOp& mask) const {
    if (block == Call::Place::none || blocks_[block].kind != Block::Kind::inner) return false;
    const Call& writer = calls_[uses_[block].front()];
    if (writer.kernel->as<kernels::Where>()) return is_of_op(writer.places[0].block, mask) && is_of_op(writer.places[2].block, mask);
    const auto* const comparison = writer.kernel->as<kernels::Compare>();
    if (!comparison) return false;
    const bool is_of_padding = is_floating(comparison->a.view.dtype);
    if (std::holds_alternative<functors::Gt>(comparison->f)) {
      const std::size_t own = writer.places[1].block;
      const auto* const last = own == Call::Place::none ? nullptr : calls_[uses_[own].front()].kernel->as<kernels::Binary>();
      mask.causal = true, mask.prefix = last && std::holds_alternative<functors::Maximum>(last->f);
    } else if (std::holds_alternative<functors::Le>(comparison->f)) {
      (is_of_padding ? mask.padding : mask.window) = true;
    } else if (std::holds_alternative<functors::Ge>(comparison->f)) {
      mask.key_lengths = true;
    } else {
      return false;
    }
    return true;
  }
  static bool is_division(const kernels::BinaryFunction& f) { return std::holds_alternative<functors::Div>(f); }
  std::size_t written_by(std::size_t index) const {
    std::size_t result = Call::Place::none;
    each_view(calls_[index], [&](const View&, kernels::Access access, const Call::Place& place) {
      if (access != kernels::Access::read) result = place.block;
    });
    return result;
  }

  /// Puts flash attention in the place of a match, if nobody else needs what it does not make.
  bool replaces(const Spelling& s, const Pattern& pattern, const Match& match) {
    const Shape rows = s.dims == 5 ? Shape{batch, queries, heads, group, head_dim} : Shape{batch, queries, heads, head_dim};
    const Shape columns{batch, keys, heads, head_dim};
    const auto of_block = [&](std::size_t block, const Shape& sizes) { return with_head_dim(match.part(block, sizes), 2); };
    const auto argument = [&](Argument i, const Shape& sizes) { return of_block(pattern.argument(i), sizes); };
    const Match::Part q = argument(q_in, rows), k = argument(k_in, columns), v = argument(v_in, columns);
    const Match::Part y = of_block(pattern.result(y_out), rows);
    const Match::Part dq = s.has_gradient ? of_block(pattern.result(dq_out), rows) : y;
    if (y.view.dims() != 4 || dq.view.dims() != 4) return false;
    kernels::Attention attention{.mask = {}, .bias = {}, .query_starts = {}, .key_starts = {}};
    Match::Part bias;
    std::vector<Call::Place> masks(3);
    if (s.op) {
      if (!takes_mask_of_op(*s.op, pattern, match, attention.mask, masks)) return false;
    } else if (s.mask != Spelling::Mask::none) {
      Match::Part mask = with_head_dim(match.part(pattern.argument(mask_in), {batch, heads, queries, keys}), 1);
      if (s.dims == 5) {  // the same for all heads
        const View of_group = match.part(pattern.argument(mask_in), {group}).view;
        if ((mask.view.shape[1] > 1 && mask.view.strides[1] != 0) || (of_group.shape[0] > 1 && of_group.strides[0] != 0)) return false;
        mask.view.shape[1] *= of_group.shape[0], mask.view.strides[1] = 0;
      }
      attention.mask.causal = shows_past(s.mask, mask);
      if (!attention.mask.causal) {
        if (s.mask != Spelling::Mask::added || mask.view.dtype != q.view.dtype) return false;
        attention.bias = (bias = mask).view;
      }
    }
    if (s.scale != Spelling::Scale::none || s.op) attention.scale = match.numbers.at(scale);
    if (s.scale == Spelling::Scale::divided) attention.scale = 1 / attention.scale;
    if (s.has_dropout) attention.dropout = match.numbers.at(p), attention.draws = match.draws;
    if (with_backend(device_, [&](auto dev) { return kernels::attention_way(dev, q.view, k.view, v.view, attention, s.has_gradient); }) !=
        kernels::AttentionWay::flash)
      return false;
    if (!has_rows(q) || !has_rows(k) || !has_rows(v) || (s.has_gradient && !has_rows(argument(g_in, rows)))) return false;
    const std::size_t last_forward = pattern.writer(pattern.result(y_out));
    const std::size_t backward =
        s.has_gradient ? *std::min_element(match.calls.begin() + static_cast<std::ptrdiff_t>(last_forward) + 1, match.calls.end())
                       : calls_.size();
    if (!is_alone(pattern, match)) return false;

    const std::size_t forward = match.calls[last_forward];
    Shape sums{q.view.shape[0], q.view.shape[2], q.view.shape[1]};
    if (bias.view.data) sums.insert(0, 2);
    const Match::Part log_sums = new_part(q.view, sums, q.view.dtype == DType::f64 ? DType::f64 : DType::f32);
    const auto add = [&](std::size_t at, auto kernel, std::vector<Call::Place> places, const char* op) {
      const Call& in = calls_[at];
      new_calls_[at].push_back(
          {std::make_unique<detail::KernelCallOf<decltype(kernel)>>(kernel), std::move(places), op, in.module, in.ways});
    };
    // Kernels take rows whose elements are side by side: others are written beside, and copied.
    const auto add_copies = [&](std::size_t at, const std::vector<std::pair<Match::Part, Match::Part>>& all) {
      for (const auto& [own, asked] : all)
        if (own.place.block != asked.place.block) add(at, kernels::Copy{own.view, asked.view}, {own.place, asked.place}, "copy");
    };
    const auto with_rows = [&](const Match::Part& part) {
      return part.view.strides[3] == 1 ? part : new_part(part.view, part.view.shape, part.view.dtype);
    };
    const std::vector<Call::Place> starts(2);
    const auto places = [&](std::initializer_list<Call::Place> before, std::initializer_list<Call::Place> after) {
      std::vector<Call::Place> result = before;
      result.insert(result.end(), masks.begin(), masks.end());
      result.push_back(bias.place);
      result.insert(result.end(), starts.begin(), starts.end());
      result.insert(result.end(), after);
      return result;
    };
    const Match::Part own_y = with_rows(y);
    add(forward, kernels::FlashAttention{q.view, k.view, v.view, attention, own_y.view, log_sums.view},
        places({q.place, k.place, v.place}, {own_y.place, log_sums.place}), "attention");
    add_copies(forward, {{own_y, y}});
    if (s.has_gradient) {
      const Match::Part g = argument(g_in, rows);
      const Match::Part dk = of_block(pattern.result(dk_out), columns), dv = of_block(pattern.result(dv_out), columns);
      const Match::Part own_dq = with_rows(dq), own_dk = with_rows(dk), own_dv = with_rows(dv);
      add(backward,
          kernels::FlashAttentionGrad{
              q.view, k.view, v.view, own_y.view, log_sums.view, g.view, attention, {own_dq.view, own_dk.view, own_dv.view, View{}}},
          places({q.place, k.place, v.place, own_y.place, log_sums.place, g.place}, {own_dq.place, own_dk.place, own_dv.place, {}}),
          "attention");
      add_copies(backward, {{own_dq, dq}, {own_dk, dk}, {own_dv, dv}});
    }
    for (const std::size_t call : match.calls) taken_[call] = true;
    return true;
  }

  /// Makes the op's mask the kernels', with the places of its three operands; false if they do not take it.
  static bool takes_mask_of_op(const MaskOfOp& op, const Pattern& pattern, const Match& match, kernels::AttentionMask& mask,
                               std::vector<Call::Place>& places) {
    mask.causal = op.causal;
    if (op.causal && match.numbers.at(past) != static_cast<double>(match.sizes.at(keys) - match.sizes.at(queries))) return false;
    if (op.window) mask.window = static_cast<std::int64_t>(match.numbers.at(window));
    struct Operand {
      bool is_there;
      Argument argument;
      Shape sizes;
      kernels::In& view;
    };
    const Operand operands[] = {{op.padding, padding_in, {batch, keys}, mask.padding},
                                {op.prefix, prefix_in, {batch}, mask.prefix},
                                {op.key_lengths, key_lengths_in, {batch}, mask.key_lengths}};
    for (std::size_t i = 0; i < std::size(operands); ++i) {
      if (!operands[i].is_there) continue;
      const Match::Part part = match.part(pattern.argument(operands[i].argument), operands[i].sizes);
      if (!part.view.is_contiguous()) return false;
      operands[i].view = part.view;
      places[i] = part.place;
    }
    return true;
  }

  /// (B, T, H, G, D) as (B, T, H G, D), if that is a view; three dimensions with one of one head at `dim`.
  static Match::Part with_head_dim(Match::Part part, int dim) {
    Shape& shape = part.view.shape;
    Strides& strides = part.view.strides;
    if (shape.size() == 3) {
      strides.insert(dim, shape[2]);
      shape.insert(dim, 1);
    } else if (shape.size() == 5 && (shape[2] == 1 || shape[3] == 1 || strides[2] == strides[3] * shape[3])) {
      if (shape[3] > 1) strides[2] = strides[3];
      shape[2] *= shape[3];
      shape.erase(3), strides.erase(3);
    }
    return part;
  }

  /// True if kernels take an operand: rows of vectors of 16 bytes.
  static bool has_rows(const Match::Part& part) {
    const auto size = static_cast<std::int64_t>(size_of(part.view.dtype));
    if (part.view.dims() != 4) return false;
    bool fits = part.view.strides[3] == 1 && part.place.offset % 16 == 0;
    for (int d = 0; d < 3; ++d)
      fits = fits && (part.view.shape[d] == 1 || (part.view.strides[d] > 0 && part.view.strides[d] * size % 16 == 0));
    return fits;
  }

  /// Memory for a result that the program does not have.
  Match::Part new_part(const View& like, const Shape& shape, DType dtype) {
    View view = like;
    view.shape = shape;
    view.strides = contiguous_strides(shape);
    view.dtype = dtype;
    view.data = reinterpret_cast<void*>(std::uintptr_t{256});  // that of an arena's first block: some address
    blocks_.push_back({.bytes = static_cast<std::size_t>(numel(shape)) * size_of(dtype)});
    return {view, {blocks_.size() - 1, 0}};
  }

  bool shows_past(Spelling::Mask kind, const Match::Part& mask) {
    const Looked now{kind, mask.place.block, mask.place.offset, mask.view.shape, mask.view.strides};
    for (const auto& [looked, result] : looked_)
      if (looked == now) return result;
    return looked_.emplace_back(now, is_causal(kind, mask)).second;
  }
  /// True if the mask is one of T queries and S keys, the same for all heads, that shows each query the keys up to its own, now and until
  /// somebody edits it.
  bool is_causal(Spelling::Mask kind, const Match::Part& mask) {
    constexpr std::size_t most = std::size_t{64} << 20;
    const Block& block = blocks_[mask.place.block];
    const View& view = mask.view;
    if (block.kind != Block::Kind::outside || block.bytes > most || (view.shape[0] > 1 && view.strides[0] != 0) ||
        (view.shape[1] > 1 && view.strides[1] != 0) || view.shape[2] > view.shape[3])
      return false;
    if (std::ranges::any_of(uses_[mask.place.block], [&](std::size_t call) { return writes(calls_[call], mask.place.block); }))
      return false;
    const NoGrad unrecorded;
    View there = view;
    there.data = static_cast<std::byte*>(block.memory->data()) + mask.place.offset;
    there.shape[0] = there.shape[1] = 1;
    const Tensor values = empty(there.shape, kind == Spelling::Mask::added ? DType::f32 : DType::boolean, device_);
    launch(device_, kernels::Copy{there, values});
    const std::int64_t after = view.shape[3] - view.shape[2];
    const auto is = [&](const auto& all, auto shown, auto hidden) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        if (all[i] != (at % view.shape[3] <= at / view.shape[3] + after ? shown : hidden)) return false;
      }
      return true;
    };
    const bool result = kind == Spelling::Mask::added
                            ? is(values.to_vector<float>(), 0.F, -std::numeric_limits<float>::infinity())
                            : is(cast(values, DType::u8).to_vector<std::uint8_t>(), std::uint8_t(kind == Spelling::Mask::visible),
                                 std::uint8_t(kind == Spelling::Mask::hidden));
    if (result) read_.push_back(block.memory);
    return result;
  }

  /// True if only the match uses what is inside of it, and nobody else writes what it reads, or uses what it writes, between its calls.
  bool is_alone(const Pattern& pattern, const Match& match) const {
    const auto is_own = [&](std::size_t call) { return std::ranges::find(match.calls, call) != match.calls.end(); };
    if (std::ranges::any_of(match.calls, [&](std::size_t call) { return taken_[call]; })) return false;
    const std::size_t last = std::ranges::max(match.calls);
    for (std::size_t b = 0; b < match.bindings.size(); ++b) {
      const std::size_t block = match.bindings[b].block;
      if (block == Call::Place::none) continue;
      const std::vector<std::size_t>& uses = uses_[block];
      if (pattern.is_inside(b) && (blocks_[block].kind != Block::Kind::inner || !std::ranges::all_of(uses, is_own))) return false;
      const auto first = std::ranges::find_if(uses, is_own);
      if (!pattern.is_argument(b) && first != uses.begin()) return false;
      for (auto use = first; use != uses.end() && *use <= last; ++use)
        if (!is_own(*use) && writes(calls_[*use], block)) return false;
    }
    return true;
  }
  /// A mask whose elements were looked at.
  struct Looked {
    Spelling::Mask kind;
    std::size_t block;
    std::int64_t offset;
    Shape shape;
    Strides strides;
    bool operator==(const Looked&) const = default;
  };
  struct Known {
    Spelling spelling;
    DType dtype;
    Context::Kernels ways;
    Pattern pattern;
  };

  std::vector<Call>& calls_;
  std::vector<Block>& blocks_;
  Device device_;
  std::deque<Known> patterns_;  ///< that were tried
  std::vector<std::vector<std::size_t>> uses_;
  std::vector<bool> taken_;                             ///< calls that flash attention replaces
  std::map<std::size_t, std::vector<Call>> new_calls_;  ///< before the call of that index
  std::vector<std::pair<Looked, bool>> looked_;
  std::vector<Ref<Storage>> read_;
};

}  // namespace

std::vector<Ref<Storage>> use_attention(std::vector<Call>& calls, std::vector<Block>& blocks, Device device) {
  return AttentionRule(calls, blocks, device).run();
}

}  // namespace tern::compiler
