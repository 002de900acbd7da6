// tern-bench grade: a CUDA kernel of the user's own, compiled, checked and timed beside the library's.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <numeric>
#include <sstream>

#include "autodiff/engine.h"
#include "backend/error.h"
#include "backend/loaded_kernel.h"
#include "bench/commands.h"
#include "bench/graded_op.h"
#include "bench/timing.h"
#include "bench/watched.h"
#include "common/program.h"
#include "compile/generated.h"
#include "io/files.h"
#include "ops/factory.h"
#include "ops/random.h"
#include "tensor/context.h"
#include "text/unicode.h"
#include "trainer/terminal.h"

namespace tern::bench {
namespace {

struct Options : TimingOptions {
  std::string file, op = "softmax", size;
  bool is_grad = false, show = false;
  double limit = 10;
};

std::string text_of(const Sizes& sizes) { return fmt::format("({})", fmt::join(sizes, ", ")); }

// Note [Launch lines]
// A comment in the file says how a kernel is launched, as CUDA has it, with the sizes of x by their names. Kernels of several lines run one
// after the other, all with the op's parameters. Another comment says at which sizes the kernels work, if not at all.
//
//   // launch: softmax<256><<<rows, 256>>>
//   // launch grad: sums_of_columns<<<(columns + 31) / 32, dim3(32, 32)>>>
//   // needs: columns % 4 == 0
//
// They are C++, and compiled with the file: a kernel computes from the sizes of x, for each line, 7 numbers of the launch, after one that
// says whether they can be.

/// The file, with a check of each kernel's parameters at its launch line, and a last kernel, which computes the launches.
compiler::CudaFile read_kernels(const std::string& path, const GradedOp& op, bool is_grad) {
  compiler::CudaFile file{std::filesystem::path(path).filename().string(), io::read_file(path, std::size_t{1} << 20), {}};
  const std::string begin = is_grad ? "// launch grad: " : "// launch: ", needs = "// needs: ";
  std::string checks, launches;
  std::istringstream in(file.text);
  int number = 0;
  for (std::string line; ++number, std::getline(in, line);) {
    if (line.starts_with(needs)) launches += fmt::format("#line {}\ntern[0] &= ({}\n);\n", number, line.substr(needs.size()));
    if (!line.starts_with(begin)) continue;
    const std::size_t open = line.find("<<<"), close = line.rfind(">>>");
    if (open == std::string::npos || close == std::string::npos || close < open + 3)
      throw apps::UsageError(fmt::format("{}:{}: expected {}NAME<<<GRID, BLOCK>>> but got {}", file.name, number, begin, line));
    launches +=
        fmt::format("#line {}\nset_launch(tern + {}, {});\n", number, 1 + 7 * file.kernels.size(), line.substr(open + 3, close - open - 3));
    file.kernels.push_back(line.substr(begin.size(), open - begin.size()));
    checks +=
        fmt::format("#line {}\nconstexpr void (*kernel_{})({}) = {};\n", number, number, parameters_of(op, is_grad), file.kernels.back());
  }
  if (file.kernels.empty())
    throw apps::UsageError(fmt::format("{}: expected a line {}NAME<<<GRID, BLOCK>>> but there is none", file.name, begin));
  file.kernels.emplace_back("tern_grade::launches");
  file.text += fmt::format(R"(
namespace tern_grade {{
__device__ void set_launch(unsigned* to, dim3 grid, dim3 block, unsigned shared = 0) {{
  to[0] = grid.x, to[1] = grid.y, to[2] = grid.z, to[3] = block.x, to[4] = block.y, to[5] = block.z, to[6] = shared;
}}
{}__global__ void launches(unsigned* tern, int {}) {{
tern[0] = 1;
{}}}
}}
)",
                           checks, fmt::join(op.sizes, ", int "), launches);
  return file;
}

const GradedOp& op_named(const std::string& name) {
  return *std::find_if(graded_ops().begin(), graded_ops().end(), [&](const GradedOp& op) { return op.name == name; });
}

/// The contract of an op's kernel: text that a file may begin with.
void show(const GradedOp& op, bool is_grad) {
  const GradedOp::Direction& direction = op.directions[is_grad];
  fmt::print("// {}\n", direction.formula);
  for (const std::string& name : tensors_of(op, is_grad)) {
    std::vector<std::string> sizes;
    for (const std::size_t d : dimensions_of(op, name)) sizes.push_back(op.sizes[d]);
    fmt::print("//   {} ({})\n", name, fmt::join(sizes, ", "));
  }
  const std::string kernel = op.name + (is_grad ? "_grad" : ""),
                    rows = fmt::format("{}", fmt::join(op.sizes.begin(), op.sizes.end() - 1, "*"));
  fmt::print("// launch{}: {}<<<{}, 256>>>\n", is_grad ? " grad" : "", kernel, rows.empty() ? "(count + 255) / 256" : rows);
  fmt::print("__global__ void {}({});\n", kernel, parameters_of(op, is_grad));
}

class GradeBench : OpTimer {
 public:
  GradeBench(const Options& options, const Watched& watched)
      : OpTimer(options),
        options_(options),
        watched_(watched),
        op_(op_named(options.op)),
        file_(read_kernels(options.file, op_, options.is_grad)),
        timed_(options.size.empty() ? op_.timed : std::vector<Sizes>{numbers(options.size)}) {
    for (const Sizes& sizes : timed_) {
      const double count = std::accumulate(sizes.begin(), sizes.end(), 1.0, std::multiplies<>());
      if (sizes.size() != op_.sizes.size() || count > INT32_MAX)
        throw apps::UsageError(
            fmt::format("--size: expected {}, of less than 2^31 elements, but got {}", fmt::join(op_.sizes, ","), options.size));
    }
  }

  void run() {
    compile();
    manual_seed(0);
    std::size_t checked = 0;
    for (const Sizes& sizes : op_.odd)
      if (works_at(sizes)) check(sizes, cpu), ++checked;
    std::erase_if(timed_, [&](const Sizes& sizes) { return !works_at(sizes); });
    if (timed_.empty()) throw apps::UsageError(fmt::format("{}: expected to work at a size to be timed: see its // needs", file_.name));
    apps::say("{}{} by {} on {}: right at {} of {} odd sizes, and at these\n", op_.name, options_.is_grad ? ", backward," : "", file_.name,
              apps::describe(device()), checked, op_.odd.size());
    apps::say("{:<20} {:>10} {:>10} {:>10} {:>11} {:>11} {:>8} {:>7} {:>8}\n", fmt::format("({})", fmt::join(op_.sizes, ", ")), "yours us",
              "plain us", "fused us", "over plain", "over fused", "MB", "GB/s", "of copy");
    double speed_up = 0;
    for (const Sizes& sizes : timed_) speed_up += time(sizes) / static_cast<double>(timed_.size());
    const double bar = op_.directions[options_.is_grad].bar;
    apps::say("{:.2f}x over plain on average", speed_up);
    if (bar > 0) apps::say("; the course asks for {}x: {}", bar, speed_up >= bar ? "reached" : "not reached");
    apps::say("\n");
  }

 private:
  void compile() {
    with_backend(device(), [&](auto backend) {
      if constexpr (requires { backend::architecture_of(backend, device()); }) {
        const compiler::CudaFileCode found = compiler::compile_cuda(file_, backend::architecture_of(backend, device()));
        kernels_ = backend::load_kernels(backend, device(), found.code, found.names);
      } else {
        compiler::compile_cuda(file_, "sm_80");
        throw apps::UsageError(
            fmt::format("{} compiles, but expected a GPU to run it on and got {}", file_.name, apps::describe(device())));
      }
    });
  }

  /// Does what runs the kernel. After a fault of it the process has no GPU to go on with, or to free memory on.
  template <class F>
  void guarded(const std::string& place, double seconds, const F& f) const {
    watched_.at(place, seconds);
    try {
      f();
      synchronize(device());
    } catch (const std::exception& error) {
      std::fflush(stdout);
      train::write_message(fmt::format("tern-bench: {}: expected a kernel that runs but got {}\n", text::printable(place), error.what()));
      ::_exit(1);
    }
    watched_.at(place);
  }

  /// The numbers of the launch lines: Note [Launch lines].
  std::vector<unsigned> launches_at(const Sizes& sizes) const {
    const Tensor result = zeros({static_cast<std::int64_t>(7 * kernels_.size() - 6)}, DType::i32, device());
    void* const address = result.data<std::int32_t>();
    std::vector<std::int32_t> numbers;
    guarded(at(sizes), options_.limit, [&] {
      queue(*kernels_.back(), {}, {&address, 1}, sizes);
      numbers = result.to_vector<std::int32_t>();
    });
    return {numbers.begin(), numbers.end()};
  }
  bool works_at(const Sizes& sizes) const { return launches_at(sizes)[0] != 0; }

  void queue(const backend::LoadedKernel& kernel, const backend::LaunchSize& size, std::span<void* const> tensors,
             const Sizes& sizes) const {
    const std::vector<int> numbers(sizes.begin(), sizes.end());
    std::vector<const void*> parameters;
    for (void* const& tensor : tensors) parameters.push_back(&tensor);
    for (const int& number : numbers) parameters.push_back(&number);
    kernel.launch(size, parameters, context().stream(device()));
  }

  /// A call of the user's kernels.
  std::function<void(std::span<void* const>)> kernels_at(const Sizes& sizes) const {
    return [this, sizes, n = launches_at(sizes)](std::span<void* const> tensors) {
      for (std::size_t i = 0; i + 1 < kernels_.size(); ++i) {
        const unsigned* const at = n.data() + 1 + 7 * i;
        queue(*kernels_[i], {{at[0], at[1], at[2]}, {at[3], at[4], at[5]}, at[6]}, tensors, sizes);
      }
    };
  }

  std::string at(const Sizes& sizes) const { return file_.name + " at " + text_of(sizes); }

  /// The values at these sizes, after the kernel has been checked with them.
  Named check(const Sizes& sizes, Device reference) const {
    Named values = make_values(op_, sizes, reference);
    const auto kernels = kernels_at(sizes);
    const std::string fault = fault_of(op_, options_.is_grad, sizes, values, device(), [&](std::span<void* const> tensors) {
      guarded(at(sizes), options_.limit, [&] { kernels(tensors); });
    });
    if (!fault.empty()) throw std::runtime_error(fmt::format("{}: {}", at(sizes), fault));
    return values;
  }

  /// ms of a call of the kernel: of the first, if that takes long.
  double time_kernel(const Sizes& sizes, const Named& values) const {
    std::vector<void*> addresses;
    for (const std::string& name : tensors_of(op_, options_.is_grad)) addresses.push_back(values.at(name).data<float>());
    double ms = 0;
    const auto call = [&, kernels = kernels_at(sizes)] { kernels(addresses); };
    guarded(at(sizes), options_.limit, [&] { ms = burst(device(), 1, call); });
    if (ms < 500) guarded(at(sizes), options_.limit + 10 + 2 * options_.seconds, [&] { ms = measure(call); });
    return ms;
  }

  /// ms of a call of one of the library's.
  double time_op(const std::function<Tensor(const Named&)>& op, Named values) const {
    if (!options_.is_grad) return measure([&] { op(values); });
    Tensors leaves;
    for (const std::string& name : words(op_.directions[0].inputs))
      if (name != "mask") leaves.push_back(values[name].set_requires_grad());
    const Tensor y = op(values);
    return measure([&] { grad({y}, leaves, {values.at("dy")}, false, true); });
  }

  /// Checks and measures: a row of the table. The speed-up over composed ops.
  double time(const Sizes& sizes) {
    Named values = check(sizes, device());
    for (auto& [name, tensor] : values) tensor = cast(tensor, DType::f32);
    std::int64_t bytes = 0;
    for (const std::string& name : tensors_of(op_, options_.is_grad)) bytes += 4 * numel(values.at(name).shape());
    const double yours = time_kernel(sizes, values), plain = time_op(op_.plain, values), fused = time_op(op_.fused, values),
                 copy = equal_ms(bytes);
    const auto emit = [&](const char* impl, double ms) {
      rows_.add(row(op_.name + (options_.is_grad ? "_bwd" : "_fwd"), sizes, "fp32", impl, ms)
                    .set("gbs", rounded(gbs(bytes, ms), 10))
                    .set("of_copy", rounded(copy / ms, 1e4)));
    };
    emit("yours", yours), emit("tern-plain", plain), emit("tern-fused", fused), emit("copy", copy);
    apps::say("{:<20} {:10.2f} {:10.2f} {:10.2f} {:10.2f}x {:10.2f}x {:8.1f} {:7.0f} {:7.1f}%\n", text_of(sizes), yours * 1e3, plain * 1e3,
              fused * 1e3, plain / yours, fused / yours, static_cast<double>(bytes) / 1e6, gbs(bytes, yours), 100 * copy / yours);
    return plain / yours;
  }

  const Options& options_;
  const Watched& watched_;
  const GradedOp& op_;
  compiler::CudaFile file_;
  std::vector<Sizes> timed_;
  std::vector<std::unique_ptr<backend::LoadedKernel>> kernels_;
};

void grade(const Options& options) {
  if (options.show) return show(op_named(options.op), options.is_grad);
  if (options.file.empty()) throw apps::UsageError("expected a file KERNEL.cu: --show prints what it declares");
  const Watched watched;
  GradeBench(options, watched).run();
}

}  // namespace

void add_grade(CLI::App& app) {
  auto* command = app.add_subcommand("grade", "check a CUDA kernel of your own against float64, and time it beside tern's");
  const auto options = std::make_shared<Options>();
  std::vector<std::string> names;
  for (const GradedOp& op : graded_ops()) names.push_back(op.name);
  command->add_option("KERNEL", options->file, "CUDA, with a line `// launch: NAME<<<rows, 256>>>`")->type_name("FILE.cu");
  add_value(*command, "--op", options->op, fmt::format("what it computes, of {}", fmt::join(names, ", ")), apps::one_of(names), "NAME");
  command->add_flag("--grad", options->is_grad, "the op's gradient, by kernels of lines `// launch grad: ...`");
  command->add_flag("--show", options->show, "print the op's formula, shapes and the kernel's declaration, and end");
  apps::add_option(*command, "--size", options->size, "measure at this shape of x, instead of at three",
                   list_of(apps::whole_number(1, INT32_MAX)), "LIST");
  add_value(*command, "--limit", options->limit, "seconds after which a kernel is taken to run without end", apps::real_number(0.1, 3600),
            "X");
  add_timing_options(*command, *options);
  command->callback([options] { grade(*options); });
}

}  // namespace tern::bench
