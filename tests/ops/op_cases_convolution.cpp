// Rows of ops/conv.h. Note [The table] in op_cases.h.
#include <algorithm>
#include <limits>

#include "op_cases.h"
#include "ops/conv.h"

namespace tern::op_cases {

using namespace reference;

namespace {

struct Form {
  Shape x, w;
  ConvOptions options = {};
  bool bias = false;
};

/// The sums of a convolution in plain loops.
Array convolved(const Array& x, const Array& w, const Array* bias, const ConvOptions& o) {
  Shape shape = {x.shape[0], w.shape[0]};
  for (int d = 0; d < 2; ++d) {
    const auto i = static_cast<std::size_t>(d);
    shape.push_back((x.shape[2 + d] + 2 * o.padding[i] - o.dilation[i] * (w.shape[2 + d] - 1) - 1) / o.stride[i] + 1);
  }
  const std::int64_t outputs = w.shape[0] / o.groups, inputs = w.shape[1];
  return make(shape, x.dtype, [&](const Shape& at) {
    double total = bias ? (*bias)({at[1]}) : 0;
    each({inputs, w.shape[2], w.shape[3]}, [&](const Shape& k) {
      const std::int64_t row = at[2] * o.stride[0] + k[1] * o.dilation[0] - o.padding[0];
      const std::int64_t column = at[3] * o.stride[1] + k[2] * o.dilation[1] - o.padding[1];
      if (row >= 0 && row < x.shape[2] && column >= 0 && column < x.shape[3])
        total += x({at[0], at[1] / outputs * inputs + k[0], row, column}) * w({at[1], k[0], k[1], k[2]});
    });
    return total;
  });
}

/// A signal as an image of one row.
Array with_row(Array x) {
  x.shape.insert(2, 1);
  return x;
}

Case case_of(const Form& form) {
  Case op;
  op.inputs = {value(form.x), value(form.w)};
  if (form.bias) op.inputs.push_back(value({form.w[0]})), op.inputs.back().optional = true;
  op.call = [=](In in) -> Tensors { return {conv2d(in[0], in[1], form.bias ? in[2] : Tensor(), form.options)}; };
  op.reference = [=](Ref in) { return one(convolved(in[0], in[1], form.bias ? &in[2] : nullptr, form.options)); };
  return op;
}

void add_convolution(Rows& rows) {
  const auto f = conv2d;
  Row row{"conv2d", {}};
  row.slack = 20;
  for (const Form& form : {Form{{0, 2, 3, 3}, {2, 2, 2, 2}, {}, true},
                           {{2, 0, 4, 4}, {2, 0, 3, 3}, {}, true},
                           {{2, 3, 4, 4}, {0, 3, 3, 3}, {}, true},
                           {{1, 1, 1, 1}, {1, 1, 1, 1}},
                           {{1, 3, 31, 5}, {4, 3, 3, 3}, {.padding = {1, 1}}, true},
                           {{1, 2, 5, 33}, {4, 1, 3, 2}, {.stride = {2, 3}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2}, true},
                           {{1, 1, 2, 1025}, {1, 1, 2, 3}, {.stride = {1, 8}}},
                           {{2, 1, 3, 4}, {2, 1, 2, 2}, {}, true},
                           {{1, 4, 2, 3}, {4, 1, 2, 2}, {.padding = {1, 1}, .groups = 4}},
                           {{1, 1, 4, 5}, {2, 1, 2, 2}, {.stride = {2, 1}, .dilation = {2, 3}}}})
    row.cases.push_back(case_of(form));
  row.roundings = 3;           // the bias is added to a rounded product
  row.gradient_roundings = 8;  // each window's gradient is rounded before fold adds them
  row.mistakes = {{[=] { f(sample({2, 3, 4}), sample({2, 3, 1, 1}), {}, {}); }, {"(2, 3, 4)"}},
                  {[=] { f(sample({1, 3, 4, 4}), sample({2, 2, 1, 1}), {}, {}); }, {"3 channels", "(2, 2, 1, 1)"}},
                  {[=] { f(sample({1, 4, 4, 4}), sample({3, 2, 1, 1}), {}, {.groups = 2}); }, {"2 groups"}},
                  {[=] { f(sample({1, 1, 2, 2}), sample({1, 1, 3, 1}), {}, {}); }, {"fits", "(1, 1, 3, 1)"}},
                  {[=] { f(sample({1, 1, 2, 2}), sample({1, 1, 1, 1}), {}, {.stride = {0, 1}}); }, {"stride"}},
                  {[=] { f(sample({1, 1, 2, 2}), sample({1, 1, 1, 1}), sample({2}), {}); }, {"bias (1,)", "(2,)"}},
                  {[=] { f(sample({1, 1, 2, 2}), sample({1, 1, 1, 1}, DType::f64), {}, {}); }, {"f32", "f64"}}};
  row.mistakes.push_back({[=] { f(sample({1, 1, 2, 2}), sample({1, 1, 1, 1}), sample({1}, DType::f64), {}); }, {"f32", "f64"}});
  rows.push_back(plain(row));
  // Several bands, blocks of the depth, panels of channels, and what is left over at each edge.
  for (const Form& form : {Form{{3, 3, 16, 16}, {16, 3, 3, 3}, {.padding = {1, 1}}, true},
                           {{2, 16, 8, 8}, {32, 16, 3, 3}, {.padding = {1, 1}}},
                           {{1, 40, 9, 11}, {47, 40, 3, 3}, {.padding = {1, 1}}, true},                  // depth 360, channels 47
                           {{1, 2, 70, 65}, {5, 2, 5, 3}, {.padding = {2, 0}}, true},                    // rows in several bands
                           {{1, 3, 40, 301}, {4, 3, 3, 3}, {}, true},                                    // a row is more than a band
                           {{2, 4, 33, 17}, {6, 4, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}, true},  // phases
                           {{2, 4, 14, 15}, {6, 4, 1, 1}, {.stride = {2, 3}}},                           // elements that no window sees
                           {{1, 6, 19, 21}, {9, 2, 3, 4}, {.stride = {2, 3}, .padding = {3, 2}, .dilation = {3, 2}, .groups = 3}, true},
                           {{2, 20, 7, 7}, {20, 1, 3, 3}, {.padding = {1, 1}, .groups = 20}, true},
                           {{5, 3, 4, 1}, {2, 3, 2, 1}, {.padding = {1, 4}}, true},    // columns of padding alone
                           {{130, 2, 3, 3}, {70, 2, 3, 3}, {}, true},                  // one position, three panels of channels
                           {{7, 3, 32, 32}, {5, 3, 3, 3}, {.padding = {1, 1}}, true},  // as columns: a product for each image
                           {{7, 6, 24, 24}, {5, 6, 1, 1}},                             // the images are the columns
                           {{7, 6, 5, 5}, {5, 6, 1, 1}, {}, true}}) {
    row.cases.push_back(case_of(form));
    row.cases.back().reference = composed(row.cases.back().call);
    row.cases.back().dtypes = {DType::f64, DType::f32};
  }
  rows.push_back(row);
}

void add_signals(Rows& rows) {
  Row row{"conv1d", {}};
  row.slack = 20;
  row.roundings = 3;
  row.gradient_roundings = 8;
  for (const Form& f : {Form{{0, 2, 3}, {2, 2, 2}},
                        {{1, 1, 1}, {1, 1, 1}},
                        {{1, 3, 31}, {4, 3, 3}, {.padding = {0, 1}}, true},
                        {{1, 2, 33}, {4, 1, 3}, {.stride = {1, 3}, .padding = {0, 2}, .dilation = {1, 2}, .groups = 2}, true},
                        {{1, 1, 1025}, {1, 1, 2}, {.stride = {1, 8}}},
                        {{2, 2, 5}, {2, 2, 2}, {.dilation = {1, 2}}, true}}) {
    const ConvOptions& o = f.options;
    const Conv1dOptions options{.stride = o.stride[1], .padding = o.padding[1], .dilation = o.dilation[1], .groups = o.groups};
    Case op;
    op.inputs = {value(f.x), value(f.w)};
    if (f.bias) op.inputs.push_back(value({f.w[0]}));
    op.call = [=](In in) -> Tensors { return {conv1d(in[0], in[1], f.bias ? in[2] : Tensor(), options)}; };
    op.reference = [=](Ref in) {
      Array y = convolved(with_row(in[0]), with_row(in[1]), f.bias ? &in[2] : nullptr, f.options);
      y.shape.erase(2);
      return one(y);
    };
    row.cases.push_back(op);
  }
  row.mistakes = {{[] { conv1d(sample({2, 3}), sample({2, 3, 1})); }, {"(2, 3)"}},
                  {[] { conv1d(sample({1, 3, 4}), sample({2, 2, 1})); }, {"3 channels", "(2, 2, 1)"}},
                  {[] { conv1d(sample({1, 1, 2}), sample({1, 1, 3})); }, {"fits", "(1, 1, 3)"}}};
  rows.push_back(row);
  rows.push_back(plain(row));
}

void add_pooling(Rows& rows) {
  struct Pool {
    Shape x;
    PoolOptions options;
    bool has_equal = false;  ///< elements, which have no derivative by differences: those are in f64
  };
  struct Function {
    const char* name;
    Tensor (*call)(const Tensor&, const PoolOptions&);
  };
  for (const auto& [name, call] : {Function{"max_pool2d", max_pool2d}, {"avg_pool2d", avg_pool2d}}) {
    const bool is_max = call != avg_pool2d;
    Row row{name, {}};
    row.slack = 5;
    for (const Pool& p : {Pool{{0, 2, 3, 3}, {.kernel = {2, 2}}},
                          {{1, 1, 1, 1}, {.kernel = {1, 1}}},
                          {{2, 2, 31, 4}, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}}},
                          {{1, 1, 5, 33}, {.kernel = {5, 4}}},
                          {{1, 1, 2, 1025}, {.kernel = {2, 5}, .stride = {1, 4}}},
                          {{2, 1, 4, 4}, {.kernel = {2, 2}}},
                          {{1, 2, 3, 4}, {.kernel = {2, 3}, .stride = {1, 1}, .padding = {1, 1}}},
                          {{3, 5, 16, 16}, {.kernel = {2, 2}}, true},
                          {{2, 3, 37, 41}, {.kernel = {2, 2}}, true},
                          {{2, 3, 37, 41}, {.kernel = {3, 3}}, true},
                          {{1, 2, 13, 70}, {.kernel = {1, 5}}, true},
                          {{2, 2, 19, 23}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, true},
                          {{1, 3, 12, 9}, {.kernel = {2, 3}, .stride = {3, 1}}, true}})
      row.cases.push_back({{p.has_equal ? whole(p.x) : distinct(p.x)},
                           [=, call = call](In in) -> Tensors { return {call(in[0], p.options)}; },
                           [=](Ref in) {
                             Shape shape = {p.x[0], p.x[1]};
                             std::array<std::int64_t, 2> step = p.options.stride;
                             for (int d = 0; d < 2; ++d) {
                               const auto i = static_cast<std::size_t>(d);
                               if (step[i] == 0) step[i] = p.options.kernel[i];
                               shape.push_back((p.x[2 + d] + 2 * p.options.padding[i] - p.options.kernel[i]) / step[i] + 1);
                             }
                             return one(make(shape, in.dtype, [&](const Shape& at) {
                               double top = -std::numeric_limits<double>::infinity(), total = 0;
                               each({p.options.kernel[0], p.options.kernel[1]}, [&](const Shape& k) {
                                 const std::int64_t row_ = at[2] * step[0] + k[0] - p.options.padding[0],
                                                    column = at[3] * step[1] + k[1] - p.options.padding[1];
                                 if (row_ < 0 || row_ >= p.x[2] || column < 0 || column >= p.x[3]) return;
                                 top = std::max(top, in[0]({at[0], at[1], row_, column}));
                                 total += in[0]({at[0], at[1], row_, column});
                               });
                               return is_max ? top : total / double(p.options.kernel[0] * p.options.kernel[1]);
                             }));
                           },
                           p.has_equal ? std::vector{DType::f32} : std::vector<DType>{}});
    const auto f = [call = call](const Shape& shape, const PoolOptions& o, DType dtype = DType::f32) { call(sample(shape, dtype), o); };
    row.mistakes = {{[=] { f({2, 3, 3}, {.kernel = {2, 2}}); }, {"(2, 3, 3)"}},
                    {[=] { f({1, 1, 2, 2}, {.kernel = {3, 1}}); }, {"fits", "(1, 1, 2, 2)"}},
                    {[=] { f({1, 1, 4, 4}, {.kernel = {2, 2}, .padding = {2, 0}}); }, {"half", "2"}},
                    {[=] { f({1, 1, 4, 4}, {.kernel = {2, 2}}, DType::i64); }, {"floating", "i64"}}};
    rows.push_back(row);
    if (is_max) rows.push_back(plain(row));
  }

  Row row{"upsample_nearest", {}};
  row.dtypes = all_dtypes;
  for (const auto& [shape, factor] :
       std::vector<std::pair<Shape, std::int64_t>>{{{1, 0, 3}, 2}, {{1, 1}, 3}, {{31, 2}, 1}, {{1, 33}, 2}, {{1, 1025}, 2}, {{2, 2, 3}, 2}})
    row.cases.push_back({{value(shape)},
                         [factor = factor](In in) -> Tensors { return {upsample_nearest(in[0], factor)}; },
                         [factor = factor](Ref in) {
                           Shape large = in[0].shape;
                           for (int d = large.size() - 2; d < large.size(); ++d) large[d] *= factor;
                           return one(make(large, in.dtype, [&](Shape i) {
                             for (int d = i.size() - 2; d < i.size(); ++d) i[d] /= factor;
                             return in[0](i);
                           }));
                         }});
  row.mistakes = {{[] { upsample_nearest(sample({3}), 2); }, {"(3,)"}}, {[] { upsample_nearest(sample({3, 3}), 0); }, {"0"}}};
  rows.push_back(row);
}

}  // namespace

void add_images(Rows& rows) {
  add_convolution(rows);
  add_signals(rows);
  add_pooling(rows);
}

}  // namespace tern::op_cases
