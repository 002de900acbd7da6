// Rows of ops/index.h. Note [The table] in op_cases.h.
#include <cmath>
#include <numeric>

#include "op_cases.h"
#include "ops/index.h"

namespace tern::op_cases {

using namespace reference;

namespace {

int wrapped(int dim, A x) { return dim < 0 ? dim + x.shape.size() : dim; }

Tensor indices(std::vector<std::int64_t> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return Tensor::from(values, {count});
}

/// Mistakes that an op on (x, dim, index) refuses.
template <class F>
std::vector<Mistake> wrong_indices(F f) {
  return {{[=] { f(sample({3}), 0, sample({2})); }, {"i64", "f32"}},
          {[=] { f(sample({3}), 0, sample({2}, DType::u8)); }, {"i64", "u8"}},
          {[=] { f(sample({3}), 1, indices({0, 0})); }, {"1"}},
          {[=] { f(sample({3}), 0, indices({0, 3})); }, {"3"}},
          {[=] { f(sample({3}), 0, indices({-1, 0})); }, {"-1"}}};
}

struct Pick {
  Shape x, index;
  int dim;
};

void add_gathers(Rows& rows) {
  Row row{"gather", {}};
  row.dtypes = all_dtypes;
  row.on_cuda_bitwise = true;
  const std::vector<Pick> picks = {{{3}, {0}, 0},
                                   {{1}, {1}, 0},
                                   {{31}, {33}, 0},
                                   {{33}, {31}, -1},
                                   {{1025}, {1025}, 0},
                                   {{4, 3}, {2, 3}, 0},
                                   {{4, 3}, {4, 5}, 1},
                                   {{2, 3, 4}, {2, 2, 4}, 1},
                                   {{0, 3}, {0, 2}, 1},
                                   {{9, 40, 33}, {5, 40, 33}, 0},
                                   {{5, 9, 33}, {5, 40, 33}, 1},
                                   {{5, 40, 9}, {5, 40, 33}, 2}};
  for (const Pick& p : picks)
    row.cases.push_back({{value(p.x), index(p.index, p.x[p.dim < 0 ? p.dim + p.x.size() : p.dim])},
                         [p](In in) -> Tensors { return {gather(in[0], p.dim, in[1])}; },
                         [p](Ref in) {
                           return one(make(p.index, in.dtype, [&](Shape i) {
                             Shape from = i;
                             from[wrapped(p.dim, in[0])] = static_cast<std::int64_t>(in[1](i));
                             return in[0](from);
                           }));
                         }});
  row.mistakes = wrong_indices(gather);
  row.mistakes.push_back({[] { gather(sample({3, 2}), 0, sample({3}, DType::i64)); }, {"(3, 2)", "(3,)"}});
  row.mistakes.push_back({[] { gather(sample({3, 2}), 0, sample({3, 3}, DType::i64)); }, {"(3, 2)", "(3, 3)"}});
  rows.push_back(row);

  row = {"scatter_add", {}};
  row.dtypes = numbers;
  row.on_cuda_in_any_order = true;
  row.slack = 8;
  for (const Pick& p : picks)
    row.cases.push_back({{value(p.x), index(p.index, p.x[p.dim < 0 ? p.dim + p.x.size() : p.dim]), value(p.index)},
                         [p](In in) -> Tensors { return {scatter_add(in[0], p.dim, in[1], in[2])}; },
                         [p](Ref in) {
                           Array y = in[0];
                           each(p.index, [&](const Shape& i) {
                             Shape into = i;
                             into[wrapped(p.dim, y)] = static_cast<std::int64_t>(in[1](i));
                             y(into) = held(in.dtype, y(into) + in[2](i));
                           });
                           return one(y);
                         }});
  row.mistakes = wrong_indices([](const Tensor& x, int dim, const Tensor& at) { scatter_add(x, dim, at, sample(at.shape())); });
  row.mistakes.push_back({[] { scatter_add(sample({3}), 0, indices({0, 1}), sample({3})); }, {"(2,)", "(3,)"}});
  row.mistakes.push_back({[] { scatter_add(sample({3}), 0, indices({0, 1}), sample({2}, DType::f64)); }, {"f32", "f64"}});
  row.mistakes.push_back({[] { scatter_add(sample({3, 2}), 0, sample({3, 3}, DType::i64), sample({3, 3})); }, {"(3, 2)", "(3, 3)"}});
  row.mistakes.push_back({[] { scatter_add(sample({3}, DType::boolean), 0, indices({0}), sample({1}, DType::boolean)); }, {"bool"}});
  rows.push_back(row);
}

void add_slices(Rows& rows) {
  const std::vector<Pick> picks = {{{3}, {0}, 0},
                                   {{1}, {1}, 0},
                                   {{31}, {33}, 0},
                                   {{33}, {31}, -1},
                                   {{1025}, {1025}, 0},
                                   {{4, 3}, {6}, 0},
                                   {{4, 3}, {2}, 1},
                                   {{2, 3, 2}, {4}, 1},
                                   {{0, 3}, {2}, 1},
                                   {{5, 33}, {7}, 0},
                                   {{2, 17, 33}, {150}, 1},
                                   {{2, 17, 256}, {150}, 1},
                                   {{3, 50, 64}, {20}, 1},
                                   {{1, 5}, {100}, 0},
                                   {{9000, 2}, {8192}, 0},
                                   {{9000, 2}, {8193}, 0},
                                   {{1000, 32}, {70000}, 0},
                                   {{5000, 64}, {1500}, 0}};
  const auto with_index = [](const Pick& p) {
    Shape shape = p.x;
    shape[p.dim < 0 ? p.dim + shape.size() : p.dim] = p.index[0];
    return shape;
  };
  const auto bound = [](const Pick& p) { return p.x[p.dim < 0 ? p.dim + p.x.size() : p.dim]; };

  Row row{"index_select", {}};
  row.dtypes = all_dtypes;
  row.on_cuda_bitwise = true;
  for (const Pick& p : picks)
    row.cases.push_back({{value(p.x), index(p.index, bound(p))},
                         [p](In in) -> Tensors { return {index_select(in[0], p.dim, in[1])}; },
                         [=](Ref in) {
                           return one(make(with_index(p), in.dtype, [&](Shape i) {
                             const int d = wrapped(p.dim, in[0]);
                             i[d] = static_cast<std::int64_t>(in[1]({i[d]}));
                             return in[0](i);
                           }));
                         }});
  row.mistakes = wrong_indices(index_select);
  row.mistakes.push_back({[] { index_select(sample({3}), 0, sample({1, 1}, DType::i64)); }, {"(1, 1)"}});
  row.mistakes.push_back({[] { index_select(sample({}), 0, sample({1}, DType::i64)); }, {"0"}});
  row.mistakes.push_back({[] { index_select(sample({0}), 0, indices({0})); }, {"0"}});
  rows.push_back(row);

  row = {"index_add", {}};
  row.dtypes = numbers;
  row.slack = 8;
  for (const Pick& p : picks)
    row.cases.push_back({{value(p.x), index(p.index, bound(p)), value(with_index(p))},
                         [p](In in) -> Tensors { return {index_add(in[0], p.dim, in[1], in[2])}; },
                         [p](Ref in) {
                           Array y = in[0];
                           each(in[2].shape, [&](const Shape& i) {
                             Shape into = i;
                             const int d = wrapped(p.dim, y);
                             into[d] = static_cast<std::int64_t>(in[1]({i[d]}));
                             y(into) = held(in.dtype, y(into) + in[2](i));
                           });
                           return one(y);
                         }});
  row.mistakes = wrong_indices([](const Tensor& x, int dim, const Tensor& at) { index_add(x, dim, at, sample(at.shape())); });
  row.mistakes.push_back({[] { index_add(sample({3, 2}), 0, indices({0}), sample({2, 2})); }, {"(3, 2)", "(1,)", "(2, 2)"}});
  row.mistakes.push_back({[] { index_add(sample({3}), 0, indices({0}), sample({1}, DType::f64)); }, {"f32", "f64"}});
  row.mistakes.push_back({[] { index_add(sample({3}), 0, sample({1, 1}, DType::i64), sample({1, 1})); }, {"(1, 1)"}});
  row.mistakes.push_back({[] { index_add(sample({3}, DType::boolean), 0, indices({0}), sample({1}, DType::boolean)); }, {"bool"}});
  rows.push_back(row);

  row = {"index_copy_", {}};
  row.dtypes = all_dtypes;
  row.differentiable = false;
  row.on_cuda_bitwise = true;
  for (const Pick& p : picks) {
    const std::int64_t length = bound(p), count = std::min(p.index[0], length);
    if (length == 0) continue;
    Input at = index({count}, length);
    at.distinct = true;
    row.cases.push_back({{edited(p.x), at, value(with_index({p.x, {count}, p.dim}))},
                         [p](In in) -> Tensors { return {index_copy_(in[0], p.dim, in[1], in[2])}; },
                         [p](Ref in) {
                           Array y = in[0];
                           each(in[2].shape, [&](const Shape& i) {
                             Shape into = i;
                             const int d = wrapped(p.dim, y);
                             into[d] = static_cast<std::int64_t>(in[1]({i[d]}));
                             y(into) = in[2](i);
                           });
                           return one(y);
                         }});
  }
  row.mistakes = wrong_indices([](const Tensor& x, int dim, const Tensor& at) { index_copy_(x, dim, at, sample(at.shape())); });
  row.mistakes.push_back({[] { index_copy_(sample({3, 2}), 0, indices({0}), sample({2, 2})); }, {"(3, 2)", "(1,)", "(2, 2)"}});
  row.mistakes.push_back({[] { index_copy_(sample({3}), 0, indices({0}), sample({1}, DType::f64)); }, {"f32", "f64"}});
  row.mistakes.push_back({[] { index_copy_(sample({1}).window({3}, {0}, 0), 0, indices({0}), sample({1})); }, {"share memory"}});
  rows.push_back(row);
}

void add_embeddings(Rows& rows) {
  Row row{"embedding", {}};
  row.on_cuda_bitwise = true;
  for (const auto& [table, at] : std::vector<std::pair<Shape, Shape>>{{{3, 2}, {0}},
                                                                      {{1, 1}, {1}},
                                                                      {{31, 2}, {33}},
                                                                      {{5, 31}, {2, 3}},
                                                                      {{7, 1025}, {3}},
                                                                      {{5, 3}, {}},
                                                                      {{4, 3}, {2, 0}},
                                                                      {{4, 0}, {3}},
                                                                      {{4, 2}, {2, 1, 3}}})
    row.cases.push_back({{value(table), index(at, table[0])},
                         [](In in) -> Tensors { return {embedding(in[0], in[1])}; },
                         [](Ref in) {
                           Shape shape = in[1].shape;
                           shape.push_back(in[0].shape[1]);
                           return one(make(shape, in.dtype, [&](Shape i) {
                             const std::int64_t column = i.back();
                             i.pop_back();
                             return in[0]({static_cast<std::int64_t>(in[1](i)), column});
                           }));
                         }});
  row.mistakes = {{[] { embedding(sample({3}), indices({0})); }, {"(3,)"}},
                  {[] { embedding(sample({3, 2}), sample({2})); }, {"i64", "f32"}},
                  // Its kernel is index_select, and says so.
                  {[] { embedding(sample({3, 2}), indices({1, 3})); }, {"3"}, "index_select"},
                  {[] { embedding(sample({3, 2}), indices({-1})); }, {"-1"}, "index_select"}};
  rows.push_back(row);

  row = {"embedding", {}};
  struct Case {
    Shape table, positions, ids;  ///< positions of no dimensions: none
  };
  for (const Case& c :
       {Case{{3, 4}, {2, 4}, {2, 2}}, Case{{5, 8}, {7, 8}, {3, 5}}, Case{{9, 4}, {}, {2, 3}}, Case{{31, 32}, {33, 32}, {2, 33}},
        Case{{4, 1028}, {1, 1028}, {1, 1}}, Case{{6, 3}, {4, 3}, {2, 3}}, Case{{6, 4}, {4, 4}, {33, 1}}, Case{{3, 4}, {2, 4}, {0, 2}},
        Case{{3, 4}, {2, 4}, {2, 0}}, Case{{3, 4}, {1025, 4}, {1, 1025}}}) {
    const bool has_positions = !c.positions.empty();
    std::vector<Input> inputs = {value(c.table), index(c.ids, c.table[0])};
    if (has_positions) {
      inputs.push_back(value(c.positions));
      inputs.back().optional = true;
    }
    row.cases.push_back({inputs, [=](In in) -> Tensors { return {embedding(in[0], has_positions ? in[2] : Tensor(), in[1])}; },
                         [=](Ref in) {
                           return one(make({c.ids[0], c.ids[1], c.table[1]}, in.dtype, [&](const Shape& i) {
                             const double token = in[0]({static_cast<std::int64_t>(in[1]({i[0], i[1]})), i[2]});
                             return token + (has_positions ? in[2]({i[1], i[2]}) : 0);
                           }));
                         }});
  }
  const Tensor ids = sample({2, 3}, DType::i64);
  row.mistakes = {{[=] { embedding(sample({3}), {}, ids); }, {"(3,)"}},
                  {[=] { embedding(sample({9, 4}), {}, indices({1})); }, {"(1,)"}},
                  {[=] { embedding(sample({9, 4}), {}, sample({2, 3})); }, {"i64", "f32"}},
                  {[=] { embedding(sample({9, 4}), sample({2, 4}), ids); }, {"(2, 4)"}},
                  {[=] { embedding(sample({9, 4}), sample({3, 5}), ids); }, {"(3, 5)"}},
                  {[=] { embedding(sample({9, 4}), sample({3, 4}, DType::f64), ids); }, {"f32", "f64"}},
                  {[=] { embedding(sample({9, 4}), {}, ids, 1); }, {"1"}}};
  rows.push_back(row);
  rows.push_back(plain(row));
}

void add_triangles(Rows& rows) {
  for (const bool upper : {false, true}) {
    const auto f = upper ? triu : tril;
    Row row{upper ? "triu" : "tril", {}};
    row.dtypes = all_dtypes;
    row.on_cuda_bitwise = true;
    for (const auto& [shape, diagonal] : std::vector<std::pair<Shape, std::int64_t>>{{{0, 3}, 0},
                                                                                     {{1, 1}, 0},
                                                                                     {{31, 5}, 1},
                                                                                     {{3, 33}, -1},
                                                                                     {{2, 1025}, 700},
                                                                                     {{5, 5}, 0},
                                                                                     {{4, 5}, 1},
                                                                                     {{5, 4}, -2},
                                                                                     {{2, 3, 3}, 0},
                                                                                     {{3, 33, 41}, -2},
                                                                                     {{3, 4}, 9},
                                                                                     {{3, 4}, -9},
                                                                                     {{3, 4}, std::numeric_limits<std::int64_t>::max()},
                                                                                     {{3, 4}, std::numeric_limits<std::int64_t>::min()}})
      row.cases.push_back({{value(shape)},
                           [f, diagonal = diagonal](In in) -> Tensors { return {f(in[0], diagonal)}; },
                           [upper, diagonal = diagonal](Ref in) {
                             return one(make(in[0].shape, in.dtype, [&](const Shape& i) {
                               const std::int64_t offset = i.back() - i[i.size() - 2];
                               return (upper ? offset >= diagonal : offset <= diagonal) ? in[0](i) : 0;
                             }));
                           }});
    row.mistakes = {{[=] { f(sample({3}), 0); }, {"(3,)"}}, {[=] { f(sample({}), 0); }, {"()"}}};
    rows.push_back(row);
  }

  Row row{"one_hot", {}};
  row.dtypes = all_dtypes;
  row.differentiable = false;
  row.on_cuda_bitwise = true;
  for (const auto& [shape, classes] :
       std::vector<std::pair<Shape, std::int64_t>>{{{0}, 3}, {{1}, 1}, {{31}, 4}, {{33}, 3}, {{1025}, 5}, {{}, 4}, {{2, 3}, 4}, {{3}, 0}}) {
    // One index outside the range gives a row of zeros.
    Input at = index(shape, classes + 1);
    at.low = -1;
    row.cases.push_back({{at},
                         [classes = classes](In in) -> Tensors { return {one_hot(in[0], classes, in.dtype)}; },
                         [classes = classes](Ref in) {
                           Shape result = in[0].shape;
                           result.push_back(classes);
                           return one(make(result, in.dtype, [&](Shape i) {
                             const auto column = static_cast<double>(i.back());
                             i.pop_back();
                             return in[0](i) == column;
                           }));
                         }});
  }
  row.mistakes = {{[] { one_hot(sample({3}), 4); }, {"i64", "f32"}}, {[] { one_hot(sample({3}, DType::i64), -1); }, {"-1"}}};
  rows.push_back(row);
}

/// Values and indices of a dimension's first `count` elements in stable order.
Arrays sorted(A x, int dim, bool descending, std::int64_t count) {
  Array places = along(x, dim, [&](const std::vector<double>& slice) {
    std::vector<std::size_t> order(slice.size());
    std::iota(order.begin(), order.end(), 0);
    // NaN counts as largest.
    const auto less = [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return descending ? less(slice[b], slice[a]) : less(slice[a], slice[b]); });
    return std::vector<double>(order.begin(), order.end());
  });
  places.dtype = DType::i64;
  if (x.shape.empty()) return {x, places};
  const int d = dim < 0 ? dim + x.shape.size() : dim;
  places = sliced(places, d, 0, count);
  Array values = make(places.shape, x.dtype, [&](Shape i) {
    i[d] = static_cast<std::int64_t>(places(i));
    return x(i);
  });
  return {values, places};
}

void add_orders(Rows& rows) {
  Row row{"sort", {}};
  row.dtypes = numbers;
  row.on_cuda_bitwise = true;
  for (const auto& [shape, dim] : std::vector<std::pair<Shape, int>>{{{0}, 0},
                                                                     {{1}, 0},
                                                                     {{31}, -1},
                                                                     {{33}, 0},
                                                                     {{1025}, 0},
                                                                     {{3, 5}, 0},
                                                                     {{3, 5}, 1},
                                                                     {{2, 3, 4}, 1},
                                                                     {{0, 3}, 1},
                                                                     {{3, 0}, 1},
                                                                     {{2, 1025}, 1},
                                                                     {{20000}, 0},
                                                                     {{33, 31}, 0}})
    for (const bool descending : {false, true})
      for (const bool ties : {false, true}) {
        const Input x = ties ? whole(shape) : distinct(shape);
        row.cases.push_back({{x},
                             [dim = dim, descending](In in) -> Tensors {
                               const Sorted y = sort(in[0], dim, descending);
                               return {y.values, y.indices};
                             },
                             [dim = dim, descending](Ref in) { return sorted(in[0], dim, descending, in[0].size(dim)); }});
        // Equal values make the derivative jump.
        row.cases.back().inputs[0].differentiable = !ties;
      }
  row.cases.push_back({{value({})},
                       [](In in) -> Tensors {
                         const Sorted y = sort(in[0]);
                         return {y.values, y.indices};
                       },
                       [](Ref in) { return Arrays{in[0], Array{{}, DType::i64, {0}}}; }});
  row.mistakes = {{[] { sort(sample({3}), 1); }, {"1"}}, {[] { sort(sample({3}, DType::boolean)); }, {"bool"}}};
  rows.push_back(row);

  row = {"searchsorted", {}};
  row.dtypes = numbers;
  row.differentiable = false;
  for (const auto& [rows_of, x_of] : std::vector<std::pair<Shape, Shape>>{{{0}, {3}},
                                                                          {{1}, {}},
                                                                          {{31}, {33}},
                                                                          {{1025}, {2, 3}},
                                                                          {{4}, {0}},
                                                                          {{3, 31}, {3, 5}},
                                                                          {{2, 1, 33}, {2, 1, 1025}},
                                                                          {{2, 0}, {2, 3}},
                                                                          {{300}, {90, 250}}})
    for (const bool right : {false, true})
      row.cases.push_back({{whole(rows_of), whole(x_of)},
                           [right](In in) -> Tensors { return {searchsorted(sort(in[0]).values, in[1], right)}; },
                           [right](Ref in) {
                             const Array from = sorted(in[0], -1, false, in[0].size(-1))[0];
                             return one(make(in[1].shape, DType::i64, [&](const Shape& i) {
                               double before = 0;
                               Shape at = from.shape.size() > 1 ? i : Shape{0};
                               for (at.back() = 0; at.back() < from.size(-1); ++at.back())
                                 before += right ? from(at) <= in[1](i) : from(at) < in[1](i);
                               return before;
                             }));
                           }});
  row.mistakes = {{[] { searchsorted(sample({3}), sample({3}, DType::f64)); }, {"f32", "f64"}},
                  {[] { searchsorted(sample({3}, DType::boolean), sample({3}, DType::boolean)); }, {"numeric", "bool"}},
                  {[] { searchsorted(sample({}), sample({3})); }, {"()", "(3,)"}},
                  {[] { searchsorted(sample({2, 3}), sample({3})); }, {"(2, 3)", "(3,)"}},
                  {[] { searchsorted(sample({2, 3}), sample({3, 3})); }, {"(2, 3)", "(3, 3)"}}};
  rows.push_back(row);

  row = {"topk", {}};
  row.dtypes = numbers;
  row.on_cuda_bitwise = true;
  struct Top {
    Shape shape;
    std::int64_t k;
    int dim;
  };
  for (const Top& top : {Top{{0}, 0, 0},
                         {{1}, 1, 0},
                         {{31}, 5, -1},
                         {{33}, 33, 0},
                         {{1025}, 1, 0},
                         {{3, 5}, 2, 0},
                         {{3, 5}, 2, 1},
                         {{2, 3, 4}, 2, 1},
                         {{3, 4}, 0, 1},
                         {{3, 1025}, 10, 1},
                         {{700, 3}, 64, 0},
                         {{700}, 65, 0}})
    for (const bool ties : {false, true}) {
      row.cases.push_back({{ties ? whole(top.shape) : distinct(top.shape)},
                           [top](In in) -> Tensors {
                             const Sorted y = topk(in[0], top.k, top.dim);
                             return {y.values, y.indices};
                           },
                           [top](Ref in) { return sorted(in[0], top.dim, true, top.k); }});
      row.cases.back().inputs[0].differentiable = !ties;
    }
  row.mistakes = {{[] { topk(sample({3}), 4); }, {"[0, 3]", "(3,)", "4"}},
                  {[] { topk(sample({3}), -1); }, {"-1"}},
                  {[] { topk(sample({3}), 1, 1); }, {"1"}},
                  {[] { topk(sample({}), 1); }, {"1"}},
                  {[] { topk(sample({3}, DType::boolean), 1); }, {"bool"}}};
  rows.push_back(row);
}

}  // namespace

void add_index(Rows& rows) {
  add_gathers(rows);
  add_slices(rows);
  add_embeddings(rows);
  add_triangles(rows);
  add_orders(rows);
}

}  // namespace tern::op_cases
