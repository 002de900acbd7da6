#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>

#include "bench/comm_case.h"
#include "bench/commands.h"
#include "bench/cost_model.h"
#include "bench/lists.h"
#include "bench/ranks.h"
#include "bench/step_case.h"
#include "common/model.h"
#include "common/program.h"
#include "common/temporary_directory.h"
#include "io/atomic_file.h"
#include "io/json_object.h"
#include "io/svg.h"

namespace tern::bench {
namespace {

using Row = io::JsonObject;

struct Options {
  std::string ops = "all_reduce", sizes = "1,10,100,1000", dtypes = "fp32", ranks, buckets, device = "auto", json, csv, plot;
  double seconds = 2;
  int threads = 0;
  parallel::GroupOptions group;
  std::int64_t parameters = 0;
  StepCase step;  ///< for --model and --buckets
  bool has_model = false;
};

void print_head() {
  fmt::print("{:<14} {:<8} {:>10} {:>5} {:>11} {:>10} {:>9} {:>9} {:>6}\n", "collective", "dtype", "MB", "ranks", "ms median", "deviation",
             "alg GB/s", "bus GB/s", "calls");
}

void print_row(const Row& row) {
  fmt::print("{:<14} {:<8} {:>10g} {:>5} {:>11.4f} {:>10.4f} {:>9.4g} {:>9.4g} {:>6}\n", row.get_string("op"), row.get_string("dtype"),
             row.get_double("mb"), row.get_int("ranks"), row.get_double("ms"), row.get_double("deviation_ms"), row.get_double("alg_gbs"),
             row.get_double("bus_gbs"), row.get_int("calls"));
  std::fflush(stdout);
}

/// Measurements with one number of ranks. To be run on all ranks; rank 0 writes the rows.
class CommBench {
 public:
  explicit CommBench(const Options& options)
      : options_(options), device_(apps::resolve_device(options.device)), group_(parallel::make_process_group(device_, options.group)) {}
  bool is_first() const { return group_->rank() == 0; }
  const std::vector<Row>& rows() const { return rows_; }

  void run(RowFile& file) {
    for (const std::string& op : words(options_.ops))
      for (const std::string& dtype : words(options_.dtypes))
        for (const double mb : reals(options_.sizes)) {
          const CommCase c{.op = op, .dtype = float_modes().at(dtype).first, .bytes = mb * 1e6};
          const CommFigures f = measure_comm(*group_, c, options_.seconds);
          Row row = begin("comm");
          row.set("op", op).set("dtype", float_modes().at(dtype).second).set("mb", mb).set("bytes", f.bytes);
          row.set("ms", rounded(f.call.median, 1e5)).set("deviation_ms", rounded(f.call.deviation, 1e5)).set("calls", f.calls);
          row.set("alg_gbs", rounded(f.alg_gbs, 1e4)).set("bus_gbs", rounded(f.bus_gbs, 1e4));
          if (!is_first()) continue;
          print_row(row);
          keep(row, file);
        }
    for (const double mb : reals(options_.buckets)) measure_buckets(mb, file);
  }

 private:
  Row begin(const char* what) const {
    Row row;
    row.set("what", what).set("ranks", group_->size()).set("engine", group_->engine());
    set_device(row, device_);
    return row;
  }

  void keep(const Row& row, RowFile& file) {
    rows_.push_back(row);
    file.add(row);
  }

  void measure_buckets(double mb, RowFile& file) {
    StepCase c = options_.step;
    c.parallel.bucket_size_mb = mb;
    const StepFigures f = measure_step(c, device_, group_.get());
    Row row = begin("bucket");
    row.set("model", c.model).set("B", c.batch).set("T", c.length).set("V", c.vocab).set("bucket_size_mb", mb).set("buckets", f.buckets);
    row.set("step_ms", rounded(f.step.median, 1e4)).set("burst_ms", rounded(f.burst_ms, 1e4)).set("alone_ms", rounded(f.alone_ms, 1e4));
    row.set("steps", c.steps).set("loss", f.loss);
    if (is_first()) keep(row, file);
  }

  const Options& options_;
  Device device_;
  std::unique_ptr<parallel::ProcessGroup> group_;
  std::vector<Row> rows_;
};

/// The rows of a kind by number of ranks, in their order.
std::map<std::int64_t, std::vector<Row>> by_ranks(const std::vector<Row>& rows, const std::string& what) {
  std::map<std::int64_t, std::vector<Row>> result;
  for (const Row& row : rows)
    if (row.get_string("what") == what) result[row.get_int("ranks")].push_back(row);
  return result;
}

/// The number of parameters whose gradients are reduced; 0 if none was given.
double model_parameters(const Options& options) {
  if (options.parameters > 0) return static_cast<double>(options.parameters);
  return options.has_model || !options.buckets.empty() ? static_cast<double>(apps::count_parameters(model_options(options.step, cpu))) : 0;
}

/// The cost model of the float32 all_reduce. None for fewer than two sizes, and if larger ones take no longer, as on a busy machine.
std::optional<TransferFit> fit_of(const std::vector<Row>& rows) {
  std::vector<Transfer> transfers;
  for (const Row& row : rows)
    if (row.get_string("op") == "all_reduce" && row.get_string("dtype") == "float32")
      transfers.push_back({row.get_double("bytes"), row.get_double("ms") / 1e3});
  try {
    return fit_transfers(transfers);
  } catch (const Error&) {
    return {};
  }
}

/// Prints the overhead and the bandwidth for each number of ranks, the best buckets by these, and measured buckets.
void show_buckets(const Options& options, const std::vector<Row>& rows) {
  const double parameters = model_parameters(options), bytes = 4 * parameters;
  if (parameters > 0) fmt::print("{:.4g} M parameters have s = {:.4g} MB of gradients\n", parameters / 1e6, bytes / 1e6);
  const auto steps = by_ranks(rows, "bucket");
  for (const auto& [ranks, all] : by_ranks(rows, "comm")) {
    const std::optional<TransferFit> fit = fit_of(all);
    if (fit)
      fmt::print("{} ranks: overhead o = {:.4g} ms a call, bandwidth w = {:.4g} GB/s", ranks, fit->overhead * 1e3, fit->bandwidth / 1e9);
    else fmt::print("{} ranks: no overhead and bandwidth follow, which takes two sizes of which the larger one takes longer", ranks);
    if (fit && parameters > 0 && fit->overhead == 0) fmt::print("; so the smaller the buckets the better, as far as these sizes tell");
    if (fit && parameters > 0 && fit->overhead > 0) {
      const Buckets best = best_buckets(bytes, *fit);
      fmt::print("; n* = sqrt(s / (w o)) = {:.4g} buckets of b* = sqrt(s w o) = {:.4g} MiB cost {:.4g} ms", best.count, best.bytes / 0x1p20,
                 bucket_seconds(bytes, best.count, *fit) * 1e3);
    }
    fmt::print("\n");
    const auto measured = steps.find(ranks);
    if (measured == steps.end()) continue;
    for (const Row& row : measured->second) {
      fmt::print("  buckets of {:>6g} MiB: a step took {:>9.3f} ms, without communication {:>9.3f}", row.get_double("bucket_size_mb"),
                 row.get_double("burst_ms"), row.get_double("alone_ms"));
      const auto count = static_cast<double>(row.get_int("buckets"));
      if (fit) fmt::print("; n = {}, s / (n w) + n o = {:.4g} ms", count, bucket_seconds(bytes, count, *fit) * 1e3);
      fmt::print("\n");
    }
  }
}

std::string to_csv(const std::vector<Row>& rows) {
  std::string text = "op,dtype,mb,bytes,ranks,engine,device,ms,deviation_ms,calls,alg_gbs,bus_gbs\n";
  for (const Row& row : rows)
    if (row.get_string("what") == "comm")
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}\n", row.get_string("op"), row.get_string("dtype"), row.get_double("mb"),
                          row.get_double("bytes"), row.get_int("ranks"), row.get_string("engine"), row.get_string("device"),
                          row.get_double("ms"), row.get_double("deviation_ms"), row.get_int("calls"), row.get_double("alg_gbs"),
                          row.get_double("bus_gbs"));
  return text;
}

/// A chart of the bus bandwidth by size, with a line for each collective, dtype and number of ranks.
io::svg::Chart bandwidths(const std::vector<Row>& rows) {
  io::svg::Chart chart{.title = "Bus bandwidth of collectives", .x_label = "MB", .left = {.label = "GB/s"}, .is_log = true};
  for (const Row& row : rows) {
    if (row.get_string("what") != "comm") continue;
    const std::string name =
        fmt::format("{} {}, {} ranks, {}", row.get_string("op"), row.get_string("dtype"), row.get_int("ranks"), row.get_string("engine"));
    if (chart.series.empty() || chart.series.back().name != name) chart.series.push_back({.name = name});
    chart.series.back().points.push_back({row.get_double("mb"), row.get_double("bus_gbs")});
  }
  return chart;
}

void finish(const Options& options, const std::vector<Row>& rows) {
  if (!options.csv.empty()) io::write_file_atomically(options.csv, to_csv(rows));
  if (!options.plot.empty()) io::write_file_atomically(options.plot, io::svg::to_svg(bandwidths(rows)));
  show_buckets(options, rows);
}

void comm(const Options& options) {
  if (options.threads > 0) set_num_threads(options.threads);
  if (const auto file = rows_for_starter()) {
    RowFile rows(launched_rank() == 0 ? *file : "");
    CommBench(options).run(rows);
    return;
  }
  if (options.ranks.empty()) {
    if (launched_ranks() < 2)
      throw apps::UsageError("expected several processes: tern-bench comm --ranks 2,4, or tern-launch -n 2 tern-bench comm");
    RowFile rows(launched_rank() == 0 ? options.json : "");
    CommBench bench(options);
    if (bench.is_first()) print_head();
    bench.run(rows);
    if (bench.is_first()) finish(options, bench.rows());
    return;
  }
  require_no_launcher();
  RowFile kept(options.json);
  const apps::TemporaryDirectory directory("tern-bench");
  std::vector<Row> rows;
  print_head();
  std::fflush(stdout);
  for (const std::int64_t ranks : numbers(options.ranks)) {
    const std::filesystem::path file = directory.path() / fmt::format("{}-{}", rows.size(), ranks);
    start_ranks(static_cast<int>(ranks), file.string());
    std::istringstream text(io::read_file(file));
    for (std::string line; std::getline(text, line);) {
      rows.push_back(Row::parse(line, file.string()));
      kept.add(rows.back());
    }
  }
  finish(options, rows);
}

}  // namespace

void add_comm(CLI::App& app) {
  auto* command = app.add_subcommand("comm", "time collectives of several processes, and what buckets of gradients follow from it");
  const auto options = std::make_shared<Options>();
  StepCase& c = options->step;
  c.model = "small";
  c.length = 128;
  c.batch = 1;
  c.dropout = 0;
  c.warmup = 1;
  c.steps = 3;
  c.use_fused_kernel = true;
  add_value(*command, "--op", options->ops, "of all_reduce, all_gather, reduce_scatter, broadcast",
            list_of(apps::one_of({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})), "LIST");
  add_value(*command, "--size-mb", options->sizes, "of the whole, in 1e6 bytes", list_of(apps::real_number(1e-6, 1e6)), "LIST");
  add_value(*command, "--dtype", options->dtypes, "of fp32, bf16, fp16, fp64", list_of(apps::one_of({"fp32", "bf16", "fp16", "fp64"})),
            "LIST");
  add_value(*command, "--ranks", options->ranks,
            "numbers of processes to start, one after the other; without it a launcher has started them",
            list_of(apps::whole_number(2, 4096)), "LIST");
  add_value(*command, "--seconds", options->seconds, "that each figure takes, about; three calls at least", apps::real_number(0, 3600),
            "X");
  add_value(*command, "--model", c.model, "whose gradients are to go in buckets: " + list_of_step_models(), apps::one_of(step_models()),
            "NAME")
      ->each([options](const std::string&) { options->has_model = true; });
  add_value(*command, "--parameters", options->parameters, "of a model, in place of --model's",
            apps::whole_number(1, 1'000'000'000'000'000), "N");
  add_value(*command, "--buckets", options->buckets, "sizes in MiB with which to time a step of --model",
            list_of(apps::real_number(1e-6, 1e6)), "LIST");
  add_value(*command, "--batch", c.batch, "sequences of a rank in that step", apps::whole_number(1, 1'000'000), "N");
  add_value(*command, "--length", c.length, "tokens of a sequence", apps::whole_number(1, 1'000'000), "N");
  add_value(*command, "--vocab", c.vocab, "size of the vocabulary", apps::whole_number(1, 10'000'000), "N");
  add_value(*command, "--steps", c.steps, "measured steps for each size", apps::whole_number(1, 1'000'000), "N");
  apps::add_threads_option(*command, options->threads);
  add_json_option(*command, options->json);
  command->add_option("--csv", options->csv, "write the table")->type_name("FILE.csv");
  command->add_option("--plot", options->plot, "draw bus bandwidth over size")->type_name("FILE.svg");
  apps::add_device_option(*command, options->device);
  command->callback([options] { comm(*options); });
}

}  // namespace tern::bench
