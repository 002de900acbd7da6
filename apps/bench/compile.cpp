#include "compile/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "backend/memory.h"
#include "bench/commands.h"
#include "bench/compile_models.h"
#include "bench/compile_pictures.h"
#include "bench/timing.h"
#include "common/program.h"
#include "common/training_settings.h"
#include "io/files.h"
#include "ops/captured_step.h"
#include "ops/factory.h"
#include "ops/reduce.h"
#include "tensor/context.h"

namespace tern::bench {
namespace {

const std::map<std::string, Stage> stages = {
    {"kernels", Stage::kernels}, {"groups", Stage::groups}, {"memory", Stage::memory}, {"code", Stage::code}};

struct Options : TimingOptions {
  std::string models = "seed6", passes = "forward,step", precisions = "fp32", show, directory;
  CompileSizes sizes;  ///< 0: the model's own
};

std::string name_of(const CompileCase& c) {
  std::string name = fmt::format("{}-{}-{}", c.model, c.is_step ? "step" : "forward", train::name(c.precision));
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

/// A way to run a function, with parameters of its own, and what its memory is.
struct Way {
  std::string name;
  std::function<Tensor()> call;
  double result = 0;            ///< mean of the fourth call's
  double ms = 1e300;            ///< the least of the rounds
  std::int64_t peak_bytes = 0;  ///< with what it keeps between calls, and without what other ways have
};

class CompileBench {
 public:
  explicit CompileBench(const Options& options) : options_(options), device_(apps::use(options)), rows_(options.json) {}
  Device device() const { return device_; }

  void run(const CompileCase& c) {
    const CompileSizes& s = c.sizes;
    fmt::print("{}: batch {} length {} width {} layers {} vocabulary {}, {}, {}, {}\n", c.model, s.batch, s.length, s.width, s.layers,
               s.vocab, c.is_step ? "step" : "forward", train::name(c.precision), apps::describe(device_));
    std::fflush(stdout);
    const train::PrecisionScope precision(c.precision);
    const DeviceScope here(device_);
    manual_seed(0);
    row_ = io::JsonObject();
    row_.set("bench", "compile").set("impl", "tern").set("model", c.model).set("pass", c.is_step ? "step" : "forward");
    row_.set("dtype", train::name(c.precision));
    row_.set("B", s.batch).set("T", s.length).set("width", s.width).set("layers", s.layers).set("V", s.vocab);
    set_device(row_, device_);
    measure(c);
    rows_.add(row_);
    std::fflush(stdout);
  }

 private:
  static constexpr int rounds = 7;

  using Call = std::function<Tensor()>;

  void measure(const CompileCase& c) {
    const Tensors arguments = make_arguments(c, c.sizes.length);
    std::vector<Way> ways;
    start(ways, "as written", [&]() -> Call { return [&, f = make_written(c).function] { return f(arguments); }; });
    Subject subject;
    std::optional<Compiled<std::function<Tensor(const Tensors&)>>> compiled;
    start(ways, "compiled", [&]() -> Call {
      subject = make_written(c);
      compiled.emplace(subject.function, device_);
      return [&] {
        const ScopedValue<const ModuleNames*> names(context().diagnosis.names, &subject.names);
        return (*compiled)(arguments);
      };
    });
    const auto capture = [&](const char* name, const auto& make) {
      start(ways, name, [&]() -> Call {
        // The arguments are not inputs, which a graph reads copies of.
        const auto captured = std::make_shared<CapturedStep>([&, f = make(c)](const Tensors&) { return f(arguments); }, device_);
        return [captured] { return (*captured)(Tensors{}); };
      });
    };
    if (device_.type == DeviceType::cuda) capture("captured", [](const CompileCase& of) { return make_written(of).function; });
    if (has_fused(c)) capture("by hand", make_fused);
    alternate(ways);
    show(c, ways, *compiled);
    if (has_lengths(c) && c.sizes.length > 1) another_length(c, *compiled);
  }

  /// Adds a way, and makes its first calls.
  void start(std::vector<Way>& ways, const char* name, const std::function<Call()>& make) {
    manual_seed(1);
    const std::size_t before = memory_statistics(device_).allocated;
    Way way{name, make()};
    std::vector<double> first;
    Tensor result;
    for (int i = 0; i < 4; ++i) first.push_back(burst(device_, 1, [&] { result = way.call(); }));
    way.result = mean(cast(result, DType::f64)).item<double>();
    result = {};
    if (way.name == "compiled") {
      show_first(first);
      for (int i = 4; i < 12; ++i) way.call();  // the eleventh is compared
    }
    reset_peak_memory(device_);
    way.ms = burst(device_, 1, way.call);
    way.peak_bytes = static_cast<std::int64_t>(memory_statistics(device_).peak_allocated - before);
    ways.push_back(std::move(way));
  }

  void alternate(std::vector<Way>& ways) const {
    for (int i = 0; i < rounds; ++i)
      for (Way& way : ways)
        way.ms = std::min(way.ms, burst(device_, std::clamp(static_cast<int>(options_.seconds * 1e3 / way.ms), 1, 1000), way.call));
  }

  void show_first(const std::vector<double>& ms) {
    first_ = fmt::format("  calls       {:.1f}, {:.1f}, {:.1f}, {:.1f} ms: the first ones of the compiled function\n", ms[0], ms[1], ms[2],
                         ms[3]);
    row_.set("first_ms", rounded(ms[0], 1e3)).set("second_ms", rounded(ms[1], 1e3)).set("third_ms", rounded(ms[2], 1e3));
    row_.set("fourth_ms", rounded(ms[3], 1e3));
  }

  template <class F>
  void show(const CompileCase& c, const std::vector<Way>& ways, const Compiled<F>& compiled) {
    for (const Way& way : ways) {
      fmt::print("  {:<11} {:10.4f} ms, {:.3f} GiB at the peak\n", way.name, way.ms, static_cast<double>(way.peak_bytes) / 0x1p30);
      std::string key = way.name;
      std::replace(key.begin(), key.end(), ' ', '_');
      row_.set(key + "_ms", rounded(way.ms, 1e5)).set(key + "_peak_bytes", way.peak_bytes).set(key + "_result", way.result);
    }
    fmt::print("{}", first_);
    const ProgramOverview overview = compiled.overview();
    const auto groups = std::count_if(overview.groups.begin(), overview.groups.end(), [](const auto& x) { return x.kernels.size() > 1; });
    fmt::print("  program     {} kernels in {} groups, {} of them of several; arena {:.3f} GiB for {:.3f}\n", overview.kernels,
               overview.groups.size(), groups, static_cast<double>(overview.arena_bytes) / 0x1p30,
               static_cast<double>(overview.separate_bytes()) / 0x1p30);
    row_.set("kernels", static_cast<std::int64_t>(overview.kernels)).set("groups", static_cast<std::int64_t>(overview.groups.size()));
    row_.set("arena_bytes", overview.arena_bytes).set("separate_bytes", overview.separate_bytes());
    std::istringstream lines(compiled.report());
    for (std::string line; std::getline(lines, line);) fmt::print("  {}\n", line);
    row_.set("report", compiled.report());
    if (!options_.show.empty()) fmt::print("{}", compiled.show(stages.at(options_.show)));
    if (options_.directory.empty()) return;
    const std::filesystem::path directory = options_.directory;
    const std::string name = name_of(c), title = fmt::format("{} {} {}", c.model, c.is_step ? "step" : "forward", train::name(c.precision));
    for (const auto& [stage_name, stage] : stages)
      io::write_file_atomically(directory / fmt::format("{}-{}.txt", name, stage_name), compiled.show(stage));
    io::write_file_atomically(directory / (name + "-groups.svg"), groups_picture(overview, title));
    io::write_file_atomically(directory / (name + "-memory.svg"), memory_picture(overview, title));
  }

  template <class F>
  void another_length(const CompileCase& c, Compiled<F>& compiled) {
    const std::int64_t length = std::max<std::int64_t>(c.sizes.length * 3 / 4, 1);
    const Tensors arguments = make_arguments(c, length);
    const double first = burst(device_, 1, [&] { compiled(arguments); }), second = burst(device_, 1, [&] { compiled(arguments); });
    fmt::print("  length {:<4} {:.1f}, {:.1f} ms: the first calls of another length\n", length, first, second);
    row_.set("new_length_ms", rounded(first, 1e3));
  }

  const Options& options_;
  Device device_;
  RowFile rows_;
  io::JsonObject row_;
  std::string first_;  ///< line about the compiled function's first calls
};

void compile(const Options& options) {
  CompileBench bench(options);
  std::vector<CompileCase> cases;
  for (const std::string& model : words(options.models)) {
    CompileSizes sizes = default_sizes(model);
    const auto set = [](std::int64_t& size, std::int64_t value) { size = value > 0 ? value : size; };
    set(sizes.batch, options.sizes.batch), set(sizes.length, options.sizes.length), set(sizes.width, options.sizes.width);
    set(sizes.layers, options.sizes.layers), set(sizes.vocab, options.sizes.vocab);
    for (const std::string& precision : words(options.precisions))
      for (const std::string& pass : words(options.passes))
        for (CompileCase& c : bench::cases_of(model, pass == "step", train::precision_of(precision).value(), sizes))
          cases.push_back(std::move(c));
  }
  for (const CompileCase& c : cases) apps::require_precision(c.precision, bench.device());
  if (!options.directory.empty()) apps::make_directory("--out", options.directory);
  for (const CompileCase& c : cases) bench.run(c);
}

}  // namespace

void add_compile(CLI::App& app) {
  auto* command = app.add_subcommand("compile", "time functions written in plain ops, as written and compiled, and show their programs");
  const auto options = std::make_shared<Options>();
  add_list(*command, "--model", options->models, compile_models(),
           ": transformers of 6 x 512, 12 x 768 and 4 x 128, Llama of 12 x 768, an LSTM, a ResNet, attention of 64 numbers, AdamW of ops, "
           "elementwise chains, softmax and norms");
  add_value(*command, "--pass", options->passes,
            "of forward, without gradients, and step, with an update (attention, chains, rows: with gradients)",
            list_of(apps::one_of({"forward", "step"})), "LIST");
  add_list(*command, "--precision", options->precisions, apps::precision_names);
  const auto add_size = [&](const char* name, std::int64_t& size, const char* help) {
    apps::add_option(*command, name, size, std::string(help) + "; without it the model's", apps::whole_number(1, 10'000'000), "N");
  };
  add_size("--batch", options->sizes.batch, "sequences or images");
  add_size("--length", options->sizes.length, "tokens of a sequence, the side of an image; times the batch, rows");
  add_size("--width", options->sizes.width, "numbers of a token, channels, the length of a row, the side of a matrix");
  add_size("--layers", options->sizes.layers, "layers, residual blocks, matrices");
  add_size("--vocab", options->sizes.vocab, "size of the vocabulary, or classes");
  std::vector<std::string> names;
  for (const auto& [name, stage] : stages) names.push_back(name);
  apps::add_option(*command, "--show", options->show, fmt::format("print a program's part: {}", fmt::join(names, ", ")),
                   apps::one_of(names), "NAME");
  command->add_option("--out", options->directory, "directory for all parts of the programs as text, and pictures of groups and memory")
      ->type_name("DIR");
  add_timing_options(*command, *options);
  command->callback([options] { compile(*options); });
}

}  // namespace tern::bench
