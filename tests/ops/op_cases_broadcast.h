#pragma once
#include <functional>

#include "op_cases.h"
#include "ops/pointwise.h"

/// Cases of functions of two operands, for every pair of shapes that broadcast.

namespace tern::op_cases {

/// Pairs of shapes that broadcast.
inline const std::vector<std::pair<Shape, Shape>> pairs = {{{0}, {0}},
                                                           {{1}, {1}},
                                                           {{31}, {31}},
                                                           {{33}, {33}},
                                                           {{1025}, {1025}},
                                                           {{}, {}},
                                                           {{3, 5}, {3, 5}},
                                                           {{4, 1}, {1, 5}},
                                                           {{}, {7}},
                                                           {{3, 4}, {4}},
                                                           {{2, 1, 3}, {5, 1}},
                                                           {{0, 3}, {1, 3}},
                                                           {{33}, {1}},
                                                           {{1025}, {}},
                                                           {{33, 31}, {31}},
                                                           {{33, 31}, {33, 1}},
                                                           {{40, 1025}, {40, 1025}},
                                                           {{40, 1025}, {1025}},
                                                           {{37, 1100}, {37, 1}},
                                                           {{1, 2, 1, 2, 1, 2, 1, 2}, {2, 1, 2, 1, 2, 1}}};
inline const std::vector<Shape> shapes = {{0}, {1}, {31}, {33}, {1025}, {}, {3, 5}, {2, 0, 3}, {40, 1025}, {1, 2, 1, 2, 1, 2, 1, 2}};

inline Input like(Input input, const Shape& shape) {
  input.shape = shape;
  return input;
}

inline DType same(DType dtype) { return dtype; }
inline DType numeric(DType dtype) { return dtype == DType::boolean ? DType::i64 : dtype; }
inline DType divided(DType dtype) { return is_floating(dtype) ? dtype : DType::f32; }
inline DType boolean(DType) { return DType::boolean; }

using Cases = std::vector<Case>;
/// A binary op, one of whose operands may be a number.
using OfOperands = Tensor (*)(const Operand&, const Operand&);
using Either = const Operand&;

/// Cases of f(a, b) for every pair of shapes.
template <class F, class G>
Cases two(F f, G g, DType (*result)(DType), const Input& a, const Input& b, std::vector<DType> dtypes = {}) {
  Cases cases;
  for (const auto& [sa, sb] : pairs)
    cases.push_back({{like(a, sa), like(b, sb)},
                     [=](const Arguments& in) -> Tensors { return {f(in[0], in[1])}; },
                     [=](const References& in) { return one(reference::zip(in[0], in[1], result(in.dtype), g)); },
                     dtypes});
  return cases;
}

/// Cases of f(x), with a number as the other operand, for every shape.
template <class F, class G>
Cases with_number(F f, G g, DType (*result)(DType), const Input& x, std::vector<DType> dtypes = {}) {
  Cases cases;
  for (const Shape& shape : shapes)
    cases.push_back({{like(x, shape)},
                     [=](const Arguments& in) -> Tensors { return {f(in[0])}; },
                     [=](const References& in) { return one(reference::map(in[0], result(in.dtype), g)); },
                     dtypes});
  return cases;
}

inline Cases joined(std::initializer_list<Cases> lists) {
  Cases all;
  for (const Cases& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

inline std::vector<Mistake> shape_mistakes(const std::function<Tensor(T, T)>& f) {
  return {{[=] { f(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
          {[=] { f(sample({2, 3}), sample({2})); }, {"(2, 3)", "(2,)"}},
          {[=] { f(sample({0}), sample({3})); }, {"(0,)", "(3,)"}}};
}

inline const Input any = value({});
inline const Input nonzero = positive({});

}  // namespace tern::op_cases
