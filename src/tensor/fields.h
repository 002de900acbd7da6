#pragma once
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

// The fields of an aggregate, in their order: what an op keeps for backward, and a batch with names, are structs whose tensors are thereby
// listed.
namespace tern {

class Tensor;

namespace detail {

/// Converts to the type of any field.
template <class Aggregate>
struct AnyField {
  template <class T>
    requires(!std::is_same_v<T, Aggregate>)
  operator T() const;
};

template <class A, std::size_t... I>
constexpr bool takes_fields(std::index_sequence<I...>) {
  return requires { A{(static_cast<void>(I), AnyField<A>())...}; };
}

/// Number of fields of an aggregate without arrays.
template <class A, std::size_t N = 16>
constexpr std::size_t field_count() {
  if constexpr (N == 0 || takes_fields<A>(std::make_index_sequence<N>())) return N;
  else return field_count<A, N - 1>();
}

template <class Field, class F>
void visit_field(Field& field, F& f) {
  using Type = std::remove_const_t<Field>;
  static_assert(!std::is_same_v<Type, std::vector<Tensor>>, "a list among the fields: give each of its tensors a field");
  if constexpr (std::is_same_v<Type, Tensor>) f(field);
}

}  // namespace detail

/// Returns f(field, ...) of all fields of an aggregate, which has up to 16 and no array among them.
template <class A, class F>
constexpr auto with_fields(A& a, F&& f) {
  static_assert(std::is_aggregate_v<std::remove_const_t<A>>);
  constexpr std::size_t count = detail::field_count<std::remove_const_t<A>>();
  if constexpr (count == 0) {
    return f();
  } else if constexpr (count == 1) {
    auto& [a0] = a;
    return f(a0);
  } else if constexpr (count == 2) {
    auto& [a0, a1] = a;
    return f(a0, a1);
  } else if constexpr (count == 3) {
    auto& [a0, a1, a2] = a;
    return f(a0, a1, a2);
  } else if constexpr (count == 4) {
    auto& [a0, a1, a2, a3] = a;
    return f(a0, a1, a2, a3);
  } else if constexpr (count == 5) {
    auto& [a0, a1, a2, a3, a4] = a;
    return f(a0, a1, a2, a3, a4);
  } else if constexpr (count == 6) {
    auto& [a0, a1, a2, a3, a4, a5] = a;
    return f(a0, a1, a2, a3, a4, a5);
  } else if constexpr (count == 7) {
    auto& [a0, a1, a2, a3, a4, a5, a6] = a;
    return f(a0, a1, a2, a3, a4, a5, a6);
  } else if constexpr (count == 8) {
    auto& [a0, a1, a2, a3, a4, a5, a6, a7] = a;
    return f(a0, a1, a2, a3, a4, a5, a6, a7);
  } else if constexpr (count == 9) {
    auto& [a0, a1, a2, a3, a4, a5, a6, a7, a8] = a;
    return f(a0, a1, a2, a3, a4, a5, a6, a7, a8);
  } else if constexpr (count == 10) {
    auto& [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9] = a;
    return f(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9);
  } else if constexpr (count == 11) {
    auto& [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10] = a;
    return f(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10);
  } else if constexpr (count == 12) {
    auto& [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11] = a;
    return f(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11);
  } else if constexpr (count == 13) {
    auto& [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12] = a;
    return f(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12);
  } else if constexpr (count == 14) {
    auto& [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13] = a;
    return f(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13);
  } else if constexpr (count == 15) {
    auto& [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14] = a;
    return f(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14);
  } else {
    auto& [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15] = a;
    return f(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15);
  }
}

/// Calls f(tensor) for each tensor among the fields, of which none is a list of tensors.
template <class A, class F>
void for_each_tensor(A& a, F&& f) {
  with_fields(a, [&f](auto&... fields) { (detail::visit_field(fields, f), ...); });
}

}  // namespace tern
