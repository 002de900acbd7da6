// Rounding of sums in 16 bits, and the dtypes of a model under autocast. expected.txt is what this prints.
#include <tern/tern.h>

#include <cstdio>
#include <initializer_list>

using namespace tern;

namespace {

/// A thousand times 0.01, in numbers of dtype `addend`, added up in dtype `sum`.
double thousand_hundredths(DType sum, DType addend) {
  const NoGrad unrecorded;
  const Tensor total = zeros({}, sum), hundredth = cast(full({}, 0.01, addend), sum);
  for (int i = 0; i < 1000; ++i) add_(total, hundredth);
  return total.item<double>();
}

struct ToyModel final : nn::Module {
  nn::Linear fc1{20, 10, false}, fc2{10, 5, false};
  nn::LayerNorm norm{10};
  void visit(nn::Visitor& v) override {
    v("fc1", fc1);
    v("norm", norm);
    v("fc2", fc2);
  }
};

void print_dtypes(DType dtype) {
  manual_seed(1);
  ToyModel model;
  const Tensor x = randn({4, 20}), targets = zeros({4}, DType::i64);
  Tensor hidden, normalized, logits, loss;
  {
    const Autocast autocast(dtype);
    hidden = relu(model.fc1.forward(x));
    normalized = model.norm.forward(hidden);
    logits = model.fc2.forward(normalized);
    loss = cross_entropy(logits, targets);
  }
  loss.backward();
  std::printf("autocast to %s: parameters %s, fc1 %s, norm %s, logits %s, loss %s, gradients %s\n", name(dtype),
              name(model.fc1.weight.dtype()), name(hidden.dtype()), name(normalized.dtype()), name(logits.dtype()), name(loss.dtype()),
              name(model.fc1.weight.grad().dtype()));
}

}  // namespace

int main() {
  struct Sum {
    DType sum, addend;
  };
  for (const auto& [sum, addend] : {Sum{DType::f32, DType::f32}, Sum{DType::f16, DType::f16}, Sum{DType::f32, DType::f16},
                                    Sum{DType::bf16, DType::bf16}, Sum{DType::f32, DType::bf16}})
    std::printf("1000 x 0.01 in %s, added up in %s: %.4f\n", name(addend), name(sum), thousand_hundredths(sum, addend));
  print_dtypes(DType::f16);
  print_dtypes(DType::bf16);
}
