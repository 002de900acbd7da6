// A training that is killed and goes on: weights, moments, random numbers and the position in the data go into one checkpoint, and what
// comes out is bitwise what a training without an end in between gives. expected.txt is what this prints.
#include <sys/wait.h>
#include <tern/tern.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <vector>

using namespace tern;

namespace {

struct Net final : nn::Module {
  nn::Linear in{4, 16}, out{16, 1};
  void visit(nn::Visitor& v) override {
    v("in", in);
    v("out", out);
  }
  Tensor forward(const Tensor& x) const { return out.forward(dropout(tanh(in.forward(x)), 0.2, training)); }
};

/// Example i: four numbers that follow from i, and their sum.
struct Sums {
  std::int64_t size() const { return 50; }
  Tensors operator[](std::int64_t i) const {
    std::vector<float> x;
    for (std::int64_t k = 0; k < 4; ++k) x.push_back(static_cast<float>((7 * i + 3 * k * k) % 11) / 11);
    return {Tensor::from(x, {4}), Tensor::from({x[0] + x[1] + x[2] + x[3]}, {1})};
  }
};

struct Training {
  Net net;
  train::AdamW optimizer{nn::parameters(net), {.lr = 0.01}};
  data::Loader loader{Sums{}, {.batch_size = 8, .seed = 3, .workers = 2}};
  std::int64_t updates = 0;

  void step() {
    std::optional<Tensors> batch = loader.next();
    if (!batch) batch = loader.next();  // the next epoch
    train::update(mean(square(net.forward((*batch)[0]) - (*batch)[1])), optimizer);
    ++updates;
  }

  /// All that the training depends on, by name: what is saved, and what is written into.
  std::vector<NamedTensor> state(const Tensor& numbers, const Tensor& position) {
    std::vector<NamedTensor> result = nn::named_parameters(net);
    for (const auto& [name, tensor] : optimizer.state(nn::named_parameters(net))) result.push_back({"optimizer." + name, tensor});
    result.push_back({"numbers", numbers});
    result.push_back({"loader", position});
    return result;
  }
  void save(const std::filesystem::path& path) {
    const Generator& random = context().generator;
    const Tensor numbers =
        Tensor::from({updates, static_cast<std::int64_t>(random.seed()), static_cast<std::int64_t>(random.position())}, {3});
    io::save_safetensors(path, state(numbers, loader.state()));
  }
  void load(const std::filesystem::path& path) {
    const Tensor numbers = zeros({3}, DType::i64), position = zeros({5}, DType::i64);
    {
      const NoGrad unrecorded;
      io::load_safetensors_into(path, state(numbers, position));
    }
    const auto found = numbers.to_vector<std::int64_t>();
    updates = found[0];
    manual_seed(static_cast<std::uint64_t>(found[1]));
    context().generator.set_position(static_cast<std::uint64_t>(found[2]));
    loader.load_state(position);
  }
};

}  // namespace

int main() {
  const auto path = std::filesystem::temp_directory_path() / ("resume-" + std::to_string(::getpid()) + ".safetensors");

  // The training that dies: a process of its own, which is there before any thread is.
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    manual_seed(1);
    Training training;
    while (true) {
      training.step();
      if (training.updates % 5 == 0) training.save(path);
      if (training.updates == 13) ::raise(SIGKILL);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  std::printf("killed: %s\n", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? "yes" : "no");

  manual_seed(99);  // which the checkpoint replaces
  Training resumed;
  resumed.load(path);
  std::filesystem::remove(path);
  std::printf("goes on from update %lld, epoch %lld, example %lld\n", static_cast<long long>(resumed.updates),
              static_cast<long long>(resumed.loader.position().epoch), static_cast<long long>(resumed.loader.position().index));
  while (resumed.updates < 30) resumed.step();

  manual_seed(1);
  Training whole;
  while (whole.updates < 30) whole.step();

  bool is_same = resumed.loader.position() == whole.loader.position();
  const auto a = resumed.state(zeros({}), zeros({})), b = whole.state(zeros({}), zeros({}));
  for (std::size_t i = 0; i < a.size(); ++i) is_same = is_same && a[i].tensor.to_vector<float>() == b[i].tensor.to_vector<float>();
  std::printf("bitwise the training that was never ended: %s\n", is_same ? "yes" : "no");
}
