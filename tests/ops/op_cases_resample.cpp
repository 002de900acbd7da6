// Rows of ops/conv.h that change the size of images, or go back from small ones. Note [The table] in op_cases.h.
#include <algorithm>
#include <cmath>
#include <limits>

#include "op_cases.h"
#include "ops/conv.h"

namespace tern::op_cases {

using namespace reference;

namespace {

/// Each element of x adds a multiple of the weights to a window of y.
Array transposed(const Array& x, const Array& w, const Array* bias, const ConvTransposeOptions& o) {
  const std::int64_t out = w.shape[1], in = x.shape[1] / o.groups;
  Shape shape = {x.shape[0], out * o.groups};
  for (int d = 0; d < 2; ++d) {
    const auto i = static_cast<std::size_t>(d);
    shape.push_back((x.shape[2 + d] - 1) * o.stride[i] - 2 * o.padding[i] + o.dilation[i] * (w.shape[2 + d] - 1) + o.output_padding[i] + 1);
  }
  Array y = make(shape, x.dtype, [&](const Shape& at) { return bias ? (*bias)({at[1]}) : 0.0; });
  each(x.shape, [&](const Shape& at) {
    each({out, w.shape[2], w.shape[3]}, [&](const Shape& k) {
      const std::int64_t row = at[2] * o.stride[0] + k[1] * o.dilation[0] - o.padding[0];
      const std::int64_t column = at[3] * o.stride[1] + k[2] * o.dilation[1] - o.padding[1];
      if (row < 0 || row >= shape[2] || column < 0 || column >= shape[3]) return;
      y({at[0], at[1] / in * out + k[0], row, column}) += x(at) * w({at[1], k[0], k[1], k[2]});
    });
  });
  return y;
}

void add_transposed(Rows& rows) {
  struct Form {
    Shape x, w;
    ConvTransposeOptions options = {};
    bool bias = false;
  };
  Row row{"conv_transpose2d", {}};
  row.slack = 20;
  row.roundings = 11;          // on a GPU nine columns are rounded before they are added up, and the bias is added to a rounded sum
  row.gradient_roundings = 8;  // and the columns' gradient is rounded before the products
  for (const Form& form : {Form{{0, 2, 3, 3}, {2, 2, 2, 2}},
                           {{1, 1, 1, 1}, {1, 1, 1, 1}},
                           {{1, 3, 31, 5}, {3, 4, 3, 3}, {.padding = {1, 1}}, true},
                           {{1, 2, 5, 33},
                            {2, 2, 3, 2},
                            {.stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 2}, .dilation = {1, 2}, .groups = 2},
                            true},
                           {{1, 1, 1, 1025}, {1, 1, 1, 3}, {.stride = {1, 2}}},
                           {{2, 1, 3, 4}, {1, 2, 2, 2}, {}, true},
                           {{1, 4, 2, 3}, {4, 1, 2, 2}, {.padding = {1, 1}, .groups = 4}},
                           {{2, 2, 4, 3}, {2, 3, 4, 4}, {.stride = {2, 2}, .padding = {1, 1}}, true},  // as generators double an image
                           {{1, 1, 2, 2}, {1, 2, 1, 1}, {.stride = {3, 2}}}}) {
    Case op;
    op.inputs = {value(form.x), value(form.w)};
    if (form.bias) op.inputs.push_back(value({form.w[1] * form.options.groups}));
    op.call = [=](In in) -> Tensors { return {conv_transpose2d(in[0], in[1], form.bias ? in[2] : Tensor(), form.options)}; };
    op.reference = [=](Ref in) { return one(transposed(in[0], in[1], form.bias ? &in[2] : nullptr, form.options)); };
    row.cases.push_back(op);
  }
  const auto f = [](const Shape& x, const Shape& w, const ConvTransposeOptions& o = {}) { conv_transpose2d(sample(x), sample(w), {}, o); };
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  row.mistakes = {{[=] { f({2, 3, 4}, {3, 2, 1, 1}); }, {"(2, 3, 4)"}},
                  {[=] { f({1, 3, 4, 4}, {2, 3, 1, 1}); }, {"3 channels", "(2, 3, 1, 1)"}},
                  {[=] { f({1, 3, 4, 4}, {3, 2, 1, 1}, {.groups = 2}); }, {"2 groups"}},
                  {[=] { f({1, 1, 2, 2}, {1, 1, 1, 1}, {.stride = {0, 1}}); }, {"stride"}},
                  {[=] { f({1, 1, 2, 2}, {1, 1, 2, 2}, {.output_padding = {1, 0}}); }, {"output_padding", "below the stride"}},
                  {[=] { f({1, 1, 2, 2}, {1, 1, 2, 2}, {.padding = {2, 0}}); }, {"leaves at least one of 3", "2"}},
                  {[=] { f({1, 1, 3, 3}, {1, 1, 3, 3}, {.stride = {most, 1}}); }, {"64 bits"}},
                  {[=] { f({1, 1, 3, 3}, {1, 1, 3, 3}, {.dilation = {1, most}}); }, {"64 bits"}},
                  {[=] { f({1, 1, 3, 3}, {1, 1, 3, 3}, {.padding = {most, 1}}); }, {"64 bits"}},
                  {[] { conv_transpose2d(sample({1, 1, 2, 2}), sample({1, 3, 1, 1}), sample({2})); }, {"bias (3,)", "(2,)"}},
                  {[] { conv_transpose2d(sample({1, 1, 2, 2}), sample({1, 1, 1, 1}, DType::f64)); }, {"f32", "f64"}}};
  rows.push_back(row);
}

void add_adaptive(Rows& rows) {
  using Call = Tensor (*)(T, const std::array<std::int64_t, 2>&);
  struct Form {
    Shape x;
    std::array<std::int64_t, 2> size;
  };
  const auto adaptive = [&](const char* name, Call call, bool is_max) {
    Row row{name, {}};
    row.slack = 5;
    for (const Form& form : {Form{{0, 2, 3, 3}, {2, 2}},
                             {{1, 1, 1, 1}, {1, 1}},
                             {{1, 1, 31, 4}, {7, 4}},
                             {{1, 1, 2, 33}, {1, 5}},
                             {{1, 1, 2, 1025}, {2, 41}},
                             {{2, 2, 6, 4}, {3, 2}},
                             {{1, 1, 3, 2}, {5, 3}},  // windows that share elements
                             {{2, 3, 5, 5}, {1, 1}}})
      row.cases.push_back({{distinct(form.x)},
                           [=](In in) -> Tensors { return {call(in[0], form.size)}; },
                           [=](Ref in) {
                             const auto [oh, ow] = form.size;
                             return one(make({form.x[0], form.x[1], oh, ow}, in.dtype, [&, oh = oh, ow = ow](const Shape& at) {
                               double top = -std::numeric_limits<double>::infinity(), total = 0;
                               std::int64_t count = 0;
                               const auto is_seen = [](std::int64_t i, std::int64_t n, std::int64_t out, std::int64_t length) {
                                 return n >= i * length / out && n * out < (i + 1) * length;
                               };
                               for (std::int64_t y = 0; y < form.x[2]; ++y)
                                 for (std::int64_t x = 0; x < form.x[3]; ++x) {
                                   if (!is_seen(at[2], y, oh, form.x[2]) || !is_seen(at[3], x, ow, form.x[3])) continue;
                                   top = std::max(top, in[0]({at[0], at[1], y, x}));
                                   total += in[0]({at[0], at[1], y, x});
                                   ++count;
                                 }
                               return is_max ? top : total / double(count);
                             }));
                           }});
    row.mistakes = {{[=] { call(sample({2, 3, 3}), {1, 1}); }, {"(2, 3, 3)"}},
                    {[=] { call(sample({1, 1, 0, 3}), {1, 1}); }, {"(1, 1, 0, 3)"}},
                    {[=] { call(sample({1, 1, 3, 3}), {0, 1}); }, {"(0, 1)"}},
                    {[=] { call(sample({1, 1, 3, 3}), {1, std::numeric_limits<std::int64_t>::max()}); }, {"64 bits"}},
                    {[=] { call(sample({1, 1, 3, 3}, DType::i64), {1, 1}); }, {"floating", "i64"}}};
    rows.push_back(row);
  };
  adaptive("adaptive_avg_pool2d", adaptive_avg_pool2d, false);
  adaptive("adaptive_max_pool2d", adaptive_max_pool2d, true);
}

void add_bilinear(Rows& rows) {
  Row row{"upsample_bilinear", {}};
  row.slack = 5;
  struct Form {
    Shape x;
    std::array<std::int64_t, 2> size;
  };
  for (const bool align : {false, true})
    for (const Form& form : {Form{{0, 2, 3}, {4, 4}},
                             {{1, 1}, {3, 2}},
                             {{31, 2}, {7, 5}},
                             {{1, 33}, {2, 65}},
                             {{1, 1025}, {1, 300}},
                             {{2, 1, 3, 4}, {6, 8}},
                             {{2, 4, 3}, {1, 1}},
                             {{3, 3}, {3, 7}}})
      row.cases.push_back({{value(form.x)},
                           [=](In in) -> Tensors { return {upsample_bilinear(in[0], form.size, align)}; },
                           [=](Ref in) {
                             Shape shape = form.x;
                             const int rank = shape.size();
                             shape[rank - 2] = form.size[0], shape[rank - 1] = form.size[1];
                             const auto place = [align](std::int64_t i, std::int64_t out, std::int64_t length) {
                               if (align) return out == 1 ? 0.0 : double(i * (length - 1)) / double(out - 1);
                               return std::clamp((double(i) + 0.5) * double(length) / double(out) - 0.5, 0.0, double(length - 1));
                             };
                             return one(make(shape, in.dtype, [&](Shape at) {
                               const std::int64_t height = form.x[rank - 2], width = form.x[rank - 1];
                               const double y = place(at[rank - 2], form.size[0], height), x = place(at[rank - 1], form.size[1], width);
                               const auto top = std::int64_t(y), left = std::int64_t(x);
                               double total = 0;
                               for (const std::int64_t down : {0, 1})
                                 for (const std::int64_t right : {0, 1}) {
                                   at[rank - 2] = std::min(top + down, height - 1), at[rank - 1] = std::min(left + right, width - 1);
                                   total += in[0](at) * (down ? y - double(top) : 1 - y + double(top)) *
                                            (right ? x - double(left) : 1 - x + double(left));
                                 }
                               return total;
                             }));
                           }});
  row.mistakes = {{[] { upsample_bilinear(sample({3}), {2, 2}); }, {"(3,)"}},
                  {[] { upsample_bilinear(sample({3, 0}), {2, 2}); }, {"(3, 0)"}},
                  {[] { upsample_bilinear(sample({3, 3}), {2, 0}); }, {"(2, 0)"}},
                  {[] { upsample_bilinear(sample({3, 3}, DType::i64), {2, 2}); }, {"floating", "i64"}}};
  rows.push_back(row);
}

}  // namespace

void add_resample(Rows& rows) {
  add_transposed(rows);
  add_adaptive(rows);
  add_bilinear(rows);
}

}  // namespace tern::op_cases
