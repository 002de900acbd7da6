#include "substitutions/firing.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ops/factory.h"
#include "tensor/context.h"

namespace tern::substitutions {

using compiler::Call;

namespace {

/// A number of the patterns that stands for any.
constexpr double free_number = 0.8125;

compiler::Pattern pattern_of(const Terms& terms, Id id, const std::vector<Tensor>& inputs, DType dtype) {
  const auto f = [&](const Tensors& in) {
    std::array<Tensor, input_count> of;
    std::copy(in.begin(), in.end(), of.begin());
    return Tensors{Judge::compute(terms, id, of, dtype, free_number, true)};
  };
  return {f, inputs, {free_number}};
}

/// The kernels without what views and names change: types, numbers and elements.
std::vector<std::vector<double>> kernels_of(const std::vector<Call>& calls) {
  std::vector<std::vector<double>> kernels;
  for (const Call& call : calls) {
    const compiler::Arguments arguments(*call.kernel);
    std::vector<double>& kernel = kernels.emplace_back();
    kernel.push_back(static_cast<double>(call.kernel->type().hash_code()));
    for (const auto& number : arguments.numbers) kernel.push_back(std::visit([](auto x) { return static_cast<double>(x); }, number));
    const std::size_t begin = kernel.size();
    for (const View& view : arguments.views) kernel.push_back(static_cast<double>(view.data ? view.numel() : 0));
    std::sort(kernel.begin() + static_cast<std::ptrdiff_t>(begin), kernel.end());
  }
  std::sort(kernels.begin(), kernels.end());
  return kernels;
}

/// Types of inputs that both sides take, with as many sizes as can be: twice primes, as concat and split want. None if there are none.
std::optional<std::array<Type, input_count>> most_general(const Terms& terms, const Rule& rule) {
  constexpr std::int64_t sizes[] = {26, 34, 38};
  constexpr int choices[] = {9, 9, 9, 3, 3};
  const unsigned used = terms.inputs(rule.left);
  std::optional<std::array<Type, input_count>> best;
  std::size_t most = 0;
  for (int code = 0, rest = 0; (rest = code) < 9 * 9 * 9 * 3 * 3; ++code) {
    std::array<Type, input_count> types;
    std::set<std::int64_t> distinct;
    bool is_other = true;  // than those before, in what the rule has
    for (std::size_t i = 0; i < input_count; rest /= choices[i++]) {
      const int choice = rest % choices[i];
      types[i] = {i == 4 ? 1 : sizes[choice % 3], i == 4 ? sizes[choice] : i == 3 ? 1 : sizes[choice / 3]};
      if (used >> i & 1) distinct.insert({types[i].rows, types[i].columns});
      else is_other = is_other && choice == 0;
    }
    if (!is_other || distinct.size() <= most) continue;
    const auto type = terms.type(rule.left, types);
    if (type && type == terms.type(rule.right, types)) best = types, most = distinct.size();
  }
  return best;
}

}  // namespace

Firing::Firing(const Terms& terms, const std::vector<Rule>& rules, DType dtype) {
  const NoGrad unrecorded;
  for (const Rule& rule : rules) {
    std::vector<compiler::Pattern>& lefts = lefts_.emplace_back();
    // A view leaves no kernel, and a pattern takes any strides: of a split it would see nothing. Casts to f32 of f32 are none.
    const std::vector<Id> parts = terms.parts(rule.left);
    const bool is_unseen = std::any_of(parts.begin(), parts.end(), [&](Id part) {
      const Op op = terms[part].op;
      return op == Op::split0 || op == Op::split1 || (dtype == DType::f32 && (op == Op::widen || op == Op::narrow));
    });
    const auto types = is_unseen ? std::nullopt : most_general(terms, rule);
    if (!types) continue;
    for (const Shape& outer : {Shape{}, Shape{7}, Shape{7, 11}}) {
      std::vector<Tensor> inputs;
      for (const Type& type : *types) {
        Shape shape = outer;
        shape.push_back(type.rows), shape.push_back(type.columns);
        inputs.push_back(zeros(shape, dtype));
      }
      compiler::Pattern left = pattern_of(terms, rule.left, inputs, dtype);
      const compiler::Pattern right = pattern_of(terms, rule.right, inputs, dtype);
      if (left.size() > 0 && kernels_of(left.calls()) != kernels_of(right.calls())) lefts.push_back(std::move(left));
    }
  }
}
bool Firing::changes_kernels(std::size_t rule) const { return !lefts_[rule].empty(); }

std::vector<std::size_t> Firing::count(const compiler::Program& program) const {
  const auto& calls = program.calls();
  const auto uses = compiler::uses_of(calls, program.blocks().size());
  std::vector<std::size_t> counts;
  for (const std::vector<compiler::Pattern>& lefts : lefts_) {
    std::size_t& count = counts.emplace_back();
    for (const compiler::Pattern& pattern : lefts)
      for (std::size_t first = 0; first < calls.size(); ++first) {
        if (calls[first].kernel->type() != pattern.calls()[0].kernel->type()) continue;
        const auto match = pattern.match(calls, uses, first);
        if (!match) continue;
        bool is_alone = true;
        for (std::size_t block = 0; block < match->bindings.size(); ++block) {
          const auto& binding = match->bindings[block];
          if (binding.block == Call::Place::none) continue;
          for (const auto& [from, to] : binding.strides) is_alone = is_alone && (from == 0) == (to == 0);
          if (!pattern.is_inside(block)) continue;
          is_alone = is_alone && program.blocks()[binding.block].kind == compiler::Block::Kind::inner;
          for (const std::size_t use : uses[binding.block])
            is_alone = is_alone && std::find(match->calls.begin(), match->calls.end(), use) != match->calls.end();
        }
        count += is_alone;
      }
  }
  return counts;
}

}  // namespace tern::substitutions
