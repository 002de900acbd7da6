#include "substitutions/terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tern::substitutions {

namespace {

bool broadcasts(std::int64_t a, std::int64_t b) { return a == b || a == 1 || b == 1; }

}  // namespace

const char* name(Op op) {
  constexpr const char* names[] = {"a",   "b",      "c",         "v",      "w",      "add",   "mul",   "max",   "sub",
                                   "div", "matmul", "concat",    "neg",    "exp",    "log",   "sqrt",  "rsqrt", "relu",
                                   "sum", "maxr",   "transpose", "split0", "split1", "scale", "widen", "narrow"};
  return names[static_cast<int>(op)];
}

std::optional<Type> type_of(Op op, const Type& x, const Type& y) {
  if (is_binary(op) && x.is_wide != y.is_wide) return std::nullopt;
  switch (op) {
    case Op::matmul: return x.columns == y.rows ? std::optional(Type{x.rows, y.columns, x.is_wide}) : std::nullopt;
    case Op::concat: return x == y ? std::optional(Type{x.rows, 2 * x.columns, x.is_wide}) : std::nullopt;
    case Op::sum:
    case Op::maxr: return Type{x.rows, 1, x.is_wide};
    case Op::transpose: return Type{x.columns, x.rows, x.is_wide};
    case Op::split0:
    case Op::split1: return x.columns % 2 == 0 ? std::optional(Type{x.rows, x.columns / 2, x.is_wide}) : std::nullopt;
    case Op::widen: return Type{x.rows, x.columns, true};
    case Op::narrow: return Type{x.rows, x.columns, false};
    default: break;
  }
  if (!is_binary(op)) return x;
  if (!broadcasts(x.rows, y.rows) || !broadcasts(x.columns, y.columns)) return std::nullopt;
  return Type{std::max(x.rows, y.rows), std::max(x.columns, y.columns), x.is_wide};
}

std::array<Type, input_count> square(std::int64_t n) { return {{{n, n}, {n, n}, {n, n}, {n, 1}, {1, n}}}; }

std::size_t Terms::Hash::operator()(const Node& node) const {
  std::uint64_t h = (std::uint64_t(node.x) << 32 | node.y) * 0x9E3779B97F4A7C15u;
  h = (h ^ (h >> 29) ^ static_cast<std::uint64_t>(node.op)) * 0xBF58476D1CE4E5B9u;
  return h ^ (h >> 32) ^ std::bit_cast<std::uint64_t>(node.number);
}

Terms::Terms() {
  for (int i = 0; i < input_count; ++i) add({static_cast<Op>(i)});
}

bool Terms::is_before(Id x, Id y) const {
  if (x == y) return false;
  const Node &a = nodes_[x], &b = nodes_[y];
  if (a.op != b.op) return a.op < b.op;
  if (a.x != b.x) return is_before(a.x, b.x);
  if (a.y != b.y) return is_before(a.y, b.y);
  return std::bit_cast<std::uint64_t>(a.number) < std::bit_cast<std::uint64_t>(b.number);
}
Node Terms::ordered(Node node) const {
  if (commutes(node.op) && is_before(node.y, node.x)) std::swap(node.x, node.y);
  return node;
}

Id Terms::add(Node node) {
  const auto [at, is_new] = ids_.try_emplace(ordered(node), static_cast<Id>(nodes_.size()));
  if (is_new) nodes_.push_back(at->first);
  return at->second;
}

std::optional<Id> Terms::find(Node node) const {
  const auto at = ids_.find(ordered(node));
  return at == ids_.end() ? std::nullopt : std::optional(at->second);
}

std::vector<Id> Terms::parts(Id id) const {
  std::vector<Id> all{id};
  const auto visit = [&](Id part) {
    if (std::find(all.begin(), all.end(), part) == all.end()) all.push_back(part);
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Node node = nodes_[all[i]];
    if (!is_input(node.op)) visit(node.x);
    if (is_binary(node.op)) visit(node.y);
  }
  std::sort(all.begin(), all.end());  // operands are older than what is made of them
  return all;
}

int Terms::ops(Id id) const {
  int count = 0;
  for (const Id part : parts(id)) count += !is_input(nodes_[part].op);
  return count;
}

unsigned Terms::inputs(Id id) const {
  unsigned bits = 0;
  for (const Id part : parts(id)) {
    if (part < input_count) bits |= 1u << part;
    if (std::isnan(nodes_[part].number)) bits |= 1u << input_count;
  }
  return bits;
}

std::optional<Type> Terms::type(Id id, const std::array<Type, input_count>& of_inputs) const {
  std::vector<std::pair<Id, Type>> types;
  const auto type = [&](Id part) {
    return std::find_if(types.begin(), types.end(), [&](const auto& known) { return known.first == part; })->second;
  };
  for (const Id part : parts(id)) {
    const Node& node = nodes_[part];
    const auto result =
        is_input(node.op) ? std::optional(of_inputs[part]) : type_of(node.op, type(node.x), is_binary(node.op) ? type(node.y) : Type{});
    if (!result) return std::nullopt;
    types.emplace_back(part, *result);
  }
  return types.back().second;
}

double Terms::cost(Id id) const {
  constexpr std::int64_t n = 64;
  double cost = 0;
  for (const Id part : parts(id)) {
    const Node& node = nodes_[part];
    if (is_input(node.op)) continue;
    const auto elements = [&](Id of) {
      const auto type = this->type(of, square(n));
      return type ? static_cast<double>(type->rows * type->columns) : double(n * n);
    };
    const double out = elements(part), in = elements(node.x);
    switch (node.op) {
      case Op::transpose:
      case Op::split0:
      case Op::split1: cost += 1; break;
      case Op::matmul: cost += in + elements(node.y) + out + in * out / n / 4; break;
      case Op::exp:
      case Op::log: cost += in + 4 * out; break;
      case Op::sqrt:
      case Op::rsqrt: cost += in + 2 * out; break;
      case Op::div: cost += in + elements(node.y) + 1.5 * out; break;
      default: cost += in + (is_binary(node.op) ? elements(node.y) : 0) + out;
    }
  }
  return cost;
}

std::string Terms::text(Id id) const {
  const Node& node = nodes_[id];
  if (is_input(node.op)) return name(node.op);
  std::string result = fmt::format("({}", name(node.op));
  if (node.op == Op::scale) result += std::isnan(node.number) ? " s" : fmt::format(" {}", node.number);
  result += " " + text(node.x);
  if (is_binary(node.op)) result += " " + text(node.y);
  return result + ")";
}

}  // namespace tern::substitutions
