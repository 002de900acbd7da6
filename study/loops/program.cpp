#include "program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "backend/error.h"

namespace study::loops {

namespace {

/// Programs are written down with these.
struct Writer {
  Program program;

  int tensor(const char* name, Tensor::Kind kind, std::vector<std::string> axes, const std::vector<std::int64_t>& shape) {
    program.tensors.push_back({name, kind, std::move(axes), shape, row_major(shape)});
    return static_cast<int>(program.tensors.size()) - 1;
  }
  /// A loop that is the only thing in the one before it.
  static Node nest(std::vector<int> loops, std::vector<Node> body) {
    for (; !loops.empty(); loops.pop_back()) {
      Node loop{.kind = Node::Kind::loop, .loop = loops.back(), .body = std::move(body)};
      body = {std::move(loop)};
    }
    return std::move(body[0]);
  }
  int loop(const char* name, std::int64_t extent) {
    program.loops.push_back({name, extent});
    return static_cast<int>(program.loops.size()) - 1;
  }
  Access at(int tensor, const std::vector<int>& loops) const {
    Access access{tensor, {}};
    for (const int l : loops) access.at.push_back(whole(program, l));
    return access;
  }
  Term read(int tensor, const std::vector<int>& loops) const { return {Op::read, 0, at(tensor, loops)}; }
  static Term number(double x) { return {Op::number, x}; }
  Node write(Access to, Write write, Term value, const std::vector<int>& over = {}) const {
    Statement s{std::move(to), write, std::move(value)};
    for (const int l : over) s.reduced.push_back({whole(program, l), program.loops[static_cast<std::size_t>(l)].extent});
    return {.kind = Node::Kind::statement, .statement = std::move(s)};
  }
};

Term operator*(Term a, Term b) { return {Op::multiply, 0, {}, {std::move(a), std::move(b)}}; }
Term operator+(Term a, Term b) { return {Op::add, 0, {}, {std::move(a), std::move(b)}}; }
Term operator-(Term a, Term b) { return {Op::subtract, 0, {}, {std::move(a), std::move(b)}}; }
Term operator/(Term a, Term b) { return {Op::divide, 0, {}, {std::move(a), std::move(b)}}; }
Term call(Op op, Term x) { return {op, 0, {}, {std::move(x)}}; }

Program matmul(std::int64_t m, std::int64_t n, std::int64_t depth) {
  Writer w;
  const int a = w.tensor("a", Tensor::Kind::input, {"i", "k"}, {m, depth}), b = w.tensor("b", Tensor::Kind::input, {"k", "j"}, {depth, n}),
            c = w.tensor("c", Tensor::Kind::output, {"i", "j"}, {m, n});
  const int i0 = w.loop("i", m), j0 = w.loop("j", n), i = w.loop("i", m), j = w.loop("j", n), k = w.loop("k", depth);
  w.program.body = {w.nest({i0, j0}, {w.write(w.at(c, {i0, j0}), Write::assign, w.number(0))}),
                    w.nest({i, j, k}, {w.write(w.at(c, {i, j}), Write::add, w.read(a, {i, k}) * w.read(b, {k, j}), {k})})};
  w.program.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(depth);
  return w.program;
}

Program softmax(std::int64_t rows, std::int64_t columns) {
  Writer w;
  const int x = w.tensor("x", Tensor::Kind::input, {"r", "c"}, {rows, columns}),
            y = w.tensor("y", Tensor::Kind::output, {"r", "c"}, {rows, columns}), m = w.tensor("m", Tensor::Kind::registers, {}, {}),
            e = w.tensor("e", Tensor::Kind::registers, {"c"}, {columns}), s = w.tensor("s", Tensor::Kind::registers, {}, {});
  const int r = w.loop("r", rows), c0 = w.loop("c", columns), c1 = w.loop("c", columns), c2 = w.loop("c", columns),
            c3 = w.loop("c", columns);
  w.program.body = {w.nest(
      {r}, {w.write(w.at(m, {}), Write::assign, w.number(identity(Write::max))),
            w.nest({c0}, {w.write(w.at(m, {}), Write::max, w.read(x, {r, c0}), {c0})}),
            w.nest({c1}, {w.write(w.at(e, {c1}), Write::assign, call(Op::exp, w.read(x, {r, c1}) - w.read(m, {})))}),
            w.write(w.at(s, {}), Write::assign, w.number(0)), w.nest({c2}, {w.write(w.at(s, {}), Write::add, w.read(e, {c2}), {c2})}),
            w.nest({c3}, {w.write(w.at(y, {r, c3}), Write::assign, w.read(e, {c3}) / w.read(s, {}))})})};
  return w.program;
}

Program rms_norm(std::int64_t rows, std::int64_t columns) {
  Writer w;
  const int x = w.tensor("x", Tensor::Kind::input, {"r", "c"}, {rows, columns}), g = w.tensor("g", Tensor::Kind::input, {"c"}, {columns}),
            y = w.tensor("y", Tensor::Kind::output, {"r", "c"}, {rows, columns}), s = w.tensor("s", Tensor::Kind::registers, {}, {});
  const int r = w.loop("r", rows), c0 = w.loop("c", columns), c1 = w.loop("c", columns);
  const Term scale = call(Op::rsqrt, w.read(s, {}) * w.number(1.0 / static_cast<double>(columns)) + w.number(1e-5));
  w.program.body = {w.nest({r}, {w.write(w.at(s, {}), Write::assign, w.number(0)),
                                 w.nest({c0}, {w.write(w.at(s, {}), Write::add, w.read(x, {r, c0}) * w.read(x, {r, c0}), {c0})}),
                                 w.nest({c1}, {w.write(w.at(y, {r, c1}), Write::assign, w.read(x, {r, c1}) * scale * w.read(g, {c1}))})})};
  return w.program;
}

/// GELU by tanh: Hendrycks & Gimpel, "Gaussian error linear units", 2016.
Program gelu(std::int64_t count) {
  Writer w;
  const int x = w.tensor("x", Tensor::Kind::input, {"i"}, {count}), y = w.tensor("y", Tensor::Kind::output, {"i"}, {count});
  const int i = w.loop("i", count);
  const Term v = w.read(x, {i});
  const Term inner = w.number(0.7978845608028654) * (v + w.number(0.044715) * v * v * v);
  w.program.body = {w.nest({i}, {w.write(w.at(y, {i}), Write::assign, w.number(0.5) * v * (w.number(1) + call(Op::tanh, inner)))})};
  return w.program;
}

/// Ba, Kiros & Hinton, "Layer normalization", 2016.
Program layer_norm(std::int64_t rows, std::int64_t columns) {
  Writer w;
  const int x = w.tensor("x", Tensor::Kind::input, {"r", "c"}, {rows, columns}), g = w.tensor("g", Tensor::Kind::input, {"c"}, {columns}),
            b = w.tensor("b", Tensor::Kind::input, {"c"}, {columns}), y = w.tensor("y", Tensor::Kind::output, {"r", "c"}, {rows, columns}),
            s = w.tensor("s", Tensor::Kind::registers, {}, {}), q = w.tensor("q", Tensor::Kind::registers, {}, {});
  const int r = w.loop("r", rows), c0 = w.loop("c", columns), c1 = w.loop("c", columns), c2 = w.loop("c", columns);
  const Term share = w.number(1.0 / static_cast<double>(columns));
  const auto centred = [&](int c) { return w.read(x, {r, c}) - w.read(s, {}) * share; };
  const Term scale = call(Op::rsqrt, w.read(q, {}) * share + w.number(1e-5));
  w.program.body = {w.nest(
      {r},
      {w.write(w.at(s, {}), Write::assign, w.number(0)), w.nest({c0}, {w.write(w.at(s, {}), Write::add, w.read(x, {r, c0}), {c0})}),
       w.write(w.at(q, {}), Write::assign, w.number(0)), w.nest({c1}, {w.write(w.at(q, {}), Write::add, centred(c1) * centred(c1), {c1})}),
       w.nest({c2}, {w.write(w.at(y, {r, c2}), Write::assign, centred(c2) * scale * w.read(g, {c2}) + w.read(b, {c2}))})})};
  return w.program;
}

Program column_sum(std::int64_t rows, std::int64_t columns) {
  Writer w;
  const int x = w.tensor("x", Tensor::Kind::input, {"r", "c"}, {rows, columns}), y = w.tensor("y", Tensor::Kind::output, {"c"}, {columns});
  const int c0 = w.loop("c", columns), c = w.loop("c", columns), r = w.loop("r", rows);
  w.program.body = {w.nest({c0}, {w.write(w.at(y, {c0}), Write::assign, w.number(0))}),
                    w.nest({c, r}, {w.write(w.at(y, {c}), Write::add, w.read(x, {r, c}), {r})})};
  return w.program;
}

Program transpose(std::int64_t rows, std::int64_t columns) {
  Writer w;
  const int x = w.tensor("x", Tensor::Kind::input, {"r", "c"}, {rows, columns}),
            y = w.tensor("y", Tensor::Kind::output, {"c", "r"}, {columns, rows});
  const int r = w.loop("r", rows), c = w.loop("c", columns);
  w.program.body = {w.nest({r, c}, {w.write(w.at(y, {c, r}), Write::assign, w.read(x, {r, c}))})};
  return w.program;
}

struct Kernel {
  std::string axes;
  std::vector<std::int64_t> usual;
  std::vector<std::vector<std::int64_t>> odd, several;
  Program (*make)(const std::vector<std::int64_t>&);
};
const std::map<std::string, Kernel>& kernels() {
  using Sizes = std::vector<std::int64_t>;
  static const std::vector<Sizes> odd_rows = {{1, 1}, {3, 7}, {5, 130}, {8, 256}},
                                  rows = {{64, 96}, {48, 1000}, {1024, 128}, {300, 513}, {512, 1024}, {40, 20000}};
  static const std::map<std::string, Kernel> all = {
      {"matmul",
       {"M, N, K",
        {1024, 1024, 1024},
        {{1, 1, 1}, {1, 5, 3}, {33, 65, 17}, {64, 32, 48}},
        {{64, 64, 256}, {128, 128, 128}, {64, 192, 512}, {256, 256, 256}, {512, 64, 256}, {96, 512, 128}},
        [](const Sizes& s) { return matmul(s[0], s[1], s[2]); }}},
      {"softmax", {"R, C", {8192, 1024}, odd_rows, rows, [](const Sizes& s) { return softmax(s[0], s[1]); }}},
      {"rms_norm", {"R, C", {8192, 1024}, odd_rows, rows, [](const Sizes& s) { return rms_norm(s[0], s[1]); }}},
      {"layer_norm", {"R, C", {8192, 1024}, odd_rows, rows, [](const Sizes& s) { return layer_norm(s[0], s[1]); }}},
      {"column_sum", {"R, C", {8192, 1024}, odd_rows, rows, [](const Sizes& s) { return column_sum(s[0], s[1]); }}},
      {"transpose", {"R, C", {8192, 1024}, odd_rows, rows, [](const Sizes& s) { return transpose(s[0], s[1]); }}},
      {"gelu", {"N", {1 << 23}, {{1}, {31}, {1025}, {2048}}, {{4096}, {10000}, {32768}, {131072}, {300001}, {1 << 20}}, [](const Sizes& s) {
                  return gelu(s[0]);
                }}}};
  return all;
}
const Kernel& find(const std::string& name) {
  const auto found = kernels().find(name);
  if (found == kernels().end())
    tern::fail("loops", fmt::format("expected a kernel of {} but got '{}'", fmt::join(kernel_names(), ", "), name));
  return found->second;
}

/// A term's text; `tight`: as an operand of a product.
std::string text_of(const Program& p, const Term& t, bool tight = false) {
  const auto operand = [&](std::size_t i, bool is_tight) { return text_of(p, t.of[i], is_tight); };
  std::string text;
  switch (t.op) {
    case Op::number: return t.number == -std::numeric_limits<double>::infinity() ? "-inf" : fmt::format("{:.6g}", t.number);
    case Op::read: return to_text(p, t.read);
    case Op::exp: return "exp(" + operand(0, false) + ")";
    case Op::tanh: return "tanh(" + operand(0, false) + ")";
    case Op::rsqrt: return "rsqrt(" + operand(0, false) + ")";
    case Op::multiply: return operand(0, true) + " * " + operand(1, true);
    case Op::divide: return operand(0, true) + " / " + operand(1, true);
    case Op::add: text = operand(0, false) + " + " + operand(1, false); break;
    case Op::subtract: text = operand(0, false) + " - " + operand(1, true); break;
  }
  return tight ? "(" + text + ")" : text;
}

std::string text_of(const Program& p, const Statement& s) {
  std::string text;
  const auto bounds = [&](const std::vector<Bound>& of) {
    std::vector<std::string> parts;
    for (const Bound& b : of) parts.push_back(fmt::format("{} < {}", to_text(p, b.value), b.limit));
    return fmt::format("{}", fmt::join(parts, " and "));
  };
  if (!s.guards.empty()) text += "if " + bounds(s.guards) + ": ";
  text += to_text(p, s.to) + (s.write == Write::assign ? " = " : s.write == Write::add ? " += " : " max= ") + text_of(p, s.value);
  if (!s.inside.empty()) text += " if " + bounds(s.inside) + " else 0";
  return text;
}

void print(const Program& p, const std::vector<Node>& body, int depth, std::string& text) {
  for (const Node& node : body) {
    const std::string indent(static_cast<std::size_t>(2 * depth), ' ');
    if (node.kind == Node::Kind::barrier) text += indent + "barrier\n";
    if (node.kind == Node::Kind::statement) text += indent + text_of(p, node.statement) + "\n";
    if (node.kind != Node::Kind::loop) continue;
    const Loop& loop = p.loops[static_cast<std::size_t>(node.loop)];
    constexpr const char* binds[] = {"", "  block", "  thread", "  cores"};
    text += fmt::format("{}for {} in {}:{}{}{}\n", indent, loop.name, loop.extent, binds[static_cast<int>(loop.bind)],
                        loop.is_vector ? "  vector" : "", loop.is_unrolled ? "  unrolled" : "");
    print(p, node.body, depth + 1, text);
  }
}

void collect(const std::vector<Node>& body, Site& site, std::vector<Site>& sites) {
  for (std::size_t i = 0; i < body.size(); ++i) {
    site.children.push_back(i);
    if (body[i].kind == Node::Kind::statement) {
      site.statement = &body[i].statement;
      sites.push_back(site);
    } else if (body[i].kind == Node::Kind::loop) {
      site.loops.push_back(body[i].loop);
      collect(body[i].body, site, sites);
      site.loops.pop_back();
    }
    site.children.pop_back();
  }
}

}  // namespace

std::int64_t Tensor::size() const {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) last += (shape[d] - 1) * strides[d];
  return last + 1;
}

std::int64_t Program::bytes() const {
  std::int64_t count = 0;
  for (const Tensor& t : tensors)
    if (!t.is_local()) count += t.size();
  return 4 * count;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const auto& [name, k] : kernels()) names.push_back(name);
  return names;
}

Program kernel(const std::string& name, const std::vector<std::int64_t>& sizes) {
  const Kernel& k = find(name);
  const auto is_bad = [](std::int64_t n) { return n < 1 || n > (1 << 28); };
  if (sizes.size() != k.usual.size() || std::any_of(sizes.begin(), sizes.end(), is_bad))
    tern::fail("loops", fmt::format("expected sizes ({}) of {}, each from 1 to 2^28, but got ({})", k.axes, name, fmt::join(sizes, ", ")));
  Program p = k.make(sizes);
  p.name = name;
  for (const Tensor& t : p.tensors) {
    double count = 1;
    for (const std::int64_t n : t.shape) count *= static_cast<double>(n);
    if (count > (1 << 28))
      tern::fail("loops", fmt::format("expected at most 2^28 elements of {} but got {:.0f}: take smaller sizes", t.name, count));
  }
  return p;
}

std::vector<std::int64_t> usual_sizes(const std::string& name) { return find(name).usual; }
std::vector<std::vector<std::int64_t>> odd_sizes(const std::string& name) { return find(name).odd; }
std::vector<std::vector<std::int64_t>> several_sizes(const std::string& name) { return find(name).several; }

std::string to_text(const Program& p, const Index& index) {
  std::vector<std::string> parts;
  for (const Digit& d : index.digits) {
    const Loop& loop = p.loops[static_cast<std::size_t>(d.loop)];
    std::string text = loop.name;
    if (d.divisor > 1) text += fmt::format(" / {}", d.divisor);
    if (d.divisor * d.extent < loop.extent) text += fmt::format(" % {}", d.extent);
    parts.push_back(d.scale == 1 ? text : fmt::format("{} * {}", d.scale, text == loop.name ? text : "(" + text + ")"));
  }
  if (index.constant != 0 || parts.empty()) parts.push_back(std::to_string(index.constant));
  return fmt::format("{}", fmt::join(parts, " + "));
}

std::string to_text(const Program& p, const Access& access) {
  std::vector<std::string> parts;
  for (const Index& index : access.at) parts.push_back(to_text(p, index));
  const std::string& name = p.tensors[static_cast<std::size_t>(access.tensor)].name;
  return parts.empty() ? name : fmt::format("{}[{}]", name, fmt::join(parts, ", "));
}

std::string to_text(const Program& p) {
  std::string text = "kernel " + p.name;
  constexpr const char* kinds[] = {"in", "out", "shared", "registers"};
  for (const Tensor& t : p.tensors) {
    text += fmt::format("\n  {} {}", kinds[static_cast<int>(t.kind)], t.name);
    if (!t.shape.empty()) text += fmt::format(": [{}]", fmt::join(t.shape, ", "));
    if (t.strides != row_major(t.shape)) text += fmt::format(" strides [{}]", fmt::join(t.strides, ", "));
  }
  text += "\n";
  print(p, p.body, 0, text);
  return text;
}

std::string to_text(const Program& p, const Node& node) {
  std::string text;
  print(p, {node}, 0, text);
  return text;
}

std::vector<Site> sites_of(const Program& p) {
  std::vector<Site> sites;
  Site site{};
  collect(p.body, site, sites);
  return sites;
}

std::size_t shared_loops(const Site& a, const Site& b) {
  std::size_t n = 0;
  while (n < std::min(a.loops.size(), b.loops.size()) && a.loops[n] == b.loops[n]) ++n;
  return n;
}

std::size_t scope_of(const std::vector<Site>& sites, int tensor) {
  const Site* first = nullptr;
  std::size_t scope = 0;
  for (const Site& site : sites) {
    if (site.statement->to.tensor != tensor && !reads(*site.statement, tensor)) continue;
    scope = first ? std::min(scope, shared_loops(*first, site)) : site.loops.size();
    if (!first) first = &site;
  }
  return scope;
}

void for_each_read(const Term& term, const std::function<void(const Access&)>& f) {
  if (term.op == Op::read) f(term.read);
  for (const Term& t : term.of) for_each_read(t, f);
}
void for_each_read(Term& term, const std::function<void(Access&)>& f) {
  if (term.op == Op::read) f(term.read);
  for (Term& t : term.of) for_each_read(t, f);
}

bool reads(const Statement& statement, int tensor) {
  bool found = false;
  for_each_read(statement.value, [&](const Access& a) { found |= a.tensor == tensor; });
  return found;
}

void for_each_index(Statement& s, const std::function<void(Index&)>& f) {
  for (Index& index : s.to.at) f(index);
  for_each_read(s.value, [&](Access& a) {
    for (Index& index : a.at) f(index);
  });
  for (std::vector<Bound>* bounds : {&s.reduced, &s.guards, &s.inside})
    for (Bound& b : *bounds) f(b.value);
}

void for_each_statement(Node& node, const std::function<void(Statement&)>& f) {
  if (node.kind == Node::Kind::statement) f(node.statement);
  for (Node& child : node.body) for_each_statement(child, f);
}

std::vector<Bound> common_guards(const Node& node, const std::vector<int>& around) {
  if (node.kind == Node::Kind::barrier) return {};
  std::vector<Bound> common = node.statement.guards;
  const auto is_known = [&](const Digit& d) { return std::find(around.begin(), around.end(), d.loop) != around.end(); };
  std::erase_if(common, [&](const Bound& g) { return !std::all_of(g.value.digits.begin(), g.value.digits.end(), is_known); });
  for (std::size_t i = 0; i < node.body.size(); ++i) {
    const std::vector<Bound> own = common_guards(node.body[i], around);
    if (i == 0) common = own;
    const auto is_same = [](const Bound& a, const Bound& b) {
      const Index rest = a.value - b.value;
      return rest.digits.empty() && rest.constant == 0 && a.limit == b.limit;
    };
    std::erase_if(common,
                  [&](const Bound& g) { return std::none_of(own.begin(), own.end(), [&](const Bound& x) { return is_same(x, g); }); });
  }
  return common;
}

Index operator-(const Index& a, const Index& b) {
  Index difference = a;
  difference.constant -= b.constant;
  for (const Digit& d : b.digits) {
    const auto same = std::find_if(difference.digits.begin(), difference.digits.end(),
                                   [&](const Digit& x) { return x.loop == d.loop && x.divisor == d.divisor && x.extent == d.extent; });
    if (same == difference.digits.end()) difference.digits.push_back({-d.scale, d.loop, d.divisor, d.extent});
    else if (same->scale -= d.scale; same->scale == 0) difference.digits.erase(same);
  }
  return difference;
}

std::int64_t largest(const Index& index) {
  std::int64_t value = index.constant;
  for (const Digit& d : index.digits) value += std::max<std::int64_t>(d.scale, 0) * (d.extent - 1);
  return value;
}

std::int64_t largest(const Index& index, const std::vector<Bound>& given) {
  std::int64_t value = largest(index);
  for (const Bound& b : given) value = std::min(value, largest(index - b.value) + b.limit - 1);
  return value;
}

Index part_of(const Index& index, const std::function<bool(int)>& is_such) {
  Index part;
  for (const Digit& d : index.digits)
    if (is_such(d.loop)) part.digits.push_back(d);
  return part;
}

bool goes_over(const Index& index, int loop) {
  return std::any_of(index.digits.begin(), index.digits.end(), [&](const Digit& d) { return d.loop == loop; });
}
bool goes_over(const Access& access, int loop) {
  return std::any_of(access.at.begin(), access.at.end(), [&](const Index& index) { return goes_over(index, loop); });
}

Index whole(const Program& p, int loop) { return {{{1, loop, 1, p.loops[static_cast<std::size_t>(loop)].extent}}}; }

std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t next = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = next;
    next *= shape[d];
  }
  return strides;
}

double identity(Write write) { return write == Write::max ? -std::numeric_limits<double>::infinity() : 0; }

}  // namespace study::loops
