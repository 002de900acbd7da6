// Rows of ops/index.h, ops/view.h and of unique and bincount. Note [The table] in op_cases.h. x[...] itself is in
// everyday_ops_test.cpp.
#include <algorithm>
#include <set>

#include "op_cases.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::op_cases {

using namespace reference;

namespace {

const std::vector<Shape> lines = {{0}, {1}, {31}, {33}, {1025}};

Row row_of(const char* name, std::vector<Mistake> mistakes) {
  Row row{name, {}, std::move(mistakes)};
  row.dtypes = all_dtypes;
  row.on_cuda_bitwise = true;
  return row;
}

template <class F, class G>
void add(Row& row, const Shape& shape, F f, G g) {
  row.cases.push_back({{value(shape)}, [=](In in) -> Tensors { return {f(in[0])}; }, [=](Ref in) { return one(g(in[0])); }});
}

void add_choosing(Rows& rows) {
  Row row{"nonzero", {}};
  row.dtypes = all_dtypes;
  row.differentiable = false;
  for (const Shape& shape : {Shape{0}, {1}, {31}, {33}, {1025}, {}, {3, 5}, {2, 3, 4}, {3, 0}})
    row.cases.push_back({{whole(shape, -1, 2)},
                         [](In in) -> Tensors { return {nonzero(in[0])}; },
                         [](Ref in) {
                           Array y{{0, in[0].shape.size()}, DType::i64, {}};
                           each(in[0].shape, [&](const Shape& i) {
                             if (in[0](i) == 0) return;
                             ++y.shape[0];
                             for (std::int64_t at : i) y.values.push_back(double(at));
                           });
                           return one(y);
                         }});
  rows.push_back(row);

  row = row_of("masked_select", {{[] { masked_select(sample({3}), sample({3})); }, {"bool", "f32"}},
                                 {[] { masked_select(sample({3}), sample({4}, DType::boolean)); }, {"(3,)", "(4,)"}}});
  for (const auto& [shape, mask] : std::vector<std::pair<Shape, Shape>>{
           {{0}, {0}}, {{1}, {1}}, {{31}, {31}}, {{33}, {33}}, {{1025}, {1025}}, {{3, 5}, {3, 1}}, {{5}, {3, 5}}, {{}, {4}}})
    row.cases.push_back({{value(shape), truth(mask)},
                         [](In in) -> Tensors { return {masked_select(in[0], in[1])}; },
                         [](Ref in) {
                           Array y{{0}, in.dtype, {}};
                           each(joint_shape(in[0].shape, in[1].shape), [&](const Shape& i) {
                             if (broadcast_at(in[1], i) == 0) return;
                             ++y.shape[0];
                             y.values.push_back(broadcast_at(in[0], i));
                           });
                           return one(y);
                         }});
  rows.push_back(row);

  row = row_of("scatter", {{[] { scatter(sample({3}), 0, sample({2}, DType::i64), sample({3})); }, {"(2,)", "(3,)"}},
                           {[] { scatter(sample({3}), 0, sample({2}), sample({2})); }, {"i64", "f32"}},
                           {[] { scatter(sample({3, 2}), 0, sample({2, 3}, DType::i64), sample({2, 3})); }, {"(3, 2)", "(2, 3)"}},
                           {[] { scatter(sample({3}), 0, sample({2}, DType::i64), sample({2}, DType::f64)); }, {"f32", "f64"}}});
  const auto placed = [](Ref in, int dim, std::optional<double> number) {
    Array y = in[0];
    each(in[1].shape, [&](const Shape& i) {
      Shape at = i;
      at[dim] = std::int64_t(in[1](i));
      y(at) = held(in.dtype, number ? *number : in[2](i));
    });
    return one(y);
  };
  // Indices that do not repeat: each is 2 i + 1 along the dimension.
  const auto odd = [](const Shape& shape, int dim, Device device) {
    const Array at = make(shape, DType::i64, [dim](const Shape& i) { return double(2 * i[dim] + 1); });
    return Tensor::from(std::vector<std::int64_t>(at.values.begin(), at.values.end()), shape, device);
  };
  for (const auto& [count, dim] : std::vector<std::pair<Shape, int>>{
           {{0}, 0}, {{1}, 0}, {{31}, 0}, {{33}, 0}, {{1025}, 0}, {{2, 3}, 0}, {{3, 2}, 1}, {{2, 2, 3}, 1}}) {
    Shape shape = count;
    shape[dim] = 2 * count[dim] + 1;
    row.cases.push_back(
        {{value(shape), value(count)},
         [=, dim = dim](In in) -> Tensors {
           return {scatter(in[0], dim, odd(in[1].shape(), dim, in[0].device() == in[1].device() ? in[0].device() : cpu), in[1])};
         },
         [=, dim = dim](Ref in) {
           Array at = in[1];
           each(at.shape, [&](const Shape& i) { at(i) = double(2 * i[dim] + 1); });
           return placed({{in[0], at, in[1]}, in.dtype}, dim, {});
         }});
    row.cases.push_back({{value(shape), index(count, shape[dim])},
                         [dim = dim](In in) -> Tensors { return {scatter(in[0], dim, in[1], 1)}; },
                         [=, dim = dim](Ref in) { return placed(in, dim, 1.0); }});
  }
  rows.push_back(row);
}

void add_orders(Rows& rows) {
  Row row = row_of("flip", {{[] { flip(sample({2, 3}), {2}); }, {"2"}}, {[] { flip(sample({2, 3}), {1, -1}); }, {"once", "(1, -1)"}}});
  struct Along {
    Shape shape;
    Dims dims;
  };
  for (const Along& a :
       {Along{{0}, {0}}, {{1}, {0}}, {{31}, {}}, {{33}, {-1}}, {{1025}, {0}}, {{}, {}}, {{3, 5}, {0}}, {{2, 3, 4}, {0, 2}}, {{3, 4}, {}}})
    add(
        row, a.shape, [a](T x) { return flip(x, a.dims); },
        [a](A x) {
          return make(x.shape, x.dtype, [&](Shape i) {
            for (int d = 0; d < i.size(); ++d)
              if (is_reduced(a.dims, d, i.size())) i[d] = x.shape[d] - 1 - i[d];
            return x(i);
          });
        });
  rows.push_back(row);

  row = row_of("roll", {{[] { roll(sample({2, 3}), 1, 2); }, {"2"}}, {[] { roll(sample({}), 1, 0); }, {"0"}}});
  struct Shift {
    Shape shape;
    std::int64_t shift;
    int dim;
  };
  for (const Shift& s :
       {Shift{{0}, 1, 0}, {{1}, 3, 0}, {{31}, 5, 0}, {{33}, -40, 0}, {{1025}, 1024, -1}, {{3, 5}, 2, 1}, {{3, 5}, -1, 0}, {{4}, 8, 0}})
    add(
        row, s.shape, [s](T x) { return roll(x, s.shift, s.dim); },
        [s](A x) {
          const int dim = s.dim < 0 ? s.dim + x.shape.size() : s.dim;
          return make(x.shape, x.dtype, [&](Shape i) {
            i[dim] = (((i[dim] - s.shift) % x.shape[dim]) + x.shape[dim]) % x.shape[dim];
            return x(i);
          });
        });
  rows.push_back(row);

  const auto repeating = [&](const char* name, Tensor (*f)(T, std::int64_t, int)) {
    Row repeats = row_of(name, {{[=] { f(sample({2, 3}), 2, 2); }, {"2"}}, {[=] { f(sample({3}), -1, 0); }, {"-1"}}});
    repeats.shown_name = "repeat";
    for (const Shift& s :
         {Shift{{0}, 2, 0}, {{1}, 3, 0}, {{31}, 2, 0}, {{33}, 1, 0}, {{1025}, 2, -1}, {{3, 5}, 2, 1}, {{3, 5}, 3, 0}, {{4}, 0, 0}})
      add(
          repeats, s.shape, [s, f](T x) { return f(x, s.shift, s.dim); },
          [s](A x) {
            const int dim = s.dim < 0 ? s.dim + x.shape.size() : s.dim;
            Shape shape = x.shape;
            shape[dim] *= s.shift;
            return make(shape, x.dtype, [&](Shape i) {
              i[dim] /= s.shift;
              return x(i);
            });
          });
    rows.push_back(repeats);
  };
  repeating("repeat", repeat);
  repeating("repeat_interleave", repeat_interleave);

  row = row_of("tile", {{[] { tile(sample({3}), {-1}); }, {"(-1,)"}}});
  for (const auto& [shape, counts] : std::vector<std::pair<Shape, Shape>>{{{0}, {2}},
                                                                          {{1}, {3}},
                                                                          {{31}, {2}},
                                                                          {{33}, {}},
                                                                          {{1025}, {2}},
                                                                          {{3, 5}, {2, 3}},
                                                                          {{3, 5}, {2}},
                                                                          {{3}, {2, 2}},
                                                                          {{}, {2, 1}},
                                                                          {{2, 3}, {0, 1}}})
    add(
        row, shape, [counts = counts](T x) { return tile(x, counts); },
        [counts = counts](A x) {
          Shape result;
          const int dims = std::max(counts.size(), x.shape.size()), in_x = dims - x.shape.size(), in_counts = dims - counts.size();
          for (int d = 0; d < dims; ++d)
            result.push_back((d >= in_x ? x.shape[d - in_x] : 1) * (d >= in_counts ? counts[d - in_counts] : 1));
          return make(result, x.dtype, [&](const Shape& i) {
            Shape at;
            for (int d = in_x; d < dims; ++d) at.push_back(i[d] % x.shape[d - in_x]);
            return x(at);
          });
        });
  rows.push_back(row);

  row = row_of("movedim", {{[] { movedim(sample({2, 3}), 2, 0); }, {"2"}}, {[] { movedim(sample({2, 3}), 0, -3); }, {"-3"}}});
  add(row, {2, 3, 4}, [](T x) { return movedim(x, 0, -1); }, [](A x) { return permuted(x, {1, 2, 0}); });
  add(row, {2, 3, 4}, [](T x) { return movedim(x, 2, 1); }, [](A x) { return permuted(x, {0, 2, 1}); });
  for (const Shape& shape : lines) add(row, shape, [](T x) { return movedim(x, 0, 0); }, [](A x) { return x; });
  rows.push_back(row);

  row = row_of("chunk", {{[] { chunk(sample({3}), 0); }, {"0"}}, {[] { chunk(sample({3}), 2, 1); }, {"1"}}});
  for (const Shape& shape : {Shape{1}, {31}, {33}, {1025}, {2, 5}, {0, 4}})
    row.cases.push_back({{value(shape)},
                         [](In in) -> Tensors { return chunk(in[0], 3, -1); },
                         [](Ref in) {
                           const int dim = in[0].shape.size() - 1;
                           const std::int64_t size = in[0].shape[dim], part = (size + 2) / 3;
                           Arrays pieces;
                           for (std::int64_t at = 0; at < size; at += part)
                             pieces.push_back(sliced(in[0], dim, at, std::min(part, size - at)));
                           return pieces;
                         }});
  rows.push_back(row);
}

void add_diagonals(Rows& rows) {
  Row row = row_of("diagonal", {{[] { diagonal(sample({3})); }, {"-2"}}, {[] { diagonal(sample({3, 3}), 0, 1, -1); }, {"twice", "1"}}});
  struct Lying {
    Shape shape;
    std::int64_t offset;
    int a, b;
  };
  const auto picked = [](A x, const Lying& l) {
    Shape rest, result;
    for (int d = 0; d < x.shape.size(); ++d)
      if (d != l.a && d != l.b) rest.push_back(x.shape[d]);
    result = rest;
    const std::int64_t row_ = std::max<std::int64_t>(-l.offset, 0), column = std::max<std::int64_t>(l.offset, 0);
    result.push_back(std::max<std::int64_t>(0, std::min(x.shape[l.a] - row_, x.shape[l.b] - column)));
    return make(result, x.dtype, [&](const Shape& i) {
      Shape at;
      for (int d = 0, next = 0; d < x.shape.size(); ++d)
        at.push_back(d == l.a ? i[i.size() - 1] + row_ : d == l.b ? i[i.size() - 1] + column : i[next++]);
      return x(at);
    });
  };
  for (const Lying& l : {Lying{{0, 0}, 0, 0, 1},
                         {{1, 1}, 0, 0, 1},
                         {{31, 33}, 2, 0, 1},
                         {{33, 31}, -1, 0, 1},
                         {{1025, 1}, 0, 0, 1},
                         {{3, 4}, 0, 0, 1},
                         {{3, 4}, 3, 0, 1},
                         {{3, 4}, -5, 0, 1},
                         {{3, 2, 4}, 1, 2, 0},
                         {{2, 3, 3}, -1, 1, 2}})
    add(row, l.shape, [l](T x) { return diagonal(x, l.offset, l.a, l.b); }, [=](A x) { return picked(x, l); });
  rows.push_back(row);

  row = row_of("diag", {{[] { diag(sample({2, 2, 2})); }, {"(2, 2, 2)"}}, {[] { diag(sample({})); }, {"()"}}});
  row.cases.push_back(
      {{value({3, 4})}, [](In in) -> Tensors { return {diag(in[0], 1)}; }, [=](Ref in) { return one(picked(in[0], {{}, 1, 0, 1})); }});
  for (const auto& [shape, offset] : std::vector<std::pair<Shape, std::int64_t>>{{{0}, 0}, {{1}, 2}, {{31}, -1}, {{33}, 0}, {{5}, 1}})
    add(
        row, shape, [offset = offset](T x) { return diag(x, offset); },
        [offset = offset](A x) {
          const std::int64_t n = x.shape[0] + std::abs(offset);
          return make({n, n}, x.dtype, [&](const Shape& i) { return i[1] - i[0] == offset ? x({std::min(i[0], i[1])}) : 0.0; });
        });
  row.cases.push_back(
      {{value({1025, 1})}, [](In in) -> Tensors { return {diag(in[0])}; }, [=](Ref in) { return one(picked(in[0], {{}, 0, 0, 1})); }});
  rows.push_back(row);

  row = row_of("sliding_window", {{[] { sliding_window(sample({3}), 0, 4); }, {"[1, 3]", "4"}},
                                  {[] { sliding_window(sample({3}), 0, 2, 0); }, {"0"}},
                                  {[] { sliding_window(sample({3}), 1, 2); }, {"1"}}});
  row.dtypes = floats;  // the gradient adds up, and so rounds
  struct Windows {
    Shape shape;
    int dim;
    std::int64_t size, step;
  };
  for (const Windows& w : {Windows{{1}, 0, 1, 1},
                           {{31}, 0, 3, 2},
                           {{33}, 0, 33, 1},
                           {{1025}, 0, 5, 4},
                           {{2, 5}, 1, 2, 1},
                           {{5, 2}, 0, 3, 2},
                           {{2, 4, 0}, 1, 2, 1}})
    add(
        row, w.shape, [w](T x) { return sliding_window(x, w.dim, w.size, w.step); },
        [w](A x) {
          Shape shape = x.shape;
          shape[w.dim] = (x.shape[w.dim] - w.size) / w.step + 1;
          shape.push_back(w.size);
          return make(shape, x.dtype, [&](Shape i) {
            i[w.dim] = i[w.dim] * w.step + i.back();
            i.pop_back();
            return x(i);
          });
        });
  rows.push_back(row);
}

void add_counts(Rows& rows) {
  Row row{"unique", {}};
  row.dtypes = all_dtypes;
  row.differentiable = false;
  for (const Shape& shape : {Shape{0}, {1}, {31}, {33}, {1025}, {3, 5}})
    row.cases.push_back({{whole(shape, -3, 4)},
                         [](In in) -> Tensors {
                           const Unique y = unique(in[0]);
                           return {y.values, y.inverse, y.counts};
                         },
                         [](Ref in) {
                           const std::set<double> values(in[0].values.begin(), in[0].values.end());
                           Array kept{{std::int64_t(values.size())}, in.dtype, {values.begin(), values.end()}}, inverse = in[0];
                           inverse.dtype = DType::i64;
                           Array counts{kept.shape, DType::i64, std::vector<double>(values.size())};
                           for (double& x : inverse.values) {
                             x = double(std::distance(values.begin(), values.find(x)));
                             ++counts.values[std::size_t(x)];
                           }
                           return Arrays{kept, inverse, counts};
                         }});
  rows.push_back(row);

  row = {"bincount", {}};
  row.slack = 20;
  row.mistakes = {{[] { bincount(sample({3})); }, {"i64", "f32"}},
                  {[] { bincount(sample({3, 1}, DType::i64)); }, {"(3, 1)"}},
                  {[] { bincount(sample({3}, DType::i64), sample({4})); }, {"(3,)", "(4,)"}},
                  {[] { bincount(sub(sample({3}, DType::i64), 1)); }, {"-1"}},
                  {[] { bincount(sample({3}, DType::i64), {}, -2); }, {"-2"}}};
  const auto counted = [](A x, const Array* weights, std::int64_t least, DType dtype) {
    std::int64_t size = least;
    for (double v : x.values) size = std::max(size, std::int64_t(v) + 1);
    Array y{{size}, dtype, std::vector<double>(std::size_t(size))};
    for (std::size_t i = 0; i < x.values.size(); ++i) y.values[std::size_t(x.values[i])] += weights ? weights->values[i] : 1;
    return one(y);
  };
  for (const Shape& shape : lines) {
    row.cases.push_back({{index(shape, 7)},
                         [](In in) -> Tensors { return {bincount(in[0], {}, 3)}; },
                         [=](Ref in) { return counted(in[0], nullptr, 3, DType::i64); }});
    row.cases.push_back({{index(shape, 7), value(shape)},
                         [](In in) -> Tensors { return {bincount(in[0], in[1])}; },
                         [=](Ref in) { return counted(in[0], &in[1], 0, in.dtype); }});
  }
  row.cases.push_back({{index({9}, 4), value({9})},
                       [](In in) -> Tensors { return {bincount(in[0], in[1], 9)}; },
                       [=](Ref in) { return counted(in[0], &in[1], 9, in.dtype); }});
  rows.push_back(row);
}

}  // namespace

void add_indexing(Rows& rows) {
  add_choosing(rows);
  add_orders(rows);
  add_diagonals(rows);
  add_counts(rows);
}

}  // namespace tern::op_cases
