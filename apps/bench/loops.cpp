#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "backend/loaded_kernel.h"
#include "bench/commands.h"
#include "bench/timing.h"
#include "common/program.h"
#include "compile/generated.h"
#include "io/files.h"
#include "io/svg.h"
#include "loops/code.h"
#include "loops/interpret.h"
#include "loops/proof.h"
#include "loops/run.h"
#include "loops/schedule.h"
#include "tensor/context.h"

namespace tern::bench {
namespace {

namespace loops = study::loops;
using loops::Bind, loops::Node, loops::Program;

struct Options : TimingOptions {
  std::string kernel = "matmul", schedule, sizes, directory;
};

/// A program, compiled for a device: it runs on addresses of the caller's tensors there.
std::function<void(std::span<float* const>)> compiled(const Program& p, Device device) {
  if (device.type == DeviceType::cpu)
    return [kernel = loops::CpuKernel(p)](std::span<float* const> tensors) { kernel.run(tensors, num_threads()); };
  return with_backend(device, [&](auto backend) -> std::function<void(std::span<float* const>)> {
    if constexpr (requires { backend::architecture_of(backend, device); }) {
      const std::string code = compiler::compile_cuda(loops::cuda_text(p), backend::architecture_of(backend, device));
      std::vector<std::pair<std::shared_ptr<const backend::LoadedKernel>, unsigned>> kernels;
      for (std::size_t nest = 0; nest < p.body.size(); ++nest)
        kernels.emplace_back(backend::load_kernel(backend, device, code, loops::function_name(nest).c_str()),
                             static_cast<unsigned>(loops::steps_of(p, nest, Bind::block)));
      return [kernels, device, threads = static_cast<unsigned>(loops::thread_count(p))](std::span<float* const> tensors) {
        for (const auto& [kernel, blocks] : kernels) kernel->launch(blocks, 1, threads, tensors.data(), context().stream(device));
      };
    } else return {};
  });
}

/// The caller's tensors on a device, f32.
std::vector<Tensor> tensors_of(const loops::Values& values, Device device) {
  std::vector<Tensor> tensors;
  for (const std::vector<double>& x : values)
    tensors.push_back(Tensor::from(std::vector<float>(x.begin(), x.end()), {static_cast<std::int64_t>(x.size())}, device));
  return tensors;
}
std::vector<float*> addresses(const std::vector<Tensor>& tensors) {
  std::vector<float*> result;
  for (const Tensor& t : tensors) result.push_back(t.data<float>());
  return result;
}

/// The loops as boxes, a column for each depth.
std::string picture(const Program& p, const std::string& title) {
  io::svg::Graph graph{.title = title, .columns = {}, .nodes = {}, .arrows = {}};
  const std::function<void(const std::vector<Node>&, std::size_t, std::optional<std::size_t>)> draw =
      [&](const std::vector<Node>& body, std::size_t depth, std::optional<std::size_t> around) {
        if (graph.columns.size() <= depth) graph.columns.push_back(depth == 0 ? "outermost" : std::to_string(depth));
        for (const Node& node : body) {
          std::string text = loops::to_text(p, node);
          const std::string line = text.substr(0, text.find('\n'));
          const bool is_bound = node.kind == Node::Kind::loop && p.loops[static_cast<std::size_t>(node.loop)].bind != Bind::none;
          const std::size_t colour = node.kind == Node::Kind::statement ? 2 : node.kind == Node::Kind::barrier ? 3 : is_bound ? 0 : 1;
          graph.nodes.push_back({depth, line, line, colour});
          const std::size_t here = graph.nodes.size() - 1;
          if (around) graph.arrows.emplace_back(*around, here);
          if (node.kind == Node::Kind::loop) draw(node.body, depth + 1, here);
        }
      };
  draw(p.body, 0, {});
  return to_svg(graph);
}

class LoopsBench : OpTimer {
 public:
  explicit LoopsBench(const Options& options) : OpTimer(options), options_(options) {}

  void run() {
    sizes_ = options_.sizes.empty() ? loops::usual_sizes(options_.kernel) : numbers(options_.sizes);
    const Program plain = loops::kernel(options_.kernel, sizes_);
    if (!options_.schedule.empty())
      lines_ = loops::parse_schedule(io::read_file(options_.schedule, std::size_t{1} << 20), options_.schedule);
    // All of a schedule is proved before anything is measured.
    const std::vector<Program> programs = states(plain, lines_.size());
    if (!options_.directory.empty()) apps::make_directory("--out", options_.directory);
    fmt::print("{} ({}), {}: each line is proved, and checked at {} small sizes\n", options_.kernel, fmt::join(sizes_, ", "),
               apps::describe(device()), loops::odd_sizes(options_.kernel).size());
    tensors_ = tensors_of(loops::make_values(plain), device());
    if (plain.flops == 0) copy_ms_ = equal_ms(plain.bytes());
    for (std::size_t i = 0; i <= lines_.size(); ++i) show(programs[i], i);
  }

 private:
  /// The program after 0, 1, ... lines.
  std::vector<Program> states(const Program& plain, std::size_t count) const {
    loops::prove(plain);
    std::vector<Program> programs = {plain};
    loops::schedule(plain, {lines_.begin(), lines_.begin() + static_cast<std::ptrdiff_t>(count)}, options_.schedule,
                    [&](const loops::Line&, const Program& p) { programs.push_back(p); });
    return programs;
  }

  void show(const Program& p, std::size_t count) {
    const std::string line = count == 0 ? "" : loops::to_text(lines_[count - 1]);
    fmt::print("\n{}{}", line.empty() ? "" : "> " + line + "\n", loops::to_text(p));
    const double error = check(count);
    io::JsonObject row = this->row("loops", sizes_, "fp32", options_.kernel.c_str(), 0);
    row.set("schedule", options_.schedule).set("line", static_cast<std::int64_t>(count)).set("text", line).set("error", error);
    const bool can_run = device().type == DeviceType::cpu ||
                         std::any_of(p.loops.begin(), p.loops.end(), [](const loops::Loop& l) { return l.bind == Bind::block; });
    if (can_run) {
      const auto kernel = compiled(p, device());
      const double ms = time([&, at = addresses(tensors_)] { kernel(at); });
      const double rate = p.flops > 0 ? p.flops / ms / 1e6 : copy_ms_ / ms;
      row.set("ms", rounded(ms, 1e5)).set(p.flops > 0 ? "gflops" : "of_copy", rounded(rate, 1e4));
      if (p.flops > 0) fmt::print("  {:.3f} ms, {:.2f} GFLOP/s, error {:.1e}\n", ms, rate, error);
      else fmt::print("  {:.3f} ms, {:.1f}% of a copy, error {:.1e}\n", ms, 100 * rate, error);
    } else fmt::print("  not run: one thread would do all of it\n");
    std::fflush(stdout);
    rows_.add(row);
    if (options_.directory.empty()) return;
    const std::filesystem::path directory = options_.directory;
    const std::string name = fmt::format("{}-{}", options_.kernel, count);
    io::write_file_atomically(directory / (name + ".txt"), loops::to_text(p));
    io::write_file_atomically(directory / (name + ".svg"), picture(p, line.empty() ? options_.kernel : line));
    const bool is_cpu = device().type == DeviceType::cpu;
    io::write_file_atomically(directory / (name + (is_cpu ? ".cpp" : ".cu")), is_cpu ? loops::cpp_text(p) : loops::cuda_text(p));
  }

  /// The largest error of the compiled program, after so many lines, at a small odd size; the interpreter checks it at all of them.
  double check(std::size_t count) const {
    const auto after = [&](const Program& plain) { return states(plain, count).back(); };
    loops::check_schedule(options_.kernel, after);
    const Program plain = loops::kernel(options_.kernel, loops::odd_sizes(options_.kernel)[2]), p = after(plain);
    const loops::Values values = loops::make_values(plain), expected = loops::interpret(plain, values);
    const auto kernel = compiled(p, device());
    std::vector<double> got;
    if (device().type == DeviceType::cpu) got = loops::run_between_red_zones(p, values, kernel).back();
    else {
      const std::vector<Tensor> tensors = tensors_of(values, device());
      kernel(addresses(tensors));
      const std::vector<float> result = tensors.back().to_vector<float>();
      got.assign(result.begin(), result.end());
    }
    return loops::compare(options_.kernel, got, expected.back(), 1e-4);
  }

  /// ms of a call: of the first, where that takes long.
  double time(const std::function<void()>& f) const {
    const double first = burst(device(), 1, f);
    return first > 500 ? first : measure(f);
  }

  const Options& options_;
  std::vector<std::int64_t> sizes_;
  std::vector<loops::Line> lines_;
  std::vector<Tensor> tensors_;
  double copy_ms_ = 0;  ///< of as many bytes
};

}  // namespace

void add_loops(CLI::App& app) {
  auto* command = app.add_subcommand("loops", "schedule a kernel's loops by lines of text, and time it after each of them");
  const auto options = std::make_shared<Options>();
  add_value(*command, "--kernel", options->kernel, fmt::format("of {}", fmt::join(loops::kernel_names(), ", ")),
            apps::one_of(loops::kernel_names()), "NAME");
  command->add_option("--schedule", options->schedule, "the lines, a primitive each; without it the kernel as it is")->type_name("FILE");
  apps::add_option(*command, "--size", options->sizes, "M,N,K of matmul, R,C of softmax and rms_norm, N of gelu; without it the lessons'",
                   list_of(apps::whole_number(1, 1 << 28)), "LIST");
  command->add_option("--out", options->directory, "directory for the program after each line: its text, its code and a picture")
      ->type_name("DIR");
  add_timing_options(*command, *options);
  command->callback([options] { LoopsBench(*options).run(); });
}

}  // namespace tern::bench
