// An optimizer of one's own: Signum (Bernstein et al., 2018), which steps by the sign of the momentum. train::OptimizerOf does the layout:
// groups, flat buffers, moments that follow parameters, checkpoints. A rule gets one-dimensional views and writes them by ops.
// expected.txt is what this prints.
#include <tern/tern.h>

#include <cstdio>

using namespace tern;

namespace {

struct SignumOptions {
  double lr = 0.01, momentum = 0.9;
  std::vector<std::string> moments() const { return {"momentum"}; }
  // Parameters of 16 bits have their values in a master of float32; f64 parameters have moments of f64.
  void update(const train::ParameterRange& range) const {
    const Tensor &value = range.master.defined() ? range.master : range.parameter, &moment = range.moments[0];
    const Tensor &factor = range.scale.factor, &advance = range.scale.advance;
    const DType kept = value.dtype();
    Tensor gradient = cast(range.gradient, kept);
    if (factor.defined()) gradient = gradient * cast(factor, kept);  // a clip, or a loss scale that is taken out
    const Tensor mean = momentum * moment + (1 - momentum) * gradient;
    const Tensor updated = value - cast(range.lr, kept) * sign(mean);  // the rate is a tensor on the device: nothing waits
    const auto write = [&](const Tensor& target, const Tensor& result) {
      copy_(target, advance.defined() ? where(ne(advance, 0), result, target) : result);  // 0: an overflow, to be left out
    };
    write(moment, mean);
    write(value, updated);
    if (range.master.defined()) copy_(range.parameter, value);
  }
};
using Signum = train::OptimizerOf<SignumOptions>;

struct Net final : nn::Module {
  nn::Linear in{2, 32}, out{32, 1};
  void visit(nn::Visitor& v) override {
    v("in", in);
    v("out", out);
  }
  Tensor forward(const Tensor& x) const { return out.forward(tanh(in.forward(x))); }
};

/// The mean squared error for the product of two numbers before and after a training.
void fit(const char* name, train::Precision precision) {
  manual_seed(1);
  Net net;
  train::set_precision(net, precision);
  nn::flatten_parameters(net);
  Signum optimizer(nn::parameters(net), {.lr = 0.01, .momentum = 0.9});
  const DType dtype = net.in.weight.dtype();
  const Tensor x = rand({128, 2}, -1, 1), y = select(x, 1, 0) * select(x, 1, 1);
  double first = 0, last = 0;
  for (int step = 1; step <= 300; ++step) {
    optimizer.set_lr_factor(train::schedule::wsd(step, 10, 300, 200));
    const Tensor error = cast(reshape(net.forward(cast(x, dtype)), {-1}), DType::f32) - y;
    const Tensor loss = mean(square(error));
    train::update(loss, optimizer, {.max_norm = 1});
    last = loss.item();
    if (step == 1) first = last;
  }
  std::printf("%s: %zu kernel call a step, %s, moments %s, error %s\n", name, optimizer.launches(), optimizer.state()[2].name.c_str(),
              tern::name(optimizer.state()[2].tensor.dtype()), last < 0.05 * first ? "less than a twentieth" : "too large");
}

}  // namespace

int main() {
  fit("f32", train::Precision::fp32);
  fit("bf16", train::Precision::bf16);
}
