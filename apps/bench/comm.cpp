#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/error.h"
#include "backend/memory.h"
#include "bench/commands.h"
#include "bench/cost_model.h"
#include "bench/step_case.h"
#include "bench/timing.h"
#include "common/launcher.h"
#include "common/program.h"
#include "common/training_settings.h"
#include "io/files.h"
#include "io/json_object.h"
#include "io/svg.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "parallel/process_group.h"
#include "tensor/context.h"

namespace tern::bench {
namespace {

using Row = io::JsonObject;

/// A collective of a size in bytes: that of the whole tensor if ranks have parts. The elements are rounded down to a multiple of the ranks,
/// at least one for each.
struct CommCase {
  std::string op = "all_reduce";  ///< or all_gather, reduce_scatter, broadcast
  DType dtype = DType::f32;
  double bytes = 1e6;
};

struct CommFigures {
  Times call;          ///< ms, on the slowest rank
  int calls = 0;       ///< number of measured calls
  double bytes = 0;    ///< bytes of the elements
  double alg_gbs = 0;  ///< bytes / time, in 1e9 bytes a second
  double bus_gbs = 0;  ///< Note [Cost of several devices]
};

/// Calls f(part, sums) with the pieces of x, which begins at element `first`, and the sums over `ranks` ranks from `rank` on of their
/// inputs. That of rank r is (i + r) mod 3 at element i: small whole numbers, whose sums over a hundred ranks are exact in 16 bits.
template <class F>
void for_each_piece(const Tensor& x, std::int64_t first, int rank, int ranks, const F& f) {
  const std::int64_t piece = std::min<std::int64_t>(3 << 18, x.numel());  // a multiple of the period, or all
  std::vector<float> values(static_cast<std::size_t>(piece));
  for (std::int64_t i = 0; i < piece; ++i)
    for (int r = rank; r < rank + ranks; ++r) values[static_cast<std::size_t>(i)] += static_cast<float>((first + i + r) % 3);
  const Tensor sums = cast(Tensor::from(values, {piece}, x.device()), x.dtype());
  for (std::int64_t i = 0; i < x.numel(); i += piece) {
    const std::int64_t end = std::min(i + piece, x.numel());
    f(slice(x, 0, i, end), slice(sums, 0, 0, end - i));
  }
}

void fill(const Tensor& x, int rank) {
  for_each_piece(x, 0, rank, 1, [](const Tensor& part, const Tensor& values) { copy_(part, values); });
}

/// The largest difference between x and these sums.
double deviation(const Tensor& x, std::int64_t first, int rank, int ranks) {
  double most = 0;
  for_each_piece(x, first, rank, ranks, [&](const Tensor& part, const Tensor& sums) {
    const auto here = static_cast<double>(max(abs(cast(part, DType::f32) - cast(sums, DType::f32))).item<float>());
    most = std::isnan(here) ? INFINITY : std::max(most, here);
  });
  return most;
}

/// The tensors of a case: the whole, and this rank's part if the collective has parts.
struct Buffers {
  Tensor whole, part;
};

void call(parallel::ProcessGroup& group, const CommCase& c, const Buffers& x) {
  if (c.op == "all_reduce") group.all_reduce(x.whole).wait();
  else if (c.op == "all_gather") group.all_gather(x.whole, x.part).wait();
  else if (c.op == "reduce_scatter") group.reduce_scatter(x.part, x.whole).wait();
  else group.broadcast(x.whole).wait();
}

/// The result of one call with known numbers.
double deviation(parallel::ProcessGroup& group, const CommCase& c, const Buffers& x) {
  const std::int64_t share = x.whole.numel() / group.size();
  fill(c.op == "all_gather" ? x.part : x.whole, group.rank());
  call(group, c, x);
  if (c.op == "all_reduce") return deviation(x.whole, 0, 0, group.size());
  if (c.op == "broadcast") return deviation(x.whole, 0, 0, 1);
  if (c.op == "reduce_scatter") return deviation(x.part, share * group.rank(), 0, group.size());
  double most = 0;
  for (int rank = 0; rank < group.size(); ++rank)
    most = std::max(most, deviation(slice(x.whole, 0, share * rank, share * (rank + 1)), 0, rank, 1));
  return most;
}

/// Measures a collective. To be called on all ranks with the same case. First checks the result; then takes at least three samples in about
/// `seconds`, each after a barrier, and on a GPU of several calls without waits. Throws std::runtime_error for a wrong result, OutOfMemory,
/// on the CPU also if the machine has too little for all ranks, and as the collectives do.
CommFigures measure_comm(parallel::ProcessGroup& group, const CommCase& c, double seconds) {
  const NoGrad unrecorded;
  const Device device = group.device();
  const auto elements = static_cast<std::int64_t>(c.bytes / static_cast<double>(size_of(c.dtype)));
  const std::int64_t share = std::max<std::int64_t>(elements / group.size(), 1);
  // The system overcommits the CPU's memory. The engine's copies take at most as much again.
  const double needed = 2.0 * static_cast<double>(share * group.size()) * static_cast<double>(size_of(c.dtype)) * launched().local_size;
  if (const auto there = static_cast<double>(backend::usable_memory()); device == cpu && there > 0 && needed > there)
    throw OutOfMemory(fmt::format("[comm] expected {:.3g} GB of memory for {} processes but this machine has {:.3g} GB", needed / 1e9,
                                  launched().local_size, there / 1e9));
  Buffers x{.whole = zeros({share * group.size()}, c.dtype, device)};
  if (c.op == "all_gather" || c.op == "reduce_scatter") x.part = zeros({share}, c.dtype, device);

  // All ranks continue, or none.
  const double wrong = largest(group, {deviation(group, c, x)})[0];
  if (wrong > 0)
    throw std::runtime_error(fmt::format("{} of {} bytes among {} ranks gave a wrong result, off by {}", c.op,
                                         x.whole.numel() * size_of(c.dtype), group.size(), wrong));
  zero_(x.whole);  // so that repeated sums stay finite
  if (x.part.defined()) zero_(x.part);

  // On a GPU enough calls to hide the wait at the end and different start times of the ranks.
  const bool on_gpu = device.type == DeviceType::cuda;
  int calls = on_gpu ? 10 : 1;
  const auto sample = [&] {
    synchronize(device);
    group.barrier();
    return burst(device, calls, [&] { call(group, c, x); });
  };
  const double once = largest(group, {sample()})[0];
  if (on_gpu) calls = static_cast<int>(std::clamp(5 / std::max(once, 1e-3), 5.0, 100.0));
  const int samples = static_cast<int>(std::clamp(seconds * 1e3 / std::max(once * calls, 1e-3), 3.0, 200.0));
  std::vector<double> ms;
  for (int i = 0; i < samples; ++i) ms.push_back(sample());

  CommFigures result{.call = statistics(largest(group, std::move(ms))), .calls = samples * calls};
  result.bytes = static_cast<double>(x.whole.numel()) * static_cast<double>(size_of(c.dtype));
  result.alg_gbs = result.bytes / result.call.median / 1e6;
  result.bus_gbs = result.alg_gbs * bus_factor(c.op, group.size());
  return result;
}

struct Options : apps::Processors {
  std::string ops = "all_reduce", sizes = "1,10,100,1000", dtypes = "fp32", ranks, buckets, json, csv, plot;
  double seconds = 2;
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
      : options_(options), device_(apps::use(options)), group_(parallel::make_process_group(device_, options.group)) {}
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
  if (const auto file = rows_for_starter()) {
    RowFile rows(launched().rank == 0 ? *file : "");
    CommBench(options).run(rows);
    return;
  }
  if (options.ranks.empty()) {
    if (launched().size < 2)
      throw apps::UsageError("expected several processes: tern-bench comm --ranks 2,4, or tern-launch -n 2 tern-bench comm");
    RowFile rows(launched().rank == 0 ? options.json : "");
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
    for (const Row& row : read_rows(file)) {
      rows.push_back(row);
      kept.add(row);
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
  add_list(*command, "--op", options->ops, {"all_reduce", "all_gather", "reduce_scatter", "broadcast"});
  add_value(*command, "--size-mb", options->sizes, "of the whole, in 1e6 bytes", list_of(apps::real_number(1e-6, 1e6)), "LIST");
  add_list(*command, "--dtype", options->dtypes, {"fp32", "bf16", "fp16", "fp64"});
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
  add_json_option(*command, options->json);
  command->add_option("--csv", options->csv, "write the table")->type_name("FILE.csv");
  command->add_option("--plot", options->plot, "draw bus bandwidth over size")->type_name("FILE.svg");
  apps::add_processor_options(*command, *options);
  command->callback([options] { comm(*options); });
}

}  // namespace tern::bench
