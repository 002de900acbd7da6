#include "counts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "code.h"
#include "proof.h"

namespace study::loops {

namespace {

constexpr double line = 16;                   // elements
constexpr double compiler_width = 8;          // elements of the vectors that compilers make of plain loops
constexpr std::int64_t most_registers = 512;  // elements that can be in vector registers

class Counter {
 public:
  explicit Counter(const Program& p) : p_(p), sites_(sites_of(p)) {
    is_gpu_ = std::any_of(p.loops.begin(), p.loops.end(), [](const Loop& l) { return l.bind == Bind::block || l.bind == Bind::thread; });
    for (const Site& site : sites_) count(site);
    walk(p.body, 1);
    for (std::size_t t = 0; t < p.tensors.size(); ++t)
      if (p.tensors[t].is_local())
        sum(p.tensors[t].kind == Tensor::Kind::shared ? feature::shared_bytes : feature::register_bytes) +=
            4.0 * static_cast<double>(p.tensors[t].size() * thread_copies(p, sites_, static_cast<int>(t)));
    for (std::size_t nest = 0; nest < p.body.size(); ++nest)
      sum(feature::blocks_or_cores) = std::max(
          sum(feature::blocks_or_cores), static_cast<double>(std::max(steps_of(p, nest, Bind::block), steps_of(p, nest, Bind::cores))));
    sum(feature::threads) = static_cast<double>(thread_count(p));
    sum(feature::nests) = static_cast<double>(p.body.size());
    sum(feature::bytes) = static_cast<double>(p.bytes());
    for (const feature::Feature mean : {feature::vector_width, feature::inner_extent}) sum(mean) /= sum(feature::steps);
    using namespace feature;
    const double issued = 0.5 * (sum(contiguous_reads) + sum(uniform_reads) + sum(arithmetic)) + sum(strided_reads) + sum(stores) +
                          2 * sum(scattered_stores) + 8 * sum(slow_functions) + 2 * sum(choices) + sum(guards) + sum(loop_steps),
                 waited = 4 * sum(chain);
    sum(cycles) = std::max(issued, waited) + 0.3 * std::min(issued, waited) + 4 * sum(lines_beyond_l1) + 8 * sum(lines_beyond_l2) +
                  8 * sum(uncoalesced);
  }
  double& sum(feature::Feature f) { return sums_[f]; }

 private:
  const Loop& loop(int l) const { return p_.loops[static_cast<std::size_t>(l)]; }
  const Tensor& tensor(int t) const { return p_.tensors[static_cast<std::size_t>(t)]; }

  /// Steps of the first n loops around a site.
  double steps(const Site& site, std::size_t n) const {
    double product = 1;
    for (std::size_t i = 0; i < n; ++i) product *= static_cast<double>(loop(site.loops[i]).extent);
    return product;
  }
  /// Distance between the elements of two steps of a loop, in elements.
  std::int64_t stride(const Access& a, int l) const {
    std::int64_t sum = 0;
    for (std::size_t d = 0; d < a.at.size(); ++d)
      for (const Digit& x : a.at[d].digits)
        if (x.loop == l && x.divisor == 1 && x.extent > 1) sum += x.scale * tensor(a.tensor).strides[d];
    return sum;
  }
  /// Number of loops, from the outermost, with which an access changes: a compiler takes it out of those further in.
  std::size_t depth_of(const Site& site, const Access& a) const {
    std::size_t depth = tensor(a.tensor).is_local() ? scope_of(sites_, a.tensor) : 0;
    for (std::size_t i = depth; i < site.loops.size(); ++i)
      if (goes_over(a, site.loops[i])) depth = i + 1;
    return depth;
  }
  bool in_registers(const Site& site, const Access& a) const {
    if (tensor(a.tensor).kind != Tensor::Kind::registers || tensor(a.tensor).size() > most_registers) return false;
    return std::none_of(site.loops.begin(), site.loops.end(), [&](int l) {
      return goes_over(a, l) && !loop(l).is_unrolled && !loop(l).is_vector && loop(l).bind != Bind::thread;
    });
  }
  /// Lines of memory that an access reaches in the loops from `from`.
  double lines_of(const Site& site, const Access& a, std::size_t from) const {
    double lines = 1;
    for (std::size_t d = 0; d < a.at.size(); ++d) {
      double span = 1, distinct = 1;
      for (const Digit& x : a.at[d].digits)
        if (std::find(site.loops.begin() + static_cast<std::ptrdiff_t>(from), site.loops.end(), x.loop) != site.loops.end()) {
          span += static_cast<double>((x.extent - 1) * x.scale);
          distinct *= static_cast<double>(x.extent);
        }
      const double whole = static_cast<double>(tensor(a.tensor).shape[d]);
      span = std::min(span, whole), distinct = std::min(distinct, whole);
      lines *= tensor(a.tensor).strides[d] == 1 ? std::min(distinct, std::ceil(span / line)) : distinct;
    }
    return lines;
  }

  /// True if bounds hold for all steps of a vector or for none, as the code asks for.
  bool can_be_vector(const Statement& s, int l) const {
    const auto is_whole = [&](const Bound& b) {
      return std::all_of(b.value.digits.begin(), b.value.digits.end(),
                         [&](const Digit& d) {
                           return !goes_over(b.value, l) || (d.loop == l ? d.scale == 1 && d.divisor == 1 : d.scale % loop(l).extent == 0);
                         }) &&
             (!goes_over(b.value, l) || b.limit % loop(l).extent == 0);
    };
    return std::all_of(s.guards.begin(), s.guards.end(), is_whole) && std::all_of(s.inside.begin(), s.inside.end(), is_whole);
  }
  /// Of a term, each operation as often as its operands change.
  std::size_t count(const Site& site, const Term& term, double width, double choice_width) {
    std::size_t depth = term.op == Op::read ? depth_of(site, term.read) : 0;
    for (const Term& t : term.of) depth = std::max(depth, count(site, t, width, choice_width));
    const bool has_choice = term.op == Op::exp || term.op == Op::tanh,
               is_slow = has_choice || term.op == Op::rsqrt || term.op == Op::divide;
    const double times = steps(site, depth) / (depth < site.loops.size() ? 1 : has_choice ? choice_width : width);
    if (is_slow) sum(feature::slow_functions) += times;
    else if (term.op != Op::read && term.op != Op::number) sum(feature::arithmetic) += times;
    return depth;
  }

  void count(const Site& site) {
    const Statement& s = *site.statement;
    const std::size_t n = site.loops.size();
    std::vector<const Access*> accesses = {&s.to};
    for_each_read(s.value, [&](const Access& a) { accesses.push_back(&a); });
    const double runs = steps(site, n);
    const int last = n > 0 ? site.loops.back() : -1;
    const double native = is_gpu_ ? 4 : line, extent = last >= 0 ? static_cast<double>(loop(last).extent) : 1;
    const bool is_vector = last >= 0 && loop(last).is_vector && can_be_vector(s, last);
    double width = is_vector ? std::min(extent, native) : 1;  // elements of an instruction
    if (!is_vector && last >= 0 && !is_gpu_ && !loop(last).is_unrolled && stride(s.to, last) == 1 &&
        (can_be_vector(s, last) || extent >= compiler_width) &&  // with masks
        std::all_of(accesses.begin(), accesses.end(), [&](const Access* a) { return stride(*a, last) <= 1; })) {
      width = std::min(compiler_width, extent);
      sum(feature::by_compiler) += runs;
    }
    sum(feature::statements) += runs;
    sum(feature::steps) += runs / width;
    sum(feature::vector_width) += runs / width * std::log2(width);
    sum(feature::inner_extent) += runs / width * std::log2(extent);
    // A choice between elements of vectors that are wider than the processor's goes one by one.
    const double by_width = is_gpu_ ? 1 : width, choice_width = is_vector && extent > native ? 1 : by_width;
    count(site, s.value, by_width, choice_width);
    if (s.write == Write::max) sum(feature::choices) += runs / choice_width;

    double group = 1;                                                        // threads and blocks that share the statement out
    double copies = last >= 0 && loop(last).is_vector ? extent / width : 1;  // of the statement in the code
    if (is_vector && choice_width == 1) copies = extent;
    int thread = -1;
    for (const int l : site.loops) {
      if (loop(l).bind == Bind::block || loop(l).bind == Bind::thread) group *= static_cast<double>(loop(l).extent);
      if (loop(l).bind == Bind::thread && loop(l).extent > 1) thread = l;
      if (loop(l).is_unrolled) copies *= static_cast<double>(loop(l).extent);
    }
    sum(feature::steps_a_thread) += runs / width / group;
    sum(feature::code) += copies;
    for (const Access* a : accesses) {
      if (in_registers(site, *a)) continue;
      const std::size_t depth = depth_of(site, *a);
      const bool is_inner = depth == n && n > 0;
      const double times = steps(site, depth), step = is_inner ? static_cast<double>(stride(*a, last)) : 0;
      if (a == &s.to) sum(step == 1 || width == 1 ? feature::stores : feature::scattered_stores) += step == 1 ? times / width : times;
      else if (!is_inner) sum(feature::uniform_reads) += times;
      else sum(step == 1 ? feature::contiguous_reads : feature::strided_reads) += step == 1 ? times / width : times;
      if (thread >= 0 && !tensor(a->tensor).is_local() && stride(*a, thread) > 4) sum(feature::uncoalesced) += times;
    }
    for (const std::vector<Bound>* bounds : {&s.guards, &s.inside})
      for (const Bound& b : *bounds) {
        std::size_t depth = 0;
        for (std::size_t i = 0; i < n; ++i)
          if (goes_over(b.value, site.loops[i])) depth = i + 1;
        sum(feature::guards) += steps(site, depth) / (depth == n ? width : 1);
      }
    if (s.write != Write::assign) {  // a step waits for the one before it, unless others stand between them
      double between = is_vector ? extent / width : 1;
      for (std::size_t i = n; i-- > 0 && goes_over(s.to, site.loops[i]);)
        if (!loop(site.loops[i]).is_vector && loop(site.loops[i]).bind == Bind::none)
          between *= static_cast<double>(loop(site.loops[i]).extent);
      sum(feature::chain) += runs / width / std::min(between, 8.0);
    }
    for (const auto& [lines, bytes] : {std::pair{feature::lines_beyond_l1, 32 << 10}, {feature::lines_beyond_l2, 1 << 20}}) {
      std::size_t from = 0;  // the outermost loop whose lines stay in the cache
      const auto all_lines = [&] {
        double all = 0;
        for (const Access* a : accesses) all += lines_of(site, *a, from);
        return all;
      };
      while (from < n && 4 * line * all_lines() > bytes) ++from;
      for (const Access* a : accesses)
        if (!tensor(a->tensor).is_local()) sum(lines) += steps(site, from) * lines_of(site, *a, from);
    }
  }

  void walk(const std::vector<Node>& body, double times) {
    for (const Node& node : body) {
      if (node.kind == Node::Kind::barrier) sum(feature::barriers) += times;
      if (node.kind != Node::Kind::loop) continue;
      const Loop& l = loop(node.loop);
      const double here = times * static_cast<double>(l.extent);
      if (!l.is_vector && !l.is_unrolled && l.bind != Bind::block && l.bind != Bind::thread) sum(feature::loop_steps) += here;
      walk(node.body, here);
    }
  }

  const Program& p_;
  std::vector<Site> sites_;
  bool is_gpu_ = false;
  std::array<double, feature::count> sums_{};
};

}  // namespace

std::vector<double> features(const Program& p, double work) {
  Counter counter(p);
  std::vector<double> row;
  for (std::size_t f = 0; f < feature::count; ++f) {
    const double x = counter.sum(static_cast<feature::Feature>(f));
    row.push_back(f <= feature::cycles ? std::log2(x / work + 0x1p-20) : f <= feature::inner_extent ? x : std::log2(x + 1));
  }
  return row;
}

}  // namespace study::loops
