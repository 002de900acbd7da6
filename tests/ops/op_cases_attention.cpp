// Rows of ops/attention.h. Note [The table] in op_cases.h.
#include <cmath>

#include "op_cases.h"
#include "ops/attention.h"

namespace tern::op_cases {

using namespace reference;

namespace {

using In = const Arguments&;
using Ref = const References&;

enum class Mask { none, causal, prefix, padding };

/// The definition in loops; inputs: qkv (B, T, 3, H, D), then a prefix or a padding.
Array self_attention_of(Ref in, Mask mask) {
  const Array& x = in[0];
  const std::int64_t length = x.size(1), width = x.size(4);
  return make({x.size(0), length, x.size(3), width}, x.dtype, [&](const Shape& at) {
    std::vector<double> weights;
    double total = 0, sum = 0;
    for (std::int64_t s = 0; s < length; ++s) {
      double score = 0;
      for (std::int64_t d = 0; d < width; ++d) score += x({at[0], at[1], 0, at[2], d}) * x({at[0], s, 1, at[2], d});
      bool is_visible = mask == Mask::none || mask == Mask::padding || s <= at[1];
      if (mask == Mask::prefix) is_visible = is_visible || static_cast<double>(s) < in[1]({at[0]});
      if (mask == Mask::padding) is_visible = in[1]({at[0], s}) == 0;
      weights.push_back(is_visible ? std::exp(score / std::sqrt(static_cast<double>(width))) : 0);
      total += weights.back();
    }
    for (std::int64_t s = 0; s < length; ++s)
      if (total > 0) sum += weights[static_cast<std::size_t>(s)] / total * x({at[0], s, 2, at[2], at[3]});
    return sum;
  });
}

}  // namespace

void add_attention(Rows& rows) {
  for (const bool fused : {false, true}) {
    const auto f = fused ? fused_self_attention : self_attention;
    Row row{fused ? "fused_self_attention" : "self_attention", {}};
    row.slack = 40;
    row.roundings = 12;  // scores, whose roundings the exponentials multiply, and weights
    row.gradient_roundings = 7;
    for (const auto& [shape, masks] :
         std::vector<std::pair<Shape, std::vector<Mask>>>{{{1, 1, 3, 1, 2}, {Mask::none, Mask::causal}},
                                                          {{1, 3, 3, 2, 2}, {Mask::none, Mask::causal, Mask::prefix, Mask::padding}},
                                                          {{2, 5, 3, 3, 4}, {Mask::none, Mask::causal, Mask::prefix, Mask::padding}},
                                                          {{2, 3, 3, 2, 32}, {Mask::none, Mask::causal, Mask::prefix, Mask::padding}},
                                                          {{1, 31, 3, 1, 4}, {Mask::causal}},
                                                          {{1, 33, 3, 1, 32}, {Mask::none}},
                                                          {{1025, 1, 3, 1, 2}, {Mask::causal}},
                                                          {{2, 40, 3, 1, 32}, {Mask::causal, Mask::padding}},
                                                          {{1, 64, 3, 1, 64}, {Mask::none, Mask::causal}},
                                                          {{1, 65, 3, 1, 32}, {Mask::causal}},
                                                          {{0, 3, 3, 2, 32}, {Mask::causal}},
                                                          {{2, 0, 3, 2, 32}, {Mask::causal}},
                                                          {{2, 3, 3, 0, 32}, {Mask::causal}},
                                                          {{2, 3, 3, 2, 0}, {Mask::causal}}})
      for (const Mask mask : masks) {
        std::vector<Input> inputs = {value(shape)};
        if (mask == Mask::prefix) inputs.push_back(index({shape[0]}, shape[1] + 2));
        if (mask == Mask::padding) inputs.push_back(truth({shape[0], shape[1]}));
        if (inputs.size() > 1) inputs[1].optional = true;
        row.cases.push_back({inputs,
                             [=](In in) -> Tensors {
                               SoftmaxMask softmax_mask{.causal = mask == Mask::causal || mask == Mask::prefix};
                               if (mask == Mask::prefix) softmax_mask.prefix = in[1];
                               if (mask == Mask::padding) softmax_mask.padding = in[1];
                               return {f(in[0], {.mask = softmax_mask})};
                             },
                             [=](Ref in) { return one(self_attention_of(in, mask)); }});
      }
    row.mistakes = {{[=] { f(sample({2, 3, 3, 4}), {}); }, {"(2, 3, 3, 4)", "(B, T, 3, H, D)"}},
                    {[=] { f(sample({2, 3, 2, 2, 4}), {}); }, {"(2, 3, 2, 2, 4)"}},
                    {[=] { f(sample({2, 3, 3, 2, 4}), {.dropout = 1}); }, {"[0, 1)", "1"}},
                    {[=] { f(sample({2, 3, 3, 2, 4}, DType::i64), {}); }, {"floating", "i64"}},
                    {[=] { f(sample({2, 3, 3, 2, 4}), {.mask = {.padding = sample({2, 4})}}); }, {"(2, 3)", "(2, 4)"}}};
    rows.push_back(row);
  }
}

}  // namespace tern::op_cases
