// Sums, extremes, statistics and counts (ops/reduce.h), and losses (ops/loss.h).
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "binding.h"
#include "names.h"
#include "ops/loss.h"
#include "ops/reduce.h"

namespace tern::python {

void bind_reductions(nb::module_& m) {
  using Reduce = Tensor (*)(const Tensor&, const Dims&, bool);
  const std::pair<const char*, Reduce> reductions[] = {
      {"sum", &sum}, {"mean", &mean},           {"prod", &prod}, {"max", &max},
      {"min", &min}, {"logsumexp", &logsumexp}, {"any", &any},   {"all", &all},
  };
  for (const auto& [name, f] : reductions) m.def(name, f, "x"_a, "dims"_a = Dims(), "keepdim"_a = false, Released());
  m.def("var", &var, "x"_a, "dims"_a = Dims(), "correction"_a = 1, "keepdim"_a = false, Released());
  m.def("stddev", &stddev, "x"_a, "dims"_a = Dims(), "correction"_a = 1, "keepdim"_a = false, Released());
  m.def("norm", &norm, "x"_a, "dims"_a = Dims(), "p"_a = 2, "keepdim"_a = false, Released());
  m.def("argmax", &argmax, "x"_a, "dim"_a = -1, "keepdim"_a = false, Released());
  m.def("argmin", &argmin, "x"_a, "dim"_a = -1, "keepdim"_a = false, Released());
  m.def("median", &median, "x"_a, "dim"_a = -1, "keepdim"_a = false, Released());
  m.def("cummax", &cummax, "x"_a, "dim"_a, Released());
  m.def("cumsum", &cumsum, "x"_a, "dim"_a, Released());
  m.def("cumprod", &cumprod, "x"_a, "dim"_a, Released());
  m.def(
      "unique",
      [](const Tensor& x) {
        const Unique found = unique(x);
        return std::tuple(found.values, found.inverse, found.counts);
      },
      "x"_a, Released(), "(values, inverse, counts): the different elements in ascending order, and values[inverse] is x.");
  m.def(
      "bincount", [](const Tensor& x, const MaybeTensor& weights, std::int64_t least) { return bincount(x, given(weights), least); }, "x"_a,
      "weights"_a = nb::none(), "least"_a = 0, Released());
  m.def("multinomial", &multinomial, "weights"_a, "count"_a, "replacement"_a = false, Released());
}

void bind_losses(nb::module_& m) {
  const auto mean = choice(Reduction::mean);
  m.def(
      "cross_entropy",
      [](const Tensor& logits, const Tensor& targets, const MaybeTensor& token_weights, std::int64_t ignore_index, double label_smoothing,
         const Choice<Reduction>& reduction) {
        return cross_entropy(logits, targets, {given(token_weights), ignore_index, label_smoothing, reduction});
      },
      "logits"_a, "targets"_a, nb::kw_only(), "token_weights"_a = nb::none(), "ignore_index"_a = -100, "label_smoothing"_a = 0,
      "reduction"_a = mean, Released());
  m.def(
      "linear_cross_entropy",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const Tensor& targets, const MaybeTensor& token_weights,
         std::int64_t ignore_index, double label_smoothing, const Choice<Reduction>& reduction, std::int64_t chunk_rows) {
        return linear_cross_entropy(x, weight, given(bias), targets, {given(token_weights), ignore_index, label_smoothing, reduction},
                                    chunk_rows);
      },
      "x"_a, "weight"_a, "bias"_a.none(), "targets"_a, nb::kw_only(), "token_weights"_a = nb::none(), "ignore_index"_a = -100,
      "label_smoothing"_a = 0, "reduction"_a = mean, "chunk_rows"_a = 0, Released());
  const auto two = [&](const char* name, const char* first, const char* second,
                       Tensor (*f)(const Tensor&, const Tensor&, const LossOptions&)) {
    m.def(
        name, [f](const Tensor& a, const Tensor& b, const Choice<Reduction>& reduction) { return f(a, b, {reduction}); }, nb::arg(first),
        nb::arg(second), "reduction"_a = mean, Released());
  };
  two("mse_loss", "a", "b", &mse_loss);
  two("l1_loss", "a", "b", &l1_loss);
  two("binary_cross_entropy", "probabilities", "targets", &binary_cross_entropy);
  two("binary_cross_entropy_with_logits", "logits", "targets", &binary_cross_entropy_with_logits);
  two("kl_div", "input", "target", &kl_div);
  m.def(
      "nll_loss",
      [](const Tensor& log_probabilities, const Tensor& targets, const Choice<Reduction>& reduction, std::int64_t ignore_index) {
        return nll_loss(log_probabilities, targets, {ignore_index, reduction});
      },
      "log_probabilities"_a, "targets"_a, "reduction"_a = mean, "ignore_index"_a = -100, Released());
  m.def(
      "huber_loss",
      [](const Tensor& a, const Tensor& b, double delta, const Choice<Reduction>& reduction) {
        return huber_loss(a, b, {delta, reduction});
      },
      "a"_a, "b"_a, "delta"_a = 1, "reduction"_a = mean, Released());
}

}  // namespace tern::python
