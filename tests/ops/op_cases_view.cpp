// Rows of ops/view.h and ops/view.h. Note [The table] in op_cases.h. That views share memory is tested in tests/tensor.
#include <algorithm>

#include "op_cases.h"
#include "ops/view.h"

namespace tern::op_cases {

using namespace reference;

namespace {

Row row_of(const char* name, std::vector<Mistake> mistakes) {
  Row row{name, {}, std::move(mistakes)};
  row.dtypes = all_dtypes;
  row.on_cuda_bitwise = true;
  return row;
}

/// A case of one input and one output.
template <class F, class G>
void add(Row& row, const Shape& shape, F f, G g) {
  row.cases.push_back({{value(shape)}, [=](In in) -> Tensors { return {f(in[0])}; }, [=](Ref in) { return one(g(in[0])); }});
}

void add_shapes(Rows& rows) {
  Row row = row_of("reshape", {{[] { reshape(sample({2, 3}), {7}); }, {"6", "(7,)", "(2, 3)"}},
                               {[] { reshape(sample({2, 3}), {-1, 4}); }, {"(-1, 4)", "(2, 3)"}},
                               {[] { reshape(sample({2, 3}), {-1, -1}); }, {"(-1, -1)"}},
                               {[] { reshape(sample({2, 3}), {-2, 3}); }, {"(-2, 3)"}},
                               {[] { reshape(sample({0}), {-1, 0}); }, {"(-1, 0)"}},
                               {[] { reshape(sample({0}), {std::int64_t(1) << 32, std::int64_t(1) << 32}); }, {"(0,)"}},
                               {[] { reshape(sample({0}), {std::int64_t(1) << 32, std::int64_t(1) << 32, -1}); }, {"(0,)"}}});
  for (const auto& [from, into, result] : std::vector<std::tuple<Shape, Shape, Shape>>{{{0}, {0, 3}, {0, 3}},
                                                                                       {{1}, {}, {}},
                                                                                       {{31}, {1, 31}, {1, 31}},
                                                                                       {{33}, {3, -1}, {3, 11}},
                                                                                       {{1025}, {5, 205}, {5, 205}},
                                                                                       {{}, {1, 1}, {1, 1}},
                                                                                       {{3, 5}, {5, 3}, {5, 3}},
                                                                                       {{3, 4}, {2, 6}, {2, 6}},
                                                                                       {{2, 3, 4}, {-1}, {24}},
                                                                                       {{2, 3, 4}, {6, 4}, {6, 4}},
                                                                                       {{2, 3, 4}, {2, -1}, {2, 12}},
                                                                                       {{0, 3}, {3, -1}, {3, 0}},
                                                                                       {{4, 6}, {1, 2, 2, 1, 3, 2}, {1, 2, 2, 1, 3, 2}},
                                                                                       {{3, 5}, {3, 5}, {3, 5}}})
    add(row, from, [into = into](T x) { return reshape(x, into); }, [result = result](A x) { return reshaped(x, result); });
  rows.push_back(row);

  row = row_of("flatten", {{[] { flatten(sample({2, 3}), 1, 0); }, {"1", "0"}},
                           {[] { flatten(sample({2, 3}), 2); }, {"2"}},
                           {[] { flatten(sample({2, 3}), 0, -3); }, {"-3"}}});
  struct Ends {
    Shape from;
    int first, last;
    Shape into;
  };
  for (const Ends& e : {Ends{{0}, 0, -1, {0}},
                        {{1}, 0, -1, {1}},
                        {{31}, 0, 0, {31}},
                        {{33}, 0, -1, {33}},
                        {{1025}, 0, -1, {1025}},
                        {{}, 0, -1, {1}},
                        {{3, 5}, 0, -1, {15}},
                        {{2, 3, 4}, 1, 2, {2, 12}},
                        {{2, 3, 4}, 0, -2, {6, 4}},
                        {{2, 0, 3}, 0, 1, {0, 3}},
                        {{2, 3, 4}, 1, 1, {2, 3, 4}}})
    add(row, e.from, [e](T x) { return flatten(x, e.first, e.last); }, [e](A x) { return reshaped(x, e.into); });
  rows.push_back(row);

  row = row_of("squeeze", {{[] { squeeze(sample({2, 3}), 0); }, {"0", "(2, 3)"}},
                           {[] { squeeze(sample({1}), 1); }, {"1"}},
                           {[] { squeeze(sample({}), 0); }, {"0"}}});
  for (const auto& [from, into] : std::vector<std::pair<Shape, Shape>>{{{0}, {0}},
                                                                       {{1}, {}},
                                                                       {{31, 1}, {31}},
                                                                       {{1, 33}, {33}},
                                                                       {{1, 1025, 1}, {1025}},
                                                                       {{}, {}},
                                                                       {{3, 1, 5}, {3, 5}},
                                                                       {{1, 1, 1}, {}},
                                                                       {{3, 5}, {3, 5}}})
    add(row, from, [](T x) { return squeeze(x); }, [into = into](A x) { return reshaped(x, into); });
  for (const auto& [from, dim, into] :
       std::vector<std::tuple<Shape, int, Shape>>{{{1}, 0, {}}, {{3, 1}, -1, {3}}, {{1, 3, 1}, 0, {3, 1}}, {{0, 1}, 1, {0}}})
    add(row, from, [dim = dim](T x) { return squeeze(x, dim); }, [into = into](A x) { return reshaped(x, into); });
  rows.push_back(row);

  row = row_of("unsqueeze", {{[] { unsqueeze(sample({2, 3}), 3); }, {"3"}}, {[] { unsqueeze(sample({2, 3}), -4); }, {"-4"}}});
  for (const auto& [from, dim, into] : std::vector<std::tuple<Shape, int, Shape>>{{{0}, 0, {1, 0}},
                                                                                  {{1}, 1, {1, 1}},
                                                                                  {{31}, -1, {31, 1}},
                                                                                  {{33}, 0, {1, 33}},
                                                                                  {{1025}, -2, {1, 1025}},
                                                                                  {{}, 0, {1}},
                                                                                  {{}, -1, {1}},
                                                                                  {{3, 5}, 1, {3, 1, 5}}})
    add(row, from, [dim = dim](T x) { return unsqueeze(x, dim); }, [into = into](A x) { return reshaped(x, into); });
  rows.push_back(row);
}

void add_orders(Rows& rows) {
  Row row = row_of("permute", {{[] { permute(sample({2, 3}), {0, 0}); }, {"(0, 0)"}},
                               {[] { permute(sample({2, 3}), {0}); }, {"(0,)"}},
                               {[] { permute(sample({2, 3}), {0, 2}); }, {"2"}},
                               {[] { permute(sample({2, 3}), {0, 1, 1}); }, {"(0, 1, 1)"}},
                               {[] { permute(sample({2, 3}), {1, -1}); }, {"(1, -1)"}}});
  for (const auto& [shape, order] : std::vector<std::pair<Shape, Dims>>{{{0}, {0}},
                                                                        {{1}, {0}},
                                                                        {{31, 2}, {1, 0}},
                                                                        {{33, 1}, {1, 0}},
                                                                        {{1025}, {-1}},
                                                                        {{}, {}},
                                                                        {{3, 5}, {1, 0}},
                                                                        {{2, 3, 4}, {2, 0, 1}},
                                                                        {{2, 3, 4}, {-1, 1, 0}},
                                                                        {{2, 0, 3}, {2, 1, 0}},
                                                                        {{1, 2, 1, 2, 1, 2, 1, 2}, {7, 5, 3, 1, 0, 2, 4, 6}}})
    add(row, shape, [order = order](T x) { return permute(x, order); }, [order = order](A x) { return permuted(x, order); });
  rows.push_back(row);

  row = row_of("transpose", {{[] { transpose(sample({2, 3}), 0, 2); }, {"2"}}, {[] { transpose(sample({}), 0, 0); }, {"0"}}});
  for (const auto& [shape, a, b] : std::vector<std::tuple<Shape, int, int>>{{{0}, 0, 0},
                                                                            {{1}, 0, -1},
                                                                            {{31, 2}, 0, 1},
                                                                            {{2, 33}, -1, -2},
                                                                            {{1025}, 0, 0},
                                                                            {{3, 5}, 0, 1},
                                                                            {{2, 3, 4}, 0, 2},
                                                                            {{2, 3, 4}, 1, -1}})
    add(
        row, shape, [a = a, b = b](T x) { return transpose(x, a, b); },
        [a = a, b = b](A x) {
          Dims order;
          for (int i = 0; i < x.shape.size(); ++i) order.push_back(i);
          std::swap(order[a < 0 ? a + order.size() : a], order[b < 0 ? b + order.size() : b]);
          return permuted(x, order);
        });
  rows.push_back(row);

  const auto spread = [](A x, const Shape& shape) { return make(shape, x.dtype, [&](const Shape& i) { return broadcast_at(x, i); }); };
  row = row_of("broadcast_to",
               {{[] { broadcast_to(sample({3}), {4}); }, {"(3,)", "(4,)"}},
                {[] { broadcast_to(sample({2, 3}), {3}); }, {"(2, 3)", "(3,)"}},
                {[] { broadcast_to(sample({1}), {-1}); }, {"(-1,)"}},
                {[] { broadcast_to(sample({}), {std::int64_t(1) << 40, std::int64_t(1) << 40}); }, {"(1099511627776, 1099511627776)"}}});
  for (const auto& [from, into] : std::vector<std::pair<Shape, Shape>>{{{1}, {0}},
                                                                       {{1}, {1}},
                                                                       {{31}, {2, 31}},
                                                                       {{33, 1}, {33, 2}},
                                                                       {{1025}, {2, 1025}},
                                                                       {{}, {3}},
                                                                       {{}, {}},
                                                                       {{3, 1}, {3, 5}},
                                                                       {{5}, {3, 5}},
                                                                       {{2, 1, 3}, {4, 2, 2, 3}},
                                                                       {{0, 1}, {0, 3}}})
    add(row, from, [into = into](T x) { return broadcast_to(x, into); }, [=, into = into](A x) { return spread(x, into); });
  rows.push_back(row);

  row = row_of("expand", {{[] { expand(sample({3}), {4}); }, {"(3,)", "(4,)"}},
                          {[] { expand(sample({3}), {-1, 3}); }, {"-1"}},
                          {[] { expand(sample({2, 3}), {3}); }, {"(2, 3)"}}});
  for (const auto& [from, asked, into] : std::vector<std::tuple<Shape, Shape, Shape>>{{{0}, {2, -1}, {2, 0}},
                                                                                      {{1}, {0}, {0}},
                                                                                      {{1}, {-1}, {1}},
                                                                                      {{31}, {2, -1}, {2, 31}},
                                                                                      {{33, 1}, {-1, 2}, {33, 2}},
                                                                                      {{1025}, {1, -1}, {1, 1025}},
                                                                                      {{}, {3}, {3}},
                                                                                      {{3, 1}, {2, -1, 5}, {2, 3, 5}}})
    add(row, from, [asked = asked](T x) { return expand(x, asked); }, [=, into = into](A x) { return spread(x, into); });
  rows.push_back(row);
}

void add_parts(Rows& rows) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
  Row row = row_of("slice", {{[] { slice(sample({3}), 1, 0); }, {"1"}},
                             {[] { slice(sample({3}), 0, 0, 3, 0); }, {"0"}},
                             {[] { slice(sample({3}), 0, 0, 3, -1); }, {"-1"}},
                             {[] { slice(sample({}), 0, 0); }, {"0"}}});
  struct Part {
    Shape shape;
    int dim;
    std::int64_t start;
    std::optional<std::int64_t> stop;
    std::int64_t step, first, count;  // the last two as Python gives them
  };
  for (const Part& p : {Part{{0}, 0, 0, 5, 1, 0, 0},
                        {{1}, 0, 0, 1, 1, 0, 1},
                        {{31}, 0, 1, {}, 1, 1, 30},
                        {{33}, 0, 0, {}, 2, 0, 17},
                        {{1025}, 0, 3, -2, 5, 3, 204},
                        {{5, 3}, 0, 1, 4, 2, 1, 2},
                        {{5, 3}, 1, -2, {}, 1, 1, 2},
                        {{5, 3}, -1, 0, -1, 1, 0, 2},
                        {{5, 3}, 0, 4, 2, 1, 4, 0},
                        {{5, 3}, 0, -9, 9, 3, 0, 2},
                        {{5, 3}, 0, 7, 9, 1, 5, 0},
                        {{2, 3, 4}, 1, 1, 2, 1, 1, 1},
                        {{2, 3, 4}, 2, 1, {}, 3, 1, 1},
                        {{5}, 0, 1, most, most, 1, 1},
                        {{5}, 0, least, {}, 2, 0, 3}})
    add(
        row, p.shape, [p](T x) { return slice(x, p.dim, p.start, p.stop, p.step); },
        [p](A x) { return sliced(x, p.dim < 0 ? p.dim + x.shape.size() : p.dim, p.first, p.count, p.count > 1 ? p.step : 1); });
  rows.push_back(row);

  row = row_of("select", {{[] { select(sample({3}), 0, 3); }, {"[-3, 3)", "3"}},
                          {[] { select(sample({3}), 0, -4); }, {"-4"}},
                          {[] { select(sample({3}), 1, 0); }, {"1"}},
                          {[] { select(sample({0}), 0, 0); }, {"0"}},
                          {[] { select(sample({}), 0, 0); }, {"0"}}});
  for (const auto& [shape, dim, at] : std::vector<std::tuple<Shape, int, std::int64_t>>{{{0, 3}, 1, 1},
                                                                                        {{1}, 0, 0},
                                                                                        {{31}, 0, -1},
                                                                                        {{33, 2}, 1, 0},
                                                                                        {{1025}, 0, 1024},
                                                                                        {{5, 3}, 0, 2},
                                                                                        {{5, 3}, -1, -3},
                                                                                        {{2, 3, 4}, 1, 1}})
    add(
        row, shape, [dim = dim, at = at](T x) { return select(x, dim, at); },
        [dim = dim, at = at](A x) {
          const int d = dim < 0 ? dim + x.shape.size() : dim;
          return reshaped(sliced(x, d, at < 0 ? at + x.shape[d] : at, 1), without(x.shape, d));
        });
  rows.push_back(row);

  row = row_of("split", {{[] { split(sample({5}), {2, 2}); }, {"5", "(2, 2)"}},
                         {[] { split(sample({5}), {6, -1}); }, {"(6, -1)"}},
                         {[] { split(sample({5}), std::int64_t(0)); }, {"0"}},
                         {[] { split(sample({5}), std::int64_t(2), 1); }, {"1"}},
                         {[] { split(sample({5}), {most, most, 7}); }, {"5"}}});
  const auto pieces = [](A x, const std::vector<std::int64_t>& lengths, int dim) {
    Arrays result;
    std::int64_t start = 0;
    for (std::int64_t length : lengths) {
      result.push_back(sliced(x, dim, start, length));
      start += length;
    }
    return result;
  };
  for (const auto& [shape, lengths, dim] : std::vector<std::tuple<Shape, std::vector<std::int64_t>, int>>{{{0}, {0}, 0},
                                                                                                          {{0}, {0, 0}, 0},
                                                                                                          {{1}, {1}, 0},
                                                                                                          {{31}, {30, 1}, 0},
                                                                                                          {{33}, {0, 33}, 0},
                                                                                                          {{1025}, {1000, 25}, 0},
                                                                                                          {{5, 3}, {2, 0, 3}, 0},
                                                                                                          {{5, 3}, {1, 2}, 1},
                                                                                                          {{2, 6, 2}, {2, 2, 2}, 1}})
    row.cases.push_back({{value(shape)},
                         [lengths = lengths, dim = dim](In in) { return split(in[0], lengths, dim - in[0].dims()); },
                         [=, lengths = lengths, dim = dim](Ref in) { return pieces(in[0], lengths, dim); }});
  for (const auto& [shape, size, lengths, dim] : std::vector<std::tuple<Shape, std::int64_t, std::vector<std::int64_t>, int>>{
           {{0}, 3, {0}, 0}, {{5}, 2, {2, 2, 1}, 0}, {{4, 6}, 3, {3, 3}, 1}, {{5}, most, {5}, 0}})
    row.cases.push_back({{value(shape)},
                         [size = size, dim = dim](In in) { return split(in[0], size, dim); },
                         [=, lengths = lengths, dim = dim](Ref in) { return pieces(in[0], lengths, dim); }});
  rows.push_back(row);

  row = row_of("unstack", {{[] { unstack(sample({3}), 1); }, {"1"}}, {[] { unstack(sample({})); }, {"0"}}});
  for (const auto& [shape, dim] : std::vector<std::pair<Shape, int>>{
           {{2, 0}, 0}, {{1}, 0}, {{31, 2}, 1}, {{3, 33}, 0}, {{1025, 2}, -1}, {{3, 5}, 0}, {{3, 5}, 1}, {{2, 3, 4}, 1}})
    row.cases.push_back({{value(shape)},
                         [dim = dim](In in) { return unstack(in[0], dim); },
                         [dim = dim](Ref in) {
                           Arrays result;
                           const int d = dim < 0 ? dim + in[0].shape.size() : dim;
                           for (std::int64_t i = 0; i < in[0].shape[d]; ++i)
                             result.push_back(reshaped(sliced(in[0], d, i, 1), without(in[0].shape, d)));
                           return result;
                         }});
  rows.push_back(row);
}

Array joined(const Arrays& xs, int dim) {
  Shape shape = xs[0].shape;
  shape[dim] = 0;
  for (A x : xs) shape[dim] += x.shape[dim];
  return make(shape, xs[0].dtype, [&](Shape i) {
    std::size_t from = 0;
    for (; i[dim] >= xs[from].shape[dim]; ++from) i[dim] -= xs[from].shape[dim];
    return xs[from](i);
  });
}

void add_joins(Rows& rows) {
  Row row = row_of("cat", {{[] { cat({}); }, {"none"}},
                           {[] { cat({sample({2, 3}), sample({2, 4})}); }, {"tensor 1", "(2, 3)", "(2, 4)"}},
                           {[] { cat({sample({3}), sample({3}), sample({3}, DType::i64)}); }, {"tensor 2", "f32", "i64"}},
                           {[] { cat({sample({3})}, 1); }, {"1"}},
                           {[] { cat({sample({3}), sample({3, 1})}); }, {"(3,)", "(3, 1)"}},
                           {[] { cat({sample({})}); }, {"0"}}});
  for (const auto& [shapes, dim] : std::vector<std::pair<std::vector<Shape>, int>>{{{{0}, {0}}, 0},
                                                                                   {{{1}}, 0},
                                                                                   {{{31}, {2}}, 0},
                                                                                   {{{33}, {0}, {1}}, 0},
                                                                                   {{{1025}, {7}}, -1},
                                                                                   {{{2, 3}, {2, 1}, {2, 4}}, 1},
                                                                                   {{{2, 3}, {1, 3}}, 0},
                                                                                   {{{2, 3}, {0, 3}}, 0},
                                                                                   {{{2, 1, 3}, {2, 2, 3}}, -2}}) {
    std::vector<Input> inputs;
    for (const Shape& shape : shapes) inputs.push_back(value(shape));
    row.cases.push_back({inputs, [dim = dim](In in) -> Tensors { return {cat(in.inputs, dim)}; },
                         [dim = dim](Ref in) { return one(joined(in.inputs, dim < 0 ? dim + in[0].shape.size() : dim)); }});
  }
  rows.push_back(row);

  row = row_of("stack", {{[] { stack({}); }, {"none"}},
                         {[] { stack({sample({3}), sample({4})}); }, {"(3,)", "(4,)"}},
                         {[] { stack({sample({3})}, 2); }, {"2"}},
                         {[] { stack({sample({3}), sample({3}, DType::i64)}); }, {"f32", "i64"}}});
  for (const auto& [shape, count, dim] : std::vector<std::tuple<Shape, int, int>>{
           {{0}, 2, 0}, {{1}, 1, 0}, {{31}, 2, -1}, {{33}, 3, 0}, {{1025}, 2, 1}, {{}, 3, 0}, {{3, 2}, 2, 1}, {{3, 2}, 2, -3}})
    row.cases.push_back({std::vector<Input>(static_cast<std::size_t>(count), value(shape)),
                         [dim = dim](In in) -> Tensors { return {stack(in.inputs, dim)}; },
                         [dim = dim](Ref in) {
                           Arrays slices = in.inputs;
                           const int d = dim < 0 ? dim + in[0].shape.size() + 1 : dim;
                           for (Array& x : slices) x.shape.insert(d, 1);
                           return one(joined(slices, d));
                         }});
  rows.push_back(row);

  row = row_of("pad_sequence", {{[] { pad_sequence({}); }, {"none"}},
                                {[] { pad_sequence({sample({})}); }, {"(T, ...)"}},
                                {[] { pad_sequence({sample({3, 2}), sample({4, 3})}); }, {"(3, 2)", "(4, 3)"}},
                                {[] { pad_sequence({sample({3}), sample({3, 1})}); }, {"(3,)", "(3, 1)"}},
                                {[] { pad_sequence({sample({3}), sample({3}, DType::i64)}); }, {"f32", "i64"}}});
  for (const auto& [lengths, rest] : std::vector<std::pair<std::vector<std::int64_t>, Shape>>{
           {{0}, {}}, {{1, 0}, {}}, {{2, 3, 1}, {}}, {{1, 2}, {2}}, {{31, 33, 2}, {}}, {{1025, 3}, {}}, {{2, 4, 3}, {2, 3}}, {{0, 0}, {2}}})
    for (const double filling : {0.0, 1.0}) {
      std::vector<Input> inputs;
      for (const std::int64_t length : lengths) {
        Shape shape = rest;
        shape.insert(0, length);
        inputs.push_back(value(shape));
      }
      row.cases.push_back({inputs, [=](In in) -> Tensors { return {pad_sequence(in.inputs, filling)}; },
                           [=, lengths = lengths, rest = rest](Ref in) {
                             Shape shape = rest;
                             shape.insert(0, *std::max_element(lengths.begin(), lengths.end()));
                             shape.insert(0, std::int64_t(lengths.size()));
                             return one(make(shape, in.dtype, [&](Shape i) {
                               const auto sequence = std::size_t(i[0]);
                               i.erase(0);
                               return i[0] < lengths[sequence] ? in[sequence](i) : filling;
                             }));
                           }});
    }
  rows.push_back(row);

  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  row = row_of("pad", {{[] { pad(sample({3}), 0, -1, 0); }, {"-1"}},
                       {[] { pad(sample({3}), 0, 0, -2); }, {"-2"}},
                       {[] { pad(sample({3}), 1, 0, 0); }, {"1"}},
                       {[] { pad(sample({}), 0, 0, 0); }, {"0"}},
                       {[] { pad(sample({3}, DType::u8), 0, 1, 1, -1); }, {"u8", "-1"}},
                       {[] { pad(sample({3}), 0, most, most); }, {}}});
  struct Margins {
    Shape shape;
    int dim;
    std::int64_t before, after;
    double value = 0;
  };
  for (const Margins& m : {Margins{{0}, 0, 2, 1, 1},
                           {{1}, 0, 0, 0},
                           {{31}, 0, 1, 1},
                           {{33}, -1, 0, 31, 1},
                           {{1025}, 0, 1, 0},
                           {{3, 5}, 0, 1, 2},
                           {{3, 5}, 1, 2, 0, 1},
                           {{2, 3, 2}, 1, 1, 1},
                           {{2, 0}, 1, 0, 0}})
    add(
        row, m.shape, [m](T x) { return pad(x, m.dim, m.before, m.after, m.value); },
        [m](A x) {
          const int dim = m.dim < 0 ? m.dim + x.shape.size() : m.dim;
          Shape shape = x.shape;
          shape[dim] += m.before + m.after;
          return make(shape, x.dtype, [&](Shape i) {
            i[dim] -= m.before;
            return i[dim] < 0 || i[dim] >= x.shape[dim] ? m.value : x(i);
          });
        });
  rows.push_back(row);
}

}  // namespace

void add_view(Rows& rows) {
  add_shapes(rows);
  add_orders(rows);
  add_parts(rows);
  add_joins(rows);
}

}  // namespace tern::op_cases
