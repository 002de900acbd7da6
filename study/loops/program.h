#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// Loops that a student schedules. A kernel is a program of loops that says what is computed; lines of a schedule say how: they split,
/// reorder and bind its loops, and keep what is used again. Every such program is proved before any code is printed from it (proof.h).
namespace study::loops {

/// scale * (loop / divisor % extent): a digit of a loop's counter. A loop of its own has the digit of divisor 1 and all its extent; loops
/// that were fused into one have a digit each.
struct Digit {
  std::int64_t scale;
  int loop;  ///< its number in Program::loops
  std::int64_t divisor, extent;
  bool operator==(const Digit&) const = default;
};
/// A sum of digits and a constant.
struct Index {
  std::vector<Digit> digits;
  std::int64_t constant = 0;
};
/// 0 <= value < limit.
struct Bound {
  Index value;
  std::int64_t limit;
};
struct Access {
  int tensor;  ///< its number in Program::tensors
  std::vector<Index> at;
};

enum class Op : std::uint8_t { number, read, add, subtract, multiply, divide, exp, tanh, rsqrt };
struct Term {
  Op op;
  double number = 0;
  Access read = {};
  std::vector<Term> of = {};
};

/// How a statement writes: over what was there, or as one step of a reduction.
enum class Write : std::uint8_t { assign, add, max };
struct Statement {
  Access to;
  Write write = Write::assign;
  Term value;
  std::vector<Bound> reduced = {};  ///< of a step of a reduction: the axes that it goes over
  std::vector<Bound> guards = {};   ///< it runs only where all hold
  std::vector<Bound> inside = {};   ///< where one of these does not hold, it writes 0
};

enum class Bind : std::uint8_t { none, block, thread, cores };
struct Loop {
  std::string name;  ///< several loops may share one: a line of a schedule means all of them
  std::int64_t extent;
  Bind bind = Bind::none;
  bool is_vector = false, is_unrolled = false;
};

/// A tensor of f32: the caller's, or one that lives within the loops that enclose all its uses.
struct Tensor {
  enum class Kind : std::uint8_t { input, output, shared, registers };
  std::string name;
  Kind kind;
  std::vector<std::string> axes;
  std::vector<std::int64_t> shape, strides;
  bool is_local() const { return kind == Kind::shared || kind == Kind::registers; }
  std::int64_t size() const;  ///< elements from its first to its last, gaps between rows included
};

struct Node {
  enum class Kind : std::uint8_t { loop, statement, barrier } kind;
  int loop = -1;
  std::vector<Node> body = {};
  Statement statement = {};
};

struct Program {
  std::string name;
  std::vector<Tensor> tensors;
  std::vector<Loop> loops;
  std::vector<Node> body;
  double flops = 0;            ///< of a product, else 0
  std::int64_t bytes() const;  ///< of the caller's tensors, each once
};

/// Names of the kernels: column_sum gelu layer_norm matmul rms_norm softmax transpose.
std::vector<std::string> kernel_names();
/// A kernel without a schedule, of so many sizes: matmul (M, N, K), gelu (N), others (R, C). Throws Error for another name, or other
/// sizes.
Program kernel(const std::string& name, const std::vector<std::int64_t>& sizes);
/// Its sizes in lessons; small odd ones, at which schedules are checked; six others, at which schedules are timed on a CPU for a model.
std::vector<std::int64_t> usual_sizes(const std::string& name);
std::vector<std::vector<std::int64_t>> odd_sizes(const std::string& name);
std::vector<std::vector<std::int64_t>> several_sizes(const std::string& name);

/// The program as text, a line for each loop and statement.
std::string to_text(const Program& program);
std::string to_text(const Program& program, const Node& node);
std::string to_text(const Program& program, const Index& index);
std::string to_text(const Program& program, const Access& access);

/// A statement and its place: the loops around it, from the outermost, and of each body on the way the index of the child.
struct Site {
  const Statement* statement;
  std::vector<int> loops;
  std::vector<std::size_t> children;
};
/// All statements in their order.
std::vector<Site> sites_of(const Program& program);
/// How many loops two sites share.
std::size_t shared_loops(const Site& a, const Site& b);
/// How many of the outermost loops enclose all uses of a local tensor; it lives in the body of the last of them.
std::size_t scope_of(const std::vector<Site>& sites, int tensor);

/// f(access) for each tensor that a term reads.
void for_each_read(const Term& term, const std::function<void(const Access&)>& f);
void for_each_read(Term& term, const std::function<void(Access&)>& f);
bool reads(const Statement& statement, int tensor);
/// f(index) for each index of a statement: of accesses, guards and axes.
void for_each_index(Statement& statement, const std::function<void(Index&)>& f);
/// f(statement) for each below the node.
void for_each_statement(Node& node, const std::function<void(Statement&)>& f);

/// Guards that all statements below a node share, of loops that are around it; none above a barrier, which all threads must reach.
std::vector<Bound> common_guards(const Node& node, const std::vector<int>& around);

Index operator-(const Index& a, const Index& b);
/// The largest value of an index.
std::int64_t largest(const Index& index);
/// The same, given that bounds hold.
std::int64_t largest(const Index& index, const std::vector<Bound>& given);
/// The digits whose loops are such; without its constant.
Index part_of(const Index& index, const std::function<bool(int loop)>& is_such);
/// Whether a digit is of the loop.
bool goes_over(const Index& index, int loop);
bool goes_over(const Access& access, int loop);
Index whole(const Program& program, int loop);
std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape);
double identity(Write write);

}  // namespace study::loops
