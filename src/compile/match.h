#pragma once
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "compile/groups.h"

namespace tern::compiler {

// Note [Patterns]
// A pattern is a function of tensors, whose gradients may be among its results, as a program: it is traced on small arguments. Their sizes
// are different primes, so each stands for a dimension, whatever its size is elsewhere; strides stand for those of the same block, and some
// numbers for any. A program has the pattern if calls of the same kernels are joined in the same way. So a rule says what it replaces as a
// user writes it, and a backward pass is matched as autodiff makes it.

/// Calls of a program that are a pattern's.
struct Match {
  /// Use of memory that the pattern has as an argument or a result.
  struct Part {
    View view;  ///< of the program, with the dimensions that were asked for
    Call::Place place;
  };
  std::vector<std::size_t> calls;              ///< of the program, for each of the pattern's
  std::map<double, double> numbers;            ///< for the free ones
  std::map<std::int64_t, std::int64_t> sizes;  ///< for the pattern's primes
  PhiloxState draws;                           ///< of its random numbers, if it has any
  /// Of a block of the pattern: the view that was met first, of the pattern and of the program.
  struct Binding {
    std::size_t block = Call::Place::none;  ///< of the program
    std::int64_t offset = 0;
    View of_pattern, of_program;
    std::map<std::int64_t, std::int64_t> strides;
  };
  std::vector<Binding> bindings;
  /// Views of the pattern's block that have dimensions of these sizes, in this order.
  Part part(std::size_t block, const Shape& sizes) const;
};

/// Note [Patterns].
class Pattern {
 public:
  /// The kernels of f(arguments), which are on the program's device. `free`: numbers that stand for any.
  Pattern(const std::function<Tensors(const Tensors&)>& f, const Tensors& arguments, std::vector<double> free);

  /// The pattern in a program, with its first call there. uses: uses_of() the program.
  std::optional<Match> match(const std::vector<Call>& calls, const std::vector<std::vector<std::size_t>>& uses, std::size_t first) const;

  std::size_t size() const { return program_.calls().size(); }
  const std::vector<Call>& calls() const { return program_.calls(); }
  std::size_t argument(std::size_t index) const { return arguments_[index]; }  ///< its block
  std::size_t result(std::size_t index) const { return results_[index]; }      ///< its block
  /// Call that writes a block.
  std::size_t writer(std::size_t block) const;
  bool is_argument(std::size_t block) const;
  /// True for a block that is neither an argument nor a result.
  bool is_inside(std::size_t block) const;

 private:
  struct Search;
  void order_calls();

  Program program_;
  std::vector<std::size_t> order_;  ///< of calls, each with a block of those before it
  std::vector<double> free_;
  std::vector<std::size_t> arguments_, results_;
};

/// For each block the calls that use it, in their order.
std::vector<std::vector<std::size_t>> uses_of(const std::vector<Call>& calls, std::size_t blocks);

}  // namespace tern::compiler
