#include "nn/recurrent.h"

#include <fmt/format.h>

#include <cmath>

#include "nn/init.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/view.h"
#include "tensor/view.h"

namespace tern::nn {

RecurrentLayers::RecurrentLayers(const char* type, std::int64_t in_, std::int64_t hidden_, std::int64_t gates, const RecurrentOptions& o)
    : in(in_), hidden(hidden_), options(o) {
  if (in < 1 || hidden < 1 || o.layers < 1 || !(o.dropout >= 0 && o.dropout < 1))
    fail(type, fmt::format("expected sizes >= 1 and a dropout in [0, 1) but got in {}, hidden {}, layers {} and dropout {}", in, hidden,
                           o.layers, o.dropout));
  const double bound = 1 / std::sqrt(static_cast<double>(hidden));
  const std::int64_t rows = checked_mul(type, gates, hidden), both = checked_mul(type, ways(), hidden);
  const auto make = [&](const Shape& shape) { return init::uniform(detail::parameter(shape, o.device), -bound, bound); };
  for (std::int64_t layer = 0; layer < o.layers; ++layer)
    for (std::int64_t way = 0; way < ways(); ++way) {
      RecurrentWeights& w = directions.emplace_back();
      w.weight_ih = make({rows, layer == 0 ? in : both});
      w.weight_hh = make({rows, hidden});
      if (!o.bias) continue;
      w.bias_ih = make({rows});
      w.bias_hh = make({rows});
    }
}

void RecurrentLayers::visit(Visitor& v) {
  for (std::size_t i = 0; i < directions.size(); ++i) {
    const auto way = static_cast<std::int64_t>(i) % ways();
    const std::string suffix = fmt::format("_l{}{}", static_cast<std::int64_t>(i) / ways(), way == 0 ? "" : "_reverse");
    v("weight_ih" + suffix, directions[i].weight_ih);
    v("weight_hh" + suffix, directions[i].weight_hh);
    v("bias_ih" + suffix, directions[i].bias_ih);
    v("bias_hh" + suffix, directions[i].bias_hh);
  }
}

std::string RecurrentLayers::settings() const {
  const RecurrentOptions& o = options;
  return fmt::format("{}, {}", in, hidden) + (o.layers == 1 ? "" : fmt::format(", layers={}", o.layers)) + (o.bias ? "" : ", bias=false") +
         (o.bidirectional ? ", bidirectional=true" : "") + (o.batch_first ? "" : ", batch_first=false") +
         (o.dropout == 0 ? "" : fmt::format(", dropout={:g}", o.dropout));
}

namespace {

/// Runs all layers and directions over all steps; a GRU has no c. step(w, x_gates, before) is one step of direction `w`, from its rows of
/// the input's products, of which input_bias(w) is the bias. Steps are the outermost dimension in memory, so that a step's rows are
/// contiguous.
template <class InputBias, class Step>
LSTMResult run(const char* type, const RecurrentLayers& layers, bool training, const Tensor& x, const Tensor& h, const Tensor& c,
               bool has_c, const InputBias& input_bias, const Step& step) {
  const RecurrentOptions& o = layers.options;
  if (x.dims() != 3 || x.size(2) != layers.in || x.numel() == 0)
    fail(type, fmt::format("expected x ({}, {}) with one step or more but got {}", o.batch_first ? "B, T" : "T, B", layers.in,
                           to_string(x.shape())));
  const std::int64_t batch = x.size(o.batch_first ? 0 : 1), steps = x.size(o.batch_first ? 1 : 0), ways = layers.ways();
  const Shape state_shape = {o.layers * ways, batch, layers.hidden};
  for (const Tensor* state : {&h, &c})
    if (state->defined() && state->shape() != state_shape)
      fail(type,
           fmt::format("expected states {} for x {} but got {}", to_string(state_shape), to_string(x.shape()), to_string(state->shape())));
  const Tensors hs = h.defined() ? unstack(h) : Tensors(), cs = c.defined() ? unstack(c) : Tensors();
  const auto first = [&](const Tensors& given, std::size_t at) {
    return given.empty() ? zeros({batch, layers.hidden}, {.dtype = x.dtype(), .device = x.device()}) : given[at];
  };

  Tensor in = o.batch_first ? transpose(x, 0, 1) : x;
  Tensors last_h, last_c;
  for (std::int64_t layer = 0; layer < o.layers; ++layer) {
    if (layer > 0) in = dropout(in, o.dropout, training);
    Tensors outputs;
    for (std::int64_t way = 0; way < ways; ++way) {
      const auto at = static_cast<std::size_t>(layer * ways + way);
      const RecurrentWeights& w = layers.directions[at];
      const Tensors products = unstack(linear(contiguous(in), w.weight_ih, input_bias(w)));
      LSTMState state{first(hs, at), has_c ? first(cs, at) : Tensor()};
      Tensors each(products.size());
      for (std::int64_t t = 0; t < steps; ++t) {
        const auto now = static_cast<std::size_t>(way == 0 ? t : steps - 1 - t);
        state = step(w, products[now], state);
        each[now] = state.h;
      }
      last_h.push_back(state.h);
      if (has_c) last_c.push_back(state.c);
      outputs.push_back(stack(each));
    }
    in = ways == 1 ? outputs[0] : cat(outputs, 2);
  }
  return {o.batch_first ? contiguous(transpose(in, 0, 1)) : in, {stack(last_h), has_c ? stack(last_c) : Tensor()}};
}

}  // namespace

LSTM::LSTM(std::int64_t in, std::int64_t hidden, const RecurrentOptions& options) : layers("LSTM", in, hidden, 4, options) {}

LSTMResult LSTM::forward(const Tensor& x, const LSTMState& state) const {
  const ModuleScope scope(this, "LSTM");
  if (state.h.defined() != state.c.defined()) fail("LSTM", "expected a state of both h and c, or neither, but one is undefined");
  const auto bias = [](const RecurrentWeights& w) { return w.bias_ih.defined() ? w.bias_ih + w.bias_hh : Tensor(); };
  const auto step = [](const RecurrentWeights& w, const Tensor& x_gates, const LSTMState& before) {
    return lstm_cell(x_gates, linear(before.h, w.weight_hh), before.c);
  };
  return run("LSTM", layers, training, x, state.h, state.c, true, bias, step);
}

GRU::GRU(std::int64_t in, std::int64_t hidden, const RecurrentOptions& options) : layers("GRU", in, hidden, 3, options) {}

GRUResult GRU::forward(const Tensor& x, const Tensor& h) const {
  const ModuleScope scope(this, "GRU");
  const auto bias = [](const RecurrentWeights& w) { return w.bias_ih; };
  const auto step = [](const RecurrentWeights& w, const Tensor& x_gates, const LSTMState& before) -> LSTMState {
    return {gru_cell(x_gates, linear(before.h, w.weight_hh, w.bias_hh), before.h), {}};
  };
  const LSTMResult result = run("GRU", layers, training, x, h, {}, false, bias, step);
  return {result.y, result.state.h};
}

}  // namespace tern::nn
