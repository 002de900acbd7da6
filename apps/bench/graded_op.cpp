#include "bench/graded_op.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "autodiff/engine.h"
#include "common/program.h"
#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::bench {

using apps::words;

namespace {

constexpr double eps = 1e-5;                ///< of norms
constexpr std::size_t red_zone = 4096;      ///< elements; a kernel that forgets its bound writes the rest of a block
constexpr std::uint32_t mark = 0x7FC0DEAD;  ///< a NaN

Tensor plain_norm(const Named& v) {
  const PlainKernels scope;
  return v.contains("beta") ? layer_norm(v.at("x"), v.at("gamma"), v.at("beta"), eps) : rms_norm(v.at("x"), v.at("gamma"), eps);
}
Tensor fused_norm(const Named& v) {
  const FusedKernels scope(true);
  return v.contains("beta") ? layer_norm(v.at("x"), v.at("gamma"), v.at("beta"), eps) : rms_norm(v.at("x"), v.at("gamma"), eps);
}

}  // namespace

const std::vector<GradedOp>& graded_ops() {
  static const std::vector<Sizes> odd = {{1, 1}, {3, 31}, {5, 33}, {9, 36}, {7, 1025}, {65, 1000}, {2, 4100}},
                                  timed = {{8192, 256}, {8192, 1024}, {8192, 4096}};
  static const std::vector<GradedOp> ops = {
      {"softmax",
       {"rows", "columns"},
       {{{"y = exp(x) / sum(exp(x)) of each row, without overflow", "x", "y", 6.5},
         {"dx = y (dy - sum(y dy)) of each row", "dy,y", "dx", 0.5}}},
       [](const Named& v) { return softmax(v.at("x")); },
       [](const Named& v) { return attention_softmax(v.at("x")); },
       odd,
       timed,
       100},
      {"attention_softmax",
       {"batch", "heads", "queries", "keys"},
       {{{"y = softmax(x + mask) of each row of keys; the mask is that of the row's batch", "x,mask", "y", 6.5},
         {"dx = y (dy - sum(y dy)) of each row of keys", "dy,y", "dx", 0.5}}},
       [](const Named& v) {
         const Tensor& mask = v.at("mask");
         return softmax(v.at("x") + reshape(mask, {mask.size(0), 1, 1, mask.size(1)}));
       },
       [](const Named& v) { return attention_softmax(v.at("x"), {.padding = v.at("mask")}); },
       {{1, 1, 1, 1}, {2, 3, 5, 31}, {3, 2, 4, 33}, {2, 2, 7, 36}, {2, 1, 3, 1025}, {1, 2, 2, 4100}},
       {{64, 8, 64, 64}, {64, 8, 256, 256}, {4, 8, 1024, 1024}},
       100},
      {"layer_norm",
       {"rows", "columns"},
       {{{"y = (x - mean) rstd gamma + beta, rstd = 1 / sqrt(variance + 1e-5), mean and variance of each row", "x,gamma,beta", "y", 15.8},
         {"n = (x - mean) rstd, g = dy gamma: dx = rstd (g - mean(g) - n mean(g n)) of each row, dgamma = sum(dy n), dbeta = sum(dy) of "
          "each column",
          "dy,x,gamma,mean,rstd", "dx,dgamma,dbeta", 3.7}}},
       plain_norm,
       fused_norm,
       odd,
       timed},
      {"rms_norm",
       {"rows", "columns"},
       {{{"y = x rstd gamma, rstd = 1 / sqrt(mean(x x) + 1e-5) of each row", "x,gamma", "y", 0},
         {"n = x rstd, g = dy gamma: dx = rstd (g - n mean(g n)) of each row, dgamma = sum(dy n) of each column", "dy,x,gamma,rstd",
          "dx,dgamma", 0}}},
       plain_norm,
       fused_norm,
       odd,
       timed},
      {"gelu",
       {"count"},
       {{{"y = x (1 + erf(x / sqrt(2))) / 2", "x", "y", 0},
         {"dx = dy ((1 + erf(x / sqrt(2))) / 2 + x exp(-x x / 2) / sqrt(2 pi))", "dy,x", "dx", 0}}},
       [](const Named& v) { return v.at("x") * (erf(v.at("x") * std::sqrt(0.5)) + 1) * 0.5; },
       [](const Named& v) { return gelu(v.at("x")); },
       {{1}, {31}, {33}, {1025}, {100'000}},
       {{1 << 21}, {1 << 23}, {1 << 25}}}};
  return ops;
}

std::vector<std::size_t> dimensions_of(const GradedOp& op, const std::string& tensor) {
  const std::string name = tensor.size() > 1 && tensor[0] == 'd' ? tensor.substr(1) : tensor;
  const std::size_t last = op.sizes.size() - 1;
  if (name == "gamma" || name == "beta") return {last};
  if (name == "mean" || name == "rstd") return {0};
  if (name == "mask") return {0, last};
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i <= last; ++i) all.push_back(i);
  return all;
}

std::vector<std::string> tensors_of(const GradedOp& op, bool is_grad) {
  return words(fmt::format("{},{}", op.directions[is_grad].inputs, op.directions[is_grad].outputs));
}

std::string parameters_of(const GradedOp& op, bool is_grad) {
  std::vector<std::string> parameters;
  for (const std::string& name : words(op.directions[is_grad].inputs)) parameters.push_back("const float* " + name);
  for (const std::string& name : words(op.directions[is_grad].outputs)) parameters.push_back("float* " + name);
  for (const std::string& size : op.sizes) parameters.push_back("int " + size);
  return fmt::format("{}", fmt::join(parameters, ", "));
}

Named make_values(const GradedOp& op, const Sizes& sizes, Device device) {
  Named v;
  const auto draw = [&](const std::string& name, double center, double deviation) {
    Shape shape;
    for (const std::size_t d : dimensions_of(op, name)) shape.push_back(sizes[d]);
    return randn(shape, center, deviation, DType::f32, device);
  };
  Tensors leaves;
  std::vector<std::string> inputs = words(op.directions[0].inputs);
  for (const std::string& name : inputs) {
    Tensor t = draw(name, name == "gamma" ? 1 : 0, name == "gamma" ? 0.5 : 1);
    if (name == "x" && op.spread > 0)  // a different number for each row
      t = t + op.spread * sin(reshape(arange(sizes[sizes.size() - 2], DType::f32, device), {-1, 1}) + 1);
    if (name == "mask")  // a third of the keys is hidden, but not the first one
      t = where(gt(arange(sizes.back(), DType::i64, device), 0), where(gt(t, 0.4), -1e30, 0.25 * t), 0.25 * t);
    v[name] = cast(t, DType::f64);
    if (name != "mask") leaves.push_back(v[name].set_requires_grad());
  }
  v["dy"] = cast(draw("y", 0, 1), DType::f64);
  const Tensor y = op.plain(v);
  const Tensors grads = grad({y}, leaves, {v["dy"]});
  for (std::size_t i = 0; i < leaves.size(); ++i) v["d" + inputs[i]] = grads[i];  // the mask is the last input
  for (auto& [name, t] : v) t = t.detach();
  v["y"] = y.detach();
  if (apps::contains(words(op.directions[1].inputs), "rstd")) {
    const Tensor& x = v["x"];
    v["mean"] = mean(x, {-1});
    v["rstd"] = rsqrt((apps::contains(words(op.directions[1].inputs), "mean") ? var(x, {-1}, 0) : mean(x * x, {-1})) + eps);
  }
  return v;
}

namespace {

/// A parameter's memory: n elements between red zones.
struct Buffer {
  std::string name;
  std::vector<std::size_t> dimensions;
  std::vector<double> values;  ///< as they are, or must become
  Tensor memory;
  std::vector<std::int32_t> after = {};

  float at(std::size_t i) const { return std::bit_cast<float>(after[red_zone + i]); }
  bool is_marked(std::size_t i) const { return static_cast<std::uint32_t>(after[i]) == mark; }
};

/// The index of an element along x's dimensions; -1 for those that the tensor does not have.
Sizes place_of(const Buffer& buffer, std::size_t element, const Sizes& sizes) {
  Sizes place(sizes.size(), -1);
  auto rest = static_cast<std::int64_t>(element);
  for (std::size_t i = buffer.dimensions.size(); i-- > 0;) {
    const std::size_t d = buffer.dimensions[i];
    place[d] = rest % sizes[d], rest /= sizes[d];
  }
  return place;
}

/// "x[2, 17]" for an element's place; "" if the tensor has a dimension that the place lacks.
std::string named(const Buffer& buffer, const Sizes& place) {
  Sizes index;
  for (const std::size_t d : buffer.dimensions) index.push_back(place[d]);
  if (std::find(index.begin(), index.end(), -1) != index.end()) return "";
  return fmt::format("{}[{}]", buffer.name, fmt::join(index, ", "));
}

std::size_t element_at(const Buffer& buffer, const Sizes& place, const Sizes& sizes) {
  std::int64_t element = 0;
  for (const std::size_t d : buffer.dimensions) element = element * sizes[d] + place[d];
  return static_cast<std::size_t>(element);
}

std::string write_outside(const Buffer& b) {
  const std::size_t end = red_zone + b.values.size();
  for (std::size_t i = 0; i < red_zone; ++i) {
    if (!b.is_marked(end + i)) return fmt::format("expected no write outside of {} but got one {} behind its last element", b.name, i + 1);
    if (!b.is_marked(red_zone - 1 - i))
      return fmt::format("expected no write outside of {} but got one {} before its first element", b.name, i + 1);
  }
  return "";
}

std::string changed_input(const Buffer& b, const Sizes& sizes) {
  for (std::size_t i = 0; i < b.values.size(); ++i)
    if (std::bit_cast<std::int32_t>(static_cast<float>(b.values[i])) != b.after[red_zone + i])
      return fmt::format("expected {}, an input, to stay {:.7g} but got {:.7g}", named(b, place_of(b, i, sizes)), b.values[i], b.at(i));
  return "";
}

/// f32 sums of any order are within this of exact ones, at these sizes.
std::string wrong_element(const Buffer& b, const std::vector<Buffer>& inputs, const Sizes& sizes) {
  double largest = 0;
  for (const double x : b.values) largest = std::max(largest, std::abs(x));
  std::size_t count = 0, first = 0;
  for (std::size_t i = b.values.size(); i-- > 0;) {
    const double tolerance = 1e-5 * (std::abs(b.values[i]) + largest);
    if (!(std::abs(static_cast<double>(b.at(i)) - b.values[i]) <= tolerance)) ++count, first = i;
  }
  if (count == 0) return "";
  const Sizes place = place_of(b, first, sizes);
  std::string text = fmt::format("expected {} = {:.7g} but {}", named(b, place), b.values[first],
                                 b.is_marked(red_zone + first) ? "it was not written" : fmt::format("got {:.7g}", b.at(first)));
  const char* separator = " from";
  for (const Buffer& input : inputs)
    if (const std::string name = named(input, place); !name.empty())
      text += fmt::format("{} {} = {:.7g}", std::exchange(separator, ","), name, input.values[element_at(input, place, sizes)]);
  return fmt::format("{}; {} of {} elements are wrong", text, count, b.values.size());
}

}  // namespace

std::string fault_of(const GradedOp& op, bool is_grad, const Sizes& sizes, const Named& values, Device device,
                     const std::function<void(std::span<void* const> tensors)>& kernel) {
  std::vector<Buffer> inputs, outputs;
  std::vector<void*> addresses;
  for (const bool is_output : {false, true})
    for (const std::string& name : words(is_output ? op.directions[is_grad].outputs : op.directions[is_grad].inputs)) {
      Buffer b{name, dimensions_of(op, name), values.at(name).to_vector<double>(), {}};
      std::vector<std::int32_t> bits(b.values.size() + 2 * red_zone, std::bit_cast<std::int32_t>(mark));
      for (std::size_t i = 0; i < b.values.size() && !is_output; ++i)
        bits[red_zone + i] = std::bit_cast<std::int32_t>(static_cast<float>(b.values[i]));
      b.memory = Tensor::from(bits, {static_cast<std::int64_t>(bits.size())}, device);
      addresses.push_back(b.memory.data<std::int32_t>() + red_zone);
      (is_output ? outputs : inputs).push_back(std::move(b));
    }
  kernel(addresses);
  for (std::vector<Buffer>* buffers : {&inputs, &outputs})
    for (Buffer& b : *buffers) {
      b.after = b.memory.to_vector<std::int32_t>();
      if (std::string fault = write_outside(b); !fault.empty()) return fault;
    }
  for (const Buffer& b : inputs)
    if (std::string fault = changed_input(b, sizes); !fault.empty()) return fault;
  for (const Buffer& b : outputs)
    if (std::string fault = wrong_element(b, inputs, sizes); !fault.empty()) return fault;
  return "";
}

}  // namespace tern::bench
