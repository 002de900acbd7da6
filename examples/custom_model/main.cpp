// A model of one's own: a classifier of points on two spirals, trained in a few seconds.
#include <tern/tern.h>

#include <cmath>
#include <cstdio>
#include <numbers>
#include <vector>

using namespace tern;

struct Net final : nn::Module {
  Net(std::int64_t hidden, Device device) : in(2, hidden, true, device), mid(hidden, hidden, true, device), out(hidden, 2, true, device) {}

  // The only reflection: what visit() names is trained, moved and saved.
  void visit(nn::Visitor& v) override {
    v("in", in);
    v("mid", mid);
    v("out", out);
  }

  // (B, 2) -> (B, 2): points to a score for each spiral.
  Tensor forward(const Tensor& points) const { return out.forward(gelu(mid.forward(gelu(in.forward(points))))); }

  nn::Linear in, mid, out;
};

int main() {
  const Device device = cuda_device_count() > 0 ? cuda() : cpu;
  manual_seed(1);

  constexpr int count = 1000;
  std::vector<float> xy;
  std::vector<std::int64_t> spiral;
  for (int i = 0; i < count; ++i) {
    const float t = static_cast<float>(i) / count, angle = 9 * t + std::numbers::pi_v<float> * static_cast<float>(i % 2);
    xy.insert(xy.end(), {2 * t * std::cos(angle), 2 * t * std::sin(angle)});
    spiral.push_back(i % 2);
  }
  const Tensor points = to(Tensor::from(xy, {count, 2}) + randn({count, 2}, 0, 0.02), device);
  const Tensor labels = Tensor::from(spiral, {count}, device);

  Net net(64, device);
  train::AdamW optimizer(nn::parameters(net), {.lr = 0.01});
  for (int step = 1; step <= 500; ++step) {
    const Tensor logits = net.forward(points);
    const Tensor loss = cross_entropy(logits, labels);
    train::update(loss, optimizer);  // zero_grad, backward, step
    if (step % 100 == 0) {
      const Tensor right = cast(eq(argmax(logits), labels), DType::f32);
      std::printf("step %d  loss %.4f  accuracy %.1f %%\n", step, loss.item(), 100 * mean(right).item());
    }
  }
  io::save_safetensors("spirals.safetensors", nn::named_parameters(net));
}
