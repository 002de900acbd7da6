#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <unordered_map>

#include "nn/module.h"

// Pictures of a module in text: the table of its tensors, and its tree.
namespace tern::nn {

namespace {

struct ReadRows final : Visitor {
  void on_module(const std::string& path, Module& module) override { owners.emplace_back(path, module.type_name()); }
  void on_parameter(const std::string& path, Tensor& x) override { add(path, x, false); }
  void on_buffer(const std::string& path, Tensor& x) override { add(path, x, true); }

  void add(const std::string& path, const Tensor& x, bool is_buffer) {
    SummaryRow row{.path = path, .kind = owner(path), .shape = x.shape(), .dtype = x.dtype(), .count = x.numel()};
    row.bytes = row.count * static_cast<std::int64_t>(size_of(x.dtype()));
    row.is_buffer = is_buffer;
    row.is_trained = !is_buffer && x.requires_grad();
    const auto [first, is_new] = seen.emplace(x.ref().get(), path);
    if (!is_new) row.shared_with = first->second;
    else {
      (is_buffer ? result.buffers : result.parameters) += row.count;
      (is_buffer ? result.buffer_bytes : result.parameter_bytes) += row.bytes;
      if (row.is_trained) result.trained += row.count;
    }
    result.rows.push_back(std::move(row));
  }

  /// The innermost module on the path.
  std::string owner(const std::string& path) const {
    for (auto it = owners.rbegin(); it != owners.rend(); ++it)
      if (it->first.empty() || path.starts_with(it->first + ".")) return it->second;
    return "";
  }

  std::vector<std::pair<std::string, std::string>> owners;
  std::unordered_map<const TensorImpl*, std::string> seen;
  Summary result;
};

/// Formats 1234567 as 1,234,567.
std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (std::ptrdiff_t i = std::ssize(digits) - 3; i > 0; i -= 3) digits.insert(static_cast<std::size_t>(i), ",");
  return digits;
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double size = static_cast<double>(bytes) / 1024;
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < std::size(units); ++unit) size /= 1024;
  return fmt::format("{:.1f} {}", size, units[unit]);
}

}  // namespace

Summary summary(const Module& module) {
  parameters(module);  // for its checks
  ReadRows rows;
  rows.walk(const_cast<Module&>(module));  // only reads
  return std::move(rows.result);
}

std::string to_string(const Summary& summary) {
  using Line = std::array<std::string, 7>;
  std::vector<Line> lines = {{"path", "kind", "shape", "dtype", "count", "bytes", "state"}};
  for (const SummaryRow& row : summary.rows) {
    const char* const state = row.is_buffer ? "buffer" : row.is_trained ? "trained" : "frozen";
    lines.push_back({row.path, row.kind, to_string(row.shape), name(row.dtype), grouped(row.count), bytes_text(row.bytes),
                     row.shared_with.empty() ? state : std::string(state) + ", shared with " + row.shared_with});
  }
  std::array<std::size_t, 7> widths{};
  for (const Line& line : lines)
    for (std::size_t i = 0; i + 1 < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string out;
  for (const Line& line : lines)
    out += fmt::format("{:<{}}  {:<{}}  {:<{}}  {:<{}}  {:>{}}  {:>{}}  {}\n", line[0], widths[0], line[1], widths[1], line[2], widths[2],
                       line[3], widths[3], line[4], widths[4], line[5], widths[5], line[6]);
  out += fmt::format("{} parameters, {} trained, {} frozen: {}\n", grouped(summary.parameters), grouped(summary.trained),
                     grouped(summary.parameters - summary.trained), bytes_text(summary.parameter_bytes));
  if (summary.buffers > 0) out += fmt::format("{} numbers in buffers: {}\n", grouped(summary.buffers), bytes_text(summary.buffer_bytes));
  return out;
}

std::ostream& operator<<(std::ostream& out, const Summary& summary) { return out << to_string(summary); }

namespace {

// The tree of a module, as visit walks it, after torch.nn.Module's repr.

struct Branch {
  std::string path, label, head;  ///< `blocks.0`, that without the parent's path, and `Linear(in=8, out=4`
  std::vector<Branch> children;
};

/// visit walks modules in the order of the tree, so a module's parent is the latest one whose path is a prefix of its own.
struct ReadTree final : Visitor {
  void on_module(const std::string& path, Module& module) override {
    Branch branch{path, path, module.type_name() + "(" + module.settings(), {}};
    if (path.empty()) {
      root = std::move(branch);
      return;
    }
    Branch* parent = &root;
    while (!parent->children.empty() && path.starts_with(parent->children.back().path + ".")) parent = &parent->children.back();
    if (!parent->path.empty()) branch.label = path.substr(parent->path.size() + 1);
    parent->children.push_back(std::move(branch));
  }
  Branch root;
};

std::string text(const Branch& branch, const std::string& indent);

/// Merges `blocks.0` and `blocks.3` to `blocks.0-3`.
std::string range(const std::string& first, const std::string& last) {
  const std::size_t dot = last.rfind('.');
  return first + "-" + (dot == std::string::npos ? last : last.substr(dot + 1));
}

/// The label without its trailing digits, which modules of one list have in common. Empty if there are no digits.
std::string list_of(const std::string& label) {
  const std::size_t end = label.find_last_not_of("0123456789");
  if (end == std::string::npos) return ".";
  return label[end] == '.' && end + 1 < label.size() ? label.substr(0, end + 1) : "";
}

std::string children_text(const std::vector<Branch>& children, const std::string& indent) {
  std::string out;
  for (std::size_t i = 0; i < children.size();) {
    const std::string shown = text(children[i], indent), list = list_of(children[i].label);
    std::size_t end = i + 1;
    while (end < children.size() && !list.empty() && list_of(children[end].label) == list && text(children[end], indent) == shown) ++end;
    const std::size_t count = end - i;
    out += indent + "(" + (count == 1 ? children[i].label : range(children[i].label, children[end - 1].label)) + "): ";
    out += (count == 1 ? "" : std::to_string(count) + " x ") + shown + "\n";
    i = end;
  }
  return out;
}

std::string text(const Branch& branch, const std::string& indent) {
  if (branch.children.empty()) return branch.head + ")";
  return branch.head + "\n" + children_text(branch.children, indent + "  ") + indent + ")";
}

}  // namespace

std::string to_string(const Module& module) {
  ReadTree tree;
  tree.walk(const_cast<Module&>(module));  // only reads
  return text(tree.root, "");
}

std::ostream& operator<<(std::ostream& out, const Module& module) { return out << to_string(module); }

}  // namespace tern::nn
