#include <limits>
#include <sstream>

#include "message.h"
#include "nn/fixture.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/optimizer.h"

using namespace tern;

namespace {

/// A user's own model.
struct Net final : nn::Callable<Net> {
  nn::Linear fc1{3, 5}, fc2{5, 2, false};
  std::vector<nn::Linear> blocks = nn::layers(3, [] { return nn::Linear(5, 5); });
  void visit(nn::Visitor& v) override {
    v("fc1", fc1);
    v("blocks", blocks);
    v("fc2", fc2);
  }
  Tensor forward(const Tensor& x, double scale = 1) const {
    Tensor h = relu(fc1(x));
    for (const nn::Linear& block : blocks) h = h + block(h);
    return fc2(h) * scale;
  }
};

std::vector<std::string> names_of(const std::vector<NamedTensor>& entries) {
  std::vector<std::string> names;
  for (const NamedTensor& entry : entries) names.push_back(entry.name);
  return names;
}

template <class T>
std::string shown(const T& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

}  // namespace

TEST_CASE("m(x) is m.forward(x), with all its arguments", "[module]") {
  manual_seed(1);
  const Net net;
  const Tensor x = randn({4, 3});
  CHECK(distance(net(x), net.forward(x)) == 0);
  CHECK(distance(net(x, 3.0), net.forward(x, 3.0)) == 0);
  CHECK(distance(net.fc1(x), net.fc1.forward(x)) == 0);
  struct Counts final : nn::Callable<Counts> {
    void visit(nn::Visitor&) override {}
    int forward(int by) { return calls += by; }  // not const: the module changes
    int calls = 0;
  } counts;
  counts(2);
  CHECK(counts(3) == 5);
}

TEST_CASE("an error within a forward names the module by its path, or by its type", "[module]") {
  Net net;
  net.blocks[1].weight = zeros({5, 4}).set_requires_grad();
  const std::string message = message_of([&] { net(zeros({2, 3})); });
  INFO(message);
  CHECK(message.ends_with(", in module blocks.1 (Linear)"));
  CHECK(message_of([&] { net.blocks[1](zeros({2, 5})); }).ends_with(", in module Linear"));
  // Models of the library open their own frames.
  nn::DecoderLM model({.vocab = 13, .length = 7, .width = 6, .layers = 2, .heads = 3, .ff = 5});
  model.blocks[1].ff.fc.weight = zeros({5, 4}).set_requires_grad();
  CHECK(message_of([&] { model.forward(zeros({1, 3}, DType::i64)); }).ends_with(", in module blocks.1.ff.fc (Linear)"));
  CHECK(message_of([] { nn::Linear(0, 1); }).find("in module") == std::string::npos);
  CHECK(message_of([] { zeros({2, 3}) + zeros({4}); }).find("in module") == std::string::npos);
}

TEST_CASE("a visit that fails hides no error", "[module]") {
  struct Odd final : nn::Callable<Odd> {
    void visit(nn::Visitor&) override { fail("Odd", "no visit today"); }
    Tensor forward(const Tensor& x) const { return fc(x); }
    nn::Linear fc{3, 2};
  };
  CHECK(message_of([] { Odd()(zeros({1, 4})); }).starts_with("[linear]"));
}

TEST_CASE("modules print as a tree with their settings, equal neighbours as one line", "[print]") {
  const Net net;
  CHECK(shown(net) ==
        "Net(\n"
        "  (fc1): Linear(in=3, out=5, bias=true)\n"
        "  (blocks.0-2): 3 x Linear(in=5, out=5, bias=true)\n"
        "  (fc2): Linear(in=5, out=2, bias=false)\n"
        ")");
  const nn::Sequential seq(nn::Embedding(7, 4), nn::LayerNorm(4), nn::Sequential(nn::RMSNorm(4), nn::Dropout(0.25)), nn::GELU(),
                           nn::GELU(true), nn::LeakyReLU(), nn::ELU(0.5), nn::Softplus(2), nn::Flatten(), nn::Identity());
  CHECK(shown(seq) ==
        "Sequential(\n"
        "  (0): Embedding(7, 4)\n"
        "  (1): LayerNorm(4, eps=1e-05, bias=true)\n"
        "  (2): Sequential(\n"
        "    (0): RMSNorm(4, eps=1e-05)\n"
        "    (1): Dropout(p=0.25)\n"
        "  )\n"
        "  (3): GELU()\n"
        "  (4): GELU(tanh)\n"
        "  (5): LeakyReLU(slope=0.01)\n"
        "  (6): ELU(alpha=0.5)\n"
        "  (7): Softplus(beta=2)\n"
        "  (8): Flatten(1, -1)\n"
        "  (9): Identity()\n"
        ")");
  CHECK(shown(nn::Sequential(nn::ReLU(), nn::ReLU())) == "Sequential(\n  (0-1): 2 x ReLU()\n)");
  struct Lists final : nn::Module {
    void visit(nn::Visitor& v) override {
      v("a", a);
      v("b", b);
      v("relu", relu);
    }
    std::vector<nn::ReLU> a{2}, b{2};
    nn::ReLU relu;
  };
  CHECK(shown(Lists()) == "Lists(\n  (a.0-1): 2 x ReLU()\n  (b.0-1): 2 x ReLU()\n  (relu): ReLU()\n)");
  CHECK(shown(nn::ModuleList<nn::Linear>()) == "ModuleList()");
  const nn::DecoderLM model({.vocab = 13, .length = 7, .width = 6, .layers = 2, .heads = 3, .ff = 5});
  CHECK(nn::to_string(model).find("  (blocks.0-1): 2 x TransformerLayer(\n    (norm1): LayerNorm(6, eps=1e-05, bias=true)\n") !=
        std::string::npos);
}

TEST_CASE("shapes, dtypes and devices print", "[print]") {
  CHECK(shown(Shape{4, 8}) == "(4, 8)");
  CHECK(shown(DType::bf16) == "bf16");
  CHECK(shown(cpu) == "cpu");
}

TEST_CASE("a summary lists tensors and counts shared ones once", "[summary]") {
  struct Tied final : nn::Module {
    nn::Embedding tokens{10, 4};
    nn::Linear fc{4, 4}, head{4, 10, false};
    nn::BatchNorm1d norm{4};
    void visit(nn::Visitor& v) override {
      v("tokens", tokens);
      v("fc", fc);
      v("norm", norm);
      v("head", head);
    }
  } model;
  model.head.weight = model.tokens.weight;
  nn::set_requires_grad(model.fc, false);
  nn::to(model.fc, DType::f16);
  const nn::Summary s = nn::summary(model);
  CHECK(s.parameters == 40 + 20 + 8);
  CHECK(s.trained == 48);
  CHECK(s.parameter_bytes == 160 + 40 + 32);
  CHECK(s.buffers == 9);
  CHECK(s.buffer_bytes == 16 + 16 + 8);
  REQUIRE(s.rows.size() == 9);
  CHECK(s.rows[1].path == "fc.weight");
  CHECK(s.rows[1].kind == "Linear");
  CHECK(!s.rows[1].is_trained);
  CHECK(s.rows[8].shared_with == "tokens.weight");
  CHECK(s.parameters == nn::count_parameters(model));
  const std::string text = shown(s);
  INFO(text);
  CHECK(text.find("fc.weight                 Linear       (4, 4)   f16       16   32 B  frozen\n") != std::string::npos);
  CHECK(text.find("trained, shared with tokens.weight\n") != std::string::npos);
  CHECK(text.ends_with("68 parameters, 48 trained, 20 frozen: 232 B\n9 numbers in buffers: 40 B\n"));
  CHECK(nn::to_string(nn::summary(nn::Linear(1000, 2000))).find("2,002,000 parameters, 2,002,000 trained, 0 frozen: 7.6 MiB") !=
        std::string::npos);
}

TEST_CASE("a list of copies of one layer is refused, layers() makes layers of their own", "[containers]") {
  struct Stack final : nn::Module {
    void visit(nn::Visitor& v) override { v("layers", layers); }
    std::vector<nn::Linear> layers;
  } stack;
  stack.layers = std::vector<nn::Linear>(4, nn::Linear(8, 8));
  const std::string message = message_of([&] { train::SGD optimizer(nn::parameters(stack), {.lr = 0.1}); });
  INFO(message);
  CHECK(message.starts_with("[visit] expected modules with separate parameters but 'layers.0' and 'layers.1' have the same"));
  CHECK_THROWS_AS(nn::summary(stack), Error);
  for (nn::Linear& layer : stack.layers) layer.is_shared = true;
  CHECK(nn::count_parameters(stack) == 72);
  stack.layers = nn::layers(4, [] { return nn::Linear(8, 8); });
  CHECK(nn::count_parameters(stack) == 288);
  const auto widths = nn::layers(3, [](std::int64_t i) { return nn::Linear(i + 1, i + 2); });
  CHECK(widths[2].weight.shape() == Shape{4, 3});
  // Copies in a Sequential and in a ModuleList as well; a tied weight alone is no copy.
  const nn::Linear fc(2, 2);
  CHECK_THROWS_AS(nn::parameters(nn::Sequential(fc, nn::ReLU(), fc)), Error);
  CHECK_THROWS_AS(nn::parameters(nn::ModuleList<nn::Linear>({fc, fc})), Error);
  nn::Sequential tied(nn::Linear(2, 2), nn::Linear(2, 2));
  tied.at<nn::Linear>(1).weight = tied.at<nn::Linear>(0).weight;
  CHECK(nn::count_parameters(tied) == 8);
  // Modules of different lists, and names that are no numbers.
  struct Pair final : nn::Module {
    void visit(nn::Visitor& v) override {
      v("a.0", fc);
      v("b.0", fc);
      v("x1", fc);
      v("x2", fc);
    }
    nn::Linear fc{2, 2};
  } pair;
  CHECK(nn::count_parameters(pair) == 6);
}

TEST_CASE("Sequential runs its modules, owns them, and is copied as other modules are", "[containers]") {
  manual_seed(2);
  nn::Sequential seq(nn::Linear(3, 4), nn::Tanh(), nn::Sequential(nn::Linear(4, 5), nn::Dropout(0.5)), nn::LayerNorm(5));
  CHECK(names_of(nn::named_parameters(seq)) ==
        std::vector<std::string>{"0.weight", "0.bias", "2.0.weight", "2.0.bias", "3.weight", "3.bias"});
  seq.eval();
  CHECK(!seq.at<nn::Sequential>(2).at<nn::Dropout>(1).training);
  const Tensor x = randn({2, 3});
  const nn::Linear &a = seq.at<nn::Linear>(0), &b = seq.at<nn::Sequential>(2).at<nn::Linear>(0);
  const Tensor expected = seq.at<nn::LayerNorm>(3)(b(tanh(a(x))));
  CHECK(distance(seq(x), expected) == 0);
  CHECK(distance(nn::Sequential()(x), x) == 0);

  const nn::Sequential copy = seq, own = nn::clone(seq);
  CHECK(copy.at<nn::Linear>(0).weight.is_same(a.weight));
  CHECK(!own.at<nn::Linear>(0).weight.is_same(a.weight));
  const Tensor before = clone(own(x).detach());
  {
    const NoGrad unrecorded;
    mul_(a.weight, 2.0);
  }
  CHECK(distance(own(x), before) == 0);
  CHECK(distance(copy(x), seq(x)) == 0);
  CHECK(distance(copy(x), before) > 0);

  seq.add(nn::ReLU()).add(nn::Flatten(0));
  CHECK(seq.size() == 6);
  CHECK(seq(x).shape() == Shape{10});
  CHECK(copy.size() == 4);
  CHECK(message_of([&] { seq.at<nn::Linear>(1); }) == "[AnyModule] expected a Linear but got a Tanh");
  CHECK(message_of([&] { seq.at<nn::Linear>(6); }) == "[Sequential] expected an index below 6 but got 6");
  CHECK(message_of([&] { seq(zeros({2, 4})); }).ends_with(", in module 0 (Linear)"));
}

TEST_CASE("module lists are of one kind or of any", "[containers]") {
  struct Lists final : nn::Module {
    nn::ModuleList<nn::Linear> one = nn::layers(2, [] { return nn::Linear(3, 3, false); });
    nn::ModuleList<> any;
    void visit(nn::Visitor& v) override {
      v("one", one);
      v("any", any);
    }
  } lists;
  lists.any.push_back(nn::RMSNorm(3));
  lists.any.push_back(nn::Linear(3, 2));
  CHECK(names_of(nn::named_parameters(lists)) ==
        std::vector<std::string>{"one.0.weight", "one.1.weight", "any.0.weight", "any.1.weight", "any.1.bias"});
  Tensor x = ones({1, 3});
  for (const nn::Linear& layer : lists.one) x = layer(x);
  for (const nn::AnyModule& module : lists.any) x = module(x);
  CHECK(x.shape() == Shape{1, 2});
  Lists own = nn::clone(lists);
  CHECK(!own.any[1].as<nn::Linear>().weight.is_same(lists.any[1].as<nn::Linear>().weight));
  own.any[0] = own.any[1];
  CHECK(own.any[0].as<nn::Linear>().weight.is_same(own.any[1].as<nn::Linear>().weight));
  CHECK_THROWS_AS(lists.one[2], std::out_of_range);
}

TEST_CASE("activations are their functions", "[activations]") {
  const Tensor x = Tensor::from({-2.5f, -0.5f, 0.f, 0.5f, 3.f, 1.f}, {2, 3});
  const auto each = [&](auto f) {
    std::vector<double> values;
    for (const float v : x.to_vector<float>()) values.push_back(f(double(v)));
    return values;
  };
  const auto off = [](const Tensor& y, const std::vector<double>& want) { return distance(floats(y), want); };
  CHECK(off(nn::ReLU()(x), each([](double v) { return v > 0 ? v : 0; })) == 0);
  CHECK(off(nn::SiLU()(x), each([](double v) { return v / (1 + std::exp(-v)); })) < 1e-6);
  CHECK(off(nn::Tanh()(x), each([](double v) { return std::tanh(v); })) < 1e-6);
  CHECK(off(nn::Sigmoid()(x), each([](double v) { return 1 / (1 + std::exp(-v)); })) < 1e-6);
  CHECK(off(nn::LeakyReLU(0.2)(x), each([](double v) { return v > 0 ? v : 0.2 * v; })) < 1e-6);
  CHECK(off(nn::ELU(0.5)(x), each([](double v) { return v > 0 ? v : 0.5 * std::expm1(v); })) < 1e-6);
  CHECK(off(nn::Softplus(3)(x), each([](double v) { return std::log1p(std::exp(3 * v)) / 3; })) < 1e-6);
  CHECK(nn::Identity()(x).is_same(x));
  CHECK(nn::Flatten()(zeros({2, 3, 4, 5})).shape() == Shape{2, 60});
  CHECK(nn::Flatten(0, 1)(zeros({2, 3, 4, 5})).shape() == Shape{6, 4, 5});
  CHECK_THROWS_AS(nn::Softplus(0), Error);
}
