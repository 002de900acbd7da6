#include "profile/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "profile/kernel_name.h"
#include "profile/span_tree.h"

namespace tern::profile {

namespace {

/// Ops that read all of their operands and write all of their results, once: their bytes are what memory moves at least.
bool reads_and_writes_all(std::string_view op) {
  static const std::set<std::string_view> known = {"add",
                                                   "sub",
                                                   "mul",
                                                   "div",
                                                   "neg",
                                                   "abs",
                                                   "exp",
                                                   "log",
                                                   "sqrt",
                                                   "rsqrt",
                                                   "reciprocal",
                                                   "square",
                                                   "tanh",
                                                   "erf",
                                                   "sigmoid",
                                                   "relu",
                                                   "gelu",
                                                   "gelu_tanh",
                                                   "silu",
                                                   "pow",
                                                   "where",
                                                   "clamp",
                                                   "cast",
                                                   "clone",
                                                   "cat",
                                                   "dropout",
                                                   "softmax",
                                                   "sum",
                                                   "mean",
                                                   "max",
                                                   "min",
                                                   "cumsum",
                                                   "linear",
                                                   "matmul",
                                                   "linear_gelu",
                                                   "rope",
                                                   "layer_norm",
                                                   "rms_norm",
                                                   "log_softmax",
                                                   "logsumexp",
                                                   "swiglu",
                                                   "attention_softmax",
                                                   "residual_layer_norm",
                                                   "residual_rms_norm",
                                                   "cross_entropy",
                                                   "feed_forward_gelu",
                                                   "scaled_dot_product_attention",
                                                   "minimum",
                                                   "maximum"};
  return known.count(op) > 0;
}

bool is_softmax(std::string_view op) {
  static const std::set<std::string_view> known = {"softmax", "attention_softmax", "max", "sub", "exp", "sum", "div", "where"};
  return known.count(op) > 0;
}

bool is_fused_attention(std::string_view op) { return op == "scaled_dot_product_attention"; }

bool is_product(const DeviceRecord& record) { return record.kind == DeviceRecord::Kind::kernel && is_product_kernel(record.name); }

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
      if (reads_and_writes_all(profile.name(span))) row.bytes += span.bytes;
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
    if (is_fused_attention(op)) result.fused_ns += ns;
    else if (product) result.product_ns += ns;
    else if (is_softmax(op)) result.softmax_ns += ns;
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

}  // namespace tern::profile
