#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "nn/layers.h"
#include "ops/attention.h"

namespace tern::nn {

/// State of a mixer after the tokens that it has read, for a text that a model reads piece by piece.
struct MixerState {
  Tensors kept = {};    ///< in an order of the mixer's own, the batch first in each; empty before the first token
  Tensor lengths = {};  ///< (B), i64: the number of x's tokens that row b has, padding follows; undefined: all
};

/// Token mixer: what a transformer layer has in attention's place. One of one's own derives from MixerOf.
struct Mixer : Module {
  /// x (B, T, width) -> (B, T, width), in which no token sees a later one. With a state, the tokens of x follow those that it keeps, and
  /// are kept in turn: reading token by token gives what reading at once does.
  virtual Tensor forward(const Tensor& x, MixerState* state = nullptr) const = 0;
  virtual std::unique_ptr<Mixer> copy() const = 0;  ///< a copy, which shares the parameters
};

/// Base of a mixer type: `struct Mean final : nn::MixerOf<Mean> { ... Tensor forward(const Tensor& x, nn::MixerState* state) const
/// override;
/// }`. examples/own_mixer has a whole one.
template <class M>
struct MixerOf : Callable<M, Mixer> {
  /// As Mixer::copy.
  std::unique_ptr<Mixer> copy() const override { return std::make_unique<M>(static_cast<const M&>(*this)); }
};

/// Any mixer, by value: a copy holds a copy of the mixer, which shares the parameters.
class AnyMixer {
 public:
  /// Takes a mixer: a temporary, or a copy.
  template <std::derived_from<Mixer> M>
  AnyMixer(M mixer) : held_(std::make_unique<M>(std::move(mixer))) {}
  /// Copies the mixer; the copy shares its parameters.
  AnyMixer(const AnyMixer& other) : held_(other.held_->copy()) {}
  AnyMixer(AnyMixer&&) noexcept = default;  ///< the source may then only be assigned to or destroyed
  /// Replaces the mixer.
  AnyMixer& operator=(AnyMixer other) noexcept {
    held_ = std::move(other.held_);
    return *this;
  }
  Mixer& operator*() { return *held_; }                    ///< the mixer
  const Mixer& operator*() const { return *held_; }        ///< the const form
  const Mixer* operator->() const { return held_.get(); }  ///< a member of the mixer

 private:
  std::unique_ptr<Mixer> held_;  ///< null only after a move
};

/// Kind of a transformer layer's mixer. All but attention and windows, whose cache is the text's, keep a state that does not grow with it;
/// Hyena's is that of the longest text.
enum class MixerKind : std::uint8_t {
  attention,       ///< MultiHeadAttention
  window,          ///< attention to the last MixerOptions::window tokens
  conv,            ///< ConvMixer
  h3,              ///< H3Mixer
  hyena,           ///< HyenaMixer
  rwkv4,           ///< Rwkv4Mixer
  rwkv7,           ///< Rwkv7Mixer
  mamba,           ///< MambaMixer
  mamba2,          ///< RecurrentMixer: Mamba-2, Dao & Gu, 2024
  based,           ///< RecurrentMixer: Based, Arora et al., 2024, whose models also have layers of MixerKind::window
  linear,          ///< RecurrentMixer: linear attention, Katharopoulos et al., 2020
  retnet,          ///< RecurrentMixer: RetNet, Sun et al., 2023
  gla,             ///< RecurrentMixer: gated linear attention, Yang et al., 2024
  deltanet,        ///< RecurrentMixer: DeltaNet, Yang et al., 2024
  gated_deltanet,  ///< RecurrentMixer: Gated DeltaNet, Yang et al., 2025
  own,             ///< what MixerOptions::own makes
};
/// The kind's name, with - for _: "gated-deltanet".
const char* name(MixerKind kind);
/// The kind of that name, but for own; none for another text.
std::optional<MixerKind> mixer_kind_of(std::string_view name);

/// The mixer of a transformer layer.
struct MixerOptions {
  MixerKind kind = MixerKind::attention;                 ///< see MixerKind
  std::int64_t window = 32;                              ///< of MixerKind::window: the tokens that one sees, itself included
  std::function<AnyMixer(std::int64_t width)> own = {};  ///< of MixerKind::own: makes a layer's mixer
};

/// Causal depthwise convolution of u (B, T, C), with a filter of its own for each channel: depthwise_conv1d with its past as a state.
struct CausalConv final : Module {
  CausalConv() = default;
  /// Weight (C, 1, taps) and bias (C), as those of Conv1d. Throws Error for sizes below 1.
  CausalConv(std::int64_t channels, std::int64_t taps, Device device = default_device());
  void visit(Visitor& v) override { v("weight", weight), v("bias", bias); }
  std::string settings() const override;
  /// u (B, T, C) -> (B, T, C). `past` (B, taps - 1, C), the inputs before u, undefined for zeros, becomes those before the tokens that
  /// follow; `lengths` as in MixerState.
  Tensor forward(const Tensor& u, bool silu, Tensor* past = nullptr, const Tensor& lengths = {}) const;

  Tensor weight;  ///< (C, 1, taps)
  Tensor bias;    ///< (C)
};

/// Gated convolution, conv(x) * gate(x): BaseConv of Arora et al., "Zoology", 2023, with a filter of 4 taps.
struct ConvMixer final : MixerOf<ConvMixer> {
  ConvMixer() = default;
  /// Throws Error for a width below 1.
  explicit ConvMixer(std::int64_t width, Device device = default_device());
  void visit(Visitor& v) override { v("conv", conv), v("gate", gate); }
  Tensor forward(const Tensor& x, MixerState* state = nullptr) const override;  ///< as Mixer::forward

  CausalConv conv;  ///< over the tokens
  Linear gate;      ///< width -> width
};

/// Hyena of order 2: with q, k and v projections of x, each through a convolution of 3 taps, y = proj(q * (h conv k * v + bias * k * v)).
/// The filter h has as many taps as the longest text: out(sin(10 mid(sin(10 in(p))))) of features p of a position, times a window that
/// decays at another rate in each channel. Poli et al., 2023.
struct HyenaMixer final : MixerOf<HyenaMixer> {
  HyenaMixer() = default;
  /// For texts of up to `length` tokens. Throws Error for sizes below 1.
  HyenaMixer(std::int64_t width, std::int64_t length, Device device = default_device());
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// As Mixer::forward. Throws Error for more than `length` tokens at once; of a longer text a token reads the last `length`.
  Tensor forward(const Tensor& x, MixerState* state = nullptr) const override;
  Tensor filter(std::int64_t taps) const;  ///< h for as many tokens, from the current one back: (width, taps)

  Linear qkv;       ///< width -> 3 width
  CausalConv conv;  ///< of queries, keys and values
  Linear in;        ///< 33 features -> 64
  Linear mid;       ///< 64 -> 64
  Linear out;       ///< 64 -> width
  Tensor bias;      ///< (width)
  Linear proj;      ///< width -> width

 private:
  Tensor features_, window_;  // (length, 33), (length, width): from the current token backwards
};

/// Options of RecurrentMixer.
struct RecurrentMixerOptions {
  std::int64_t heads = 1;                      ///< heads, each with a state
  std::int64_t head_dim = 0;                   ///< elements of a head's keys and values; 0: width / heads
  Tensor rope = {};                            ///< RetNet: table of rope_table, which rotates queries and keys; the others ignore it
  RopePairs rope_pairs = RopePairs::adjacent;  ///< see RopePairs
  Device device = default_device();            ///< device of the parameters
};

/// Mixers on linear_recurrence (ops/recurrent.h): queries, keys and values are projections of x, one result of each head is normalized
/// (RMSNorm), gated by SiLU and projected. By kind:
///
///   based           the features 1, x and x x^T of q and k of 16 elements, whose products are those of exp's Taylor series to the second
///                   order, the result divided by the keys' sum; no norm, no gate
///   linear          elu(q) + 1 and elu(k) + 1, the result divided by the keys' sum; no norm, no gate
///   retnet          decay 1 - 2^(-5 - h) of head h, rotary q and k if there is a table
///   gla             decay of each key channel, sigmoid(up(down(x)))^(1/16) with 16 units between
///   mamba2          decay exp(-a dt) and values dt v, dt = softplus of a projection; q and k are those of all heads, values have twice
///                   the elements; the gate comes before the norm, and `skip` times v is added
///   deltanet        delta rule with beta = sigmoid of a projection, q and k of length 1; no gate
///   gated_deltanet  the same with mamba2's decay, and a gate
///
/// The last three have a convolution of 4 taps with SiLU before q, k and v. Over heads a is 1 to 16, and dt 0.001 to 0.1 for x = 0.
struct RecurrentMixer final : MixerOf<RecurrentMixer> {
  RecurrentMixer() = default;
  /// Throws Error for another kind, and unless heads divide the width or a head_dim is given.
  RecurrentMixer(MixerKind kind, std::int64_t width, const RecurrentMixerOptions& options = {});
  void visit(Visitor& v) override;
  std::string settings() const override;
  Tensor forward(const Tensor& x, MixerState* state = nullptr) const override;  ///< as Mixer::forward

  MixerKind kind = MixerKind::linear;  ///< one of the seven above
  RecurrentMixerOptions options;       ///< with head_dim filled in
  Linear qkv;                          ///< width -> queries, keys and values, in this order
  std::optional<CausalConv> conv;      ///< of queries, keys and values
  std::optional<Linear> rates;         ///< width -> beta, dt or both, for each head
  std::optional<Linear> down;          ///< gla: width -> 16
  std::optional<Linear> up;            ///< gla: 16 -> heads head_dim
  std::optional<Linear> gate;          ///< width -> the values' elements
  std::optional<Norm> norm;            ///< of a head's result; mamba2: of all heads'
  Linear proj;                         ///< the values' elements -> width
  Tensor a_log;                        ///< mamba2, gated_deltanet: (heads), the logarithm of a
  Tensor dt_bias;                      ///< mamba2, gated_deltanet: (heads)
  Tensor skip;                         ///< mamba2: (heads)

 private:
  std::int64_t key_dim() const;
  std::int64_t value_dim() const;
  Tensor log_decay(const Tensor& x, const Tensor& dt) const;
  Tensor rotated(const Tensor& x, const Tensor& positions) const;

  Tensor decays_;  // retnet: (heads), logarithms
};

}  // namespace tern::nn
