// Products, linear algebra, convolutions, norms and attention (ops/matmul.h, einsum.h, linalg.h, convolution.h, normalize.h, attention.h,
// rope.h).
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "names.h"
#include "ops/attention.h"
#include "ops/convolution.h"
#include "ops/einsum.h"
#include "ops/linalg.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/random.h"
#include "ops/rope.h"

namespace tern::python {

namespace {

void bind_linalg(nb::module_& m) {
  m.def("cholesky", &cholesky, "a"_a, Released());
  m.def("solve", &solve, "a"_a, "b"_a, Released(), "x with a x = b.");
  m.def("inverse", &inverse, "a"_a, Released());
  m.def("det", &det, "a"_a, Released());
  m.def(
      "qr",
      [](const Tensor& a) {
        const Qr found = qr(a);
        return std::tuple(found.q, found.r);
      },
      "a"_a, Released(), "(q, r).");
  m.def(
      "eigh",
      [](const Tensor& a) {
        const Eigh found = eigh(a);
        return std::tuple(found.values, found.vectors);
      },
      "a"_a, Released(), "(values, vectors) of a symmetric matrix, values ascending.");
  m.def(
      "svd",
      [](const Tensor& a) {
        const Svd found = svd(a);
        return std::tuple(found.u, found.s, found.vt);
      },
      "a"_a, Released(), "(u, s, vt) with a = u diag(s) vt.");
}

void bind_convolutions(nb::module_& m) {
  m.def(
      "conv2d",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const Size& stride, const Size& padding, const Size& dilation,
         std::int64_t groups) { return conv2d(x, weight, given(bias), {both(stride), both(padding), both(dilation), groups}); },
      "x"_a, "weight"_a, "bias"_a = nb::none(), "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1, "groups"_a = 1, Released(),
      "x (B, C, H, W), weight (O, C / groups, kh, kw) -> (B, O, oh, ow).");
  m.def(
      "conv1d",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias, std::int64_t stride, std::int64_t padding, std::int64_t dilation,
         std::int64_t groups) { return conv1d(x, weight, given(bias), {stride, padding, dilation, groups}); },
      "x"_a, "weight"_a, "bias"_a = nb::none(), "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1, "groups"_a = 1, Released(),
      "x (B, C, L), weight (O, C / groups, k) -> (B, O, ol).");
  const auto pool = [&](const char* name, Tensor (*f)(const Tensor&, const PoolOptions&)) {
    m.def(
        name,
        [f](const Tensor& x, const Size& kernel, const Size& stride, const Size& padding) {
          return f(x, {both(kernel), both(stride), both(padding)});
        },
        "x"_a, "kernel"_a, "stride"_a = 0, "padding"_a = 0, Released(),
        "x (B, C, H, W) -> (B, C, oh, ow); a stride of 0 is the kernel's size.");
  };
  pool("max_pool2d", &max_pool2d);
  pool("avg_pool2d", &avg_pool2d);
  m.def("upsample_nearest", &upsample_nearest, "x"_a, "factor"_a, Released());
}

void bind_norms(nb::module_& m) {
  m.def("softmax", &softmax, "x"_a, "dim"_a = -1, Released());
  m.def("log_softmax", &log_softmax, "x"_a, "dim"_a = -1, Released());
  const auto layer = [&](const char* name, Tensor (*f)(const Tensor&, const Tensor&, const Tensor&, double)) {
    m.def(
        name,
        [f](const Tensor& x, const MaybeTensor& gamma, const MaybeTensor& beta, double eps) {
          return f(x, given(gamma), given(beta), eps);
        },
        "x"_a, "gamma"_a = nb::none(), "beta"_a = nb::none(), "eps"_a = 1e-5, Released(), "Over the last dimension.");
  };
  layer("layer_norm", &layer_norm);
  layer("fused_layer_norm", &fused_layer_norm);
  const auto rms = [&](const char* name, Tensor (*f)(const Tensor&, const Tensor&, double)) {
    m.def(
        name, [f](const Tensor& x, const MaybeTensor& gamma, double eps) { return f(x, given(gamma), eps); }, "x"_a, "gamma"_a = nb::none(),
        "eps"_a = 1e-5, Released(), "Over the last dimension.");
  };
  rms("rms_norm", &rms_norm);
  rms("fused_rms_norm", &fused_rms_norm);
  m.def(
      "group_norm",
      [](const Tensor& x, std::int64_t groups, const MaybeTensor& gamma, const MaybeTensor& beta, double eps) {
        return group_norm(x, groups, given(gamma), given(beta), eps);
      },
      "x"_a, "groups"_a, "gamma"_a = nb::none(), "beta"_a = nb::none(), "eps"_a = 1e-5, Released());
  m.def("dropout", &dropout, "x"_a, "p"_a, "training"_a = true, Released());
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
  bound.def("__repr__", [](const AttentionMask& x) { return std::string("AttentionMask(causal=") + (x.causal ? "True" : "False") + ")"; });
  const auto attention = [&](const char* name, Tensor (*f)(const Tensor&, const Tensor&, const Tensor&, const AttentionParams&)) {
    m.def(
        name,
        [f](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask, const MaybeTensor& bias,
            std::optional<double> scale, double dropout, bool training) {
          return f(q, k, v, {.mask = mask, .bias = given(bias), .scale = scale, .dropout = dropout, .training = training});
        },
        "q"_a, "k"_a, "v"_a, nb::kw_only(), "mask"_a = AttentionMask(), "bias"_a = nb::none(), "scale"_a = nb::none(), "dropout"_a = 0,
        "training"_a = false, Released(),
        "softmax(scale q k^T + bias + mask) v: q (B, T, H, D), k and v (B, S, Hkv, D) -> (B, T, H, D). Hkv divides H.");
  };
  attention("scaled_dot_product_attention", &scaled_dot_product_attention);
  attention("fused_scaled_dot_product_attention", &fused_scaled_dot_product_attention);
  m.def(
      "rope_table",
      [](std::int64_t length, std::int64_t head_dim, double base, const DeviceLike& device) {
        return rope_table(length, head_dim, base, device.get());
      },
      "length"_a, "head_dim"_a, "base"_a = 10000, "device"_a = nb::none(), Released());
  m.def(
      "rope",
      [](const Tensor& x, const Tensor& table, std::optional<std::int64_t> heads, const Choice<RopePairs>& pairs) {
        return rope(x, table, heads, pairs);
      },
      "x"_a, "table"_a, "heads"_a = nb::none(), "pairs"_a = choice(RopePairs::adjacent), Released());
}

}  // namespace

void bind_products(nb::module_& m) {
  m.def("matmul", &matmul, "a"_a, "b"_a, "scale"_a = 1, Released(), "(..., M, K) times (..., K, N), batch dimensions broadcast.");
  m.def(
      "linear", [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias) { return linear(x, weight, given(bias)); }, "x"_a,
      "weight"_a, "bias"_a = nb::none(), Released(), "x (..., in) times weight (out, in) transposed, plus bias (out).");
  m.def(
      "linear_gelu", [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias) { return linear_gelu(x, weight, given(bias)); },
      "x"_a, "weight"_a, "bias"_a = nb::none(), Released(), "gelu_tanh(linear(x, weight, bias)), fused.");
  m.def(
      "einsum", [](const std::string& subscripts, const Tensors& operands) { return einsum(subscripts, operands); }, "subscripts"_a,
      "operands"_a, Released(), "einsum('bij,bjk->bik', [a, b]).");
  m.def("dot", &dot, "a"_a, "b"_a, Released());
  m.def("outer", &outer, "a"_a, "b"_a, Released());
  m.def("trace", &trace, "x"_a, Released());
  bind_linalg(m);
  bind_convolutions(m);
  bind_norms(m);
  bind_attention(m);
}

}  // namespace tern::python
