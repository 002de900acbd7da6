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
#include "loops/tune.h"
#include "ops/factory.h"
#include "tensor/context.h"

namespace tern::bench {
namespace {

namespace loops = study::loops;
using apps::say;
using loops::Bind, loops::Node, loops::Program;

struct Options : TimingOptions {
  std::string kernel = "matmul", schedule, sizes, directory, database;
  double tune = 0;
  std::int64_t sample = 0, seed = 1;
  bool is_ranking = false;
};

/// A program, compiled for a device: it runs on addresses of the caller's tensors there.
std::function<void(std::span<float* const>)> compiled(const Program& p, Device device) {
  if (device.type == DeviceType::cpu)
    return [kernel = loops::CpuKernel(p)](std::span<float* const> tensors) { kernel.run(tensors, num_threads()); };
  return with_backend(device, [&](auto backend) -> std::function<void(std::span<float* const>)> {
    if constexpr (requires { backend::architecture_of(backend, device); }) {
      const std::string code = compiler::compile_cuda(loops::cuda_text(p), backend::architecture_of(backend, device));
      std::vector<std::string> names;
      std::vector<backend::LaunchSize> sizes;
      for (std::size_t nest = 0; nest < p.body.size(); ++nest) {
        names.push_back(loops::function_name(nest));
        const auto blocks = static_cast<unsigned>(loops::steps_of(p, nest, Bind::block));
        sizes.push_back({{blocks, 1, 1}, {static_cast<unsigned>(loops::thread_count(p)), 1, 1}});
      }
      using Kernels = std::vector<std::unique_ptr<backend::LoadedKernel>>;
      const auto kernels = std::make_shared<const Kernels>(backend::load_kernels(backend, device, code, names));
      return [=](std::span<float* const> tensors) {
        const void* const parameter = tensors.data();
        for (std::size_t i = 0; i < sizes.size(); ++i) (*kernels)[i]->launch(sizes[i], {&parameter, 1}, context().stream(device));
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

// --- Tuning ---

/// Schedules and their times, a JSON object a line: {"kernel", "device", "threads", "schedule", "ms": {"M,N,K": 0.1}}.
class Database {
 public:
  /// A file that is not there has no rows, unless it is only read.
  Database(const std::string& path, bool is_read_only) : path_(path) {
    if (is_read_only || (!path.empty() && std::filesystem::exists(path))) rows_ = read_rows(path);
    if (!path.empty() && !is_read_only) log_.emplace(path);
  }

  /// Rows of a device, and on the CPU of as many threads. Throws FileError or UsageError, which names the line.
  std::vector<loops::Timed> times(Device device) const {
    std::vector<loops::Timed> times;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const std::string kernel = rows_[i].get_string("kernel"), schedule = rows_[i].get_string("schedule");
      const io::JsonObject ms = rows_[i].get_object("ms");
      const std::string where = fmt::format("{}:{}", path_, i + 1);
      try {
        for (const std::string& sizes : ms.keys()) {
          if (const std::string wrong = list_of(apps::whole_number(1, 1 << 28))(sizes); !wrong.empty()) throw apps::UsageError(wrong);
          loops::Timed row{kernel, numbers(sizes), loops::lines_of(schedule), ms.get_double(sizes)};
          if (!(row.ms > 0)) throw apps::UsageError(fmt::format("expected ms above 0 but got {}", row.ms));
          loops::example(row);
          if (rows_[i].get_string("device") == (device.type == DeviceType::cpu ? "cpu" : "cuda") &&
              (device.type != DeviceType::cpu || rows_[i].get_int("threads") == num_threads()))
            times.push_back(std::move(row));
        }
      } catch (const io::FileError&) {
        throw;  // it has the place
      } catch (const std::exception& error) {
        throw apps::UsageError(fmt::format("{}: {}", where, error.what()));
      }
    }
    return times;
  }

  void add(Device device, const std::string& kernel, const std::vector<loops::Line>& lines, const io::JsonObject& ms) {
    if (!log_) return;
    io::JsonObject row;
    row.set("kernel", kernel);
    log_->write(set_device(row, device).set("schedule", loops::to_text(lines)).set("ms", ms));
  }

 private:
  std::string path_;
  std::vector<io::JsonObject> rows_;
  std::optional<io::JsonLog> log_;
};

/// The caller's tensors of a kernel on a device, between red zones.
class Measurement {
 public:
  Measurement(const Program& plain, Device device, double seconds) : device_(device), seconds_(seconds) {
    for (std::vector<double> x : loops::make_values(plain)) {
      x.insert(x.begin(), red_zone, mark);
      x.insert(x.end(), red_zone, mark);
      values_.push_back(std::move(x));
    }
    tensors_ = tensors_of(values_, device);
  }

  /// The least ms of bursts, in turns. Nothing for a program that does not compile, or whose result is not that of the first of all.
  std::vector<std::optional<double>> run(const std::vector<loops::Candidate>& candidates) {
    std::vector<std::function<void(std::span<float* const>)>> kernels;
    std::vector<std::optional<double>> least;
    std::vector<float*> at = addresses(tensors_);
    for (float*& address : at) address += red_zone;
    for (const loops::Candidate& c : candidates) {
      kernels.emplace_back();
      least.emplace_back();
      try {
        const auto kernel = compiled(c.program, device_);
        copy_(tensors_.back(), tensors_of({values_.back()}, device_)[0]);
        least.back() = burst(device_, 1, [&] { kernel(at); });
        for (int again = 0; again < 2; ++again) least.back() = std::min(*least.back(), burst(device_, 1, [&] { kernel(at); }));
        const std::vector<double> got = result();
        if (expected_.empty()) expected_ = got;
        loops::compare(c.program.name, got, expected_, 1e-4);
        kernels.back() = kernel;
      } catch (const Error& error) {
        least.back() = {};
        say("  not run: {}: {}\n", loops::to_text(c.lines), error.what());
      }
    }
    for (int turn = 0; turn < turns; ++turn)
      for (std::size_t i = 0; i < kernels.size(); ++i) {
        if (!least[i] || *least[i] > too_slow * least[0].value_or(*least[i])) continue;
        const int repeats = static_cast<int>(std::clamp(seconds_ * 1e3 / *least[i], 1.0, 1000.0));
        least[i] = std::min(*least[i], burst(device_, repeats, [&] { kernels[i](at); }));
      }
    return least;
  }

 private:
  static constexpr std::size_t red_zone = 64;  // keeps the alignment of 256 bytes
  static constexpr float mark = 1234.5f;
  static constexpr int turns = 7;
  static constexpr double too_slow = 20;

  /// The output. Throws Error where a red zone is written.
  std::vector<double> result() const {
    for (const Tensor& t : tensors_) {
      const std::vector<float> x = t.to_vector<float>();
      for (std::size_t i = 0; i < red_zone; ++i)
        if (x[i] != mark || x[x.size() - 1 - i] != mark) fail("loops", "expected writes within the tensors but a red zone is written");
    }
    const std::vector<float> x = tensors_.back().to_vector<float>();
    return {x.begin() + red_zone, x.end() - red_zone};
  }

  Device device_;
  double seconds_;
  loops::Values values_;
  std::vector<Tensor> tensors_;
  std::vector<double> expected_;  ///< the first result
};

class LoopsTuner : OpTimer {
 public:
  explicit LoopsTuner(const Options& options) : OpTimer(options), options_(options), database_(options.database, options.is_ranking) {
    if (!options.schedule.empty()) first_ = loops::parse_schedule(io::read_file(options.schedule, std::size_t{1} << 20), options.schedule);
    sizes_ = options.sizes.empty() ? loops::usual_sizes(options.kernel) : numbers(options.sizes);
  }

  void tune() {
    const std::vector<loops::Timed> times = database_.times(device());
    Measurement measurement(loops::kernel(options_.kernel, sizes_), device(), options_.seconds / 10);
    const loops::Tuned tuned =
        loops::tune(options_.kernel, sizes_, first_, times, [&](const auto& candidates) { return measurement.run(candidates); },
                    {.is_gpu = is_gpu(), .seed = static_cast<std::uint64_t>(options_.seed), .seconds = options_.tune});
    for (const loops::Timed& row : tuned.rows)
      database_.add(device(), row.kernel, row.lines, io::JsonObject().set(text_of(sizes_), row.ms));
    say("{} ({}), {}\n\n| candidates | refused by the proof | wrong | measured | known | first ms | best ms | x |\n"
        "|---|---|---|---|---|---|---|---|\n| {} | {} | {} | {} | {} | {:.4f} | {:.4f} | {:.2f} |\n\n",
        options_.kernel, fmt::join(sizes_, ", "), apps::describe(device()), tuned.candidates, tuned.refused, tuned.wrong, tuned.measured,
        tuned.known, tuned.first_ms, tuned.ms, tuned.first_ms / tuned.ms);
    for (const loops::Line& line : tuned.lines) say("{}\n", loops::to_text(line));
    rows_.add(row("tune", sizes_, "fp32", options_.kernel.c_str(), tuned.ms)
                  .set("first_ms", tuned.first_ms)
                  .set("schedule", loops::to_text(tuned.lines))
                  .set("candidates", tuned.candidates)
                  .set("refused", tuned.refused)
                  .set("measured", tuned.measured)
                  .set("known", tuned.known));
  }

  /// Times of schedules drawn at random, at several sizes.
  void sample() {
    std::vector<std::vector<std::int64_t>> several = loops::several_sizes(options_.kernel);
    if (!options_.sizes.empty()) several = {sizes_};
    else if (is_gpu())
      for (std::vector<std::int64_t>& s : several) s[0] *= gpu_rows;
    const auto drawn = loops::draw(options_.kernel, several, first_, static_cast<std::size_t>(options_.sample), is_gpu(),
                                   static_cast<std::uint64_t>(options_.seed));
    std::vector<io::JsonObject> ms(drawn.size());
    for (const std::vector<std::int64_t>& s : several) {
      const Program plain = loops::kernel(options_.kernel, s);
      Measurement measurement(plain, device(), options_.seconds / 10);
      std::vector<loops::Candidate> candidates;
      for (const std::vector<loops::Line>& lines : drawn) candidates.push_back({lines, loops::schedule(plain, lines, "schedule")});
      const std::vector<std::optional<double>> times = measurement.run(candidates);
      for (std::size_t i = 0; i < times.size(); ++i)
        if (times[i]) ms[i].set(text_of(s), rounded(*times[i], 1e5));
    }
    for (std::size_t i = 0; i < drawn.size(); ++i) database_.add(device(), options_.kernel, drawn[i], ms[i]);
    say("{}: {} schedules at {} sizes, {}\n", options_.kernel, drawn.size(), several.size(), apps::describe(device()));
  }

  /// The quality of the ranking that the model gives to the database's schedules.
  void rank() {
    std::vector<loops::Example> examples;
    for (const loops::Timed& row : database_.times(device())) examples.push_back(loops::example(row));
    if (examples.empty())
      throw apps::UsageError(fmt::format("{}: expected times of {} but it has none", options_.database, apps::describe(device())));
    say("| kernel | sizes | schedules | Spearman, sizes held out | Spearman, kernel held out | best of 16 within 5% "
        "|\n|---|---|---|---|---|---|\n");
    loops::Ranking all;

    for (const auto& [kernel, r] : loops::rank(examples)) {
      show(kernel, r);
      all.spearman += r.sizes * r.spearman;
      all.spearman_of_kind += r.sizes * r.spearman_of_kind;
      all.sizes += r.sizes, all.schedules += r.schedules, all.near_best += r.near_best;
    }
    all.spearman /= all.sizes, all.spearman_of_kind /= all.sizes;
    show("all", all);
  }

 private:
  static constexpr std::int64_t gpu_rows = 32;  // times as many as on a CPU

  bool is_gpu() const { return device().type == DeviceType::cuda; }
  static std::string text_of(const std::vector<std::int64_t>& sizes) { return fmt::format("{}", fmt::join(sizes, ",")); }
  void show(const std::string& kernel, const loops::Ranking& r) {
    say("| {} | {} | {} | {:.2f} | {:.2f} | {} of {} |\n", kernel, r.sizes, r.schedules, r.spearman, r.spearman_of_kind, r.near_best,
        r.sizes);
    rows_.add(row("rank", {}, "fp32", kernel.c_str(), 0)
                  .set("sizes", r.sizes)
                  .set("schedules", r.schedules)
                  .set("spearman", r.spearman)
                  .set("spearman_of_kernel", r.spearman_of_kind)
                  .set("near_best", r.near_best));
  }

  const Options& options_;
  Database database_;
  std::vector<std::int64_t> sizes_;
  std::vector<loops::Line> first_;
};

}  // namespace

void add_loops(CLI::App& app) {
  auto* command = app.add_subcommand("loops", "schedule a kernel's loops by lines of text, and time it after each of them");
  const auto options = std::make_shared<Options>();
  add_value(*command, "--kernel", options->kernel, fmt::format("of {}", fmt::join(loops::kernel_names(), ", ")),
            apps::one_of(loops::kernel_names()), "NAME");
  command->add_option("--schedule", options->schedule, "the lines, a primitive each; without it the kernel as it is")->type_name("FILE");
  apps::add_option(*command, "--size", options->sizes, "M,N,K of matmul, N of gelu, R,C of others; without it the lessons'",
                   list_of(apps::whole_number(1, 1 << 28)), "LIST");
  auto* out =
      command->add_option("--out", options->directory, "directory for the program after each line: its text, its code and a picture");
  out->type_name("DIR");
  auto* tune = apps::add_option(*command, "--tune", options->tune, "search for a faster schedule for so many seconds, from --schedule on",
                                apps::real_number(1e-3, 1e6), "SECONDS");
  auto* sample = apps::add_option(*command, "--sample", options->sample, "time so many schedules drawn at random, at several sizes",
                                  apps::whole_number(1, 10'000), "N");
  auto* rank = command->add_flag("--rank", options->is_ranking, "show how well the model of --tune ranks the database's schedules");
  tune->excludes(sample, rank, out), sample->excludes(rank, out), rank->excludes(out);
  add_value(*command, "--seed", options->seed, "of --tune and --sample", apps::seed_value(), "N");
  auto* database = command->add_option("--database", options->database, "times of schedules, to which those measured are appended");
  database->type_name("FILE");
  sample->needs(database), rank->needs(database);
  add_timing_options(*command, *options);
  command->callback([options] {
    if (options->tune > 0) LoopsTuner(*options).tune();
    else if (options->sample > 0) LoopsTuner(*options).sample();
    else if (options->is_ranking) LoopsTuner(*options).rank();
    else LoopsBench(*options).run();
  });
}

}  // namespace tern::bench
