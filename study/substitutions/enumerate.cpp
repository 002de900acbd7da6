#include "substitutions/enumerate.h"

#include <bit>

namespace tern::substitutions {

namespace {

struct Kind {
  std::array<Type, fingerprint_sizes.size()> types;
  unsigned inputs = 0;
};

class Enumerator {
 public:
  Enumerator(Terms& terms, int most_inputs) : terms_(terms), most_inputs_(most_inputs) {
    for (Id i = 0; i < input_count; ++i) {
      Kind kind{{}, 1u << i};
      for (std::size_t n = 0; n < fingerprint_sizes.size(); ++n) kind.types[n] = square(fingerprint_sizes[n])[i];
      kinds_.push_back(kind);
    }
  }

  void unary(Id x) {
    for (int op = static_cast<int>(Op::neg); op < op_count; ++op) add({static_cast<Op>(op), x, 0, Node::symbol}, kinds_[x], {});
  }
  void binary(Id x, Id y) {
    if (std::popcount(kinds_[x].inputs | kinds_[y].inputs) > most_inputs_) return;
    for (int op = static_cast<int>(Op::add); op <= static_cast<int>(Op::concat); ++op)
      add({static_cast<Op>(op), x, y}, kinds_[x], kinds_[y]);
  }

 private:
  void add(Node node, const Kind& x, const Kind& y) {
    if (node.op != Op::scale) node.number = 0;
    Kind kind{{}, x.inputs | y.inputs};
    for (std::size_t n = 0; n < kind.types.size(); ++n) {
      const auto type = type_of(node.op, x.types[n], y.types[n]);
      if (!type) return;
      kind.types[n] = *type;
    }
    if (terms_.add(node) == kinds_.size()) kinds_.push_back(kind);
  }

  Terms& terms_;
  const int most_inputs_;
  std::vector<Kind> kinds_;
};

/// The term with other names of a, b and c.
Id renamed(const Terms& terms, Id id, const std::array<Id, input_count>& names) {
  if (id < input_count) return names[id];
  Node node = terms[id];
  node.x = renamed(terms, node.x, names);
  if (is_binary(node.op)) node.y = renamed(terms, node.y, names);
  return *terms.find(node);
}

}  // namespace

Enumeration enumerate(Terms& terms, int ops, int inputs) {
  Enumerator all(terms, inputs);
  Enumeration result;
  result.begin = {0, static_cast<Id>(terms.size())};
  for (int count = 1; count <= ops; ++count) {
    // One operand has all ops but the last, and the other is an input or a part of it;
    for (Id x = result.begin[count - 1]; x < result.begin[count]; ++x) {
      all.unary(x);
      std::vector<Id> others = terms.parts(x);
      for (Id input = 0; input < input_count; ++input) others.push_back(input);
      for (const Id y : others) all.binary(x, y), all.binary(y, x);
    }
    // or, with three ops, the operands have one each.
    if (count == 3)
      for (Id x = result.begin[1]; x < result.begin[2]; ++x)
        for (Id y = result.begin[1]; y < result.begin[2]; ++y) all.binary(x, y);
    result.begin.push_back(static_cast<Id>(terms.size()));
  }
  constexpr std::array<Id, input_count> names[] = {{0, 1, 2, 3, 4}, {0, 2, 1, 3, 4}, {1, 0, 2, 3, 4},
                                                   {1, 2, 0, 3, 4}, {2, 0, 1, 3, 4}, {2, 1, 0, 3, 4}};
  for (Id id = 0; id < terms.size(); ++id) {
    Id first = id;
    for (const auto& of : names) first = std::min(first, renamed(terms, id, of));
    result.first.push_back(first);
    result.graphs += first == id;
  }
  return result;
}

}  // namespace tern::substitutions
