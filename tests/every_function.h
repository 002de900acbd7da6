#pragma once
#include <utility>
#include <vector>

#include "ops/kernels/pointwise.h"

namespace tern {

template <class T, class... Types>
constexpr bool is_one_of = (std::is_same_v<T, Types> || ...);

template <class... Functors, class List>
bool holds_one_of(const List& function) {
  return (std::holds_alternative<Functors>(function) || ...);
}

/// Every function of a list of ops/kernels/pointwise.h, with the parameters that it has where none are given; clamp has bounds that bind.
template <class List>
std::vector<List> every_function() {
  const auto make = []<class F>(F functor) {
    if constexpr (std::is_same_v<F, functors::Clamp>) functor = {-0.5, 0.75, 0, 1};
    return functor;
  };
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return std::vector<List>{make(std::variant_alternative_t<i, List>{})...};
  }(std::make_index_sequence<std::variant_size_v<List>>());
}

}  // namespace tern
