// Products, linear algebra, convolutions, norms, recurrent cells and attention.
#include <nanobind/stl/function.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "names.h"
#include "ops/attention.h"
#include "ops/conv.h"
#include "ops/linalg.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/random.h"
#include "ops/recurrent.h"

namespace tern::python {

namespace {

void bind_linalg(nb::module_& m) {
  m.def("cholesky", &cholesky, "a"_a, Released());
  m.def("solve", &solve, "a"_a, "b"_a, Released());
  m.def("inverse", &inverse, "a"_a, Released());
  m.def("det", &det, "a"_a, Released());
  m.def(
      "qr",
      [](const Tensor& a) {
        const Qr found = qr(a);
        return std::tuple(found.q, found.r);
      },
      "a"_a, Released());
  m.def(
      "eigh",
      [](const Tensor& a) {
        const Eigh found = eigh(a);
        return std::tuple(found.values, found.vectors);
      },
      "a"_a, Released());
  m.def(
      "svd",
      [](const Tensor& a) {
        const Svd found = svd(a);
        return std::tuple(found.u, found.s, found.vt);
      },
      "a"_a, Released());
}

void bind_convolutions(nb::module_& m) {
  m.def(
      "conv2d",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const Size& stride, const Size& padding, const Size& dilation,
         std::int64_t groups) { return conv2d(x, weight, given(bias), {both(stride), both(padding), both(dilation), groups}); },
      "x"_a, "weight"_a, "bias"_a = nb::none(), "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1, "groups"_a = 1, Released());
  m.def(
      "conv1d",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias, std::int64_t stride, std::int64_t padding, std::int64_t dilation,
         std::int64_t groups) { return conv1d(x, weight, given(bias), {stride, padding, dilation, groups}); },
      "x"_a, "weight"_a, "bias"_a = nb::none(), "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1, "groups"_a = 1, Released());
  const auto pool = [&](const char* name, Tensor (*f)(const Tensor&, const PoolOptions&)) {
    m.def(
        name,
        [f](const Tensor& x, const Size& kernel, const Size& stride, const Size& padding) {
          return f(x, {both(kernel), both(stride), both(padding)});
        },
        "x"_a, "kernel"_a, "stride"_a = 0, "padding"_a = 0, Released());
  };
  pool("max_pool2d", &max_pool2d);
  pool("avg_pool2d", &avg_pool2d);
  const auto windows = [](const Size& kernel, const Size& stride, const Size& padding, const Size& dilation) {
    return UnfoldOptions{both(kernel), both(stride), both(padding), both(dilation)};
  };
  m.def(
      "unfold",
      [windows](const Tensor& x, const Size& kernel, const Size& stride, const Size& padding, const Size& dilation) {
        return unfold(x, windows(kernel, stride, padding, dilation));
      },
      "x"_a, "kernel"_a, "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1, Released());
  m.def(
      "fold",
      [windows](const Tensor& columns, std::int64_t height, std::int64_t width, const Size& kernel, const Size& stride, const Size& padding,
                const Size& dilation) { return fold(columns, height, width, windows(kernel, stride, padding, dilation)); },
      "columns"_a, "height"_a, "width"_a, "kernel"_a, "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1, Released());
  m.def(
      "depthwise_conv1d",
      [](const Tensor& u, const Tensor& w, const MaybeTensor& bias, const Choice<ConvPadding>& padding, std::int64_t left,
         std::int64_t right, bool channels_first,
         bool silu) { return depthwise_conv1d(u, w, given(bias), {padding, left, right, channels_first, silu}); },
      "u"_a, "w"_a, "bias"_a = nb::none(), "padding"_a = choice(ConvPadding::causal), "left"_a = 0, "right"_a = 0,
      "channels_first"_a = false, "silu"_a = false, Released());
  m.def(
      "depthwise_conv1d_step",
      [](const Tensor& state, const Tensor& u, const Tensor& w, const MaybeTensor& bias, bool silu) {
        const ConvStep step = depthwise_conv1d_step(state, u, w, given(bias), silu);
        return std::pair(step.y, step.state);
      },
      "state"_a, "u"_a, "w"_a, "bias"_a = nb::none(), "silu"_a = false, Released());
  m.def("long_conv", &long_conv, "u"_a, "h"_a, Released());
  m.def("upsample_nearest", &upsample_nearest, "x"_a, "factor"_a, Released());
}

void bind_norms(nb::module_& m) {
  m.def("softmax", &softmax, "x"_a, "dim"_a = -1, Released());
  m.def("log_softmax", &log_softmax, "x"_a, "dim"_a = -1, Released());
  m.def(
      "layer_norm",
      [](const Tensor& x, const MaybeTensor& gamma, const MaybeTensor& beta, double eps) {
        return layer_norm(x, given(gamma), given(beta), eps);
      },
      "x"_a, "gamma"_a = nb::none(), "beta"_a = nb::none(), "eps"_a = 1e-5, Released());
  m.def(
      "rms_norm", [](const Tensor& x, const MaybeTensor& gamma, double eps) { return rms_norm(x, given(gamma), eps); }, "x"_a,
      "gamma"_a = nb::none(), "eps"_a = 1e-5, Released());
  m.def(
      "group_norm",
      [](const Tensor& x, std::int64_t groups, const MaybeTensor& gamma, const MaybeTensor& beta, double eps) {
        return group_norm(x, groups, given(gamma), given(beta), eps);
      },
      "x"_a, "groups"_a, "gamma"_a = nb::none(), "beta"_a = nb::none(), "eps"_a = 1e-5, Released());
  m.def(
      "instance_norm",
      [](const Tensor& x, const MaybeTensor& gamma, const MaybeTensor& beta, double eps) {
        return instance_norm(x, given(gamma), given(beta), eps);
      },
      "x"_a, "gamma"_a = nb::none(), "beta"_a = nb::none(), "eps"_a = 1e-5, Released());
  m.def("dropout", &dropout, "x"_a, "p"_a, "training"_a = true, Released());
}

void bind_branches(nb::module_& m) {
  const auto tuple_of = [](const ResidualNorm& found) { return std::pair(found.sum, found.y); };
  m.def(
      "residual_layer_norm",
      [tuple_of](const Tensor& x, const Tensor& residual, const MaybeTensor& gamma, const MaybeTensor& beta, double eps,
                 const MaybeTensor& bias, double dropout, bool training) {
        return tuple_of(residual_layer_norm(x, residual, given(gamma), given(beta), eps, {given(bias), dropout, training}));
      },
      "x"_a, "residual"_a, "gamma"_a = nb::none(), "beta"_a = nb::none(), "eps"_a = 1e-5, nb::kw_only(), "bias"_a = nb::none(),
      "dropout"_a = 0, "training"_a = true, Released());
  m.def(
      "residual_rms_norm",
      [tuple_of](const Tensor& x, const Tensor& residual, const MaybeTensor& gamma, double eps, const MaybeTensor& bias, double dropout,
                 bool training) { return tuple_of(residual_rms_norm(x, residual, given(gamma), eps, {given(bias), dropout, training})); },
      "x"_a, "residual"_a, "gamma"_a = nb::none(), "eps"_a = 1e-5, nb::kw_only(), "bias"_a = nb::none(), "dropout"_a = 0,
      "training"_a = true, Released());
  m.def(
      "batch_norm",
      [](const Tensor& x, const MaybeTensor& gamma, const MaybeTensor& beta, double eps, const MaybeTensor& mean,
         const MaybeTensor& variance) {
        if (mean.has_value() != variance.has_value()) fail("batch_norm", "expected mean and variance, or neither");
        if (mean) return std::tuple(batch_norm(x, *mean, *variance, given(gamma), given(beta), eps), *mean, *variance);
        const BatchNormResult found = batch_norm(x, given(gamma), given(beta), eps);
        return std::tuple(found.y, found.mean, found.variance);
      },
      "x"_a, "gamma"_a = nb::none(), "beta"_a = nb::none(), "eps"_a = 1e-5, nb::kw_only(), "mean"_a = nb::none(), "variance"_a = nb::none(),
      Released(),
      "(y, mean, variance): x (B, C, ...) by channel, with its own mean and variance (C), or with those given, as in evaluation.");
  m.def(
      "lstm_cell",
      [](const Tensor& x_gates, const Tensor& h_gates, const Tensor& c) {
        const LSTMState state = lstm_cell(x_gates, h_gates, c);
        return std::pair(state.h, state.c);
      },
      "x_gates"_a, "h_gates"_a, "c"_a, Released());
  m.def("gru_cell", &gru_cell, "x_gates"_a, "h_gates"_a, "h"_a, Released());
  m.def(
      "linear_recurrence",
      [](const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& log_decay, const MaybeTensor& beta,
         const MaybeTensor& initial_state, const MaybeTensor& read, const MaybeTensor& write) {
        const Recurrence result =
            linear_recurrence(q, k, v, {given(log_decay), given(beta), given(initial_state), given(read), given(write)});
        return std::pair(result.y, result.state);
      },
      "q"_a, "k"_a, "v"_a, nb::kw_only(), "log_decay"_a = nb::none(), "beta"_a = nb::none(), "initial_state"_a = nb::none(),
      "read"_a = nb::none(), "write"_a = nb::none(), Released());
  m.def(
      "selective_scan",
      [](const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b, const Tensor& c, const MaybeTensor& initial_state) {
        const Recurrence result = selective_scan(x, dt, a, b, c, given(initial_state));
        return std::pair(result.y, result.state);
      },
      "x"_a, "dt"_a, "a"_a, "b"_a, "c"_a, nb::kw_only(), "initial_state"_a = nb::none(), Released());
  m.def(
      "associative_scan",
      [](const std::function<Tensors(const Tensors&, const Tensors&)>& combine, const Tensors& elements, int dim) {
        return associative_scan(combine, elements, dim);
      },
      "combine"_a, "elements"_a, "dim"_a);
}

void bind_attention(nb::module_& m) {
  nb::class_<AttentionMask> bound(
      m, "AttentionMask",
      "Mask of attention scores (B, H, T, S): `causal`; `padding` (B, S), bool, true for hidden keys, or floating, added to the scores;\n"
      "`prefix` (B), keys that are visible to all queries of a causal mask; `key_lengths` (B); `window`, the number of keys up to its own\n"
      "that are visible to a query.");
  bound.def(
      "__init__",
      [](AttentionMask* self, bool causal, const MaybeTensor& padding, const MaybeTensor& prefix, const MaybeTensor& key_lengths,
         std::int64_t window) { new (self) AttentionMask{causal, given(padding), given(prefix), given(key_lengths), window}; },
      "causal"_a = false, nb::kw_only(), "padding"_a = nb::none(), "prefix"_a = nb::none(), "key_lengths"_a = nb::none(), "window"_a = 0);
  using MaskState = std::tuple<bool, MaybeTensor, MaybeTensor, MaybeTensor, std::int64_t>;
  bound
      .def("__getstate__",
           [](const AttentionMask& x) { return MaskState(x.causal, maybe(x.padding), maybe(x.prefix), maybe(x.key_lengths), x.window); })
      .def("__setstate__", [](AttentionMask& self, const MaskState& state) {
        const auto& [causal, padding, prefix, key_lengths, window] = state;
        new (&self) AttentionMask{causal, given(padding), given(prefix), given(key_lengths), window};
      });
  bound.def("__repr__", [](const AttentionMask& x) { return std::string("AttentionMask(causal=") + (x.causal ? "True" : "False") + ")"; });
  m.def(
      "scaled_dot_product_attention",
      [](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask, const MaybeTensor& bias, std::optional<double> scale,
         double dropout, bool training) {
        const AttentionParams params{.mask = mask, .bias = given(bias), .scale = scale, .dropout = dropout, .training = training};
        return scaled_dot_product_attention(q, k, v, params);
      },
      "q"_a, "k"_a, "v"_a, nb::kw_only(), "mask"_a = AttentionMask(), "bias"_a = nb::none(), "scale"_a = nb::none(), "dropout"_a = 0,
      "training"_a = false, Released());
  m.def("attention_softmax", &attention_softmax, "scores"_a, "mask"_a = AttentionMask(), Released());
  m.def(
      "rope_table",
      [](std::int64_t length, std::int64_t head_dim, double base, const DeviceLike& device, double factor, std::int64_t original_length,
         double low_turns,
         double high_turns) { return rope_table(length, head_dim, base, device.get(), {factor, original_length, low_turns, high_turns}); },
      "length"_a, "head_dim"_a, "base"_a = 10000, "device"_a = nb::none(), nb::kw_only(), "factor"_a = 1, "original_length"_a = 0,
      "low_turns"_a = 1, "high_turns"_a = 4, Released());
  m.def(
      "rope",
      [](const Tensor& x, const Tensor& table, std::optional<std::int64_t> heads, const Choice<RopePairs>& pairs) {
        return rope(x, table, heads, pairs);
      },
      "x"_a, "table"_a, "heads"_a = nb::none(), "pairs"_a = choice(RopePairs::adjacent), Released());
}

}  // namespace

void bind_products(nb::module_& m) {
  m.def("matmul", &matmul, "a"_a, "b"_a, "scale"_a = 1, Released());
  m.def(
      "linear", [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias) { return linear(x, weight, given(bias)); }, "x"_a,
      "weight"_a, "bias"_a = nb::none(), Released());
  m.def(
      "linear_gelu", [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias) { return linear_gelu(x, weight, given(bias)); },
      "x"_a, "weight"_a, "bias"_a = nb::none(), Released());
  m.def(
      "feed_forward_gelu",
      [](const Tensor& x, const Tensor& fc_weight, const MaybeTensor& fc_bias, const Tensor& proj_weight, const MaybeTensor& proj_bias) {
        return feed_forward_gelu(x, fc_weight, given(fc_bias), proj_weight, given(proj_bias));
      },
      "x"_a, "fc_weight"_a, "fc_bias"_a.none(), "proj_weight"_a, "proj_bias"_a = nb::none(), Released());
  m.def(
      "einsum", [](const std::string& subscripts, const Tensors& operands) { return einsum(subscripts, operands); }, "subscripts"_a,
      "operands"_a, Released());
  m.def(
      "einsum",
      [](const std::string& subscripts, const nb::args& operands) {
        const auto tensors = nb::cast<Tensors>(operands);
        const nb::gil_scoped_release released;
        return einsum(subscripts, tensors);
      },
      "subscripts"_a, "operands"_a, nb::sig("def einsum(subscripts: str, *operands: Tensor) -> Tensor"));
  m.def("dot", &dot, "a"_a, "b"_a, Released());
  m.def("outer", &outer, "a"_a, "b"_a, Released());
  m.def("trace", &trace, "x"_a, Released());
  bind_linalg(m);
  bind_convolutions(m);
  bind_norms(m);
  bind_branches(m);
  bind_attention(m);
}

}  // namespace tern::python
