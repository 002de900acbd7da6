#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "autodiff/engine.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"

/// Functions of ops that are drawn by numbers, and run on any tensors.
namespace tern::random_graphs {

constexpr std::int64_t most = 1 << 17;  ///< elements of a value

/// An op: what it does with its operands, indices of values before it, and numbers that choose among its forms.
struct Instruction {
  std::uint64_t kind, form, number;
  std::size_t a, b, c;
  bool is_cut = false;  ///< its value is a
};

/// A function of inputs and of tensors from outside. Its values are the inputs, the parameters, the buffers, and one for each instruction.
struct Graph {
  std::uint64_t seed = 0;
  DType dtype = DType::f32;
  std::vector<Shape> inputs, parameters, buffers;
  std::vector<Instruction> instructions;
  std::vector<std::size_t> losses;  ///< values whose sums are the loss
  bool accumulates = false;         ///< gradients are added to those of the call before
  bool is_open = false;             ///< the loss and its gradients are no part of the function, whose results have a history
  int threads = 1;
};

/// What a graph reads and writes from outside.
struct State {
  Tensors parameters, buffers, moments;
};

struct Named {
  std::string name;
  Tensor tensor;
};

/// One run of a graph, which writes itself down.
class Run {
 public:
  Run(const Graph& graph, const State& state, const Tensors& inputs, std::string* text) : graph_(graph), state_(state), text_(text) {
    const auto give = [&](const char* letter, const Tensors& xs) {
      for (std::size_t i = 0; i < xs.size(); ++i) values_.push_back({fmt::format("{}{}", letter, i), xs[i]});
    };
    give("x", inputs), give("p", state.parameters), give("b", state.buffers);
  }

  /// The values whose sums are the loss.
  Tensors values() {
    for (std::size_t i = 0; i < graph_.instructions.size(); ++i) {
      const Instruction& op = graph_.instructions[i];
      if (op.is_cut) {
        values_.push_back(at(op.a));
        continue;
      }
      Named made = value_of(op);
      const std::string name = fmt::format("v{}", i);
      write("const Tensor {} = {};  // {} {}", name, made.name, tern::name(made.tensor.dtype()), to_string(made.tensor.shape()));
      values_.push_back({name, made.tensor});
    }
    Tensors results;
    for (const std::size_t i : graph_.losses) results.push_back(at(i).tensor);
    return results;
  }

  Tensor loss(const Tensors& values) {
    Tensor loss;
    std::string sum_text;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Tensor value = graph_.is_open ? contiguous(values[i]) : values[i];  // copies of small results are
      const Tensor term = sum(cast(value, graph_.dtype == DType::f64 ? DType::f64 : DType::f32));
      loss = loss.defined() ? loss + term * 0.5 : term;
      if (text_) sum_text += fmt::format("{}sum(cast({}, DType::f32)){}", i ? " + " : "", at(graph_.losses[i]).name, i ? " * 0.5" : "");
    }
    write("const Tensor loss = {};", sum_text);
    return loss;
  }

  /// A call of the function: values, loss, its gradients, and the update.
  Tensors operator()() {
    if (!graph_.accumulates)
      for (Tensor p : state_.parameters) p.set_grad({});
    Tensors results = values();
    results.push_back(loss(results));
    if (results.back().requires_grad()) {
      write("loss.backward();");
      results.back().backward();
      update(results);
    }
    return results;
  }

  /// The same for a function that is open, of which `values` are the results; gradients of the inputs follow.
  Tensors closed(Tensors values, const Tensors& inputs) {
    for (Tensor p : state_.parameters) p.set_grad({});
    const Tensor total = loss(values);
    values.push_back(total);
    for (Tensor& x : values) x = clone(x.detach());  // some are parameters
    if (!total.requires_grad()) return values;
    Tensors sources = state_.parameters;
    sources.insert(sources.end(), inputs.begin(), inputs.end());
    const Tensors found = grad({total}, sources);
    for (std::size_t i = 0; i < state_.parameters.size(); ++i) Tensor(state_.parameters[i]).set_grad(found[i]);
    update(values);
    values.insert(values.end(), found.begin() + static_cast<std::ptrdiff_t>(state_.parameters.size()), found.end());
    return values;
  }

 private:
  template <class... X>
  void write(fmt::format_string<X...> format, X&&... x) {
    if (text_) *text_ += "  " + fmt::format(format, std::forward<X>(x)...) + "\n";
  }
  const Named& at(std::size_t index) const { return values_[index]; }

  void update(Tensors& results) {
    const NoGrad unrecorded;
    for (std::size_t i = 0; i < state_.parameters.size(); ++i) {
      const Tensor &p = state_.parameters[i], &m = state_.moments[i], g = p.grad();
      if (!g.defined()) continue;
      if (graph_.accumulates && graph_.seed % 2 == 0) {
        sub_(p, g * 0.01);
        write("sub_(p{0}, p{0}.grad() * 0.01);", i);
      } else {
        mul_(m, 0.9);
        add_(m, g);
        sub_(p, m * 0.01);
        write("mul_(m{0}, 0.9), add_(m{0}, p{0}.grad()), sub_(p{0}, m{0} * 0.01);", i);
      }
      results.push_back(g);
    }
  }

  /// An operand of a's dtype that broadcasts with it: itself, or a sum.
  Named beside(const Named& a, Named b) const {
    if (b.tensor.dtype() != a.tensor.dtype())
      b = {fmt::format("cast({}, DType::{})", b.name, name(a.tensor.dtype())), cast(b.tensor, a.tensor.dtype())};
    const Shape &s = a.tensor.shape(), &t = b.tensor.shape();
    std::int64_t elements = 1;
    bool fits = true;
    for (int i = 1; i <= std::max(a.tensor.dims(), b.tensor.dims()); ++i) {
      const std::int64_t m = i <= a.tensor.dims() ? s[a.tensor.dims() - i] : 1, n = i <= b.tensor.dims() ? t[b.tensor.dims() - i] : 1;
      fits = fits && (m == n || m == 1 || n == 1);
      elements *= m == 1 ? n : m;
    }
    if (fits && elements <= most) return b;
    return {fmt::format("sum({})", b.name), sum(b.tensor)};
  }
  /// The same for a target in place, which keeps its shape.
  Named within(const Named& target, const Named& b) const {
    Named x = beside(target, b);
    if (broadcast_shapes(target.tensor.shape(), x.tensor.shape(), "test") == target.tensor.shape()) return x;
    return {fmt::format("sum({})", x.name), sum(x.tensor)};
  }

  Named value_of(const Instruction& op) {
    switch (op.kind % 16) {
      case 0:
      case 1: return unary(op);
      case 2:
      case 3:
      case 4: return binary(op);
      case 5: return selected(op);
      case 6: return reduced(op);
      case 7: return product(op);
      case 8: return normalized(op);
      case 9:
      case 10: return view(op);
      case 11: return joined(op);
      case 12: return random(op);
      case 13: return edited_temporary(op);
      case 14: return edited_outside(op);
      default: return converted(op);
    }
  }

  Named unary(const Instruction& op) const {
    constexpr std::pair<const char*, Tensor (*)(const Tensor&)> functions[] = {{"tanh", tern::tanh},
                                                                               {"relu", tern::relu},
                                                                               {"sigmoid", tern::sigmoid},
                                                                               {"gelu", tern::gelu},
                                                                               {"silu", tern::silu},
                                                                               {"sin", tern::sin},
                                                                               {"square", tern::square},
                                                                               {"neg", tern::neg},
                                                                               {"abs", tern::abs},
                                                                               {"erf", tern::erf},
                                                                               {"cos", tern::cos},
                                                                               {"exp", tern::exp},
                                                                               {"log1p", tern::log1p},
                                                                               {"rsqrt", tern::rsqrt},
                                                                               {"reciprocal", tern::reciprocal},
                                                                               {"sqrt", tern::sqrt},
                                                                               {"floor", tern::floor},
                                                                               {"sign", tern::sign},
                                                                               {"expm1", tern::expm1},
                                                                               {"gelu_tanh", tern::gelu_tanh}};
    const Named& a = at(op.a);
    const auto& [text, f] = functions[op.form % std::size(functions)];
    return {fmt::format("{}({})", text, a.name), f(a.tensor)};
  }

  Named binary(const Instruction& op) const {
    const Named& a = at(op.a);
    const Named b = beside(a, at(op.b));
    const double number = static_cast<double>(op.number % 7) / 4 - 0.5;
    switch (op.form % 10) {
      case 0: return {fmt::format("{} - {}", a.name, b.name), a.tensor - b.tensor};
      case 1: return {fmt::format("maximum({}, {})", a.name, b.name), maximum(a.tensor, b.tensor)};
      case 2: return {fmt::format("minimum({}, {})", a.name, b.name), minimum(a.tensor, b.tensor)};
      case 3: return {fmt::format("{} / (abs({}) + 1)", a.name, b.name), a.tensor / (abs(b.tensor) + 1)};
      case 4: return {fmt::format("{} * {} + 0.25", a.name, number), a.tensor * number + 0.25};
      case 5: return {fmt::format("{} - {}", number, a.name), number - a.tensor};
      case 6:
      case 7: return {fmt::format("{} * {}", a.name, b.name), a.tensor * b.tensor};
      default: return {fmt::format("{} + {}", a.name, b.name), a.tensor + b.tensor};
    }
  }

  Named selected(const Instruction& op) const {
    const Named& a = at(op.a);
    const Named b = beside(a, at(op.b));
    if (op.form % 3 == 0)
      return {fmt::format("where(gt({0}, 0.125), {0}, {1})", a.name, b.name), where(gt(a.tensor, 0.125), a.tensor, b.tensor)};
    const Named c = within({"", a.tensor + b.tensor}, at(op.c));
    if (op.form % 3 == 1)
      return {fmt::format("where(le({0}, {1}), {2}, {0})", a.name, b.name, c.name), where(le(a.tensor, b.tensor), c.tensor, a.tensor)};
    return {fmt::format("masked_fill({0} + {1}, ne({2}, {0}), -0.5)", a.name, b.name, c.name),
            masked_fill(a.tensor + b.tensor, ne(c.tensor, a.tensor), -0.5)};
  }

  Named reduced(const Instruction& op) const {
    const Named& a = at(op.a);
    Dims dims;
    for (int i = 0; i < a.tensor.dims(); ++i)
      if ((op.number >> i) % 2) dims.push_back(i);
    const bool keeps = op.form % 2;
    const auto call = [&](const char* name) {
      return fmt::format("{}({}, {{{}}}, {})", name, a.name, fmt::join(dims.begin(), dims.end(), ", "), keeps);
    };
    switch (op.form / 2 % 6) {
      case 0: return {call("mean"), mean(a.tensor, dims, keeps)};
      case 1:
        if (a.tensor.numel() > 0) return {call("max"), max(a.tensor, dims, keeps)};
        break;
      case 2:
        if (a.tensor.numel() > 0) return {call("logsumexp"), logsumexp(a.tensor, dims, keeps)};
        break;
      case 3:
        if (a.tensor.dims() > 0)
          return {fmt::format("cumsum({}, {})", a.name, op.number % a.tensor.dims()),
                  cumsum(a.tensor, static_cast<int>(op.number % a.tensor.dims()))};
        break;
      case 4: return {call("var").insert(call("var").rfind(", ") + 2, "0, "), var(a.tensor, dims, 0, keeps)};
      default: break;
    }
    return {call("sum"), sum(a.tensor, dims, keeps)};
  }

  Named product(const Instruction& op) const {
    const Named &a = at(op.a), &b = at(op.b);
    if (a.tensor.dims() < 2) return {fmt::format("{0} * {0}", a.name), a.tensor * a.tensor};
    const std::int64_t rows = a.tensor.size(-2), inner = a.tensor.size(-1);
    const bool fits = b.tensor.dims() == 2 && b.tensor.dtype() == a.tensor.dtype();
    const auto is_small = [&](std::int64_t columns) {
      return a.tensor.numel() * columns <= 1 << 22 && a.tensor.numel() / std::max<std::int64_t>(inner, 1) * columns <= most;
    };
    if (fits && b.tensor.size(0) == inner && is_small(b.tensor.size(1)))
      return {fmt::format("matmul({}, {})", a.name, b.name), matmul(a.tensor, b.tensor)};
    if (fits && b.tensor.size(1) == inner && is_small(b.tensor.size(0)))
      return {fmt::format("linear({}, {})", a.name, b.name), linear(a.tensor, b.tensor)};
    if (is_small(rows)) return {fmt::format("matmul({0}, transpose({0}, -2, -1))", a.name), matmul(a.tensor, transpose(a.tensor, -2, -1))};
    return {fmt::format("{0} * {0}", a.name), a.tensor * a.tensor};
  }

  Named normalized(const Instruction& op) const {
    const Named &a = at(op.a), &b = at(op.b);
    if (a.tensor.dims() == 0) return {fmt::format("tanh({})", a.name), tanh(a.tensor)};
    const int dim = static_cast<int>(op.number % a.tensor.dims());
    const bool is_scale = b.tensor.dims() == 1 && b.tensor.size(0) == a.tensor.size(-1) && b.tensor.dtype() == a.tensor.dtype();
    const Named scale = is_scale ? b
                                 : Named{fmt::format("ones({{{}}}, DType::{})", a.tensor.size(-1), name(a.tensor.dtype())),
                                         ones({a.tensor.size(-1)}, a.tensor.dtype())};
    switch (op.form % 4) {
      case 0: return {fmt::format("log_softmax({}, {})", a.name, dim), log_softmax(a.tensor, dim)};
      case 1: return {fmt::format("layer_norm({0}, {1}, {1})", a.name, scale.name), layer_norm(a.tensor, scale.tensor, scale.tensor)};
      case 2: return {fmt::format("rms_norm({}, {})", a.name, scale.name), rms_norm(a.tensor, scale.tensor)};
      default: return {fmt::format("softmax({}, {})", a.name, dim), softmax(a.tensor, dim)};
    }
  }

  Named view(const Instruction& op) const {
    const Named& a = at(op.a);
    if (a.tensor.dims() == 0) return {fmt::format("broadcast_to({}, {{3, 1}})", a.name), broadcast_to(a.tensor, {3, 1})};
    const int dim = static_cast<int>(op.number % a.tensor.dims());
    const std::int64_t size = a.tensor.size(dim);
    const std::int64_t start = size > 0 ? static_cast<std::int64_t>(op.number / 8) % size : 0,
                       step = 1 + static_cast<std::int64_t>(op.number / 64 % 2);
    switch (op.form % 8) {
      case 0: return {fmt::format("reshape({}, {{{}}})", a.name, a.tensor.numel()), reshape(a.tensor, {a.tensor.numel()})};
      case 1:
        if (a.tensor.numel() % 2 == 0)
          return {fmt::format("reshape({}, {{{}, 2}})", a.name, a.tensor.numel() / 2), reshape(a.tensor, {a.tensor.numel() / 2, 2})};
        break;
      case 2:
        if (a.tensor.numel() <= most / 3 && a.tensor.dims() < 4) {
          Shape shape{3};
          for (const std::int64_t n : a.tensor.shape()) shape.push_back(n);
          return {fmt::format("broadcast_to({}, {{{}}})", a.name, fmt::join(shape.begin(), shape.end(), ", ")),
                  broadcast_to(a.tensor, shape)};
        }
        break;
      case 3: return {fmt::format("slice({}, {}, {}, {}, {})", a.name, dim, start, size, step), slice(a.tensor, dim, start, size, step)};
      case 4:
        if (size > 0) return {fmt::format("select({}, {}, {})", a.name, dim, start), select(a.tensor, dim, start)};
        break;
      case 5: return {fmt::format("flip({}, {{{}}})", a.name, dim), flip(a.tensor, {dim})};
      case 6:
        if (a.tensor.dims() < 4) return {fmt::format("unsqueeze({}, {})", a.name, dim), unsqueeze(a.tensor, dim)};
        break;
      default: break;
    }
    return {fmt::format("transpose({}, {}, -1)", a.name, dim), transpose(a.tensor, dim, -1)};
  }

  Named joined(const Instruction& op) const {
    const Named& a = at(op.a);
    Named b = at(op.b);
    if (b.tensor.shape() != a.tensor.shape() || b.tensor.dtype() != a.tensor.dtype()) b = a;
    if (a.tensor.numel() > most / 4) return {fmt::format("{} + {}", a.name, b.name), a.tensor + b.tensor};
    if (a.tensor.dims() == 0) return {fmt::format("stack({{{}, {}}})", a.name, b.name), stack({a.tensor, b.tensor})};
    const int dim = static_cast<int>(op.number % a.tensor.dims());
    if (op.form % 3 == 0 && a.tensor.dims() < 4)
      return {fmt::format("stack({{{}, {}}}, {})", a.name, b.name, dim), stack({a.tensor, b.tensor}, dim)};
    if (op.form % 3 == 1) return {fmt::format("pad({}, {}, 1, 2, 0.5)", a.name, dim), pad(a.tensor, dim, 1, 2, 0.5)};
    return {fmt::format("cat({{{}, {}}}, {})", a.name, b.name, dim), cat({a.tensor, b.tensor}, dim)};
  }

  Named random(const Instruction& op) const {
    const Named& a = at(op.a);
    if (op.form % 3 == 0) return {fmt::format("{0} * rand_like({0})", a.name), a.tensor * rand_like(a.tensor)};
    if (op.form % 3 == 1) return {fmt::format("{0} + randn_like({0})", a.name), a.tensor + randn_like(a.tensor)};
    return {fmt::format("dropout({}, 0.25)", a.name), dropout(a.tensor, 0.25)};
  }

  /// A view of a tensor, to be edited.
  static Named part_of(const Instruction& op, const Named& a) {
    if (a.tensor.dims() == 0 || a.tensor.size(0) < 2 || op.number % 3 == 0) return a;
    if (op.number % 3 == 1 && a.tensor.dims() > 1) return {fmt::format("transpose({}, 0, 1)", a.name), transpose(a.tensor, 0, 1)};
    return {fmt::format("slice({}, 0, 1)", a.name), slice(a.tensor, 0, 1)};
  }
  void edit(const Instruction& op, const Named& target, const Named& source) {
    const Named value = within(target, {source.name + ".detach()", source.tensor.detach()});
    const NoGrad unrecorded;
    write("{{ const NoGrad unrecorded;");
    switch (op.form % 4) {
      case 0:
        mul_(target.tensor, 0.75);
        write("mul_({}, 0.75); }}", target.name);
        break;
      case 1:
        copy_(target.tensor, broadcast_to(value.tensor, target.tensor.shape()));
        write("copy_({0}, broadcast_to({1}, {0}.shape())); }}", target.name, value.name);
        break;
      default: add_(target.tensor, value.tensor); write("add_({}, {}); }}", target.name, value.name);
    }
  }
  Named edited_temporary(const Instruction& op) {
    const Named &a = at(op.a), &b = at(op.b);
    const Named own{fmt::format("t{}", values_.size()), a.tensor.detach() * 1.0};
    write("const Tensor {} = {}.detach() * 1.0;", own.name, a.name);
    edit(op, part_of(op, own), b);
    return {fmt::format("{} + {}", a.name, own.name), a.tensor + own.tensor};
  }
  /// Edits a buffer or an input, and reads it.
  Named edited_outside(const Instruction& op) {
    const std::size_t first = graph_.inputs.size() + graph_.parameters.size(), count = graph_.buffers.size();
    const Named& a = op.form % 5 == 0 ? at(op.a % graph_.inputs.size()) : at(first + op.a % count);
    edit(op, part_of(op, a), at(op.b));
    return {fmt::format("{} * 0.5", a.name), a.tensor * 0.5};
  }

  Named converted(const Instruction& op) const {
    const Named& a = at(op.a);
    if (op.form % 3 == 0) return {fmt::format("cast({}, DType::{})", a.name, name(graph_.dtype)), cast(a.tensor, graph_.dtype)};
    const DType dtype = op.form % 3 == 1 ? DType::bf16 : DType::f32;
    return {fmt::format("cast(cast({}, DType::{}), DType::{})", a.name, name(dtype), name(graph_.dtype)),
            cast(cast(a.tensor, dtype), graph_.dtype)};
  }

  const Graph& graph_;
  const State& state_;
  std::string* text_;
  std::vector<Named> values_;
};

}  // namespace tern::random_graphs
