#pragma once
// Values of enums by name, as Python passes them. Where the library has names of its own for programs, they are the same.
#include "binding.h"
#include "nn/generate.h"
#include "nn/transformer.h"
#include "ops/conv.h"
#include "ops/loss.h"
#include "train/precision.h"

namespace tern::python {

template <class E>
using NameList = std::initializer_list<std::pair<const char*, E>>;

template <>
struct Names<Reduction> {
  static constexpr const char* what = "reduction";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['none', 'mean', 'sum']");
  static constexpr NameList<Reduction> all = {{"none", Reduction::none}, {"mean", Reduction::mean}, {"sum", Reduction::sum}};
};

template <>
struct Names<nn::Activation> {
  static constexpr const char* what = "activation";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['gelu', 'gelu_tanh', 'relu', 'silu']");
  static constexpr NameList<nn::Activation> all = {{"gelu", nn::Activation::gelu},
                                                   {"gelu_tanh", nn::Activation::gelu_tanh},
                                                   {"relu", nn::Activation::relu},
                                                   {"silu", nn::Activation::silu}};
};

template <>
struct Names<nn::NormKind> {
  static constexpr const char* what = "norm";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['layer', 'rms', 'none']");
  static constexpr NameList<nn::NormKind> all = {{"layer", nn::NormKind::layer}, {"rms", nn::NormKind::rms}, {"none", nn::NormKind::none}};
};

template <>
struct Names<nn::Positions> {
  static constexpr const char* what = "positions";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['learned', 'rotary', 'none', 'sinusoidal']");
  static constexpr NameList<nn::Positions> all = {{"learned", nn::Positions::learned},
                                                  {"rotary", nn::Positions::rotary},
                                                  {"none", nn::Positions::none},
                                                  {"sinusoidal", nn::Positions::sinusoidal}};
};

template <>
struct Names<RopePairs> {
  static constexpr const char* what = "rope_pairs";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['adjacent', 'halves']");
  static constexpr NameList<RopePairs> all = {{"adjacent", RopePairs::adjacent}, {"halves", RopePairs::halves}};
};

template <>
struct Names<nn::Initialization> {
  static constexpr const char* what = "initialization";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['layer_defaults', 'gpt2', 'xavier']");
  static constexpr NameList<nn::Initialization> all = {
      {"layer_defaults", nn::Initialization::layer_defaults}, {"gpt2", nn::Initialization::gpt2}, {"xavier", nn::Initialization::xavier}};
};

template <>
struct Names<CheckpointPolicy> {
  static constexpr const char* what = "activation_checkpointing";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['none', 'selective', 'full']");
  static constexpr NameList<CheckpointPolicy> all = {
      {"none", CheckpointPolicy::none}, {"selective", CheckpointPolicy::selective}, {"full", CheckpointPolicy::full}};
};

template <>
struct Names<ConvPadding> {
  static constexpr const char* what = "padding";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['causal', 'same', 'given']");
  static constexpr NameList<ConvPadding> all = {
      {"causal", ConvPadding::causal}, {"same", ConvPadding::same}, {"given", ConvPadding::given}};
};

template <>
struct Names<nn::Search> {
  static constexpr const char* what = "search";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['greedy', 'beam', 'sample']");
  static constexpr NameList<nn::Search> all = {{"greedy", nn::Search::greedy}, {"beam", nn::Search::beam}, {"sample", nn::Search::sample}};
};

template <>
struct Names<MatmulPrecision> {
  static constexpr const char* what = "matmul_precision";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['fp32', 'tf32', 'tf32x3']");
  static constexpr NameList<MatmulPrecision> all = {
      {"fp32", MatmulPrecision::fp32}, {"tf32", MatmulPrecision::tf32}, {"tf32x3", MatmulPrecision::tf32x3}};
};

template <>
struct Names<train::Precision> {
  static constexpr const char* what = "precision";
  static constexpr auto signature = nb::detail::const_name("typing.Literal['fp32', 'tf32', 'tf32x3', 'bf16', 'fp16']");
  static constexpr NameList<train::Precision> all = {{"fp32", train::Precision::fp32},
                                                     {"tf32", train::Precision::tf32},
                                                     {"tf32x3", train::Precision::tf32x3},
                                                     {"bf16", train::Precision::bf16},
                                                     {"fp16", train::Precision::fp16}};
};

}  // namespace tern::python
