// Attention, transformer layers and language models of nn, and generation.
#include <nanobind/stl/tuple.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <tuple>

#include "modules.h"
#include "names.h"
#include "nn/generate.h"
#include "nn/init.h"
#include "nn/transformer.h"

namespace tern::python {

namespace {

/// A member that is a module, as the owner's own.
template <class Class, class Owner, class M>
void child(Class& bound, const char* name, M Owner::* member) {
  using Self = typename Class::Type;
  bound.def_prop_ro(name, [member](Self& self) -> M* { return &(self.*member); }, nb::rv_policy::reference_internal);
}
/// One that may be missing: None.
template <class Class, class Owner, class M>
void child(Class& bound, const char* name, std::optional<M> Owner::* member) {
  using Self = typename Class::Type;
  bound.def_prop_ro(
      name, [member](Self& self) -> M* { return self.*member ? &*(self.*member) : nullptr; }, nb::rv_policy::reference_internal);
}

void bind_attention(nb::module_& m) {
  nb::class_<nn::MultiHeadAttention, nn::Module> attention(m, "MultiHeadAttention", nb::is_final());
  attention.def(
      "__init__",
      [](nn::MultiHeadAttention* self, std::int64_t width, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, double dropout,
         bool bias, bool cross, std::int64_t window, const MaybeTensor& rope, const Choice<RopePairs>& rope_pairs,
         const DeviceLike& device) {
        new (self) nn::MultiHeadAttention(
            width, {heads, kv_heads, head_dim, dropout, bias, cross, window, given(rope), RopePairs(rope_pairs), device.get()});
      },
      "width"_a, nb::kw_only(), "heads"_a = 1, "kv_heads"_a = 0, "head_dim"_a = 0, "dropout"_a = 0, "bias"_a = true, "cross"_a = false,
      "window"_a = 0, "rope"_a = nb::none(), "rope_pairs"_a = choice(RopePairs::adjacent), "device"_a = nb::none());
  const auto run = [](const nn::MultiHeadAttention& module, const Tensor& x, const MaybeTensor& memory, const AttentionMask& mask) {
    return memory ? module.forward(x, *memory, mask) : module.forward(x, mask);
  };
  attention.def("__call__", run, "x"_a, "memory"_a = nb::none(), nb::kw_only(), "mask"_a = AttentionMask(), Released(),
                "x (B, T, width), for cross attention with memory (B, S, width) -> (B, T, width).");
  attention.def("forward", run, "x"_a, "memory"_a = nb::none(), nb::kw_only(), "mask"_a = AttentionMask(), Released());
  child(attention, "qkv", &nn::MultiHeadAttention::qkv);
  child(attention, "query", &nn::MultiHeadAttention::query);
  child(attention, "key_value", &nn::MultiHeadAttention::key_value);
  child(attention, "proj", &nn::MultiHeadAttention::proj);
  arguments_of(attention, [](const nn::MultiHeadAttention& x, nb::dict& a) {
    const nn::AttentionOptions& options = x.options;
    a["width"] = (options.cross ? x.query : x.qkv)->weight.size(1);
    a["heads"] = options.heads;
    a["kv_heads"] = options.kv_heads;
    a["head_dim"] = options.head_dim;
    a["dropout"] = options.dropout;
    a["bias"] = options.bias;
    a["cross"] = options.cross;
    a["window"] = options.window;
    a["rope"] = nb::cast(maybe(options.rope));
    a["rope_pairs"] = name_of(options.rope_pairs);
  });

  nb::class_<nn::FeedForward, nn::Module> feed_forward(m, "FeedForward", nb::is_final());
  feed_forward.def(
      "__init__",
      [](nn::FeedForward* self, std::int64_t width, std::int64_t hidden, const Choice<nn::Activation>& activation, bool gated, bool bias,
         double dropout,
         const DeviceLike& device) { new (self) nn::FeedForward(width, hidden, {activation, gated, bias, dropout, device.get()}); },
      "width"_a, "hidden"_a, nb::kw_only(), "activation"_a = choice(nn::Activation::gelu), "gated"_a = false, "bias"_a = true,
      "dropout"_a = 0, "device"_a = nb::none());
  takes_tensor(feed_forward);
  child(feed_forward, "fc", &nn::FeedForward::fc);
  child(feed_forward, "proj", &nn::FeedForward::proj);
  child(feed_forward, "gate", &nn::FeedForward::gate);
  arguments_of(feed_forward, [](const nn::FeedForward& x, nb::dict& a) {
    a["width"] = x.fc.weight.size(1);
    a["hidden"] = x.fc.weight.size(0);
    a["activation"] = name_of(x.activation);
    a["gated"] = x.gate.has_value();
    a["bias"] = x.fc.bias.defined();
    a["dropout"] = x.drop.p;
  });
}

void bind_layer(nb::module_& m) {
  nb::class_<nn::TransformerLayer, nn::Module> layer(m, "TransformerLayer", nb::is_final());
  layer.def(
      "__init__",
      [](nn::TransformerLayer* self, std::int64_t width, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t ff,
         double dropout, double attention_dropout, double activation_dropout, const Choice<nn::Activation>& activation, bool gated,
         const Choice<nn::NormKind>& norm, double layer_norm_eps, bool bias, const MaybeTensor& rope, const Choice<RopePairs>& rope_pairs,
         bool cross, const DeviceLike& device) {
        new (self) nn::TransformerLayer({.width = width,
                                         .heads = heads,
                                         .ff = ff,
                                         .kv_heads = kv_heads,
                                         .head_dim = head_dim,
                                         .dropout = dropout,
                                         .attention_dropout = attention_dropout,
                                         .activation_dropout = activation_dropout,
                                         .activation = activation,
                                         .gated = gated,
                                         .bias = bias,
                                         .norm = norm,
                                         .rope_pairs = rope_pairs,
                                         .layer_norm_eps = layer_norm_eps,
                                         .device = device.get()},
                                        cross, given(rope));
      },
      nb::kw_only(), "width"_a = 256, "heads"_a = 8, "kv_heads"_a = 0, "head_dim"_a = 0, "ff"_a = 256, "dropout"_a = 0.1,
      "attention_dropout"_a = -1, "activation_dropout"_a = 0, "activation"_a = choice(nn::Activation::gelu), "gated"_a = false,
      "norm"_a = choice(nn::NormKind::layer), "layer_norm_eps"_a = 1e-5, "bias"_a = true, "rope"_a = nb::none(),
      "rope_pairs"_a = choice(RopePairs::adjacent), "cross"_a = false, "device"_a = nb::none());
  const auto run = [](const nn::TransformerLayer& module, const Tensor& x, const AttentionMask& mask, const MaybeTensor& memory,
                      const AttentionMask& memory_mask) { return module.forward(x, mask, given(memory), memory_mask); };
  layer.def("__call__", run, "x"_a, "mask"_a = AttentionMask(), "memory"_a = nb::none(), "memory_mask"_a = AttentionMask(), Released(),
            "x (B, T, width) -> (B, T, width); a memory is for a layer with `cross`.");
  layer.def("forward", run, "x"_a, "mask"_a = AttentionMask(), "memory"_a = nb::none(), "memory_mask"_a = AttentionMask(), Released());
  child(layer, "norm1", &nn::TransformerLayer::norm1);
  child(layer, "attn", &nn::TransformerLayer::attn);
  child(layer, "norm_cross", &nn::TransformerLayer::norm_cross);
  child(layer, "cross_attn", &nn::TransformerLayer::cross_attn);
  child(layer, "norm2", &nn::TransformerLayer::norm2);
  child(layer, "ff", &nn::TransformerLayer::ff);
  arguments_of(layer, [](const nn::TransformerLayer& x, nb::dict& a) {
    const nn::AttentionOptions& attention = x.attn.options;
    a["width"] = x.attn.proj.weight.size(0);
    a["heads"] = attention.heads;
    a["kv_heads"] = attention.kv_heads;
    a["head_dim"] = attention.head_dim;
    a["ff"] = x.ff.fc.defined() ? x.ff.fc.weight.size(0) : 0;
    a["dropout"] = x.drop.p;
    a["attention_dropout"] = attention.dropout;
    a["activation_dropout"] = x.ff.drop.p;
    a["activation"] = name_of(x.ff.activation);
    a["gated"] = x.ff.gate.has_value();
    a["norm"] = name_of(x.norm1.kind);
    a["layer_norm_eps"] = x.norm1.eps;
    a["bias"] = attention.bias;
    a["rope"] = nb::cast(maybe(attention.rope));
    a["rope_pairs"] = name_of(attention.rope_pairs);
    a["cross"] = x.cross_attn.has_value();
  });
}

/// factor, original_length, low_turns and high_turns of a RopeScaling.
using RopeNumbers = std::tuple<double, std::int64_t, double, double>;

void set_decoder(nb::dict& a, const nn::DecoderLMOptions& options) {
  const auto& scaling = options.rope_scaling;
  a["vocab"] = options.vocab;
  a["length"] = options.length;
  a["width"] = options.width;
  a["layers"] = options.layers;
  a["heads"] = options.heads;
  a["ff"] = options.ff;
  a["kv_heads"] = options.kv_heads;
  a["head_dim"] = options.head_dim;
  a["dropout"] = options.dropout;
  a["attention_dropout"] = options.attention_dropout;
  a["activation_dropout"] = options.activation_dropout;
  a["activation"] = name_of(options.activation);
  a["gated"] = options.gated;
  a["bias"] = options.bias;
  a["norm"] = name_of(options.norm);
  a["positions"] = name_of(options.positions);
  a["rope_base"] = options.rope_base;
  a["rope_pairs"] = name_of(options.rope_pairs);
  a["rope_scaling"] = nb::make_tuple(scaling.factor, scaling.original_length, scaling.low_turns, scaling.high_turns);
  a["scales_embeddings"] = options.scales_embeddings;
  a["layer_norm_eps"] = options.layer_norm_eps;
  a["final_norm"] = options.final_norm;
  a["head_bias"] = options.head_bias;
  a["tied_head"] = options.tied_head;
  a["initialization"] = name_of(options.initialization);
  a["activation_checkpointing"] = name_of(options.activation_checkpointing);
}

void bind_decoder(nb::module_& m) {
  nb::class_<nn::DecoderLM, nn::Module> decoder(
      m, "DecoderLM", nb::is_final(),
      "A decoder-only language model. GPT-2 is head_bias=False, tied_head=True, activation='gelu_tanh', ff = 4 width; Llama\n"
      "is norm='rms', positions='rotary', rope_pairs='halves', activation='silu', gated=True, bias=False, head_bias=False.");
  decoder.def(
      "__init__",
      [](nn::DecoderLM* self, std::int64_t vocab, std::int64_t length, std::int64_t width, std::int64_t layers, std::int64_t heads,
         std::int64_t ff, std::int64_t kv_heads, std::int64_t head_dim, double dropout, double attention_dropout, double activation_dropout,
         const Choice<nn::Activation>& activation, bool gated, bool bias, const Choice<nn::NormKind>& norm,
         const Choice<nn::Positions>& positions, double rope_base, const Choice<RopePairs>& rope_pairs, const RopeNumbers& rope_scaling,
         bool scales_embeddings, double layer_norm_eps, bool final_norm, bool head_bias, bool tied_head,
         const Choice<nn::Initialization>& initialization, const Choice<CheckpointPolicy>& activation_checkpointing,
         const DeviceLike& device) {
        new (self) nn::DecoderLM(
            {.vocab = vocab,
             .length = length,
             .width = width,
             .layers = layers,
             .heads = heads,
             .ff = ff,
             .kv_heads = kv_heads,
             .head_dim = head_dim,
             .dropout = dropout,
             .attention_dropout = attention_dropout,
             .activation_dropout = activation_dropout,
             .activation = activation,
             .gated = gated,
             .bias = bias,
             .norm = norm,
             .positions = positions,
             .rope_base = rope_base,
             .rope_pairs = rope_pairs,
             .rope_scaling = {std::get<0>(rope_scaling), std::get<1>(rope_scaling), std::get<2>(rope_scaling), std::get<3>(rope_scaling)},
             .scales_embeddings = scales_embeddings,
             .layer_norm_eps = layer_norm_eps,
             .final_norm = final_norm,
             .head_bias = head_bias,
             .tied_head = tied_head,
             .initialization = initialization,
             .activation_checkpointing = activation_checkpointing,
             .device = device.get()});
      },
      nb::kw_only(), "vocab"_a = 10000, "length"_a = 40, "width"_a = 256, "layers"_a = 4, "heads"_a = 8, "ff"_a = 256, "kv_heads"_a = 0,
      "head_dim"_a = 0, "dropout"_a = 0.1, "attention_dropout"_a = -1, "activation_dropout"_a = 0,
      "activation"_a = choice(nn::Activation::gelu), "gated"_a = false, "bias"_a = true, "norm"_a = choice(nn::NormKind::layer),
      "positions"_a = choice(nn::Positions::learned), "rope_base"_a = 10000, "rope_pairs"_a = choice(RopePairs::adjacent),
      "rope_scaling"_a = RopeNumbers(1, 0, 1, 4), "scales_embeddings"_a = false, "layer_norm_eps"_a = 1e-5, "final_norm"_a = true,
      "head_bias"_a = true, "tied_head"_a = false, "initialization"_a = choice(nn::Initialization::layer_defaults),
      "activation_checkpointing"_a = choice(CheckpointPolicy::none), "device"_a = nb::none());
  const AttentionMask causal{.causal = true};
  const auto run = [](const nn::DecoderLM& module, const Tensor& ids, const AttentionMask& mask, const MaybeTensor& position_ids) {
    return module.forward(ids, mask, given(position_ids));
  };
  decoder.def("__call__", run, "ids"_a, "mask"_a = causal, "position_ids"_a = nb::none(), Released(),
              "ids (B, T), i64 -> logits (B, T, vocab).");
  decoder.def("forward", run, "ids"_a, "mask"_a = causal, "position_ids"_a = nb::none(), Released());
  decoder.def(
      "hidden",
      [](const nn::DecoderLM& module, const Tensor& ids, const AttentionMask& mask, const MaybeTensor& position_ids) {
        return module.hidden(ids, mask, given(position_ids));
      },
      "ids"_a, "mask"_a = causal, "position_ids"_a = nb::none(), Released(), "The hidden states before the head, (B, T, width).");
  decoder.def(
      "loss",
      [](const nn::DecoderLM& module, const Tensor& ids, const Tensor& labels, const AttentionMask& mask, const MaybeTensor& position_ids,
         const MaybeTensor& token_weights, std::int64_t ignore_index, double label_smoothing, const Choice<Reduction>& reduction) {
        return module.loss(ids, labels, {given(token_weights), ignore_index, label_smoothing, reduction}, mask, given(position_ids));
      },
      "ids"_a, "labels"_a, nb::kw_only(), "mask"_a = causal, "position_ids"_a = nb::none(), "token_weights"_a = nb::none(),
      "ignore_index"_a = -100, "label_smoothing"_a = 0, "reduction"_a = choice(Reduction::mean), Released(),
      "The cross-entropy of labels (B, T); with fused kernels the logits are never whole in memory.");
  child(decoder, "tokens", &nn::DecoderLM::tokens);
  child(decoder, "positions", &nn::DecoderLM::positions);
  child(decoder, "norm", &nn::DecoderLM::norm);
  child(decoder, "head", &nn::DecoderLM::head);
  arguments_of(decoder, [](const nn::DecoderLM& x, nb::dict& a) { set_decoder(a, x.options); });
  decoder.def_prop_ro(
      "blocks",
      [](nb::handle self) {
        nb::list result;
        for (nn::TransformerLayer& block : nb::cast<nn::DecoderLM&>(self).blocks)
          result.append(nb::cast(&block, nb::rv_policy::reference_internal, self));
        return nb::object(result);
      },
      nb::sig("def blocks(self) -> list[TransformerLayer]"));
  decoder.def_prop_ro("vocab", [](const nn::DecoderLM& module) { return module.options.vocab; })
      .def_prop_ro("length", [](const nn::DecoderLM& module) { return module.options.length; })
      .def_prop_ro("width", [](const nn::DecoderLM& module) { return module.options.width; });
}

/// Python handles signals in its main thread, between its own instructions, and a long call has none: the thread that made the call asks
/// for them, and what a handler throws, KeyboardInterrupt as a rule, ends all threads' work.
class Interruption {
 public:
  void check() {
    if (has_error_) throw Error("interrupted");
    if (std::this_thread::get_id() != caller_) return;
    // Not at each token: the lock is another thread's of Python for 5 ms at a time.
    const Clock::time_point now = Clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(50);
    const nb::gil_scoped_acquire held;
    if (PyErr_CheckSignals() == 0) return;
    error_.emplace();
    has_error_ = true;
    throw Error("interrupted");
  }
  /// Throws what the handler has thrown, if it has.
  void rethrow() {
    if (error_) throw nb::python_error(std::move(*error_));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::thread::id caller_ = std::this_thread::get_id();
  std::optional<nb::python_error> error_;  ///< of the caller's thread alone
  Clock::time_point next_ = Clock::now();
  std::atomic<bool> has_error_ = false;
};

void bind_generation(nb::module_& m) {
  nb::class_<nn::Hypothesis>(m, "Hypothesis", "New tokens of a row, without eos.")
      .def_ro("tokens", &nn::Hypothesis::tokens)
      .def_ro("log_probability", &nn::Hypothesis::log_probability)
      .def_ro("score", &nn::Hypothesis::score)
      .def("__repr__", [](const nn::Hypothesis& x) {
        return "Hypothesis(" + std::to_string(x.tokens.size()) + " tokens, score " + std::to_string(x.score) + ")";
      });
  m.def(
      "generate",
      [](const nn::DecoderLM& model, const std::vector<nn::TokenIds>& prompts, const Choice<nn::Search>& search, std::int64_t eos,
         std::int64_t max_new_tokens, std::int64_t n_best, std::int64_t beam, double length_penalty, double temperature, std::int64_t top_k,
         double top_p, std::uint64_t seed, std::size_t batch_size) {
        Interruption interruption;
        const nn::GenerateOptions options{.search = search,
                                          .eos = eos,
                                          .max_new_tokens = max_new_tokens,
                                          .length_penalty = length_penalty,
                                          .n_best = n_best,
                                          .beam = beam,
                                          .temperature = temperature,
                                          .top_k = top_k,
                                          .top_p = top_p,
                                          .seed = seed,
                                          .on_token = [&] { interruption.check(); }};
        try {
          return nn::generate(model, prompts, {}, options, batch_size);
        } catch (const Error&) {
          interruption.rethrow();
          throw;
        }
      },
      "model"_a, "prompts"_a, nb::kw_only(), "search"_a = choice(nn::Search::greedy), "eos"_a = -1, "max_new_tokens"_a = 0, "n_best"_a = 1,
      "beam"_a = 5, "length_penalty"_a = 1, "temperature"_a = 1, "top_k"_a = 0, "top_p"_a = 1, "seed"_a = 0, "batch_size"_a = 64,
      Released(),
      "Continues each prompt, a list of ids: a list of hypotheses for each, the best first. 0 new tokens\n"
      "are as many as the model's length allows.");
}

}  // namespace

void bind_models(nb::module_& m) {
  bind_attention(m);
  bind_layer(m);
  bind_decoder(m);
  bind_generation(m);
}

void bind_init(nb::module_& m) {
  namespace init = nn::init;
  m.def("constant", &init::constant, "x"_a, "value"_a, Released());
  m.def("uniform", &init::uniform, "x"_a, "low"_a = 0, "high"_a = 1, Released());
  m.def("normal", &init::normal, "x"_a, "mean"_a = 0, "deviation"_a = 1, Released());
  m.def("trunc_normal", &init::trunc_normal, "x"_a, "mean"_a = 0, "deviation"_a = 1, "low"_a = -2, "high"_a = 2, Released());
  m.def("xavier_uniform", &init::xavier_uniform, "x"_a, "gain"_a = 1, Released());
  m.def("xavier_normal", &init::xavier_normal, "x"_a, "gain"_a = 1, Released());
  m.def("kaiming_uniform", &init::kaiming_uniform, "x"_a, "a"_a = 0, Released());
  m.def("kaiming_normal", &init::kaiming_normal, "x"_a, "a"_a = 0, Released());
}

}  // namespace tern::python
