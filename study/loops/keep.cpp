// The primitives on tensors: what is kept where, reduced in parts, and computed at another place.
#include <numeric>
#include <utility>

#include "edit.h"

namespace study::loops {

namespace {

/// Scales and extents of digits, from the smallest.
std::vector<std::pair<std::int64_t, std::int64_t>> form_of(const Index& index) {
  std::vector<std::pair<std::int64_t, std::int64_t>> form;
  for (const Digit& d : index.digits) form.emplace_back(d.scale, d.extent);
  std::sort(form.begin(), form.end());
  return form;
}
/// The same digits without gaps between them.
Index packed(Index index) {
  std::sort(index.digits.begin(), index.digits.end(), [](const Digit& a, const Digit& b) { return a.scale < b.scale; });
  std::int64_t next = 1;
  for (Digit& d : index.digits) {
    d.scale = next;
    next *= d.extent;
  }
  return index;
}

}  // namespace

void Edit::keep(const Line& line) {
  for (const std::string& name : line.names) {
    const int t = tensor_named(name);
    const std::size_t before = p_.tensors.size();
    if (line.loop.empty()) {
      if (!tensor(t).is_local()) refuse("expected a loop, 'at NAME', where {} is kept", name);
      tensor(t).kind = *line.place;
      lay_out(tensor(t), line);
      continue;
    }
    for (const int l : named(line.loop)) keep_at(l, t, *line.place);
    if (p_.tensors.size() == before) refuse("expected {} to be used in loop {} but it is not", name, line.loop);
    for (std::size_t made = before; made < p_.tensors.size(); ++made) lay_out(p_.tensors[made], line);
  }
}
void Edit::lay_out(Tensor& t, const Line& line) {
  std::vector<std::size_t> order(t.shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!line.order.empty()) {
    order.clear();
    for (const std::string& axis : line.order)
      order.push_back(static_cast<std::size_t>(std::find(t.axes.begin(), t.axes.end(), axis) - t.axes.begin()));
    if (order.size() != t.shape.size() || std::find(order.begin(), order.end(), t.shape.size()) != order.end())
      refuse("expected an order of the axes {} of {} but got {}", fmt::join(t.axes, ", "), t.name, fmt::join(line.order, ", "));
  }
  std::int64_t next = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    t.strides[order[i]] = next;
    next = next * t.shape[order[i]] + (i + 1 == order.size() ? line.pad : 0);
  }
}

void Edit::keep_at(int l, int t, Tensor::Kind kind) {
  const std::vector<Site> sites = sites_of(p_);
  const Site *reader = nullptr, *writer = nullptr, *assigner = nullptr;
  std::size_t depth = 0;
  for (const Site& site : sites) {
    if (!contains(site.loops, l)) continue;
    depth = static_cast<std::size_t>(std::find(site.loops.begin(), site.loops.end(), l) - site.loops.begin()) + 1;
    if (reads(*site.statement, t) && !reader) reader = &site;
    if (site.statement->to.tensor == t) (site.statement->write == Write::assign ? assigner : writer) = &site;
  }
  if ((reader != nullptr) + (writer != nullptr) + (assigner != nullptr) > 1)
    refuse("expected loop {} to read {} or to reduce into it but it does more", loop(l).name, tensor(t).name);
  if (writer) keep_reduction(*writer, depth, {}, kind, tensor(t).name + (kind == Tensor::Kind::shared ? "_s" : "_r"));
  if (reader) keep_reads(*reader, depth, t, kind);
}

/// A copy, at the start of the loop's body, of what the body reads.
void Edit::keep_reads(const Site& first, std::size_t depth, int t, Tensor::Kind kind) {
  const std::vector<int> around(first.loops.begin(), first.loops.begin() + static_cast<std::ptrdiff_t>(depth));
  const auto is_around = [&](int l) { return contains(around, l); };
  const auto is_own = [&](int l) { return !is_around(l); };
  Node& at = node_of(around.back());
  const Access* model = nullptr;
  std::vector<std::int64_t> shape;
  bool is_packed = kind == Tensor::Kind::registers;  // where all read elements that lie alike
  for_each_statement(at, [&](Statement& s) {
    for_each_read(std::as_const(s.value), [&](const Access& a) {
      if (a.tensor != t) return;
      if (!model) model = &a, shape.assign(a.at.size(), 1);
      for (std::size_t d = 0; d < a.at.size(); ++d) {
        const Index difference = part_of(a.at[d], is_around) - part_of(model->at[d], is_around);
        if (!difference.digits.empty())
          refuse("expected one part of {} in loop {} but it reads several", tensor(t).name, loop(around.back()).name);
        shape[d] = std::max(shape[d], largest(part_of(a.at[d], is_own)) + 1);
        is_packed &= form_of(part_of(a.at[d], is_own)) == form_of(part_of(model->at[d], is_own));
      }
    });
  });
  const auto own_part = [&](const Index& index) { return is_packed ? packed(part_of(index, is_own)) : part_of(index, is_own); };
  for (std::size_t d = 0; is_packed && d < shape.size(); ++d) shape[d] = largest(own_part(model->at[d])) + 1;
  const int copy = new_tensor(tensor(t).name + (kind == Tensor::Kind::shared ? "_s" : "_r"), kind, tensor(t).axes, shape);
  Statement fill{{copy, {}}, Write::assign, {Op::read, 0, {t, {}}}};
  std::vector<int> loops;
  Copies copies;
  if (kind == Tensor::Kind::registers)  // by the loops of its first reader: what these are bound to holds for the copy as well
    for (std::size_t i = depth; i < first.loops.size(); ++i) {
      const int l = first.loops[i];
      if (goes_over(*model, l)) loops.push_back(copies[l] = new_loop(Loop(loop(l))));
    }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    Index own = copied(part_of(model->at[d], is_own), copies), to = copied(own_part(model->at[d]), copies);
    if (kind == Tensor::Kind::shared) {
      loops.push_back(new_loop({tensor(t).name + "_" + tensor(t).axes[d], shape[d]}));
      own = to = whole(p_, loops.back());
    }
    const Index from = sum(part_of(model->at[d], is_around), own);
    if (largest(from) >= tensor(t).shape[d]) fill.inside.push_back({from, tensor(t).shape[d]});
    fill.to.at.push_back(to);
    fill.value.read.at.push_back(from);
  }
  for_each_statement(at, [&](Statement& s) {
    for_each_read(s.value, [&](Access& a) {
      if (a.tensor != t) return;
      a.tensor = copy;
      for (Index& index : a.at) index = own_part(index);
    });
  });
  at.body.insert(at.body.begin(), nest(loops, std::move(fill)));
}

/// A reduction in a body `depth` loops deep goes into a tensor of its own, one for each step of the loops `parts`, which is then added.
void Edit::keep_reduction(const Site& w, std::size_t depth, const std::vector<int>& parts, Tensor::Kind kind, const std::string& name) {
  const int t = w.statement->to.tensor;
  const std::vector<Site> sites = sites_of(p_);
  const std::size_t scope = tensor(t).is_local() ? scope_of(sites, t) : 0;
  const std::vector<int> around(w.loops.begin(), w.loops.begin() + static_cast<std::ptrdiff_t>(depth));
  const auto is_around = [&](int l) { return contains(around, l); };
  const auto is_own = [&](int l) { return !is_around(l); };
  const std::vector<std::size_t> way(w.children.begin(), w.children.begin() + static_cast<std::ptrdiff_t>(depth));
  const std::size_t child = w.children[depth];
  Statement step = *w.statement;

  // Loops of the elements, once to set them and once to add them.
  std::vector<int> to_set, to_add;
  Copies set, add;
  for (std::size_t i = depth; i < w.loops.size(); ++i) {
    const int l = w.loops[i];
    const bool is_part = contains(parts, l);
    if (!is_part && !goes_over(step.to, l)) continue;
    to_set.push_back(set[l] = new_loop(Loop(loop(l))));
    to_add.push_back(add[l] = new_loop(is_part ? Loop{loop(l).name + "_" + tensor(t).name, loop(l).extent} : Loop(loop(l))));
  }
  Access kept{0, {}};
  std::vector<std::string> axes = tensor(t).axes;
  std::vector<std::int64_t> shape;
  for (const Index& index : step.to.at) kept.at.push_back(packed(part_of(index, is_own)));
  for (const int l : parts) kept.at.push_back(whole(p_, l)), axes.push_back(loop(l).name);
  for (const Index& index : kept.at) shape.push_back(largest(index) + 1);
  kept.tensor = new_tensor(name, kind, axes, shape);

  Statement setting{kept, Write::assign, {Op::number, identity(step.write)}}, adding{step.to, step.write, {Op::read, 0, kept}};
  for_each_index(setting, [&](Index& index) { index = copied(index, set); });
  for_each_index(adding, [&](Index& index) { index = copied(index, add); });
  for (const int l : parts) adding.reduced.push_back({whole(p_, add[l]), loop(l).extent});
  for (const Bound& axis : step.reduced) {  // steps of loops further out
    Index outer = part_of(axis.value, [&](int l) {
      return std::find(around.begin() + static_cast<std::ptrdiff_t>(std::min(scope, depth)), around.end(), l) != around.end();
    });
    if (outer.digits.empty()) continue;
    std::int64_t least = outer.digits[0].scale;
    for (const Digit& d : outer.digits) least = std::min(least, d.scale);
    for (Digit& d : outer.digits) d.scale /= least;
    adding.reduced.push_back({outer, largest(outer) + 1});
  }
  for (const Bound& g : step.guards)
    if (std::all_of(g.value.digits.begin(), g.value.digits.end(),
                    [&](const Digit& d) { return is_around(d.loop) || add.count(d.loop) != 0; }))
      adding.guards.push_back({copied(g.value, add), g.limit});
  const bool is_whole = adding.reduced.empty();
  if (is_whole) adding.write = Write::assign;

  Body& body = body_at(way);
  for_each_statement(body[child], [&](Statement& s) {
    if (s.to.tensor == t) s.to = kept;
  });
  body.insert(body.begin() + static_cast<std::ptrdiff_t>(child) + 1, nest(to_add, std::move(adding)));
  body.insert(body.begin() + static_cast<std::ptrdiff_t>(child), nest(to_set, std::move(setting)));
  if (is_whole) erase_assignment(p_.body, t);
}
/// Takes away what a reduction starts from, where the whole of it is assigned.
void Edit::erase_assignment(Body& body, int t) {
  std::erase_if(body, [&](Node& node) {
    if (node.kind == Node::Kind::loop) {
      erase_assignment(node.body, t);
      return node.body.empty();
    }
    return node.kind == Node::Kind::statement && node.statement.to.tensor == t && node.statement.write == Write::assign &&
           node.statement.value.op == Op::number;
  });
}

void Edit::part(const Line& line) {
  for (const std::string& name : line.names) {
    const int t = tensor_named(name);
    const std::vector<Site> sites = sites_of(p_);
    const auto w = std::find_if(sites.begin(), sites.end(),
                                [&](const Site& s) { return s.statement->to.tensor == t && s.statement->write != Write::assign; });
    if (w == sites.end()) refuse("expected a reduction into {} but there is none", name);
    const auto is_step = [&](int l) {
      return std::any_of(w->statement->reduced.begin(), w->statement->reduced.end(),
                         [&](const Bound& axis) { return goes_over(axis.value, l); });
    };
    std::vector<int> parts;
    for (const std::string& of : line.of) {
      const auto l = std::find_if(w->loops.begin(), w->loops.end(), [&](int x) { return loop(x).name == of && is_step(x); });
      if (l == w->loops.end()) refuse("expected a loop that {} is reduced over but {} is none", name, of);
      parts.push_back(*l);
    }
    const auto first = std::find_if(w->loops.begin(), w->loops.end(), is_step);
    keep_reduction(*w, static_cast<std::size_t>(first - w->loops.begin()), parts, *line.place, name + "_" + line.of[0]);
  }
}

void Edit::compute_at(const Line& line) {
  const int t = tensor_named(line.of[0]);
  const std::vector<Site> sites = sites_of(p_);
  const auto is_writer = [&](const Site& s) { return s.statement->to.tensor == t; };
  const auto w = std::find_if(sites.begin(), sites.end(), is_writer);
  if (w == sites.end() || std::count_if(sites.begin(), sites.end(), is_writer) != 1)
    refuse("expected one statement that writes {}", line.of[0]);
  const auto reader = std::find_if(w, sites.end(), [&](const Site& s) {
    return reads(*s.statement, t) && std::any_of(s.loops.begin() + static_cast<std::ptrdiff_t>(shared_loops(*w, s)), s.loops.end(),
                                                 [&](int l) { return loop(l).name == line.names[0]; });
  });
  if (reader == sites.end()) refuse("expected a loop {} that reads {} after it is written", line.names[0], line.of[0]);
  const std::size_t shared = shared_loops(*w, *reader);
  std::size_t depth = shared;
  while (loop(reader->loops[depth]).name != line.names[0]) ++depth;
  const std::vector<std::size_t> way(w->children.begin(), w->children.begin() + static_cast<std::ptrdiff_t>(shared));
  Body& body = body_at(way);
  const std::size_t from = w->children[shared], to = reader->children[shared];
  Node moved = body[from];
  Copies copies;
  for (std::size_t i = shared; i <= depth; ++i) {
    if (i >= w->loops.size() || moved.kind != Node::Kind::loop || moved.body.size() != 1)
      refuse("expected {} to be written by loops like those of its reader", line.of[0]);
    const Loop &own = loop(w->loops[i]), &other = loop(reader->loops[i]);
    if (own.extent != other.extent || own.bind != other.bind)
      refuse("expected {} to be written by loops like those of its reader but {} is not {}", line.of[0], own.name, other.name);
    copies[w->loops[i]] = reader->loops[i];
    Node inner = std::move(moved.body[0]);
    moved = std::move(inner);
  }
  for_each_statement(moved, [&](Statement& s) { for_each_index(s, [&](Index& index) { index = copied(index, copies); }); });
  std::vector<std::size_t> target(reader->children.begin(), reader->children.begin() + static_cast<std::ptrdiff_t>(depth) + 1);
  Body& there = body_at(target);
  there.insert(there.begin(), std::move(moved));
  if (from < to) body.erase(body.begin() + static_cast<std::ptrdiff_t>(from));
}

}  // namespace study::loops
