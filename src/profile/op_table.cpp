#include "profile/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "io/markdown.h"
#include "profile/profiler.h"

namespace tern::profile {

namespace {

/// The op and the pass that enclose a span.
struct SpanContext {
  bool is_counted = false;     ///< the span is within a step, or the profile has none; on other threads, it starts during a step
  std::uint32_t entry = none;  ///< the outermost op around the span, which has the row in the table; for such an op itself
  std::uint32_t pass = none;   ///< the span of the innermost pass; for a pass the enclosing one
};

/// The SpanContext of every span, by its index in Profile::spans.
class SpanTree {
 public:
  explicit SpanTree(const Profile& profile) : profile_(profile), contexts_(profile.spans.size()), is_known_(profile.spans.size()) {
    for (const Span& span : profile.spans)
      if (span.kind == Kind::step) steps_.push_back(&span);
    std::sort(steps_.begin(), steps_.end(), [](const Span* a, const Span* b) { return a->begin < b->begin; });
    for (std::uint32_t i = 0; i < profile.spans.size(); ++i) find(i);
  }
  const SpanContext& operator[](std::size_t span) const { return contexts_[span]; }

 private:
  bool begins_in_step(const Span& span) const {
    if (steps_.empty() || span.kind == Kind::step) return true;
    if (span.thread == steps_.front()->thread) return false;
    const auto next =
        std::upper_bound(steps_.begin(), steps_.end(), span.begin, [](auto time, const Span* step) { return time < step->begin; });
    return next != steps_.begin() && span.begin < next[-1]->end;
  }

  const SpanContext& find(std::uint32_t i) {
    if (is_known_[i]) return contexts_[i];
    is_known_[i] = true;
    const Span& span = profile_.spans[i];
    SpanContext result{begins_in_step(span), none, none};
    if (span.parent != none) {
      result = find(span.parent);
      const Kind kind = profile_.spans[span.parent].kind;
      if (kind == Kind::pass) result.pass = span.parent, result.entry = none;
    }
    if (span.kind == Kind::op) result.entry = i;
    return contexts_[i] = result;
  }

  const Profile& profile_;
  std::vector<const Span*> steps_;  ///< in order
  std::vector<SpanContext> contexts_;
  std::vector<bool> is_known_;
};

/// Ops that read all of their operands and write all of their results, once: their bytes are what memory moves at least.
constexpr std::string_view reading_and_writing_all =
    " add sub mul div neg abs exp log sqrt rsqrt reciprocal square tanh erf sigmoid relu gelu gelu_tanh silu pow "
    "where clamp cast clone cat dropout softmax sum mean max min cumsum linear matmul linear_gelu rope layer_norm "
    "rms_norm log_softmax logsumexp swiglu attention_softmax residual_layer_norm residual_rms_norm cross_entropy "
    "feed_forward_gelu scaled_dot_product_attention minimum maximum ";
constexpr std::string_view softmaxes = " softmax attention_softmax max sub exp sum div where ";

bool is_among(std::string_view ops, const std::string& op) { return ops.find(" " + op + " ") != ops.npos; }

bool is_product(const DeviceRecord& record) { return record.kind == DeviceRecord::Kind::kernel && detail::is_product_kernel(record.name); }

bool runs_on_gpu(const Profile& profile) { return !profile.device_records.empty(); }

}  // namespace

std::vector<OpRow> op_rows(const Profile& profile) {
  const SpanTree tree(profile);
  std::map<std::pair<std::uint32_t, std::uint32_t>, OpRow> rows;
  const auto row_of = [&](std::uint32_t op, std::uint32_t pass) -> OpRow& { return rows[{op, pass}]; };
  for (std::uint32_t i = 0; i < profile.spans.size(); ++i) {
    const Span& span = profile.spans[i];
    const SpanContext& at = tree[i];
    if (!at.is_counted) continue;
    if (span.kind == Kind::op) {
      OpRow& row = row_of(span.name, span.pass);
      ++row.calls;
      row.host_ns += span.duration();
      if (is_among(reading_and_writing_all, profile.name(span))) row.bytes += span.bytes;
    } else if (span.kind == Kind::kernel && at.entry != none) {
      const Span& entry = profile.spans[at.entry];
      OpRow& row = row_of(entry.name, entry.pass);
      row.has_kernel = true;
      row.flops += span.flops;
      if (span.is_product) row.product_ns += span.duration();
    } else if (span.kind == Kind::pass && span.parent != none && tree[span.parent].entry != none) {
      const Span& entry = profile.spans[tree[span.parent].entry];
      row_of(entry.name, entry.pass).host_ns -= span.duration();
    }
  }
  for (const DeviceRecord& record : profile.device_records) {
    OpRow& row = row_of(record.op, record.pass);
    row.has_kernel = true;
    row.device_ns += record.end - record.begin;
  }
  std::vector<OpRow> result;
  for (auto& [key, row] : rows) {
    row.op = key.first ? profile.names[key.first] : "(no op)";
    row.pass = profile.names[key.second];
    result.push_back(std::move(row));
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const OpRow& a, const OpRow& b) { return std::pair(a.device_ns, a.host_ns) > std::pair(b.device_ns, b.host_ns); });
  return result;
}

std::vector<PassRow> pass_rows(const Profile& profile) {
  const SpanTree tree(profile);
  std::vector<PassRow> rows;
  std::map<std::uint32_t, std::size_t> places;
  const auto row_of = [&](std::uint32_t pass) -> PassRow& {
    const auto [place, is_new] = places.try_emplace(pass, rows.size());
    if (is_new) rows.push_back({.pass = profile.names[pass]});
    return rows[place->second];
  };
  row_of(0).host_ns = profile.wall();
  const bool on_gpu = runs_on_gpu(profile);
  // The wall time is that of the thread with the steps. Other threads add their work, but not their waits.
  const auto steps = std::find_if(profile.spans.begin(), profile.spans.end(), [](const Span& span) { return span.kind == Kind::step; });
  const std::uint32_t first = steps == profile.spans.end() ? 0 : steps->thread;
  for (std::uint32_t i = 0; i < profile.spans.size(); ++i) {
    const Span& span = profile.spans[i];
    const SpanContext& at = tree[i];
    if (!at.is_counted) continue;
    if (span.kind == Kind::pass) {
      row_of(span.name).host_ns += span.duration();
      const bool is_in_time = at.pass != none || span.thread == first || (span.parent != none && tree[span.parent].entry != none);
      if (is_in_time) row_of(at.pass == none ? 0 : profile.spans[at.pass].name).host_ns -= span.duration();
      if (span.parent != none && tree[span.parent].entry != none)
        row_of(profile.spans[tree[span.parent].entry].pass).op_ns -= span.duration();
    } else if (span.kind == Kind::op) {
      row_of(span.pass).op_ns += span.duration();
      if (span.thread != first && at.pass == none) row_of(span.pass).host_ns += span.duration();
    } else if (span.kind == Kind::kernel && !on_gpu) {
      PassRow& row = row_of(span.pass);
      ++row.kernels;
      row.kernel_ns += span.duration();
      if (span.is_product) row.product_ns += span.duration();
    }
  }
  for (const DeviceRecord& record : profile.device_records) {
    PassRow& row = row_of(record.pass);
    ++row.kernels;
    row.kernel_ns += record.end - record.begin;
    if (is_product(record)) row.product_ns += record.end - record.begin;
  }
  std::rotate(rows.begin(), rows.begin() + 1, rows.end());  // work outside any pass comes last
  return rows;
}

std::vector<ThreadRow> thread_rows(const Profile& profile) {
  const SpanTree tree(profile);
  std::vector<ThreadRow> rows;
  for (const std::string& name : profile.threads) rows.push_back({.thread = name});
  for (std::uint32_t i = 0; i < profile.spans.size(); ++i) {
    const Span& span = profile.spans[i];
    if (!tree[i].is_counted || span.thread >= rows.size()) continue;
    ThreadRow& row = rows[span.thread];
    if (span.kind == Kind::op) ++row.ops, row.op_ns += span.duration();
    row.kernels += span.kind == Kind::kernel;
  }
  return rows;
}

AttentionTime attention_time(const Profile& profile, const std::string& pass) {
  AttentionTime result;
  const auto is_wanted = [&](std::uint32_t in_pass, std::uint32_t module) {
    return profile.names[in_pass] == pass && profile.modules[module].type == "MultiHeadAttention";
  };
  const auto add = [&](const std::string& op, bool product, std::int64_t ns) {
    if (op == "scaled_dot_product_attention") result.fused_ns += ns;
    else if (product) result.product_ns += ns;
    else if (is_among(softmaxes, op)) result.softmax_ns += ns;
    else result.other_ns += ns;
  };
  for (const DeviceRecord& record : profile.device_records)
    if (is_wanted(record.pass, record.module)) add(profile.names[record.op], is_product(record), record.end - record.begin);
  if (runs_on_gpu(profile)) return result;
  const SpanTree tree(profile);
  for (std::uint32_t i = 0; i < profile.spans.size(); ++i) {
    const Span& span = profile.spans[i];
    if (span.kind != Kind::kernel || !tree[i].is_counted || tree[i].entry == none || !is_wanted(span.pass, span.module)) continue;
    add(profile.name(profile.spans[tree[i].entry]), span.is_product, span.duration());
  }
  return result;
}

/// The length of the part of [begin, end) that no interval covers. The intervals are sorted and disjoint.
static std::int64_t uncovered(const std::vector<std::pair<std::int64_t, std::int64_t>>& intervals, std::int64_t begin, std::int64_t end) {
  std::int64_t result = end - begin;
  auto next = std::upper_bound(intervals.begin(), intervals.end(), begin, [](std::int64_t time, const auto& i) { return time < i.second; });
  for (; next != intervals.end() && next->first < end; ++next) result -= std::min(end, next->second) - std::max(begin, next->first);
  return result;
}

std::vector<CollectiveRow> collective_rows(const Profile& profile) {
  std::map<std::string, CollectiveRow> rows;
  const auto add = [&](const std::string& op, std::int64_t total, std::int64_t exposed, double bytes) {
    CollectiveRow& row = rows[op];
    row.op = op;
    ++row.calls;
    row.total_ns += total;
    row.exposed_ns += exposed;
    row.bytes += bytes;
  };
  for (const Collective& each : profile.collectives)
    add(profile.names[each.name], each.end - each.begin, std::min(each.waited, each.end - each.begin), each.bytes);

  const auto is_collective = [&](const DeviceRecord& record) {
    return record.name.starts_with("ncclDev") || record.name == copy_to_peer || profile.names[record.pass] == "communication";
  };
  // The times at which other work runs on the GPU.
  std::vector<std::pair<std::int64_t, std::int64_t>> others, merged;
  for (const DeviceRecord& record : profile.device_records)
    if (!is_collective(record)) others.emplace_back(record.begin, record.end);
  std::sort(others.begin(), others.end());
  for (const auto& interval : others)
    if (merged.empty() || merged.back().second < interval.first) merged.push_back(interval);
    else merged.back().second = std::max(merged.back().second, interval.second);
  for (const DeviceRecord& record : profile.device_records)
    if (is_collective(record)) add(record.name, record.end - record.begin, uncovered(merged, record.begin, record.end), record.bytes);

  std::vector<CollectiveRow> result;
  for (const auto& [op, row] : rows) result.push_back(row);
  std::stable_sort(result.begin(), result.end(), [](const CollectiveRow& a, const CollectiveRow& b) { return a.total_ns > b.total_ns; });
  return result;
}

namespace {

constexpr auto cell = io::markdown_cell;
using io::MarkdownTable;

double ms(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }
std::string ms_text(std::int64_t nanoseconds) { return fmt::format("{:.3f}", ms(nanoseconds)); }

std::string percent(double part, double whole) { return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-"; }
std::string percent(std::int64_t part, std::int64_t whole) { return percent(static_cast<double>(part), static_cast<double>(whole)); }

/// A number as text; "-" if it is not above 0, and so unknown.
std::string known(double value, const char* format = "{:.4g}") { return value > 0 ? fmt::format(fmt::runtime(format), value) : "-"; }

class Report {
 public:
  Report(const Profile& profile, const Roofline& roofline)
      : profile_(profile), tree_(profile), roofline_(roofline), on_gpu_(!profile.device_records.empty()), wall_(profile.wall()) {}

  std::string text() {
    const std::int64_t steps = std::max<std::int64_t>(profile_.steps(), 1);
    text_ = "# Where the time went\n\n";
    text_ += fmt::format("{} on {}: {:.3f} ms of wall time, {:.3f} ms a step. Times and calls are of all steps together.\n\n",
                         steps == 1 ? "One step" : fmt::format("{} steps", steps), to_string(profile_.device), ms(wall_),
                         ms(wall_) / static_cast<double>(steps));
    passes();
    threads();
    ops();
    collectives();
    kernels();
    attention();
    modules();
    return std::move(text_);
  }

 private:
  void passes() {
    PassRow sum{.pass = "sum"};
    std::vector<PassRow> rows = pass_rows(profile_);
    for (const PassRow& row : rows) {
      sum.host_ns += row.host_ns, sum.op_ns += row.op_ns, sum.kernel_ns += row.kernel_ns;
      sum.product_ns += row.product_ns, sum.kernels += row.kernels;
    }
    op_ns_ = sum.op_ns;
    busy_ = sum.host_ns;
    rows.push_back(sum);
    MarkdownTable table({"pass", "ms", "share", "in ops", "between ops", "kernels", "kernel ms", "GEMM share of kernels"});
    for (const PassRow& row : rows)
      if (row.host_ns != 0 || row.kernels > 0)
        table.add({row.pass.empty() ? "(no pass)" : cell(row.pass), ms_text(row.host_ns), percent(row.host_ns, busy_), ms_text(row.op_ns),
                   ms_text(row.host_ns - row.op_ns), fmt::to_string(row.kernels), ms_text(row.kernel_ns),
                   percent(row.product_ns, row.kernel_ns)});
    text_ += "## Passes\n\n" + table.text() + '\n';
  }

  void threads() {
    const std::vector<ThreadRow> rows = thread_rows(profile_);
    if (rows.size() < 2) return;
    text_ += "## Threads\n\nTimes above and below are of all threads together, so that they may exceed the wall time.\n\n";
    MarkdownTable table({"thread", "ops", "in ops ms", "of the wall time", on_gpu_ ? "launches" : "kernels"});
    for (const ThreadRow& row : rows)
      table.add({cell(row.thread), fmt::to_string(row.ops), ms_text(row.op_ns), percent(row.op_ns, wall_), fmt::to_string(row.kernels)});
    text_ += table.text() + '\n';
  }

  /// The achieved fraction of the roofline's rate.
  std::string of_roofline(double flops, double bytes, std::int64_t ns) const {
    double least = 0;
    if (flops > 0 && roofline_.flops > 0) least = flops / roofline_.flops;
    if (bytes > 0 && roofline_.bytes > 0) least = std::max(least, bytes / roofline_.bytes);
    return least > 0 && ns > 0 ? percent(least, static_cast<double>(ns) / 1e9) : "-";
  }

  void ops() {
    text_ += "## Ops\n\n";
    if (roofline_.flops > 0)
      text_ += fmt::format("Measured on this machine: {:.3g} TFLOP/s in a large product, {:.3g} GB/s in a large copy.\n\n",
                           roofline_.flops / 1e12, roofline_.bytes / 1e9);
    std::vector<std::string> columns = {"op", "pass", "calls", "CPU ms", "share", "GFLOP", "MB", "TFLOP/s", "GB/s", "of roofline"};
    if (on_gpu_) columns.insert(columns.begin() + gpu_column, "GPU ms");
    MarkdownTable table(columns);
    std::int64_t views = 0, rest = 0, count = 0, device = 0;
    const std::vector<OpRow> rows = op_rows(profile_);
    for (const OpRow& row : rows) device += row.device_ns;
    for (const OpRow& row : rows) {
      if (!row.has_kernel && row.host_ns < wall_ / 100) {
        views += row.calls;
        rest += row.host_ns;
        continue;
      }
      const std::int64_t ns = on_gpu_ ? row.device_ns : row.host_ns;
      if (++count > max_ops) {
        rest += row.host_ns;
        continue;
      }
      const double seconds = static_cast<double>(ns) / 1e9;
      std::vector<std::string> cells = {cell(row.op),
                                        row.pass.empty() ? "-" : cell(row.pass),
                                        fmt::to_string(row.calls),
                                        ms_text(row.host_ns),
                                        percent(ns, on_gpu_ ? device : busy_),
                                        known(row.flops / 1e9),
                                        known(row.bytes / 1e6),
                                        seconds > 0 ? known(row.flops / seconds / 1e12) : "-",
                                        seconds > 0 ? known(row.bytes / seconds / 1e9) : "-",
                                        of_roofline(row.flops, row.bytes, ns)};
      if (on_gpu_) cells.insert(cells.begin() + gpu_column, ms_text(row.device_ns));
      table.add(cells);
    }
    text_ += table.text();
    text_ += fmt::format(
        "\nFurther ops: {} calls without a kernel (views){}, {:.3f} ms together. All ops: {:.3f} ms, {} of the {} time; "
        "the rest, {:.3f} ms, lies between ops.\n\n",
        views, count > max_ops ? fmt::format(" and {} more rows", count - max_ops) : "", ms(rest), ms(op_ns_), percent(op_ns_, busy_),
        profile_.threads.size() > 1 ? "threads'" : "wall", ms(busy_ - op_ns_));
  }

  void collectives() {
    const std::vector<CollectiveRow> rows = collective_rows(profile_);
    if (rows.empty()) return;
    text_ += "## Communication\n\nHidden is what runs beside other work: beside the thread, or on a GPU beside other kernels.\n\n";
    MarkdownTable table({"collective", "calls", "ms", "exposed ms", "hidden", "MB"});
    CollectiveRow all{.op = "all"};
    const auto add = [&](const CollectiveRow& row) {
      table.add({cell(row.op), fmt::to_string(row.calls), ms_text(row.total_ns), ms_text(row.exposed_ns),
                 percent(row.total_ns - row.exposed_ns, row.total_ns), known(row.bytes / 1e6)});
    };
    for (const CollectiveRow& row : rows) {
      add(row);
      all.calls += row.calls, all.total_ns += row.total_ns, all.exposed_ns += row.exposed_ns, all.bytes += row.bytes;
    }
    if (rows.size() > 1) add(all);
    text_ += table.text() + '\n';
  }

  /// On the CPU, of the steps.
  template <class F>
  void for_each_kernel(F&& f) const {
    for (std::size_t i = 0; i < profile_.spans.size(); ++i)
      if (profile_.spans[i].kind == Kind::kernel && tree_[i].is_counted) f(profile_.spans[i]);
  }

  struct KernelRow {
    std::int64_t count = 0, ns = 0;
    bool is_product = false;
  };

  void kernels() {
    std::map<std::string, std::map<std::string, KernelRow>> by_pass;
    const auto add = [&](std::uint32_t pass, const std::string& name, bool is_product, std::int64_t ns) {
      KernelRow& row = by_pass[profile_.names[pass]][name];
      ++row.count;
      row.ns += ns;
      row.is_product = row.is_product || is_product;
    };
    for (const DeviceRecord& record : profile_.device_records)
      add(record.pass, record.name, record.kind == DeviceRecord::Kind::kernel && detail::is_product_kernel(record.name),
          record.end - record.begin);
    if (!on_gpu_)
      for_each_kernel([&](const Span& span) {
        add(span.pass, profile_.name(span) + (span.is_product ? " (GEMM)" : ""), span.is_product, span.duration());
      });
    text_ += "## Kernels by pass\n\n";
    text_ += on_gpu_ ? "" : "On the CPU a kernel has its op's name.\n\n";
    MarkdownTable table({"pass", "kernel", "calls", "ms", "share of the pass's kernels"});
    std::string tops;
    for (const auto& [pass, kernels] : by_pass) {
      std::vector<std::pair<std::string, KernelRow>> sorted(kernels.begin(), kernels.end());
      std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
      std::int64_t total = 0;
      for (const auto& [name, row] : sorted) total += row.ns;
      const std::string in_pass = pass.empty() ? "(no pass)" : pass;
      for (std::size_t i = 0; i < std::min<std::size_t>(sorted.size(), max_kernels); ++i) {
        const auto& [name, row] = sorted[i];
        table.add({cell(in_pass), cell(name), fmt::to_string(row.count), ms_text(row.ns), percent(row.ns, total)});
      }
      const auto other = std::find_if(sorted.begin(), sorted.end(), [](const auto& entry) { return !entry.second.is_product; });
      tops += fmt::format("- {}: most time in {} ({} calls); of those that are no GEMM, in {}\n", in_pass, sorted[0].first,
                          sorted[0].second.count,
                          other == sorted.end() ? "none" : fmt::format("{} ({} calls)", other->first, other->second.count));
    }
    text_ += table.text() + '\n' + tops + '\n';
  }

  void attention() {
    MarkdownTable table({"pass", "products ms", "softmax ms", "softmax / products", "fused ms", "dropout, copies ms"});
    bool is_empty = true;
    for (const char* pass : {"forward", "backward", "recompute", ""}) {
      const AttentionTime time = attention_time(profile_, pass);
      if (time.product_ns + time.softmax_ns + time.fused_ns + time.other_ns == 0) continue;
      is_empty = false;
      table.add({*pass ? pass : "(no pass)", ms_text(time.product_ns), ms_text(time.softmax_ns), percent(time.softmax_ns, time.product_ns),
                 ms_text(time.fused_ns), ms_text(time.other_ns)});
    }
    if (is_empty) return;
    text_ +=
        "## Inside attention\n\nKernels of attention modules without their projections. A fused kernel does products and softmax in "
        "one.\n\n";
    text_ += table.text() + '\n';
  }

  void modules() {
    // An op counts for its module and for all parents of that.
    std::map<std::string, std::map<std::string, std::int64_t>> by_path;
    std::map<std::string, std::string> types;
    const auto add = [&](std::uint32_t module, std::uint32_t pass, std::int64_t ns) {
      for (std::string path = profile_.modules[module].path; !path.empty();
           path = path.find('.') == std::string::npos ? "" : path.substr(0, path.rfind('.')))
        by_path[path][profile_.names[pass]] += ns;
    };
    for (const ModulePath& module : profile_.modules) types[module.path] = module.type;
    for (const DeviceRecord& record : profile_.device_records) add(record.module, record.pass, record.end - record.begin);
    if (!on_gpu_) for_each_kernel([&](const Span& span) { add(span.module, span.pass, span.duration()); });
    text_ += "## Modules\n\nKernel time of each module with those in it, in milliseconds.\n\n";
    MarkdownTable table({"module", "type", "forward", "backward", "recompute"});
    std::size_t count = 0;
    for (const auto& [path, passes] : by_path) {
      if (++count > max_modules) continue;
      const auto in = [&, &times = passes](const char* pass) {
        const auto found = times.find(pass);
        return found == times.end() ? std::string("-") : ms_text(found->second);
      };
      table.add({cell(path), types.count(path) ? cell(types[path]) : "-", in("forward"), in("backward"), in("recompute")});
    }
    text_ += table.text();
    if (count > max_modules) text_ += fmt::format("\n{} further modules are in the trace.\n", count - max_modules);
  }

  static constexpr std::int64_t max_ops = 60;
  static constexpr std::size_t max_kernels = 12, max_modules = 120;
  static constexpr std::ptrdiff_t gpu_column = 4;  ///< in the table of ops, after the CPU's time

  const Profile& profile_;
  const SpanTree tree_;
  const Roofline roofline_;
  const bool on_gpu_;
  const std::int64_t wall_;
  std::int64_t op_ns_ = 0;
  std::int64_t busy_ = 0;  ///< the wall time plus the time of other threads' work
  std::string text_;
};

}  // namespace

std::string op_table(const Profile& profile, const Roofline& roofline) { return Report(profile, roofline).text(); }

}  // namespace tern::profile
