#include "bench/compile_models.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "autodiff/engine.h"
#include "nn/nn.h"
#include "ops/attention.h"
#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"
#include "train/train.h"

namespace tern::bench {
namespace {

using Function = std::function<Tensor(const Tensors&)>;

Tensor written_softmax(const Tensor& x) {
  const Tensor e = exp(x - max(x, -1, true));
  return e / sum(e, -1, true);
}
Tensor written_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  const Tensor centered = x - mean(x, -1, true);
  return centered * rsqrt(mean(centered * centered, -1, true) + 1e-5) * gamma + beta;
}
Tensor written_rms_norm(const Tensor& x, const Tensor& gamma) { return x * rsqrt(mean(x * x, -1, true) + 1e-5) * gamma; }
Tensor written_gelu(const Tensor& x) { return x * 0.5 * (tanh((x + x * x * x * 0.044715) * 0.7978845608) + 1); }
/// Of logits (N, V) and targets (N): (N), in f32.
Tensor written_cross_entropy(const Tensor& x, const Tensor& targets) {
  const Tensor logits = cast(x, DType::f32);
  return logsumexp(logits, 1) - reshape(gather(logits, 1, reshape(targets, {-1, 1})), {-1});
}

// ---- Models

/// Heads of about 64 numbers.
std::int64_t heads_of(std::int64_t width) {
  std::int64_t heads = std::max<std::int64_t>(width / 64, 1);
  while (width % heads != 0) --heads;
  return heads;
}

/// Causal attention of q, k and v (B, H, T, D): (B, T, H D).
Tensor written_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
  const std::int64_t batch = q.size(0), length = q.size(2), head = q.size(3);
  const Tensor scores = cast(matmul(q, transpose(k, -2, -1)), DType::f32) * (1 / std::sqrt(static_cast<double>(head))) + mask;
  const Tensor mixed = matmul(cast(written_softmax(scores), v.dtype()), v);
  return reshape(transpose(mixed, 1, 2), {batch, length, q.size(1) * head});
}
/// Of x (B, T, parts width), the parts by heads: (B, H, T, D) each.
Tensors in_heads(const Tensor& x, std::int64_t width) {
  const std::int64_t heads = heads_of(width), head = width / heads;
  return split(transpose(reshape(x, {x.size(0), x.size(1), x.size(2) / head, head}), 1, 2), heads, 1);
}

/// A layer of GPT-2.
struct GptLayer final : nn::Callable<GptLayer> {
  struct Norm final : nn::Callable<Norm> {
    explicit Norm(std::int64_t width) : gamma(ones({width})), beta(zeros({width})) { gamma.set_requires_grad(), beta.set_requires_grad(); }
    void visit(nn::Visitor& v) override { v("gamma", gamma), v("beta", beta); }
    Tensor forward(const Tensor& x) const { return written_norm(x, gamma, beta); }
    Tensor gamma, beta;
  };
  explicit GptLayer(const CompileSizes& s)
      : qkv(s.width, 3 * s.width),
        proj(s.width, s.width),
        up(s.width, 4 * s.width),
        down(4 * s.width, s.width),
        first(s.width),
        second(s.width) {}
  void visit(nn::Visitor& v) override {
    v("qkv", qkv), v("proj", proj), v("up", up), v("down", down), v("first", first), v("second", second);
  }
  Tensor forward(const Tensor& x, const Tensor& mask, const Tensors&) const {
    const Tensors parts = in_heads(qkv(first(x)), x.size(2));
    const Tensor y = x + proj(written_attention(parts[0], parts[1], parts[2], mask));
    return y + down(written_gelu(up(second(y))));
  }
  nn::Linear qkv, proj, up, down;
  Norm first, second;
};

/// Hidden units of Llama's feed-forward blocks: 8 / 3 of the width, in multiples of 64.
std::int64_t gated_width(std::int64_t width) { return (width * 8 / 3 + 63) / 64 * 64; }

/// A layer of Llama: RMS norms, rotary positions in halves, a gate by SiLU, no biases.
struct LlamaLayer final : nn::Callable<LlamaLayer> {
  struct Norm final : nn::Callable<Norm> {
    explicit Norm(std::int64_t width) : gamma(ones({width})) { gamma.set_requires_grad(); }
    void visit(nn::Visitor& v) override { v("gamma", gamma); }
    Tensor forward(const Tensor& x) const { return written_rms_norm(x, gamma); }
    Tensor gamma;
  };
  explicit LlamaLayer(const CompileSizes& s)
      : qkv(s.width, 3 * s.width, false),
        proj(s.width, s.width, false),
        gate(s.width, gated_width(s.width), false),
        up(s.width, gated_width(s.width), false),
        down(gated_width(s.width), s.width, false),
        first(s.width),
        second(s.width) {}
  void visit(nn::Visitor& v) override {
    v("qkv", qkv), v("proj", proj), v("gate", gate), v("up", up), v("down", down), v("first", first), v("second", second);
  }
  /// x (B, H, T, D), by the cosines and sines (T, D / 2) of its positions.
  static Tensor rotated(const Tensor& x, const Tensors& rotations) {
    const Tensors halves = split(x, x.size(3) / 2, 3);
    return cat({halves[0] * rotations[0] - halves[1] * rotations[1], halves[1] * rotations[0] + halves[0] * rotations[1]}, 3);
  }
  Tensor forward(const Tensor& x, const Tensor& mask, const Tensors& rotations) const {
    const Tensors parts = in_heads(qkv(first(x)), x.size(2));
    const Tensor q = rotated(parts[0], rotations), k = rotated(parts[1], rotations);
    const Tensor y = x + proj(written_attention(q, k, parts[2], mask)), z = second(y), g = gate(z);
    return y + down(g * sigmoid(g) * up(z));
  }
  nn::Linear qkv, proj, gate, up, down;
  Norm first, second;
};

/// A decoder-only transformer with nothing but products, elementwise ops and sums; GPT-2's has learned positions.
template <class Layer>
struct Decoder final : nn::Callable<Decoder<Layer>> {
  static constexpr bool has_positions = std::is_same_v<Layer, GptLayer>;
  explicit Decoder(const CompileSizes& s) : tokens(s.vocab, s.width), last(s.width), head(s.width, s.vocab, has_positions) {
    for (std::int64_t i = 0; i < s.layers; ++i) layers.emplace_back(s);
    mask = triu(full({s.length, s.length}, -INFINITY), 1);
    if (has_positions) {
      positions.emplace(s.length, s.width);
      return;
    }
    const std::int64_t half = s.width / heads_of(s.width) / 2;
    const Tensor frequencies = exp(arange(half, DType::f32) * (-std::log(10000.0) / static_cast<double>(half)));
    angles = reshape(arange(s.length, DType::f32), {s.length, 1}) * frequencies;
  }
  void visit(nn::Visitor& v) override {
    v("tokens", tokens), v("positions", positions), v("layers", layers), v("last", last), v("head", head);
  }
  /// The loss of ids and targets (B, T), f32 ().
  Tensor forward(const Tensor& ids, const Tensor& targets) const {
    const std::int64_t length = ids.size(1);
    Tensor x = tokens(ids);
    if (has_positions) x = x + slice(positions->weight, 0, 0, length);
    const Tensor visible = slice(slice(mask, 0, 0, length), 1, 0, length);
    Tensors rotations;
    if (!has_positions)
      for (const Tensor& part : {cos(angles), sin(angles)}) rotations.push_back(cast(slice(part, 0, 0, length), x.dtype()));
    for (const Layer& layer : layers) x = layer(x, visible, rotations);
    return mean(written_cross_entropy(flatten(head(last(x)), 0, 1), flatten(targets)));
  }
  nn::Embedding tokens;
  std::optional<nn::Embedding> positions;
  std::vector<Layer> layers;
  typename Layer::Norm last;
  nn::Linear head;
  Tensor mask, angles;
};

/// The same model of fused kernels, from the same weights.
template <class Layer>
struct FusedDecoder final : nn::Callable<FusedDecoder<Layer>> {
  explicit FusedDecoder(const CompileSizes& s) : FusedDecoder(Decoder<Layer>(s), s) {}
  FusedDecoder(const Decoder<Layer>& written, const CompileSizes& s) : model(options_of(s)) {
    model.tokens = written.tokens, model.positions = written.positions, model.head = written.head;
    for (std::size_t i = 0; i < written.layers.size(); ++i) {
      const Layer& from = written.layers[i];
      nn::TransformerLayer& to = model.blocks[i];
      to.attn.qkv = from.qkv, to.attn.proj = from.proj, to.ff.fc = from.up, to.ff.proj = from.down;
      if constexpr (!Decoder<Layer>::has_positions) to.ff.gate = from.gate;
    }
  }
  static nn::TransformerOptions options_of(const CompileSizes& s) {
    nn::TransformerOptions options{.vocab = s.vocab, .length = s.length, .width = s.width, .layers = s.layers, .heads = heads_of(s.width)};
    options.dropout = 0;
    if constexpr (std::is_same_v<Layer, GptLayer>) {
      options.ff = 4 * s.width, options.activation = nn::Activation::gelu_tanh;
    } else {
      options.ff = gated_width(s.width), options.activation = nn::Activation::silu, options.gated = true;
      options.norm = nn::NormKind::rms, options.bias = options.head_bias = false;
      options.positions = nn::Positions::rotary, options.rope_pairs = RopePairs::halves;
    }
    return options;
  }
  void visit(nn::Visitor& v) override { v("model", model); }
  Tensor forward(const Tensor& ids, const Tensor& targets) const {
    const FusedKernels fused;
    return model.loss(ids, targets);
  }
  nn::DecoderLM model;
};

/// LSTMs of ops on top of each other, which guess the next input.
struct Lstm final : nn::Callable<Lstm> {
  struct Cell final : nn::Callable<Cell> {
    explicit Cell(std::int64_t width) : input(width, 4 * width), state(width, 4 * width) {}
    void visit(nn::Visitor& v) override { v("input", input), v("state", state); }
    Tensors forward(const Tensor& x, const Tensor& h, const Tensor& c) const {
      const Tensors gates = split(input(x) + state(h), x.size(1), 1);
      const Tensor next = sigmoid(gates[1]) * c + sigmoid(gates[0]) * tanh(gates[2]);
      return {sigmoid(gates[3]) * tanh(next), next};
    }
    nn::Linear input, state;
  };
  explicit Lstm(const CompileSizes& s) : head(s.width, s.width) {
    for (std::int64_t i = 0; i < s.layers; ++i) cells.emplace_back(s.width);
  }
  void visit(nn::Visitor& v) override { v("cells", cells), v("head", head); }
  /// The loss of x and the inputs that follow, (B, T, width) each.
  Tensor forward(const Tensor& x, const Tensor& following) const {
    std::vector<Tensors> states(cells.size(), Tensors(2, zeros({x.size(0), x.size(2)}, x.dtype())));
    Tensors outputs;
    for (std::int64_t t = 0; t < x.size(1); ++t) {
      Tensor y = select(x, 1, t);
      for (std::size_t i = 0; i < cells.size(); ++i) {
        states[i] = cells[i](y, states[i][0], states[i][1]);
        y = states[i][0];
      }
      outputs.push_back(head(y));
    }
    const Tensor distance = stack(outputs, 1) - following;
    return mean(distance * distance);
  }
  std::vector<Cell> cells;
  nn::Linear head;
};

/// Residual blocks of two convolutions, in four stages, each of twice the channels and half the side of the one before (He et al., 2016).
struct ResNet final : nn::Callable<ResNet> {
  struct Convolution final : nn::Callable<Convolution> {
    Convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride)
        : conv(in, out, kernel, {.stride = stride, .padding = kernel / 2, .bias = false}), norm(out) {}
    void visit(nn::Visitor& v) override { v("conv", conv), v("norm", norm); }
    Tensor forward(const Tensor& x) const { return norm(conv(x)); }
    nn::Conv2d conv;
    nn::BatchNorm2d norm;
  };
  struct Block final : nn::Callable<Block> {
    Block(std::int64_t in, std::int64_t out, std::int64_t stride) : first(in, out, 3, stride), second(out, out, 3, 1) {
      if (in != out) shortcut.emplace(in, out, 1, stride);
    }
    void visit(nn::Visitor& v) override { v("first", first), v("second", second), v("shortcut", shortcut); }
    Tensor forward(const Tensor& x) const { return relu(second(relu(first(x))) + (shortcut ? (*shortcut)(x) : x)); }
    Convolution first, second;
    std::optional<Convolution> shortcut;
  };
  explicit ResNet(const CompileSizes& s) : stem(3, s.width, 3, 1) {
    std::int64_t channels = s.width;
    for (std::int64_t i = 0; i < s.layers; ++i) {
      const std::int64_t out = s.width << (4 * i / s.layers);
      blocks.emplace_back(channels, out, out == channels ? 1 : 2);
      channels = out;
    }
    head = nn::Linear(channels, s.vocab);
  }
  void visit(nn::Visitor& v) override { v("stem", stem), v("blocks", blocks), v("head", head); }
  /// The loss of images (B, 3, S, S) and classes (B).
  Tensor forward(const Tensor& images, const Tensor& targets) const {
    Tensor x = relu(stem(images));
    for (const Block& block : blocks) x = block(x);
    return mean(written_cross_entropy(head(mean(x, {2, 3})), targets));
  }
  Convolution stem;
  std::vector<Block> blocks;
  nn::Linear head;
};

/// The function of a model whose forward gives a loss.
template <class Model>
Subject of_model(const CompileCase& c) {
  struct Training {
    Model model;
    std::unique_ptr<train::AdamW> optimizer;
  };
  const auto own = std::make_shared<Training>(Training{Model(c.sizes), nullptr});
  train::set_precision(own->model, c.precision);
  Subject result{nullptr, nn::module_names(own->model)};
  if (c.is_step) {
    own->optimizer = std::make_unique<train::AdamW>(nn::parameters(own->model));
    result.function = [own](const Tensors& in) {
      const Tensor loss = own->model(in[0], in[1]);
      train::update(loss, *own->optimizer);
      return loss;
    };
  } else {
    result.function = [own](const Tensors& in) {
      const NoGrad unrecorded;
      return own->model(in[0], in[1]);
    };
  }
  return result;
}

/// AdamW of ops, for matrices with gradients.
Subject own_adamw(const CompileCase& c) {
  struct Parameter {
    Tensor x, gradient, m, v;
  };
  const auto make = [&](bool is_random) {
    const Shape shape{c.sizes.width, c.sizes.width};
    return cast(is_random ? randn(shape) : zeros(shape), train::dtype_of(c.precision));
  };
  std::vector<Parameter> all;
  for (std::int64_t i = 0; i < c.sizes.layers; ++i) all.push_back({make(true), make(true), make(false), make(false)});
  return {[all](const Tensors&) {
            const NoGrad unrecorded;
            for (const Parameter& p : all) {
              copy_(p.m, p.m * 0.9 + p.gradient * 0.1);
              copy_(p.v, p.v * 0.999 + p.gradient * p.gradient * 0.001);
              copy_(p.x, p.x * (1 - 1e-5) - p.m / (sqrt(p.v) + 1e-8) * 1e-3);
            }
            return all.back().x;
          },
          {}};
}

/// Attention of q, k and v, (3, B, T, D) together, of ops or by the fused one; the step has the gradient of all three.
Function attention(const CompileCase& c, bool is_fused) {
  const auto attend = [is_fused](const Tensor& x) {
    const Tensors in = unstack(x, 0);
    if (is_fused) return select(scaled_dot_product_attention(unsqueeze(in[0], 2), unsqueeze(in[1], 2), unsqueeze(in[2], 2)), 2, 0);
    return matmul(softmax(matmul(in[0], transpose(in[1], 1, 2)) * (1 / std::sqrt(static_cast<double>(x.size(3)))), -1), in[2]);
  };
  return [attend, is_step = c.is_step](const Tensors& in) {
    if (!is_step) {
      const NoGrad unrecorded;
      return attend(in[0]);
    }
    const Tensor leaf = in[0].detach().set_requires_grad();
    return grad({attend(leaf)}, {leaf}, {in[1]})[0];
  };
}

// ---- Formulas

/// A function of x (..., width), another tensor of its shape, and targets of its rows, as written and by fused kernels, of which there may
/// be none.
struct Formula {
  std::function<Tensor(const Tensors&)> written, fused;
};

/// The formulas of a model by name; gamma and beta are (width).
std::map<std::string, Formula> formulas(const std::string& model, const Tensor& gamma, const Tensor& beta) {
  if (model == "chains")
    return {{"chain of 9",
             {[](const Tensors& in) { return relu((((in[0] * in[1] + 0.5) * in[0] - in[1]) * 0.25 + in[0]) * in[1] - 0.125); }, nullptr}},
            {"chain of 10 with tanh",
             {[](const Tensors& in) { return tanh((((in[0] * in[1] + 0.5) * in[0] - in[1]) * 0.25 + in[0]) * in[1] - 0.125) * in[0]; },
              nullptr}}};
  constexpr double p = 0.1;
  return {
      {"copy", {[](const Tensors& in) { return clone(in[0]); }, nullptr}},
      {"softmax", {[](const Tensors& in) { return written_softmax(in[0]); }, [](const Tensors& in) { return attention_softmax(in[0]); }}},
      {"layer norm",
       {[=](const Tensors& in) { return written_norm(in[0], gamma, beta); },
        [=](const Tensors& in) { return layer_norm(in[0], gamma, beta); }}},
      {"rms norm",
       {[=](const Tensors& in) { return written_rms_norm(in[0], gamma); }, [=](const Tensors& in) { return rms_norm(in[0], gamma); }}},
      {"gelu", {[](const Tensors& in) { return written_gelu(in[0]); }, [](const Tensors& in) { return gelu_tanh(in[0]); }}},
      {"cross entropy",
       {[](const Tensors& in) { return written_cross_entropy(in[0], in[2]); },
        [](const Tensors& in) { return cross_entropy(in[0], in[2], {.reduction = Reduction::none}); }}},
      {"residual norm",
       {[=](const Tensors& in) { return written_norm(in[1] + dropout(in[0], p), gamma, beta); },
        [=](const Tensors& in) { return residual_layer_norm(in[0], in[1], gamma, beta, 1e-5, {.dropout = p}).y; }}}};
}

bool is_of_formulas(const std::string& model) { return model == "chains" || model == "rows"; }

/// The formula that a case is named for.
Formula formula_of(const CompileCase& c) {
  const DType dtype = train::dtype_of(c.precision);
  const Tensor gamma = cast(rand({c.sizes.width}), dtype), beta = cast(randn({c.sizes.width}), dtype);
  for (const char* model : {"chains", "rows"}) {
    const auto all = formulas(model, gamma, beta);
    if (const auto found = all.find(c.model); found != all.end()) return found->second;
  }
  return {};
}

/// The function, or its gradient by x, where the gradient of the result is the second argument, or its first column.
Function with_gradient(const Function& f, bool is_step) {
  if (!f) return nullptr;
  return [=](const Tensors& in) {
    if (!is_step) {
      const NoGrad unrecorded;
      return f(in);
    }
    Tensors given = in;
    given[0] = in[0].detach();
    given[0].set_requires_grad();
    const Tensor y = f(given);
    const Tensor gradient = y.dims() == 1 ? cast(select(in[1], 1, 0), y.dtype()) : in[1];
    return grad({y}, {given[0]}, {gradient})[0];
  };
}

}  // namespace

std::vector<std::string> compile_models() {
  return {"seed6", "small", "char", "llama", "lstm", "cnn", "attention", "own-adamw", "chains", "rows"};
}

CompileSizes default_sizes(const std::string& model) {
  static const std::map<std::string, CompileSizes> all = {{"seed6", {4, 512, 512, 6, 10000}}, {"small", {4, 512, 768, 12, 10000}},
                                                          {"char", {8, 64, 128, 4, 10000}},   {"llama", {4, 512, 768, 12, 10000}},
                                                          {"lstm", {16, 32, 96, 1, 1}},       {"cnn", {32, 32, 64, 8, 10}},
                                                          {"attention", {8, 1024, 64, 1, 1}}, {"own-adamw", {1, 1, 768, 100, 1}},
                                                          {"chains", {8, 1024, 1024, 1, 1}},  {"rows", {32, 1024, 1024, 1, 1}}};
  return all.at(model);
}

std::vector<CompileCase> cases_of(const std::string& model, bool is_step, train::Precision precision, const CompileSizes& sizes) {
  if (model == "own-adamw" && !is_step) return {};
  if (!is_of_formulas(model)) return {{model, is_step, precision, sizes}};
  std::vector<CompileCase> cases;
  for (const auto& [name, formula] : formulas(model, {}, {})) cases.push_back({name, is_step, precision, sizes});
  return cases;
}

/// True for a model that reads tokens.
static bool is_decoder(const CompileCase& c) { return c.model == "seed6" || c.model == "small" || c.model == "char" || c.model == "llama"; }

bool has_lengths(const CompileCase& c) { return is_decoder(c) || c.model == "lstm"; }

Subject make_written(const CompileCase& c) {
  if (c.model == "lstm") return of_model<Lstm>(c);
  if (c.model == "cnn") return of_model<ResNet>(c);
  if (c.model == "own-adamw") return own_adamw(c);
  if (c.model == "attention") return {attention(c, false), {}};
  if (c.model == "llama") return of_model<Decoder<LlamaLayer>>(c);
  if (is_decoder(c)) return of_model<Decoder<GptLayer>>(c);
  return {with_gradient(formula_of(c).written, c.is_step), {}};
}

bool has_fused(const CompileCase& c) { return is_decoder(c) || c.model == "attention" || formula_of(c).fused; }

Function make_fused(const CompileCase& c) {
  if (c.model == "attention") return attention(c, true);
  if (c.model == "llama") return of_model<FusedDecoder<LlamaLayer>>(c).function;
  if (is_decoder(c)) return of_model<FusedDecoder<GptLayer>>(c).function;
  return with_gradient(formula_of(c).fused, c.is_step);
}

Tensors make_arguments(const CompileCase& c, std::int64_t length) {
  const CompileSizes& s = c.sizes;
  const DType dtype = train::dtype_of(c.precision);
  const auto normal = [&](const Shape& shape) { return cast(randn(shape), dtype); };
  if (c.model == "lstm") return {normal({s.batch, length, s.width}), normal({s.batch, length, s.width})};
  if (c.model == "cnn") return {normal({s.batch, 3, s.length, s.length}), randint(0, s.vocab, {s.batch})};
  if (c.model == "own-adamw") return {zeros({1})};
  if (c.model == "attention") return {normal({3, s.batch, length, s.width}), normal({s.batch, length, s.width})};
  if (has_lengths(c)) return {randint(0, s.vocab, {s.batch, length}), randint(0, s.vocab, {s.batch, length})};
  const Shape rows{s.batch * s.length, s.width};
  return {normal(rows), normal(rows), randint(0, s.width, {rows[0]})};
}

}  // namespace tern::bench
