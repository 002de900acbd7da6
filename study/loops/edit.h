#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "backend/error.h"
#include "schedule.h"

namespace study::loops {

using Body = std::vector<Node>;

inline bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}
inline bool contains(const std::vector<int>& loops, int loop) { return std::find(loops.begin(), loops.end(), loop) != loops.end(); }

/// A program while a line changes it: the primitives on loops are in schedule.cpp, those on tensors in keep.cpp.
class Edit {
 public:
  explicit Edit(const Program& program) : p_(program) {}

  /// The program after the line.
  Program run(const Line& line);

 private:
  template <class... Values>
  [[noreturn]] static void refuse(fmt::format_string<Values...> text, Values&&... values) {
    tern::fail("loops", fmt::format(text, std::forward<Values>(values)...));
  }
  static constexpr std::size_t max_loops = 1000;

  // --- What there is ---
  Loop& loop(int l) { return p_.loops[static_cast<std::size_t>(l)]; }
  Tensor& tensor(int t) { return p_.tensors[static_cast<std::size_t>(t)]; }

  template <class F>
  static void for_each_loop(Body& body, const F& f) {
    for (Node& node : body)
      if (node.kind == Node::Kind::loop) {
        f(node);
        for_each_loop(node.body, f);
      }
  }
  /// Loops of the name, around writes of the tensors if any are named.
  std::vector<int> named(const std::string& name, const std::vector<std::string>& of = {}) {
    for (const std::string& t : of) tensor_named(t);
    std::vector<int> found;
    for_each_loop(p_.body, [&](Node& node) {
      bool is_meant = loop(node.loop).name == name && of.empty();
      if (loop(node.loop).name == name) for_each_statement(node, [&](Statement& s) { is_meant |= contains(of, tensor(s.to.tensor).name); });
      if (is_meant) found.push_back(node.loop);
    });
    if (found.empty())
      refuse("expected a loop {}{} but there is none", name, of.empty() ? "" : fmt::format(" around {}", fmt::join(of, ", ")));
    return found;
  }
  Node& node_of(int l) {
    Node* found = nullptr;
    for_each_loop(p_.body, [&](Node& node) {
      if (node.loop == l) found = &node;
    });
    if (!found) refuse("expected loop {} to be in the program still", loop(l).name);
    return *found;
  }
  int tensor_named(const std::string& name) {
    for (std::size_t t = 0; t < p_.tensors.size(); ++t)
      if (p_.tensors[t].name == name) return static_cast<int>(t);
    refuse("expected a tensor but there is no {}", name);
  }
  /// The body that a way of children leads to.
  Body& body_at(const std::vector<std::size_t>& way) {
    Body* body = &p_.body;
    for (const std::size_t i : way) body = &(*body)[i].body;
    return *body;
  }
  void require_free(int l) {
    const Loop& x = loop(l);
    if (x.bind != Bind::none || x.is_vector || x.is_unrolled) refuse("expected loop {} before it is bound, vectorised or unrolled", x.name);
  }
  void check_names(const Body& body, std::vector<std::string> around) {
    for (const Node& node : body) {
      if (node.kind != Node::Kind::loop) continue;
      if (contains(around, loop(node.loop).name))
        refuse("expected a name that no loop around it has but got {} twice", loop(node.loop).name);
      around.push_back(loop(node.loop).name);
      check_names(node.body, around);
      around.pop_back();
    }
  }

  // --- What is made ---
  int new_loop(Loop made) {
    if (p_.loops.size() >= max_loops) refuse("expected at most {} loops", max_loops);
    p_.loops.push_back(std::move(made));
    return static_cast<int>(p_.loops.size()) - 1;
  }
  int new_tensor(std::string name, Tensor::Kind kind, std::vector<std::string> axes, std::vector<std::int64_t> shape) {
    const auto is_taken = [&](const std::string& n) {
      return std::any_of(p_.tensors.begin(), p_.tensors.end(), [&](const Tensor& t) { return t.name == n; });
    };
    std::string free = name;
    for (int i = 2; is_taken(free); ++i) free = fmt::format("{}{}", name, i);
    check_size(free, shape);
    p_.tensors.push_back({free, kind, std::move(axes), shape, row_major(shape)});
    return static_cast<int>(p_.tensors.size()) - 1;
  }
  static void check_size(const std::string& name, const std::vector<std::int64_t>& shape) {
    double count = 1;
    for (const std::int64_t n : shape) count *= static_cast<double>(n);
    if (count > (1 << 22)) refuse("expected at most 2^22 elements of {} but got {:.0f}", name, count);
  }
  /// Copies of loops, and the indices that go over them.
  using Copies = std::map<int, int>;
  static Index copied(Index index, const Copies& copies) {
    for (Digit& d : index.digits)
      if (const auto c = copies.find(d.loop); c != copies.end()) d.loop = c->second;
    return index;
  }
  static Node nest(const std::vector<int>& loops, Statement statement) {
    Node node{.kind = Node::Kind::statement, .statement = std::move(statement)};
    for (std::size_t i = loops.size(); i-- > 0;) {
      Node outer{.kind = Node::Kind::loop, .loop = loops[i]};
      outer.body.push_back(std::move(node));
      node = std::move(outer);
    }
    return node;
  }
  static Index sum(Index a, const Index& b) {
    a.digits.insert(a.digits.end(), b.digits.begin(), b.digits.end());
    a.constant += b.constant;
    return a;
  }

  // --- Primitives ---
  std::pair<int, int> split_in_two(int l, std::int64_t factor, const std::string& outer_name, const std::string& inner_name);
  void split(const Line& line);
  void fuse(const Line& line);
  void reorder(const Line& line);
  void reorder_in(Body& body, const Line& line, bool& is_done);
  void bind(const Line& line);
  void mark(const Line& line, bool Loop::* what);
  void keep(const Line& line);
  static void lay_out(Tensor& t, const Line& line);
  void keep_at(int l, int t, Tensor::Kind kind);
  void keep_reads(const Site& first, std::size_t depth, int t, Tensor::Kind kind);
  void keep_reduction(const Site& w, std::size_t depth, const std::vector<int>& parts, Tensor::Kind kind, const std::string& name);
  void erase_assignment(Body& body, int t);
  void part(const Line& line);
  void compute_at(const Line& line);

  Program p_;
};

}  // namespace study::loops
