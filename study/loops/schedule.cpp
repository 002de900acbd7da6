// The primitives on loops: each takes a program to another, and refuses what it cannot do.
#include "schedule.h"

#include "edit.h"
#include "proof.h"

namespace study::loops {

Program Edit::run(const Line& line) {
  if (line.primitive == "split") split(line);
  else if (line.primitive == "fuse") fuse(line);
  else if (line.primitive == "reorder") reorder(line);
  else if (line.primitive == "bind") bind(line);
  else if (line.primitive == "vectorise") mark(line, &Loop::is_vector);
  else if (line.primitive == "unroll") mark(line, &Loop::is_unrolled);
  else if (line.primitive == "keep") keep(line);
  else if (line.primitive == "part") part(line);
  else if (line.primitive == "at") compute_at(line);
  else refuse("expected a primitive but got '{}'", line.primitive);
  check_names(p_.body, {});
  place_barriers(p_);
  return std::move(p_);
}

/// loop = outer * factor + inner, with a guard where the last step of outer has not all of inner.
std::pair<int, int> Edit::split_in_two(int l, std::int64_t factor, const std::string& outer_name, const std::string& inner_name) {
  require_free(l);
  const std::int64_t extent = loop(l).extent;
  const int outer = new_loop({outer_name, (extent + factor - 1) / factor}), inner = new_loop({inner_name, factor});
  Node& node = node_of(l);
  for_each_statement(node, [&](Statement& s) {
    for_each_index(s, [&](Index& index) {
      std::vector<Digit> digits;
      for (const Digit& d : index.digits) {
        const std::int64_t divisor = d.divisor, n = d.divisor * d.extent;
        if (d.loop != l) digits.push_back(d);
        else if (divisor == 1 && d.extent == extent)
          digits.insert(digits.end(), {{d.scale * factor, outer, 1, loop(outer).extent}, {d.scale, inner, 1, factor}});
        else if (extent % factor == 0 && divisor % factor == 0) digits.push_back({d.scale, outer, divisor / factor, d.extent});
        else if (extent % factor == 0 && factor % n == 0) digits.push_back({d.scale, inner, divisor, d.extent});
        else if (extent % factor == 0 && factor % divisor == 0 && n % factor == 0)
          digits.insert(digits.end(), {{d.scale * (factor / divisor), outer, 1, n / factor}, {d.scale, inner, divisor, factor / divisor}});
        else refuse("expected a factor that divides the loops that {} is made of but got {}", loop(l).name, factor);
      }
      index.digits = std::move(digits);
    });
    if (extent % factor != 0) s.guards.push_back({{{{factor, outer, 1, loop(outer).extent}, {1, inner, 1, factor}}}, extent});
  });
  Node within{.kind = Node::Kind::loop, .loop = inner, .body = std::move(node.body)};
  node.loop = outer;
  node.body.clear();
  node.body.push_back(std::move(within));
  return {outer, inner};
}

void Edit::split(const Line& line) {
  for (int l : named(line.names[0], line.of))
    for (std::size_t i = 0; i < line.factors.size(); ++i) {
      std::int64_t factor = 1;
      for (std::size_t j = i; j < line.factors.size(); ++j)
        if ((factor *= line.factors[j]) > (1 << 24)) refuse("expected factors of at most 2^24 together but got more");
      // The rest, in the last step, is named for good.
      l = split_in_two(l, factor, line.results[i], line.results[i + 1]).second;
    }
}

void Edit::fuse(const Line& line) {
  std::string first = line.names[0];
  for (std::size_t i = 1; i < line.names.size(); ++i) {
    bool is_done = false;
    for (const int a : named(first)) {
      Node& node = node_of(a);
      bool has_next = false;
      for_each_loop(node.body, [&](const Node& n) { has_next |= loop(n.loop).name == line.names[i]; });
      if (!has_next) continue;
      if (node.body.size() != 1 || node.body[0].kind != Node::Kind::loop || loop(node.body[0].loop).name != line.names[i])
        refuse("expected loop {} to stand directly in {}, alone, but it does not", line.names[i], first);
      const int b = node.body[0].loop;
      require_free(a), require_free(b);
      const std::int64_t inner = loop(b).extent;
      if (loop(a).extent > (std::int64_t{1} << 40) / inner) refuse("expected fewer steps of {} and {}", first, line.names[i]);
      const int both = new_loop({line.results[0], loop(a).extent * inner});
      for_each_statement(node, [&](Statement& s) {
        for_each_index(s, [&](Index& index) {
          for (Digit& d : index.digits) {
            if (d.loop == a) d = {d.scale, both, d.divisor * inner, d.extent};
            else if (d.loop == b) d.loop = both;
          }
        });
      });
      node.loop = both;
      Body body = std::move(node.body[0].body);
      node.body = std::move(body);
      is_done = true;
    }
    if (!is_done) refuse("expected loop {} in {} but it is not there", line.names[i], first);
    first = line.results[0];
  }
}

void Edit::reorder(const Line& line) {
  for (const std::string& name : line.names) named(name);
  bool is_done = false;
  reorder_in(p_.body, line, is_done);
  if (!is_done) refuse("expected two of the loops {} in each other but no two are", fmt::join(line.names, ", "));
}
void Edit::reorder_in(Body& body, const Line& line, bool& is_done) {
  for (Node& node : body) {
    if (node.kind != Node::Kind::loop) continue;
    bool is_meant = line.of.empty();
    for_each_statement(node, [&](Statement& s) { is_meant |= contains(line.of, tensor(s.to.tensor).name); });
    if (!is_meant) continue;
    if (!contains(line.names, loop(node.loop).name)) {
      reorder_in(node.body, line, is_done);
      continue;
    }
    std::vector<Node*> places;
    std::vector<int> found;
    std::size_t all = 1;
    for_each_loop(node.body, [&](const Node& n) { all += contains(line.names, loop(n.loop).name); });
    for (Node* at = &node;; at = &at->body[0]) {
      if (contains(line.names, loop(at->loop).name)) places.push_back(at), found.push_back(at->loop);
      if (at->body.size() != 1 || at->body[0].kind != Node::Kind::loop) break;
    }
    if (found.size() != all)
      refuse("expected the loops {} directly in each other but others stand between them", fmt::join(line.names, ", "));
    const auto rank = [&](int l) { return std::find(line.names.begin(), line.names.end(), loop(l).name) - line.names.begin(); };
    std::sort(found.begin(), found.end(), [&](int a, int b) { return rank(a) < rank(b); });
    for (std::size_t i = 0; i < places.size(); ++i) places[i]->loop = found[i];
    is_done |= places.size() > 1;
  }
}

void Edit::bind(const Line& line) {
  for (std::size_t i = 0; i < line.names.size(); ++i)
    for (const int l : named(line.names[i])) {
      require_free(l);
      loop(l).bind = line.binds[i];
    }
}

void Edit::mark(const Line& line, bool Loop::* what) {
  for (const std::string& name : line.names)
    for (const int l : named(name, line.of)) {
      require_free(l);
      loop(l).*what = true;
    }
}

Program apply(const Program& program, const Line& line) { return Edit(program).run(line); }

Program schedule(Program program, const std::vector<Line>& lines, const std::string& file,
                 const std::function<void(const Line&, const Program&)>& f) {
  for (const Line& line : lines) {
    try {
      program = apply(program, line);
      prove(program);
    } catch (const tern::Error& error) {
      throw tern::Error(fmt::format("{}:{}: {}: {}", file, line.number, to_text(line), error.what()));
    }
    if (f) f(line, program);
  }
  return program;
}

}  // namespace study::loops
