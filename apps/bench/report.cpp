#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "bench/commands.h"
#include "bench/roofline.h"
#include "bench/timing.h"
#include "common/program.h"
#include "io/files.h"
#include "io/json_object.h"
#include "io/markdown.h"
#include "io/run_directory.h"

namespace tern::bench {
namespace {

using Row = io::JsonObject;
using Rows = std::vector<Row>;

bool failed(const Row& row) { return row.contains("error"); }

/// The cell of a value: text and integers unchanged, "" for a missing key.
std::string cell(const Row& row, const std::string& key) {
  if (!row.contains(key)) return "";
  try {
    return row.get_string(key);
  } catch (const io::FileError&) {
    return fmt::format("{:g}", row.get_double(key));
  }
}

/// A time with three significant digits.
std::string figure(double x) {
  if (x == 0 || !std::isfinite(x)) return fmt::format("{:g}", x);
  const int digits = std::max(0, 2 - static_cast<int>(std::floor(std::log10(std::abs(x)))));
  return fmt::format("{:.{}f}", x, digits);
}

std::string shape_of(const Row& row) { return fmt::format("({})", fmt::join(row.get_ints("shape"), ", ")); }

void print(const char* title, const io::MarkdownTable& table) { fmt::print("## {}\n\n{}\n", title, table.text()); }

/// The range of the added values, as text.
class Range {
 public:
  void add(double x) { low_ = std::min(low_, x), high_ = std::max(high_, x), ++count_; }
  bool empty() const { return count_ == 0; }
  std::string text() const { return count_ == 1 ? figure(low_) : fmt::format("{} to {}", figure(low_), figure(high_)); }

 private:
  double low_ = INFINITY, high_ = -INFINITY;
  int count_ = 0;
};

// The keys of a step's row that are not measurements.
const std::vector<std::string> step_keys = words(
    "model,arch,B,T,V,p,dtype,impl,pass,warmup,device,threads,"
    "ranks,gradient_sync,bucket_size_mb,reduce_dtype,shard_optimizer,shard");

std::string key_of(const Row& row, const std::vector<std::string>& keys, const std::string& without = "") {
  std::string result;
  for (const std::string& key : keys)
    if (key != without) result += cell(row, key) + "\n";
  return result;
}

std::string described(const Row& row) {
  return fmt::format("{} B {} T {} {} {} {}", cell(row, "model"), cell(row, "B"), cell(row, "T"), cell(row, "dtype"), cell(row, "impl"),
                     cell(row, "pass"));
}

std::string with_deviation(const Row& row, const std::string& part) {
  if (!row.contains(part + "_ms")) return "";
  if (!row.contains(part + "_mean_ms")) return figure(row.get_double(part + "_ms"));
  return fmt::format("{} ± {}", figure(row.get_double(part + "_mean_ms")), figure(row.get_double(part + "_deviation_ms")));
}

/// All steps with their parts, and the cases that ran out of memory.
void report_steps(const Rows& rows) {
  io::MarkdownTable table({"model", "T", "B", "mode", "kernels", "pass", "warm-up", "forward ms", "backward ms", "optimizer ms", "step ms",
                           "tokens/s", "peak GiB"});
  Range backward, deviation;
  for (const Row& row : rows) {
    std::vector<std::string> cells;
    for (const char* key : {"model", "T", "B", "dtype", "impl", "pass", "warmup"}) cells.push_back(cell(row, key));
    if (failed(row)) {
      for (int i = 0; i < 6; ++i) cells.push_back(i == 0 ? row.get_string("error") : "-");
      table.add(cells);
      continue;
    }
    for (const char* part : {"fwd", "backward", "optimizer", "step"}) cells.push_back(with_deviation(row, part));
    cells.push_back(cell(row, "tok_s"));
    cells.push_back(cell(row, "peak_gb"));
    table.add(cells);
    if (row.contains("backward_mean_ms")) backward.add(row.get_double("backward_mean_ms") / row.get_double("fwd_mean_ms"));
    if (row.contains("step_mean_ms")) deviation.add(100 * row.get_double("step_deviation_ms") / row.get_double("step_mean_ms"));
  }
  print("Steps: mean and standard deviation", table);
  if (!backward.empty()) fmt::print("The backward pass takes {} times the forward pass.\n", backward.text());
  if (!deviation.empty()) fmt::print("A step's standard deviation is {}% of its mean.\n", deviation.text());
  fmt::print("\n");
}

/// A table of the effect of one key of a step's row: each row is compared with the row of its group whose value comes first in `order`.
void report_change(const Rows& rows, const char* title, const std::string& key, const std::vector<std::string>& order) {
  const auto rank = [&](const Row& row) {
    return static_cast<std::size_t>(std::find(order.begin(), order.end(), cell(row, key)) - order.begin());
  };
  std::map<std::string, std::vector<const Row*>> groups;
  for (const Row& row : rows)
    if (rank(row) < order.size()) groups[key_of(row, step_keys, key)].push_back(&row);
  io::MarkdownTable table({"case", key, "beside", "forward", "backward", "step", "peak memory"});
  bool any = false;
  for (auto& [name, group] : groups) {
    std::stable_sort(group.begin(), group.end(), [&](const Row* a, const Row* b) { return rank(*a) < rank(*b); });
    const Row& base = *group.front();
    for (const Row* row : group) {
      if (cell(*row, key) == cell(base, key)) continue;
      any = true;
      std::vector<std::string> cells = {described(*row), cell(*row, key), cell(base, key)};
      for (const char* figure_key : {"fwd_ms", "backward_ms", "step_ms", "peak_gb"}) {
        if (failed(*row) || failed(base)) cells.push_back(failed(*row) ? "out of memory" : "fits now");
        else if (!row->contains(figure_key) || !base.contains(figure_key)) cells.push_back("");
        else cells.push_back(figure(row->get_double(figure_key) / base.get_double(figure_key)) + "x");
      }
      table.add(cells);
    }
  }
  if (any) print(title, table);
}

/// Splits each row's "impl" by `split` into the rest and the value of a mark, and sets "impl" and `key` to these.
Rows split_impl(Rows rows, const std::string& key, const std::function<std::pair<std::string, std::string>(std::string)>& split) {
  for (Row& row : rows) {
    const auto [rest, value] = split(cell(row, "impl"));
    row.set("impl", rest).set(key, value);
  }
  return rows;
}

void report_changes(const Rows& rows) {
  report_change(rows, "Precision: times and memory beside float32's", "dtype",
                {"fp32", "tf32x3", "tf32", "autocast-bf16", "autocast-fp16", "bf16", "fp16"});
  const auto without_kernels = [](std::string impl) {
    const bool is_fused = impl.starts_with("tern-fused");
    return std::pair(is_fused || impl.starts_with("tern-plain") ? "tern" + impl.substr(10) : impl,
                     std::string(is_fused                         ? "fused"
                                 : impl.starts_with("tern-plain") ? "plain"
                                                                  : ""));
  };
  Rows kernels = split_impl(rows, "kernels", without_kernels);
  report_change(kernels, "Fused kernels: times and memory beside plain ones'", "kernels", {"plain", "fused"});
  const auto without_policy = [](std::string impl) {
    for (const char* policy : {"selective", "full"}) {
      const std::string mark = fmt::format("-{}-checkpointing", policy);
      if (impl.ends_with(mark)) return std::pair(impl.substr(0, impl.size() - mark.size()), std::string(policy));
    }
    return std::pair(impl, std::string("none"));
  };
  report_change(split_impl(rows, "policy", without_policy), "Activation checkpointing: times and memory beside none's", "policy",
                {"none", "selective", "full"});
  report_change(rows, "Warm-up: times beside those without", "warmup", {"0", "1", "2", "3", "5", "10"});
}

/// Attention: times, and the memory before the backward pass.
void report_attention(const Rows& rows) {
  if (rows.empty()) return;
  struct Case {
    const Row* forward = nullptr;
    const Row* backward = nullptr;
    const Row* both = nullptr;
  };
  std::vector<std::string> order;
  std::map<std::string, Case> cases;
  for (const Row& row : rows) {
    const std::string key = shape_of(row) + "\n" + key_of(row, {"mask", "dtype", "impl", "device", "threads", "precision"});
    if (!cases.contains(key)) order.push_back(key);
    Case& c = cases[key];
    const std::string op = row.get_string("op");
    (op == "attention_fwd" ? c.forward : op == "attention_bwd" ? c.backward : c.both) = &row;
  }
  io::MarkdownTable table(
      {"(B, H, N, d)", "mask", "dtype", "kernels", "forward ms", "backward ms", "both ms", "MiB before backward", "peak MiB"});
  for (const std::string& key : order) {
    const Case& c = cases[key];
    const Row& any = c.both ? *c.both : c.forward ? *c.forward : *c.backward;
    std::vector<std::string> cells = {shape_of(any), cell(any, "mask"), cell(any, "dtype"), cell(any, "impl")};
    for (const Row* row : {c.forward, c.backward, c.both})
      cells.push_back(!row ? failed(any) ? "-" : "" : failed(*row) ? row->get_string("error") : figure(row->get_double("ms")));
    for (const char* memory : {"kept_mib", "peak_mib"}) cells.push_back(any.contains(memory) ? figure(any.get_double(memory)) : "-");
    table.add(cells);
  }
  print("Attention", table);
}

/// Ops: the average speed-up of fused over plain kernels over all shapes.
void report_ops(const Rows& rows) {
  std::map<std::string, std::map<std::string, std::pair<double, double>>> ops;  // plain and fused ms by shape
  for (const Row& row : rows) {
    const std::string impl = row.get_string("impl");
    if (impl != "tern-plain" && impl != "tern-fused") continue;
    const std::string op = fmt::format("{} | {} | {}", row.get_string("op"), cell(row, "dtype"), cell(row, "device"));
    auto& [plain, fused] = ops[op][shape_of(row)];
    (impl == "tern-plain" ? plain : fused) = row.get_double("ms");
  }
  io::MarkdownTable table({"op", "dtype", "device", "shapes", "speed-up on average", "least and most"});
  bool any = false;
  for (const auto& [op, shapes] : ops) {
    Range range;
    double sum = 0;
    int count = 0;
    for (const auto& [shape, ms] : shapes)
      if (ms.first > 0 && ms.second > 0) range.add(ms.first / ms.second), sum += ms.first / ms.second, ++count;
    if (count > 0) table.add({op, fmt::format("{}", count), figure(sum / count) + "x", range.text()}), any = true;
  }
  if (any) print("Fused kernels beside plain ones", table);
}

void report(const std::vector<std::string>& files, const std::string& picture) {
  Rows steps, attention, ops, rows;
  for (const std::string& file : files)
    for (Row& row : read_rows(file)) rows.push_back(std::move(row));
  if (!picture.empty()) io::write_file_atomically(picture, io::svg::to_svg(roofline(rows)));
  for (Row& row : rows) {
    const std::string op = row.contains("op") ? row.get_string("op") : "";
    if (row.contains("model") && (row.contains("burst_ms") || failed(row))) steps.push_back(std::move(row));
    else if (op.starts_with("attention_fwd") || op.starts_with("attention_bwd")) attention.push_back(std::move(row));
    else if (!op.empty()) ops.push_back(std::move(row));
  }
  if (steps.empty() && attention.empty() && ops.empty())
    throw apps::UsageError(
        fmt::format("{}: expected rows of tern-bench step, attention or ops, which --json writes", fmt::join(files, ", ")));
  if (!steps.empty()) report_steps(steps), report_changes(steps);
  report_attention(attention);
  report_ops(ops);
}

}  // namespace

void add_report(CLI::App& app) {
  auto* command = app.add_subcommand("report", "tables of what step, attention and ops wrote by --json, as Markdown");
  const auto files = std::make_shared<std::vector<std::string>>();
  const auto picture = std::make_shared<std::string>();
  command->add_option("ROWS", *files, "files of rows, one JSON object a line")->required()->type_name("FILE");
  command->add_option("--roofline", *picture, "draw conv1d's forward passes, and peers', under the roofs that it measured")
      ->type_name("FILE.svg");
  command->callback([files, picture] { report(*files, *picture); });
}

}  // namespace tern::bench
