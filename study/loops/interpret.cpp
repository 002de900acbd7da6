#include "interpret.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "backend/error.h"

namespace study::loops {

namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t red_zone = 64, max_steps = 10'000'000;

class Interpreter {
 public:
  Interpreter(const Program& p, const Values& values) : p_(p), at_(p.loops.size()), scopes_(p.loops.size() + 1), guards_(p.loops.size()) {
    collect_guards(p.body, {});
    const std::vector<Site> sites = sites_of(p);
    for (std::size_t t = 0; t < p.tensors.size(); ++t) {
      const Tensor& tensor = p.tensors[t];
      memory_.emplace_back(static_cast<std::size_t>(tensor.size() + 2 * red_zone), nothing);
      written_.emplace_back(tensor.kind == Tensor::Kind::output ? memory_[t].size() : 0);
      if (!tensor.is_local()) std::copy(values[t].begin(), values[t].end(), memory_[t].begin() + red_zone);
      else if (const std::size_t scope = scope_of(sites, static_cast<int>(t)); scope > 0)
        for (const Site& site : sites)
          if (site.statement->to.tensor == static_cast<int>(t)) {
            scopes_[static_cast<std::size_t>(site.loops[scope - 1])].push_back(t);
            break;
          }
    }
  }

  Values run() {
    run(p_.body);
    Values values;
    for (std::size_t t = 0; t < p_.tensors.size(); ++t) {
      const Tensor& tensor = p_.tensors[t];
      const auto first = memory_[t].begin() + red_zone, last = memory_[t].end() - red_zone;
      for (auto x = memory_[t].begin(); x != memory_[t].end(); ++x)
        if ((x < first || x >= last) && !std::isnan(*x))
          tern::fail("loops", fmt::format("expected writes within {} but its red zone is written", tensor.name));
      for (const int count : written_[t])
        if (count > 1)
          tern::fail("loops", fmt::format("expected each element of {} to be assigned once but one is {} times", tensor.name, count));
      if (!tensor.is_local()) values.emplace_back(first, last);
    }
    return values;
  }

 private:
  std::int64_t value(const Index& index) const {
    std::int64_t sum = index.constant;
    for (const Digit& d : index.digits) sum += d.scale * (at_[static_cast<std::size_t>(d.loop)] / d.divisor % d.extent);
    return sum;
  }
  bool hold(const std::vector<Bound>& bounds) const {
    return std::all_of(bounds.begin(), bounds.end(), [&](const Bound& b) { return value(b.value) < b.limit; });
  }
  std::size_t place(const Access& access) const {
    const Tensor& tensor = p_.tensors[static_cast<std::size_t>(access.tensor)];
    std::int64_t offset = red_zone;
    for (std::size_t d = 0; d < access.at.size(); ++d) offset += value(access.at[d]) * tensor.strides[d];
    if (offset < 0 || offset >= tensor.size() + 2 * red_zone)
      tern::fail("loops", fmt::format("expected an element of {} but got {}", tensor.name, offset - red_zone));
    return static_cast<std::size_t>(offset);
  }
  double value(const Term& term) const {
    const auto of = [&](std::size_t i) { return value(term.of[i]); };
    switch (term.op) {
      case Op::number: return term.number;
      case Op::read: return memory_[static_cast<std::size_t>(term.read.tensor)][place(term.read)];
      case Op::add: return of(0) + of(1);
      case Op::subtract: return of(0) - of(1);
      case Op::multiply: return of(0) * of(1);
      case Op::divide: return of(0) / of(1);
      case Op::exp: return std::exp(of(0));
      case Op::tanh: return std::tanh(of(0));
      case Op::rsqrt: return 1 / std::sqrt(of(0));
    }
    return nothing;
  }
  void run(const Statement& s) {
    if (++steps_ > max_steps) tern::fail("loops", fmt::format("expected at most {} steps of a small size: take smaller tiles", max_steps));
    if (!hold(s.guards)) return;
    const double x = hold(s.inside) ? value(s.value) : 0;
    const auto t = static_cast<std::size_t>(s.to.tensor);
    const std::size_t to = place(s.to);
    double& y = memory_[t][to];
    // std::max would lose a NaN.
    y = s.write == Write::assign ? x : s.write == Write::add ? y + x : x > y || std::isnan(x) ? x : y;
    if (s.write == Write::assign && !written_[t].empty()) ++written_[t][to];
  }
  /// The steps of a loop that no statement in it runs at are left out.
  void collect_guards(const std::vector<Node>& body, std::vector<int> around) {
    for (const Node& node : body) {
      if (node.kind != Node::Kind::loop) continue;
      around.push_back(node.loop);
      std::vector<Bound>& guards = guards_[static_cast<std::size_t>(node.loop)];
      guards = common_guards(node, around);
      std::erase_if(guards, [&](const Bound& g) { return !goes_over(g.value, node.loop); });
      collect_guards(node.body, around);
      around.pop_back();
    }
  }
  void run(const std::vector<Node>& body) {
    for (const Node& node : body) {
      if (node.kind == Node::Kind::statement) run(node.statement);
      if (node.kind != Node::Kind::loop) continue;
      const auto l = static_cast<std::size_t>(node.loop);
      const Loop& loop = p_.loops[l];
      for (std::int64_t i = 0; i < loop.extent; ++i) {
        at_[l] = loop.bind == Bind::none ? i : loop.extent - 1 - i;
        for (const std::size_t t : scopes_[l]) std::fill(memory_[t].begin(), memory_[t].end(), nothing);
        if (hold(guards_[l])) run(node.body);
      }
    }
  }

  const Program& p_;
  std::vector<std::int64_t> at_;                  ///< the step of each loop
  std::vector<std::vector<std::size_t>> scopes_;  ///< tensors that live in each loop's body
  std::vector<std::vector<Bound>> guards_;        ///< of all that is in each loop's body
  std::vector<std::vector<double>> memory_;
  std::vector<std::vector<int>> written_;
  std::int64_t steps_ = 0;
};

}  // namespace

Values make_values(const Program& program, unsigned seed) {
  Values values;
  unsigned long long state = seed * 2654435761ull + 1;
  for (const Tensor& t : program.tensors) {
    if (t.is_local()) continue;
    values.emplace_back(static_cast<std::size_t>(t.size()), nothing);
    if (t.kind != Tensor::Kind::input) continue;
    for (double& x : values.back()) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      x = static_cast<double>(state >> 40) / 4194304.0 - 2;
    }
  }
  return values;
}

Values interpret(const Program& program, Values values) { return Interpreter(program, values).run(); }

double compare(const std::string& name, const std::vector<double>& x, const std::vector<double>& y, double limit) {
  double squares = 0, worst = 0;
  for (const double v : y) squares += v * v;
  const double scale = std::sqrt(squares / static_cast<double>(std::max<std::size_t>(y.size(), 1)));
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double difference = std::abs(x[i] - y[i]) / (std::abs(y[i]) + scale);
    if (!(difference <= limit)) tern::fail("loops", fmt::format("expected {} of element {} of {} but got {}", y[i], i, name, x[i]));
    worst = std::max(worst, difference);
  }
  return worst;
}

double check_schedule(const std::string& kernel_name, const std::function<Program(const Program&)>& scheduled) {
  double worst = 0;
  for (const std::vector<std::int64_t>& sizes : odd_sizes(kernel_name)) {
    const Program plain = kernel(kernel_name, sizes);
    const Values values = make_values(plain), expected = interpret(plain, values), got = interpret(scheduled(plain), values);
    for (std::size_t t = 0; t < values.size(); ++t)
      if (plain.tensors[t].kind == Tensor::Kind::output)
        worst =
            std::max(worst, compare(fmt::format("{} at ({})", plain.tensors[t].name, fmt::join(sizes, ", ")), got[t], expected[t], 1e-12));
  }
  return worst;
}

double statements_run(const Program& program) {
  double sum = 0;
  for (const Site& site : sites_of(program)) {
    double steps = 1;
    for (const int l : site.loops) steps *= static_cast<double>(program.loops[static_cast<std::size_t>(l)].extent);
    sum += steps;
  }
  return sum;
}

}  // namespace study::loops
