// The blocks of C++ on the pages of docs, as they stand: blocks.sh makes a function of each. One that does not compile is an error at the
// page's line; most run, too, in a directory of their own. README's program is built and run by tests/install.
#include <tern/tern.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "../../examples/weighted_sum/weighted_sum.h"
#include "catch.h"
#include "files.h"
#include "paths.h"

using namespace tern;

namespace {

namespace fs = std::filesystem;

/// What stands for `...` in brackets.
struct Anything {
  template <class T>
  operator T() const {
    return T{};
  }
} constexpr anything;

nn::DecoderLM small_model() { return nn::DecoderLM({.vocab = 12, .length = 160, .width = 8, .layers = 1, .heads = 2, .ff = 16}); }

/// A model with a loss of its own, as programs have.
struct WithLoss final : nn::Module {
  nn::DecoderLM lm = small_model();
  void visit(nn::Visitor& v) override { v("lm", lm); }
  Tensor loss(const Tensor& ids, const Tensor& targets) const { return cross_entropy(lm.forward(ids), targets); }
};

/// A loss that is computed where it is asked for, after what a page does to the model.
struct Loss {
  std::function<Tensor()> make;
  Tensor now;
  operator Tensor() const { return now.defined() ? now : make(); }
  Loss& operator=(const Tensor& x) {
    now = x;
    return *this;
  }
  void backward() const { now.backward(); }
};

struct Pairs {
  std::int64_t size() const { return 8; }
  Tensors operator[](std::int64_t) const { return {rand({2}), rand({1})}; }
};

/// Each page's names. Those with `runs` false need files or a device that is not there.
struct Page {
  static constexpr bool runs = true;
  Device device = cpu;
  Tensor ids = zeros({2, 4}, DType::i64), targets = zeros({2, 4}, DType::i64);
};

struct Page_activation_checkpointing : Page {
  nn::Linear block{4, 4};
  Tensor x = rand({2, 4}).set_requires_grad();
};

struct Page_checkpoints : Page {
  Page_checkpoints() { io::save_safetensors(path, state(zeros({3}, DType::i64), loader.state())); }
  std::vector<NamedTensor> state(const Tensor& numbers, const Tensor& position) { return {{"numbers", numbers}, {"loader", position}}; }
  std::string path = "checkpoint.safetensors";
  nn::Sequential model{nn::Linear(2, 8), nn::ReLU(), nn::Linear(8, 1)};
  train::AdamW optimizer{nn::parameters(model)};
  data::Loader loader{Pairs(), {.batch_size = 4}};
  Tensor numbers = zeros({3}, DType::i64);
};

struct Page_compile : Page {
  WithLoss model;
  train::AdamW optimizer{nn::parameters(model)};
};

struct Page_data : Page {
  static constexpr bool runs = false;
  int epochs = 1;
  void train_on(const Tensor&, const Tensor&) {}
};

struct Page_decoding : Page {
  nn::DecoderLM model = small_model();
  std::vector<nn::TokenIds> prompts = {{1, 3}, {4, 5, 6}};
  std::size_t i = 0;
  std::int64_t N = 2;
  std::vector<std::string> lines = {"a", "b"};
  nn::TokenIds ids_of(const std::string& line) const { return {static_cast<std::int64_t>(line.size()), 3}; }
  struct OfOnesOwn {
    std::int64_t rows = 0;
    Tensor read(const std::vector<nn::TokenIds>& prompts) {
      rows = static_cast<std::int64_t>(prompts.size());
      return randn({rows, 12});
    }
    Tensor step(const Tensor& ids) const { return randn({ids.size(0), 12}); }
    void keep(const Tensor& kept) { rows = kept.size(0); }
  } my_model;
};

struct Page_distributed : Page {
  nn::Linear model{2, 1};
  std::unique_ptr<parallel::ProcessGroup> group = parallel::make_process_group(cpu);
  Loss loss_of_own_part{[this] { return mean(square(model(ones({4, 2})))); }, {}};
};

struct Page_hugging_face : Page {
  static constexpr bool runs = false;
};

struct Page_memory : Page {
  WithLoss model;
  train::AdamW optimizer{nn::parameters(model)};
  Tensor labels = targets;
};

struct Page_modules : Page {};

struct Page_optimizers : Page {
  nn::DecoderLM model = small_model();
};

struct Page_own_op : Page {
  Tensor x = rand({3}).set_requires_grad();
  static Matrix size_of(const Tensor& x) { return {x.size(0), x.size(1)}; }
};

struct Page_tutorial : Page {};

struct Page_precision : Page {
  nn::DecoderLM model = small_model();
  train::AdamW optimizer{nn::parameters(model)};
  Loss loss{[this] { return cross_entropy(model.forward(ids), targets); }, {}};
};

struct Page_profiling : Page {
  WithLoss model;
  train::AdamW optimizer{nn::parameters(model)};
  profile::Profiler profiler{{}};
  Tensor inputs = ids;
};

template <class B, bool can_end>
void try_block() {
  if constexpr (B::runs && can_end) B().run();
}

struct Block {
  std::string place;
  void (*attempt)();
  std::vector<std::string> printed;  ///< by a program's runs, one after another
};

/// Standard output of f.
std::string printed_by(void (*f)()) {
  std::cout.flush();
  std::fflush(stdout);
  const int before = ::dup(STDOUT_FILENO);
  std::FILE* const file = std::tmpfile();
  ::dup2(::fileno(file), STDOUT_FILENO);
  std::string error;
  try {
    f();
  } catch (const std::exception& e) {
    error = e.what();
  }
  std::cout.flush();
  std::fflush(stdout);
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  std::string result(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  result.resize(std::fread(result.data(), 1, result.size(), file));
  std::fclose(file);
  return result + error;
}

#include "page_blocks.h"

}  // namespace

TEST_CASE("The C++ of the pages compiles and runs") {
  const test::TempDirectory directory;
  const fs::path before = fs::current_path();
  for (const Block& block : blocks) {
    INFO("docs/" << block.place);
    fs::current_path(directory.path());
    manual_seed(1);
    if (block.printed.empty()) CHECK_NOTHROW(block.attempt());
    for (const std::string& printed : block.printed) CHECK(printed_by(block.attempt) == printed);
    fs::current_path(before);
  }
}

TEST_CASE("Programs of the pages print the same on a GPU", "[cuda]") {
  const test::TempDirectory directory;
  const fs::path before = fs::current_path();
  const DeviceScope scope(cuda());
  for (const Block& block : blocks) {
    INFO("docs/" << block.place);
    fs::current_path(directory.path());
    for (std::string printed : block.printed) {
      for (std::size_t at = 0; (at = printed.find("on cpu", at)) != std::string::npos;) printed.replace(at, 6, "on cuda:0");
      CHECK(printed_by(block.attempt) == printed);
    }
    fs::current_path(before);
  }
}

TEST_CASE("Every block of C++ on the pages is tried") {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(test::source_directory) / "docs")) {
    std::ifstream page(entry.path());
    for (std::string line; entry.path().extension() == ".md" && std::getline(page, line);) count += line == "```cpp";
  }
  CHECK(count == blocks.size());
}
