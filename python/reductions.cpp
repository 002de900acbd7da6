// Sums, extremes, statistics and counts (ops/reduce.h).
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "binding.h"
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

}  // namespace tern::python
