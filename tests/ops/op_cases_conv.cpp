// Rows of ops/conv.h. Note [The table] in op_cases.h. The op and the composition that it replaces share their cases.
#include <cmath>
#include <tuple>

#include "catch.h"
#include "op_cases.h"
#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/view.h"

namespace tern::op_cases {

using namespace reference;

namespace {

struct Form {
  std::int64_t batch, length, channels, taps;
  DepthwiseConvOptions options = {};
  bool has_bias = true;
};

std::pair<std::int64_t, std::int64_t> padding_of(const Form& form) {
  switch (form.options.padding) {
    case ConvPadding::causal: return {form.taps - 1, 0};
    case ConvPadding::same: return {form.taps / 2, form.taps - 1 - form.taps / 2};
    default: return {form.options.left, form.options.right};
  }
}

double maybe_silu(double z, bool silu) { return silu ? z / (1 + std::exp(-z)) : z; }

/// depthwise_conv1d as its docstring says; inputs: u, w and maybe bias.
Array convolution_of(Ref in, const Form& form) {
  const auto [left, right] = padding_of(form);
  const bool first = form.options.channels_first;
  const std::int64_t outputs = form.length + left + right - form.taps + 1;
  const Shape shape = first ? Shape{form.batch, form.channels, outputs} : Shape{form.batch, outputs, form.channels};
  return make(shape, in.dtype, [&, left = left](const Shape& i) {
    const std::int64_t l = first ? i[2] : i[1], d = first ? i[1] : i[2];
    double z = form.has_bias ? in[2]({d}) : 0;
    for (std::int64_t k = 0; k < form.taps; ++k) {
      const std::int64_t at = l - left + k;
      if (at >= 0 && at < form.length) z += in[1]({d, k}) * in[0](first ? Shape{i[0], d, at} : Shape{i[0], at, d});
    }
    return maybe_silu(z, form.options.silu);
  });
}

std::vector<Form> forms() {
  constexpr auto causal = ConvPadding::causal, same = ConvPadding::same, given = ConvPadding::given;
  std::vector<Form> all;
  // Small enough for gradcheck: every K in both layouts, every padding, with and without bias and SiLU.
  for (const bool first : {false, true})
    for (std::int64_t taps = 1; taps <= 7; ++taps)
      for (const DepthwiseConvOptions& padding : {DepthwiseConvOptions{causal}, {same}, {given, 0, 6}, {given, taps + 1, 2}}) {
        DepthwiseConvOptions options = padding;
        options.channels_first = first;
        options.silu = (taps + static_cast<int>(padding.padding)) % 2 == 0;
        all.push_back({1, 5, 3, taps, options, taps % 2 == 0});
      }
  for (const bool first : {false, true}) {
    const auto with = [=](ConvPadding padding, bool silu) { return DepthwiseConvOptions{padding, 0, 0, first, silu}; };
    all.push_back({2, 1, 1, 3, with(causal, false)});  // L = 1, K > L
    all.push_back({1, 1, 3, 7, with(same, true)});
    all.push_back({2, 2, 3, 5, with(causal, true)});
    all.push_back({2, 3, 3, 2, with(same, true), false});
    all.push_back({1, 4, 2, 3, with(given, false)});  // no padding at all
    all.push_back({1, 4, 2, 5, with(given, false)});  // and no output
    all.push_back({0, 3, 2, 3, with(causal, true)});
    all.push_back({2, 0, 3, 3, with(causal, false)});
    all.push_back({2, 3, 0, 3, with(same, false)});
    for (const std::int64_t taps : {2, 3, 4, 5, 6, 7}) all.push_back({2, 33, 31, taps, with(causal, taps % 2 == 0)});
    for (const std::int64_t taps : {1, 3, 4, 9}) all.push_back({1, 31, 40, taps, with(same, taps == 4)});
    all.push_back({1, 1025, 3, 4, with(causal, true)});
    all.push_back({1, 3, 1025, 4, with(same, true)});
    all.push_back({1, 2100, 2, 40, with(same, true)});
    // Whole vectors, and many blocks.
    for (const std::int64_t taps : {3, 4, 7}) all.push_back({2, 64, 32, taps, with(causal, true), taps != 7});
    all.push_back({1, 328, 264, 4, with(causal, true)});
    all.push_back({1, 328, 264, 7, with(same, false), false});
    all.push_back({3, 2056, 264, 3, with(same, false)});
    if (!first) all.push_back({1, 8192, 1024, 4, with(causal, true)});
  }
  return all;
}

void add_convolution(Rows& rows) {
  const auto f = depthwise_conv1d;
  Row row{"depthwise_conv1d", {}};
  row.slack = 10;
  for (const Form& form : forms()) {
    std::vector<Input> inputs = {
        value(form.options.channels_first ? Shape{form.batch, form.channels, form.length} : Shape{form.batch, form.length, form.channels}),
        value({form.channels, form.taps})};
    if (form.has_bias) inputs.push_back(value({form.channels}));
    if (form.has_bias) inputs.back().optional = true;
    row.cases.push_back({inputs, [=](In in) -> Tensors { return {f(in[0], in[1], form.has_bias ? in[2] : Tensor(), form.options)}; },
                         [=](Ref in) { return one(convolution_of(in, form)); }});
  }
  const Tensor u = sample({2, 5, 3}), w = sample({3, 4}), none;
  const auto given = [](std::int64_t left, std::int64_t right) { return DepthwiseConvOptions{ConvPadding::given, left, right}; };
  row.mistakes = {{[=] { f(u, sample({2, 4}), none, {}); }, {"(B, L, D)", "(2, 5, 3)", "(2, 4)"}},
                  {[=] { f(u, w, none, {.channels_first = true}); }, {"(B, D, L)", "(3, 4)"}},
                  {[=] { f(u, w, sample({4}), {}); }, {"(3, 4)", "(4,)"}},
                  {[=] { f(u, sample({3, 0}), none, {}); }, {"K >= 1", "(3, 0)"}},
                  {[=] { f(sample({5, 3}), w, none, {}); }, {"(5, 3)"}},
                  {[=] { f(sample({2, 5, 3}, DType::i64), w, none, {}); }, {"floating", "i64"}},
                  {[=] { f(u, sample({3, 4}, DType::f16), none, {}); }, {"f32", "f16"}},
                  {[=] { f(u, w, sample({3}, DType::f64), {}); }, {"f32", "f64"}},
                  {[=] { f(u, w, none, given(-1, 3)); }, {"(-1, 3)"}},
                  {[=] { f(u, sample({3, 8}), none, given(1, 0)); }, {"K - 1 = 7", "(1, 0)", "5"}}};
  rows.push_back(row);
  rows.push_back(plain(row));
}

void add_step(Rows& rows) {
  Row row{"depthwise_conv1d_step", {}};
  row.slack = 10;
  using Size = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
  for (const auto& [batch, channels, taps] :
       {Size{0, 2, 3}, {1, 1, 1}, {2, 3, 1}, {2, 3, 2}, {1, 3, 4}, {2, 2, 5}, {1, 1, 7}, {3, 31, 4}, {2, 33, 3}, {1, 1025, 4}})
    for (const bool silu : {false, true}) {
      Input bias = value({channels});
      bias.optional = true;
      row.cases.push_back({{value({batch, taps - 1, channels}), value({batch, channels}), value({channels, taps}), bias},
                           [=, silu = silu](In in) -> Tensors {
                             const ConvStep step = depthwise_conv1d_step(in[0], in[1], in[2], in[3], silu);
                             return {step.y, step.state};
                           },
                           [=, taps = taps, batch = batch, channels = channels](Ref in) -> Arrays {
                             const auto input = [&](std::int64_t b, std::int64_t k, std::int64_t d) {
                               return k + 1 < taps ? in[0]({b, k, d}) : in[1]({b, d});
                             };
                             return {
                                 make({batch, channels}, in.dtype,
                                      [&](const Shape& i) {
                                        double z = in[3]({i[1]});
                                        for (std::int64_t k = 0; k < taps; ++k) z += in[2]({i[1], k}) * input(i[0], k, i[1]);
                                        return maybe_silu(z, silu);
                                      }),
                                 make({batch, taps - 1, channels}, in.dtype, [&](const Shape& i) { return input(i[0], i[1] + 1, i[2]); })};
                           }});
    }
  const Tensor state = sample({2, 3, 5}), u = sample({2, 5}), w = sample({5, 4}), bias = sample({5});
  row.mistakes = {{[=] { depthwise_conv1d_step(sample({2, 4, 5}), u, w, bias); }, {"(2, 4, 5)", "(5, 4)"}},
                  {[=] { depthwise_conv1d_step(state, sample({3, 5}), w, bias); }, {"(3, 5)"}},
                  {[=] { depthwise_conv1d_step(state, u, w, sample({4})); }, {"(4,)"}},
                  {[=] { depthwise_conv1d_step(sample({2, 3, 5}, DType::f16), u, w, bias); }, {"f32", "f16"}},
                  {[=] { depthwise_conv1d_step(state, sample({2, 5}, DType::i64), w, bias); }, {"floating", "i64"}}};
  rows.push_back(row);
}

/// The element of an image (B, C, H, W) that stands at an index of its columns, if there is one.
struct Unfolding {
  Shape image;
  UnfoldOptions options;

  std::int64_t positions(std::size_t d) const {
    const auto& [kernel, stride, padding, dilation] = options;
    return (image[2 + static_cast<int>(d)] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1;
  }
  Shape columns() const { return {image[0], image[1] * options.kernel[0] * options.kernel[1], positions(0) * positions(1)}; }
  Shape source(const Shape& i) const {
    const auto& [kernel, stride, padding, dilation] = options;
    const std::int64_t tap[] = {i[1] / kernel[1] % kernel[0], i[1] % kernel[1]}, at[] = {i[2] / positions(1), i[2] % positions(1)};
    Shape source = {i[0], i[1] / (kernel[0] * kernel[1]), 0, 0};
    for (std::size_t d = 0; d < 2; ++d) source[2 + static_cast<int>(d)] = at[d] * stride[d] + tap[d] * dilation[d] - padding[d];
    return source;
  }
  bool has(const Shape& i) const { return i[2] >= 0 && i[2] < image[2] && i[3] >= 0 && i[3] < image[3]; }
};

void add_unfold(Rows& rows) {
  const std::vector<Unfolding> all = {
      {{0, 2, 3, 4}, {.kernel = {2, 2}}},
      {{2, 0, 3, 4}, {.kernel = {2, 2}}},
      {{1, 1, 1, 1}, {.kernel = {1, 1}}},
      {{1, 1, 0, 2}, {.kernel = {2, 1}, .padding = {1, 0}}},
      {{2, 3, 4, 5}, {.kernel = {3, 2}}},
      {{2, 2, 6, 6}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{1, 2, 5, 7}, {.kernel = {3, 3}, .stride = {2, 1}, .padding = {1, 2}}},
      {{1, 2, 7, 6}, {.kernel = {2, 3}, .stride = {1, 3}, .padding = {2, 0}, .dilation = {3, 2}}},
      {{1, 1, 5, 9}, {.kernel = {1, 2}, .stride = {4, 3}}},  // elements that no window sees
      {{1, 1, 31, 33}, {.kernel = {3, 3}, .padding = {1, 1}}},
      {{1, 1, 2, 1025}, {.kernel = {1, 3}, .stride = {1, 2}, .padding = {0, 1}}},
      {{1, 1025, 2, 2}, {.kernel = {2, 2}}},
      {{1, 1, 1, 31}, {.kernel = {1, 1}}},
      {{1, 1, 3, 11}, {.kernel = {1, 1}}},
      {{1, 1, 5, 205}, {.kernel = {1, 1}}},
  };
  Row to_columns{"unfold", {}}, to_image{"fold", {}};
  for (const Unfolding& form : all) {
    to_columns.cases.push_back({{value(form.image)},
                                [=](In in) -> Tensors { return {unfold(in[0], form.options)}; },
                                [=](Ref in) -> Arrays {
                                  return {make(form.columns(), in.dtype, [&](const Shape& i) {
                                    const Shape source = form.source(i);
                                    return form.has(source) ? in[0](source) : 0;
                                  })};
                                }});
    to_image.cases.push_back({{value(form.columns())},
                              [=](In in) -> Tensors { return {fold(in[0], form.image[2], form.image[3], form.options)}; },
                              [=](Ref in) -> Arrays {
                                Array y = make(form.image, in.dtype, [](const Shape&) { return 0.0; });
                                each(form.columns(), [&](const Shape& i) {
                                  if (const Shape source = form.source(i); form.has(source)) y(source) += in[0](i);
                                });
                                return {y};
                              }});
  }
  to_image.slack = 2;
  const Tensor x = sample({1, 2, 4, 4}), columns = sample({1, 8, 9});
  const auto both = [&](const UnfoldOptions& options, const std::vector<std::string>& contains) {
    to_columns.mistakes.push_back({[=] { unfold(x, options); }, contains});
    to_image.mistakes.push_back({[=] { fold(columns, 4, 4, options); }, contains});
  };
  both({.kernel = {0, 2}}, {"at least 1", "0"});
  both({.kernel = {2, 2}, .stride = {1, 0}}, {"at least 1", "0"});
  both({.kernel = {2, 2}, .padding = {-1, 0}}, {"at least 0", "-1"});
  both({.kernel = {2, 3}, .dilation = {1, 2}}, {"3 elements, 2 apart", "4 + 2 * 0"});
  to_columns.mistakes.push_back({[] { unfold(sample({2, 4, 4}), {.kernel = {2, 2}}); }, {"(B, C, H, W)", "(2, 4, 4)"}});
  to_columns.mistakes.push_back({[] { unfold(sample({1, 2, 4, 4}, DType::i64), {.kernel = {2, 2}}); }, {"floating", "i64"}});
  to_image.mistakes.push_back({[] { fold(sample({1, 7, 9}), 4, 4, {.kernel = {2, 2}}); }, {"(B, C * 4, 9)", "(1, 7, 9)"}});
  to_image.mistakes.push_back({[] { fold(sample({1, 8, 8}), 4, 4, {.kernel = {2, 2}}); }, {"(B, C * 4, 9)", "(1, 8, 8)"}});
  to_image.mistakes.push_back({[] { fold(sample({8, 9}), 4, 4, {.kernel = {2, 2}}); }, {"(8, 9)"}});
  to_image.mistakes.push_back({[] { fold(sample({1, 8, 9}), -4, 4, {.kernel = {2, 2}}); }, {"-4"}});
  to_image.mistakes.push_back({[] { fold(sample({1, 8, 9}, DType::i64), 4, 4, {.kernel = {2, 2}}); }, {"floating", "i64"}});
  rows.push_back(to_columns);
  rows.push_back(to_image);
}

void add_long(Rows& rows) {
  Row row{"long_conv", {}};
  row.slack = 8;
  const auto add = [&](std::int64_t batch, std::int64_t length, std::int64_t channels, std::int64_t taps) {
    const double tap = 2 / std::sqrt(static_cast<double>(taps));
    row.cases.push_back({{value({batch, length, channels}), value({channels, taps}, -tap, tap)},
                         [](In in) -> Tensors { return {long_conv(in[0], in[1])}; },
                         [=](Ref in) {
                           return one(make({batch, length, channels}, in.dtype, [&](const Shape& i) {
                             double sum = 0;
                             for (std::int64_t k = 0; k < std::min(taps, i[1] + 1); ++k)
                               sum += in[1]({i[2], k}) * in[0]({i[0], i[1] - k, i[2]});
                             return sum;
                           }));
                         }});
  };
  // Transforms of every number of digits, filters that are shorter and longer than the signal, one row and pairs of rows.
  for (const std::int64_t length : {1, 2, 3, 5, 9, 17}) add(length % 3 + 1, length, 2, length);
  for (const std::int64_t taps : {1, 2, 31, 33, 70}) add(2, 33, 1, taps);
  add(3, 31, 3, 31);
  // Blocks of channels, with a remainder.
  add(1, 5, 16, 4);
  add(3, 6, 33, 9);
  add(1, 3, 1025, 2);
  add(1, 1025, 1, 1025);
  add(0, 3, 2, 2);
  add(1, 0, 2, 3);
  add(2, 3, 0, 2);
  row.mistakes = {{[] { long_conv(sample({2, 3}), sample({3, 2})); }, {"(B, T, C)", "(2, 3)"}},
                  {[] { long_conv(sample({2, 5, 3}), sample({2, 4})); }, {"(2, 5, 3)", "(2, 4)"}},
                  {[] { long_conv(sample({2, 5, 3}), sample({3, 0})); }, {"K >= 1", "(3, 0)"}},
                  {[] { long_conv(sample({2, 5, 3}, DType::i64), sample({3, 2})); }, {"floating", "i64"}},
                  {[] { long_conv(sample({2, 5, 3}), sample({3, 2}, DType::i32)); }, {"floating", "i32"}}};
  rows.push_back(row);
  rows.push_back(plain(row));
}

}  // namespace

void add_conv(Rows& rows) {
  add_long(rows);
  add_convolution(rows);
  add_step(rows);
  add_unfold(rows);
}

TEST_CASE("The handout's convolution is exact in every padding, layout and dtype") {
  const std::vector<double> full = {8, 1, 12, 1, 9, 4, 7};
  for (DType dtype : floats)
    for (const bool first : {false, true})
      for (const bool fused : {false, true}) {
        const FusedKernels kernels(fused);
        const Shape shape = first ? Shape{1, 1, 5} : Shape{1, 5, 1};
        const Tensor u = cast(Tensor::from(std::vector<double>{2, -3, 1, -1, 1}, shape), dtype);
        const Tensor w = cast(Tensor::from(std::vector<double>{1, -1, 1}, {1, 3}), dtype);
        const Tensor bias = cast(Tensor::from(std::vector<double>{6}, {1}), dtype);
        const auto y = [&](DepthwiseConvOptions options) {
          options.channels_first = first;
          return cast(depthwise_conv1d(u, w, bias, options), DType::f64).to_vector<double>();
        };
        CHECK(y({ConvPadding::given, 2, 2}) == full);
        CHECK(y({ConvPadding::causal}) == std::vector<double>(full.begin(), full.begin() + 5));
        CHECK(y({ConvPadding::same}) == std::vector<double>(full.begin() + 1, full.begin() + 6));
      }
}

TEST_CASE("Steps of a convolution give what the whole gives") {
  constexpr std::int64_t batch = 2, length = 9, channels = 5;
  for (const std::int64_t taps : {1, 2, 4, 12}) {
    const auto make = [](const Shape& shape, std::size_t position) { return make_input(value(shape), DType::f32, position); };
    const Tensor u = make({batch, length, channels}, 0), w = make({channels, taps}, 1), bias = make({channels}, 2);
    const std::vector<float> whole = depthwise_conv1d(u, w, bias, {.silu = true}).to_vector<float>();
    Tensor state = zeros({batch, taps - 1, channels});
    Tensors outputs;
    for (std::int64_t l = 0; l < length; ++l) {
      const ConvStep step = depthwise_conv1d_step(state, select(u, 1, l), w, bias, true);
      outputs.push_back(step.y);
      state = step.state;
    }
    CHECK(stack(outputs, 1).to_vector<float>() == whole);
  }
}

TEST_CASE("A convolution keeps the order of its input's dimensions in memory") {
  const Tensor w = sample({3, 4}), last = sample({2, 5, 3}), first = sample({2, 3, 5});
  CHECK(depthwise_conv1d(last, w).is_contiguous());
  CHECK(depthwise_conv1d(first, w, {}, {.channels_first = true}).is_contiguous());
  CHECK(transpose(depthwise_conv1d(transpose(first, 1, 2), w), 1, 2).is_contiguous());
  CHECK(transpose(depthwise_conv1d(transpose(last, 1, 2), w, {}, {.channels_first = true}), 1, 2).is_contiguous());
}

}  // namespace tern::op_cases
