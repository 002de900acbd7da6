#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

// Graphs of ops with one result, as text and as data: the subject of `tern-bench rules` (Jia et al., TASO, 2019).
namespace tern::substitutions {

/// The inputs a, b, c (matrices), v (a column) and w (a row), then the ops: `sum` and `maxr` of rows, as a column; `concat` of two equal
/// shapes side by side, split0 and split1 the halves of that; `scale` by a number; `widen` to f32, and `narrow` to the dtype of the inputs.
enum class Op : std::uint8_t {
  a,
  b,
  c,
  v,
  w,
  add,
  mul,
  max,
  sub,
  div,
  matmul,
  concat,
  neg,
  exp,
  log,
  sqrt,
  rsqrt,
  relu,
  sum,
  maxr,
  transpose,
  split0,
  split1,
  scale,
  widen,
  narrow
};
inline constexpr int input_count = 5, op_count = 26;
constexpr bool is_input(Op op) { return op <= Op::w; }
constexpr bool commutes(Op op) { return op >= Op::add && op <= Op::max; }
constexpr bool is_binary(Op op) { return op >= Op::add && op <= Op::concat; }
const char* name(Op op);

/// Index of a term in its table.
using Id = std::uint32_t;

/// An op and its operands, as far as it has them.
struct Node {
  static constexpr double symbol = std::numeric_limits<double>::quiet_NaN();
  Op op;
  Id x = 0, y = 0;
  double number = 0;  ///< of scale: a literal, or `symbol` for any number, which the text calls s
  bool operator==(const Node& other) const {
    return op == other.op && x == other.x && y == other.y &&
           std::bit_cast<std::uint64_t>(number) == std::bit_cast<std::uint64_t>(other.number);
  }
};

/// Rows and columns of a value, and whether it is of f32 whatever the inputs are.
struct Type {
  std::int64_t rows = 0, columns = 0;
  bool is_wide = false;
  bool operator==(const Type&) const = default;
};
/// The type of an op's result; none if its operands do not fit. Both are of one dtype.
std::optional<Type> type_of(Op op, const Type& x, const Type& y);

/// Table in which equal terms are one (hash-consing): operands of an op that commutes have one order. The first ones are the inputs.
class Terms {
 public:
  Terms();
  /// The term of a node, whose operands are terms of this table: a new one if there is none.
  Id add(Node node);
  std::optional<Id> find(Node node) const;
  const Node& operator[](Id id) const { return nodes_[id]; }
  std::size_t size() const { return nodes_.size(); }

  /// The term and all that it is made of, operands first.
  std::vector<Id> parts(Id id) const;
  /// Number of its ops: each counts once.
  int ops(Id id) const;
  /// Bits of the inputs that it has, and above them one for the symbol s.
  unsigned inputs(Id id) const;
  /// Its type for inputs of these types; none if it has none.
  std::optional<Type> type(Id id, const std::array<Type, input_count>& of_inputs) const;
  /// Elements that are read and written, and arithmetic, for matrices of 64 x 64. Views (transpose, split) are next to nothing.
  double cost(Id id) const;
  /// The term as text: (add a (exp b)).
  std::string text(Id id) const;

 private:
  /// @{
  /// The order of operands, which is that of the text, whatever else the table has: max of -0 and 0 is the first one.
  bool is_before(Id x, Id y) const;
  Node ordered(Node node) const;
  /// @}
  struct Hash {
    std::size_t operator()(const Node& node) const;
  };
  std::vector<Node> nodes_;
  std::unordered_map<Node, Id, Hash> ids_;
};

/// Types of the inputs for square matrices of n rows.
std::array<Type, input_count> square(std::int64_t n);

}  // namespace tern::substitutions
