// The middle column of the tables of docs/from-pytorch.md, row by row as it stands: rows.sh makes a function of each row, with what a
// Fixture has at hand.
#include <tern/tern.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "catch.h"
#include "paths.h"

using namespace tern;

namespace {

struct Cube : Function<Cube> {
  static Tensor forward(Tensors& saved, const Tensor& x) {
    saved = {x};
    return x * x * x;
  }
  static Tensors backward(const Backward& call) { return {3 * call.saved(0) * call.saved(0) * call.grad()}; }
};

struct Pairs {
  std::int64_t size() const { return 8; }
  Tensors operator[](std::int64_t) const { return {rand({2}), rand({1})}; }
};

/// The names that a row can use, made anew for each.
struct Fixture {
  Fixture() { io::save_safetensors(saved, nn::named_parameters(model)); }
  ~Fixture() {
    std::filesystem::remove(path);
    std::filesystem::remove(saved);
  }

  Device device = cpu;
  Tensor x = rand({2, 3}), y = rand({2, 3}), w = rand({3, 4}), v = rand({3}), s = Tensor::scalar(2.f);
  Tensor g = rand({3}), b = rand({3}), table = rand({5, 3});
  Tensor mask = Tensor::from({true, false, true, false, true, true}, {2, 3});
  Tensor ids = Tensor::from<std::int64_t>({0, 1}, {2}), index = zeros({2, 3}, DType::i64);
  Tensor p = rand({4}), spd = Tensor::from({4.f, 1.f, 0.f, 1.f, 3.f, 1.f, 0.f, 1.f, 2.f}, {3, 3});
  Tensor logits = randn({4, 5}), targets = Tensor::from<std::int64_t>({1, 2, 3, 4}, {4});
  Tensor q = randn({1, 4, 2, 8}), k = randn({1, 4, 2, 8}), image = randn({1, 3, 8, 8}), kernel = randn({2, 3, 3, 3});
  Tensor filters = randn({3, 2, 2, 2});
  Tensor leaf = rand({3}).set_requires_grad(), doubles = rand({3}, DType::f64).set_requires_grad();
  std::vector<float> memory = std::vector<float>(6, 1.f);
  TensorFunction f = [](const Tensors& in) { return Tensors{square(in[0])}; };

  Tensor pairs = rand({4, 2}), sequence = rand({2, 5, 8});
  nn::Sequential model{nn::Linear(2, 8), nn::ReLU(), nn::Linear(8, 1)};
  nn::LSTM lstm{8, 16};
  nn::GRU gru{8, 16};
  train::AdamW optimizer{nn::parameters(model)};
  Tensor loss = mean(square(model(pairs))) + sum(square(leaf));
  std::unique_ptr<parallel::ProcessGroup> group = parallel::make_process_group(cpu);
  std::string path = (std::filesystem::temp_directory_path() / ("from-pytorch-" + std::to_string(::getpid()))).string(),
              saved = path + ".in";
};

struct Row {
  int line;
  std::string section;
  void (*run)();
};

#include "from_pytorch_rows.h"

/// The text that a row prints goes nowhere.
class Silence {
 public:
  Silence() : before_(std::cout.rdbuf(text_.rdbuf())) {}
  ~Silence() { std::cout.rdbuf(before_); }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

}  // namespace

TEST_CASE("Each name of tern's beside PyTorch's compiles and runs as the page has it") {
  const int threads = num_threads();
  for (const Row& row : rows) {
    if (row.section == "Linear algebra" && !has_linalg()) continue;
    INFO("docs/from-pytorch.md:" << row.line);
    const Silence silence;
    manual_seed(1);
    CHECK_NOTHROW(row.run());
    set_num_threads(threads);
  }
}

TEST_CASE("Every row of the page's tables is tried") {
  std::ifstream page(std::string(test::source_directory) + "/docs/from-pytorch.md");
  std::size_t count = 0;
  for (std::string line; std::getline(page, line);) count += line.starts_with("| `");
  CHECK(count > 100);
  CHECK(rows.size() == count);
}
