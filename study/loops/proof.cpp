#include "proof.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/error.h"

namespace study::loops {

namespace {

template <class... Values>
[[noreturn]] void refuse(fmt::format_string<Values...> text, Values&&... values) {
  tern::fail("loops", fmt::format(text, std::forward<Values>(values)...));
}

using Digits = std::vector<Digit>;

Digits sorted(Digits digits) {
  std::sort(digits.begin(), digits.end(), [](const Digit& a, const Digit& b) {
    return std::tie(a.scale, a.loop, a.divisor, a.extent) < std::tie(b.scale, b.loop, b.divisor, b.extent);
  });
  return digits;
}

/// n if the digits take each value from 0 to n - 1 once, within the guards; else 0. In a mixed radix each digit's scale is the number of
/// values of those below it, which a guard on their sum may cut.
std::int64_t values_of(const Index& index, const std::vector<Bound>& guards) {
  std::int64_t n = 1;
  Index sum;
  for (const Digit& d : sorted(index.digits)) {
    if (d.extent == 1) continue;
    if (d.scale != n) return 0;
    n *= d.extent;
    sum.digits.push_back(d);
    for (const Bound& g : guards) {
      const Index rest = g.value - sum;
      const bool is_sum =
          rest.constant == 0 && std::all_of(rest.digits.begin(), rest.digits.end(), [](const Digit& x) { return x.extent == 1; });
      if (is_sum) n = std::min(n, g.limit);
    }
  }
  return n;
}

class Proof {
 public:
  explicit Proof(const Program& program) : p_(program), sites_(sites_of(program)) {}

  void run() const {
    check_loops(p_.body, {});
    for (const Site& site : sites_) check_bounds(site);
    for (std::size_t t = 0; t < p_.tensors.size(); ++t) check_tensor(static_cast<int>(t));
  }

 private:
  const Loop& loop(int l) const { return p_.loops[static_cast<std::size_t>(l)]; }
  const Tensor& tensor(int t) const { return p_.tensors[static_cast<std::size_t>(t)]; }

  void check_loops(const std::vector<Node>& body, std::vector<const Loop*> around) const {
    for (const Node& node : body) {
      if (node.kind == Node::Kind::barrier && threads_after(around) != 0)
        refuse("expected all threads to reach a barrier but loop {} has fewer", around.back()->name);
      if (node.kind != Node::Kind::loop) continue;
      const Loop& l = loop(node.loop);
      const auto all_are = [&](Bind bind) {
        return std::all_of(around.begin(), around.end(), [&](const Loop* x) { return x->bind == bind; });
      };
      const auto some_are = [&](Bind bind) {
        return std::any_of(around.begin(), around.end(), [&](const Loop* x) { return x->bind == bind; });
      };
      if (l.bind == Bind::block && (!all_are(Bind::block) || (!around.empty() && body.size() > 1)))
        refuse("expected blocks to be the outermost loops, one directly in the other, but loop {} is within others", l.name);
      if (l.bind == Bind::cores && !around.empty())
        refuse("expected cores to be the outermost loop but loop {} is within {}", l.name, around.back()->name);
      if (l.bind == Bind::thread && some_are(Bind::cores)) refuse("expected threads of a GPU, or cores, but loop {} has both", l.name);
      if (l.is_vector && (node.body.empty() ||
                          std::any_of(node.body.begin(), node.body.end(), [](const Node& n) { return n.kind != Node::Kind::statement; })))
        refuse("expected a vector to be the innermost loop but {} has loops in it", l.name);
      if (l.is_vector && (l.bind != Bind::none || l.extent < 2 || l.extent > 64 || (l.extent & (l.extent - 1)) != 0))
        refuse("expected a vector of 2, 4, 8, 16, 32 or 64 elements but loop {} has {}: split it", l.name, l.extent);
      around.push_back(&l);
      std::int64_t steps = 1;
      for (const Loop* x : around)
        if (x->is_unrolled) steps = std::min<std::int64_t>(steps * x->extent, 1 << 20);
      if (l.is_unrolled && steps > 512)
        refuse("expected at most 512 steps to unroll but loop {} and those around it have {}: split it", l.name, steps);
      check_loops(node.body, around);
      around.pop_back();
    }
  }

  /// Threads of the block that these loops leave out.
  std::int64_t threads_after(const std::vector<const Loop*>& around) const {
    std::int64_t group = thread_count(p_);
    for (const Loop* l : around)
      if (l->bind == Bind::thread) {
        const std::int64_t below = threads_below(p_)[static_cast<std::size_t>(l - p_.loops.data())];
        if (l->extent * below != group) return group - l->extent * below;
        group = below;
      }
    return 0;
  }

  void check_bounds(const Site& site) const {
    const Statement& s = *site.statement;
    double steps = 1;
    for (const int l : site.loops) steps *= static_cast<double>(loop(l).extent);
    if (steps > 0x1p45) refuse("expected at most 2^45 steps but the write of {} takes {:.3g}", tensor(s.to.tensor).name, steps);
    const auto check = [&](const Access& a, const std::vector<Bound>& given) {
      for (std::size_t d = 0; d < a.at.size(); ++d)
        if (const std::int64_t last = largest(a.at[d], given); last >= tensor(a.tensor).shape[d])
          refuse("expected {} within {} elements but it reaches {}", to_text(p_, a), tensor(a.tensor).shape[d], last);
    };
    check(s.to, s.guards);
    std::vector<Bound> given = s.guards;
    given.insert(given.end(), s.inside.begin(), s.inside.end());
    for_each_read(s.value, [&](const Access& a) { check(a, given); });
  }

  void check_tensor(int t) const {
    if (tensor(t).kind == Tensor::Kind::input) {
      for (const Site& site : sites_)
        if (site.statement->to.tensor == t) refuse("expected {} to be read alone but it is written", tensor(t).name);
      return;
    }
    const std::size_t scope = tensor(t).is_local() ? scope_of(sites_, t) : 0;
    std::vector<const Site*> writers;
    for (const Site& site : sites_)
      if (site.statement->to.tensor == t) writers.push_back(&site);
    const auto assigns = std::count_if(writers.begin(), writers.end(), [](const Site* w) { return w->statement->write == Write::assign; });
    if (writers.empty() && tensor(t).is_local()) return;  // not used any more
    if (assigns != 1 || writers.size() > 2)
      refuse("expected one assignment of {}, and at most one reduction, but it has {} of {}", tensor(t).name, assigns, writers.size());
    for (const Site* w : writers) check_write(*w, scope);
    for (const Site& site : sites_) {
      if (reads(*site.statement, t))
        for_each_read(site.statement->value, [&](const Access& a) {
          if (a.tensor == t)
            for (const Site* w : writers) check_order(*w, site, a, scope);
        });
      if (site.statement->to.tensor == t && site.statement->write != Write::assign)
        for (const Site* w : writers)
          if (w->statement->write == Write::assign) check_order(*w, site, site.statement->to, scope);
    }
    check_place(t, scope);
  }

  /// Each element once in the tensor's scope, and each step of a reduction.
  void check_write(const Site& w, std::size_t scope) const {
    const Statement& s = *w.statement;
    const std::string name = to_text(p_, s.to);
    std::map<int, Digits> used;
    const auto collect = [&](const Index& index) {
      for (const Digit& d : index.digits) {
        Digits& digits = used[d.loop];
        const auto is_same = [&](const Digit& x) { return x.divisor == d.divisor && x.extent == d.extent; };
        if (std::none_of(digits.begin(), digits.end(), is_same)) digits.push_back(d);
      }
    };
    for (const Index& index : s.to.at) collect(index);
    if (s.write != Write::assign)
      for (const Bound& axis : s.reduced) collect(axis.value);
    for (std::size_t i = scope; i < w.loops.size(); ++i) {
      // Its digits, one above the other, are the whole loop.
      Digits digits = used[w.loops[i]];
      std::sort(digits.begin(), digits.end(), [](const Digit& a, const Digit& b) { return a.divisor < b.divisor; });
      std::int64_t reached = 1;
      for (const Digit& d : digits) {
        if (d.extent == 1) continue;
        if (d.divisor != reached) reached = -1;
        reached *= d.extent;
      }
      if (reached != loop(w.loops[i]).extent)
        refuse("expected each element of {} to be written once but loop {} writes it again", name, loop(w.loops[i]).name);
    }
    const auto is_in_scope = [&](int l) {
      return std::find(w.loops.begin() + static_cast<std::ptrdiff_t>(scope), w.loops.end(), l) != w.loops.end();
    };
    for (std::size_t d = 0; d < s.to.at.size(); ++d) {
      const Tensor& t = tensor(s.to.tensor);
      const std::int64_t n = values_of(part_of(s.to.at[d], is_in_scope), s.guards);
      if (n == 0) refuse("expected each element of {} to be written once but its index has gaps or repeats", name);
      if (!t.is_local() && (n != t.shape[d] || s.to.at[d].constant != 0))
        refuse("expected all {} elements of {} to be written but {} are", t.shape[d], name, n);
    }
    if (s.write == Write::assign) return;
    for (const Bound& axis : s.reduced) {
      if (const std::int64_t n = values_of(axis.value, s.guards); n != axis.limit)
        refuse("expected each of {} steps to enter {} once but its loops take {}", axis.limit, name, n);
      for (const Digit& d : axis.value.digits)
        if (const Loop& l = loop(d.loop); (l.bind != Bind::none || l.is_vector) && is_in_scope(d.loop) && !goes_over(s.to, d.loop))
          refuse("expected one thread to write {} but the steps of loop {} do at once: reduce in parts first", name, l.name);
    }
  }

  /// Proves that `w` has written all that `reader` reads, or reduces into, at `access`.
  void check_order(const Site& w, const Site& reader, const Access& access, std::size_t scope) const {
    const Statement &from = *w.statement, &s = *reader.statement;
    const std::string name = to_text(p_, access);
    if (w.statement == reader.statement) refuse("expected {} to be written by another statement than the one that reads it", name);
    if (w.children > reader.children) refuse("expected {} to be written before it is read", name);
    const std::size_t shared = shared_loops(w, reader);
    const auto is_shared = [&](int l) {
      return std::find(w.loops.begin(), w.loops.begin() + static_cast<std::ptrdiff_t>(shared), l) !=
             w.loops.begin() + static_cast<std::ptrdiff_t>(shared);
    };
    const auto is_own = [&](int l) { return !is_shared(l); };
    if (from.write != Write::assign)
      for (const Bound& axis : from.reduced)
        for (const Digit& d : axis.value.digits)
          for (std::size_t i = scope; i < shared; ++i)
            if (w.loops[i] == d.loop && d.extent > 1)
              refuse("expected {} to be read after its reduction but loop {} is not done", name, loop(d.loop).name);
    for (std::size_t d = 0; d < access.at.size(); ++d) {
      const Index &written = from.to.at[d], &read = access.at[d];
      const Index difference = part_of(written, is_shared) - part_of(read, is_shared);
      const std::int64_t n = values_of(part_of(written, is_own), {});
      if (!difference.digits.empty() || largest(part_of(read, is_own)) + read.constant - written.constant >= n ||
          read.constant < written.constant)
        refuse("expected {} to be written before it is read but {} are", name, to_text(p_, from.to));
    }
    // A guard that keeps the writer from an element keeps the reader from it.
    const auto form = [&](const Bound& g) {
      std::vector<std::pair<std::int64_t, std::int64_t>> own;
      for (const Digit& x : sorted(part_of(g.value, is_own).digits))
        if (x.extent > 1) own.emplace_back(x.scale, x.extent);
      return std::make_tuple(g.limit, g.value.constant, sorted(part_of(g.value, is_shared).digits), own);
    };
    for (const Bound& g : from.guards) {
      const bool is_of_index = std::any_of(g.value.digits.begin(), g.value.digits.end(),
                                           [&](const Digit& x) { return is_shared(x.loop) || goes_over(from.to, x.loop); });
      const bool is_axis =
          std::any_of(from.reduced.begin(), from.reduced.end(), [&](const Bound& axis) { return (axis.value - g.value).digits.empty(); });
      if (!is_of_index || (is_axis && from.write != Write::assign)) continue;
      if (std::none_of(s.guards.begin(), s.guards.end(), [&](const Bound& x) { return form(x) == form(g); }))
        refuse("expected {} to be written before it is read but it is not where {} >= {}", name, to_text(p_, g.value), g.limit);
    }
  }

  void check_place(int t, std::size_t scope) const {
    if (!tensor(t).is_local()) return;
    for (const Site& site : sites_) {
      if (site.statement->to.tensor != t && !reads(*site.statement, t)) continue;
      for (std::size_t i = 0; i < scope; ++i)
        if (loop(site.loops[i]).is_vector && site.statement->to.tensor == t && !goes_over(site.statement->to, site.loops[i]))
          refuse("expected an element of {} for each step of the vector {}", tensor(t).name, loop(site.loops[i]).name);
      for (std::size_t i = scope; i < site.loops.size(); ++i)
        if (const Loop& l = loop(site.loops[i]); l.bind == Bind::block || l.bind == Bind::cores)
          refuse("expected {} to live within a block or core but loop {} shares it out", tensor(t).name, l.name);
      if (site.loops.empty() || site.children[0] != first_root(t))
        refuse("expected {} to live within one nest of loops but it is used in two", tensor(t).name);
    }
  }
  std::size_t first_root(int t) const {
    for (const Site& site : sites_)
      if (site.statement->to.tensor == t || reads(*site.statement, t)) return site.children[0];
    return 0;
  }

  const Program& p_;
  std::vector<Site> sites_;
};

/// A place where a barrier is missing: before the child `index` of the body that `way` leads to.
struct Gap {
  std::vector<std::size_t> way;
  std::size_t index;
  std::string tensor;
  bool is_register;
};

/// Looks for pairs of uses of a tensor by different threads.
class Threads {
 public:
  explicit Threads(const Program& program) : p_(program), sites_(sites_of(program)), below_(threads_below(program)) {}

  std::optional<Gap> first_gap() const {
    for (std::size_t t = 0; t < p_.tensors.size(); ++t) {
      if (p_.tensors[t].kind == Tensor::Kind::input) continue;
      std::vector<Use> uses;
      for (const Site& site : sites_) {
        for_each_read(site.statement->value, [&](const Access& a) {
          if (a.tensor == static_cast<int>(t)) uses.push_back({&site, &a, false});
        });
        if (site.statement->to.tensor == static_cast<int>(t)) uses.push_back({&site, &site.statement->to, true});
      }
      for (const Use& a : uses)
        for (const Use& b : uses)
          if (a.site->children < b.site->children && (a.is_write || b.is_write))
            if (std::optional<Gap> gap = between(a, b, p_.tensors[t])) return gap;
    }
    return {};
  }

 private:
  struct Use {
    const Site* site;
    const Access* access;
    bool is_write;
  };

  const Loop& loop(int l) const { return p_.loops[static_cast<std::size_t>(l)]; }
  /// A thread loop below those that are shared: the part of a thread's number that it is, and where it stands in the tensor's index.
  struct Part {
    std::int64_t step, extent;
    std::vector<std::tuple<std::size_t, std::int64_t, std::int64_t, std::int64_t>> at;
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> threads_of(const Use& use, std::size_t shared, bool in_registers) const {
    std::vector<Part> parts;
    std::int64_t count = 1;
    for (std::size_t i = 0; i < use.site->loops.size(); ++i) {
      const int l = use.site->loops[i];
      if (loop(l).bind != Bind::thread) continue;
      count *= loop(l).extent;
      if (i < shared) continue;
      Part part{below_[static_cast<std::size_t>(l)], loop(l).extent, {}};
      for (std::size_t d = 0; d < use.access->at.size(); ++d)
        for (const Digit& x : use.access->at[d].digits)
          if (x.loop == l) part.at.emplace_back(d, x.scale, x.divisor, x.extent);
      if (!part.at.empty() || !in_registers) parts.push_back(part);
    }
    // One thread writes to memory what many compute alike; all of them read what they need.
    const bool is_alike = !in_registers && count < thread_count_;
    if (is_alike) {
      const bool is_single = p_.tensors[static_cast<std::size_t>(use.site->statement->to.tensor)].kind != Tensor::Kind::registers;
      parts.push_back({is_single ? -1 : -2, 0, {}});
    }
    return parts;
  }

  std::optional<Gap> between(const Use& a, const Use& b, const Tensor& t) const {
    const std::size_t shared = shared_loops(*a.site, *b.site);
    const bool in_registers = t.kind == Tensor::Kind::registers;
    if (shared == 0 && a.site->children[0] != b.site->children[0]) return {};  // one kernel after the other
    if (threads_of(a, shared, in_registers) == threads_of(b, shared, in_registers)) return {};
    const std::vector<std::size_t> way(a.site->children.begin(), a.site->children.begin() + static_cast<std::ptrdiff_t>(shared));
    if (in_registers) return Gap{way, 0, t.name, true};
    const std::size_t from = a.site->children[shared], to = b.site->children[shared];
    if (!has_barrier(way, from + 1, to)) return Gap{way, to, t.name, false};
    // Round the innermost loop that both share and that one thread takes step by step: what the next step does before `a` or after `b`.
    for (std::size_t depth = shared; depth > 0; --depth) {
      const std::vector<std::size_t> here(a.site->children.begin(), a.site->children.begin() + static_cast<std::ptrdiff_t>(depth));
      const std::size_t first = a.site->children[depth], last = b.site->children[depth];
      if (has_barrier(here, 0, first) || has_barrier(here, last + 1, body_of(here).size())) return {};
      const Loop& l = loop(a.site->loops[depth - 1]);
      if (l.bind == Bind::none && l.extent > 1) return Gap{here, 0, t.name, false};
    }
    return {};
  }
  const std::vector<Node>& body_of(const std::vector<std::size_t>& way) const {
    const std::vector<Node>* body = &p_.body;
    for (const std::size_t i : way) body = &(*body)[i].body;
    return *body;
  }
  bool has_barrier(const std::vector<std::size_t>& way, std::size_t from, std::size_t to) const {
    const std::vector<Node>& body = body_of(way);
    for (std::size_t i = from; i < to; ++i)
      if (body[i].kind == Node::Kind::barrier) return true;
    return false;
  }

  const Program& p_;
  std::vector<Site> sites_;
  std::vector<std::int64_t> below_;
  std::int64_t thread_count_ = thread_count(p_);
};

std::int64_t count_threads(const Program& p, const std::vector<Node>& body, std::vector<std::int64_t>& below) {
  std::int64_t most = 1;
  for (const Node& node : body) {
    if (node.kind != Node::Kind::loop) continue;
    const std::int64_t inner = count_threads(p, node.body, below);
    const Loop& loop = p.loops[static_cast<std::size_t>(node.loop)];
    below[static_cast<std::size_t>(node.loop)] = inner;
    most = std::max(most, loop.bind == Bind::thread ? std::min<std::int64_t>(inner * loop.extent, 1 << 30) : inner);
  }
  return most;
}

void erase_barriers(std::vector<Node>& body) {
  std::erase_if(body, [](const Node& node) { return node.kind == Node::Kind::barrier; });
  for (Node& node : body) erase_barriers(node.body);
}

}  // namespace

std::vector<std::int64_t> threads_below(const Program& p) {
  std::vector<std::int64_t> below(p.loops.size(), 1);
  count_threads(p, p.body, below);
  return below;
}
std::int64_t thread_count(const Program& p) {
  std::vector<std::int64_t> below(p.loops.size(), 1);
  return count_threads(p, p.body, below);
}

std::int64_t thread_copies(const Program& p, const std::vector<Site>& sites, int tensor) {
  std::int64_t copies = 1;
  const std::size_t scope = scope_of(sites, tensor);
  for (const Site& site : sites)
    if (site.statement->to.tensor == tensor) {
      for (std::size_t i = 0; i < scope; ++i)
        if (const Loop& l = p.loops[static_cast<std::size_t>(site.loops[i])]; l.bind == Bind::thread) copies *= l.extent;
      break;
    }
  return copies;
}

void place_barriers(Program& p) {
  erase_barriers(p.body);
  for (std::optional<Gap> gap = Threads(p).first_gap(); gap && !gap->is_register; gap = Threads(p).first_gap()) {
    std::vector<Node>* body = &p.body;
    for (const std::size_t i : gap->way) body = &(*body)[i].body;
    body->insert(body->begin() + static_cast<std::ptrdiff_t>(gap->index), Node{.kind = Node::Kind::barrier});
  }
}

void prove(const Program& p) {
  Proof(p).run();
  const std::int64_t threads = thread_count(p);
  if (threads > 1024) refuse("expected at most 1024 threads of a block but got {}", threads);
  if (const std::optional<Gap> gap = Threads(p).first_gap()) {
    if (gap->is_register)
      refuse("expected each thread to read registers of its own but {} is written by another: keep it in shared", gap->tensor);
    refuse("expected a barrier between threads that write {} and others that use it", gap->tensor);
  }
  const std::vector<Site> sites = sites_of(p);
  std::int64_t shared = 0;
  for (const Tensor& t : p.tensors) {
    if (!t.is_local()) continue;
    if (t.size() > (1 << 22)) refuse("expected at most 2^22 elements of {} but got {}", t.name, t.size());
    if (t.kind == Tensor::Kind::shared) shared += 4 * t.size() * thread_copies(p, sites, static_cast<int>(&t - p.tensors.data()));
  }
  if (threads > 1 && shared > 48 * 1024) refuse("expected at most 48 KiB of shared memory but got {} bytes", shared);
}

}  // namespace study::loops
