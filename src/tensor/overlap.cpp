#include "tensor/overlap.h"

#include <algorithm>
#include <numeric>

#include "tensor/view.h"

namespace tern {

namespace {

// Note [Overlap]
// The element with index i is at offset + sum of stride[d] * i[d]. Two windows share memory if the difference of two such sums equals the
// difference of the offsets: a linear equation in bounded integers. It is solved by search, the longest stride first, where the remainder
// bounds each term: windows in practice nest, so that one or two values of a term remain. (The general problem is a knapsack; NumPy's
// shares_memory bounds its search the same way.)

/// Term step * n of the sum, with 0 <= n <= last.
struct Term {
  std::int64_t step, last;
};

class Search {
 public:
  void add(std::int64_t step, std::int64_t last) {
    if (last > 0 && step != 0) terms_.push_back({step, last});
  }
  /// Searches for values of the terms that add up to `sum`.
  Overlap solve(std::int64_t sum) {
    // Negative steps are counted from the other end.
    for (Term& term : terms_) {
      if (term.step > 0) continue;
      sum = checked_add("overlap", sum, checked_mul("overlap", -term.step, term.last));
      term.step = -term.step;
    }
    std::sort(terms_.begin(), terms_.end(), [](const Term& a, const Term& b) { return a.step > b.step; });
    // Terms with the same step are merged.
    std::size_t kept = 0;
    for (const Term& term : terms_)
      if (kept > 0 && terms_[kept - 1].step == term.step) terms_[kept - 1].last = checked_add("overlap", terms_[kept - 1].last, term.last);
      else terms_[kept++] = term;
    terms_.resize(kept);
    reach_.assign(kept + 1, 0);
    divisor_.assign(kept + 1, 0);
    for (std::size_t i = kept; i-- > 0;) {
      reach_[i] = checked_add("overlap", reach_[i + 1], checked_mul("overlap", terms_[i].step, terms_[i].last));
      divisor_[i] = std::gcd(divisor_[i + 1], terms_[i].step);
    }
    visited_ = 0;
    return search(0, sum);
  }

 private:
  static constexpr int max_visited = 20000;

  Overlap search(std::size_t first, std::int64_t rest) {
    if (rest < 0 || rest > reach_[first]) return Overlap::none;
    if (first == terms_.size()) return Overlap::partial;  // rest is 0
    if (rest % divisor_[first] != 0) return Overlap::none;
    if (++visited_ > max_visited) return Overlap::undecided;
    const auto [step, last] = terms_[first];
    const std::int64_t beyond = std::max<std::int64_t>(rest - reach_[first + 1], 0), low = beyond / step + (beyond % step != 0);
    for (std::int64_t n = low; n <= std::min(last, rest / step); ++n)
      if (const Overlap found = search(first + 1, rest - n * step); found != Overlap::none) return found;
    return Overlap::none;
  }

  std::vector<Term> terms_;
  std::vector<std::int64_t> reach_, divisor_;  ///< reach and divisor of the terms from each one to the last
  int visited_ = 0;
};

/// True if each stride is longer than the reach of all shorter ones together, so that no two indices share an element.
bool is_nested(const Tensor& x) {
  std::int64_t reach = 0;
  DimVec<std::int64_t> done = Shape::filled(x.dims(), 0);
  for (int round = 0; round < x.dims(); ++round) {
    int shortest = -1;
    for (int d = 0; d < x.dims(); ++d)
      if (!done[d] && (shortest < 0 || std::abs(x.strides()[d]) < std::abs(x.strides()[shortest]))) shortest = d;
    done[shortest] = 1;
    if (x.shape()[shortest] <= 1) continue;
    if (std::abs(x.strides()[shortest]) <= reach) return false;
    reach += std::abs(x.strides()[shortest]) * (x.shape()[shortest] - 1);
  }
  return true;
}

}  // namespace

std::optional<Extent> extent_of(const Shape& shape, const Strides& strides) {
  if (shape.size() != strides.size() || !checked_product(shape)) return std::nullopt;
  if (numel(shape) == 0) return Extent{};
  Extent result{0, 1};
  for (int d = 0; d < shape.size(); ++d) {
    std::int64_t reach = 0, &end = strides[d] < 0 ? result.low : result.high;
    if (shape[d] > 1 && (__builtin_mul_overflow(shape[d] - 1, strides[d], &reach) || __builtin_add_overflow(end, reach, &end)))
      return std::nullopt;
  }
  if (std::int64_t count = 0; __builtin_sub_overflow(result.high, result.low, &count)) return std::nullopt;
  return result;
}

Overlap overlap(const Tensor& x) {
  if (x.numel() < 2 || x.is_contiguous() || is_nested(x)) return Overlap::none;
  // Two elements whose indices first differ in dimension d, by 1 or more; the difference of the others may have either sign.
  for (int d = 0; d < x.dims(); ++d) {
    const std::int64_t size = x.shape()[d];
    if (size == 1) continue;
    if (x.strides()[d] == 0) return Overlap::partial;
    Search search;
    std::int64_t sum = -x.strides()[d];
    search.add(x.strides()[d], size - 2);
    for (int other = d + 1; other < x.dims(); ++other) {
      const std::int64_t reach = x.shape()[other] - 1;
      search.add(x.strides()[other], 2 * reach);
      sum += x.strides()[other] * reach;
    }
    if (const Overlap found = search.solve(sum); found != Overlap::none) return found;
  }
  return Overlap::none;
}

Overlap overlap(const Tensor& a, const Tensor& b) {
  if (!(a.impl().storage == b.impl().storage)) return Overlap::none;
  return overlap(a.view(), b.view());
}

Overlap overlap(const View& a, const View& b) {
  if (a.numel() == 0 || b.numel() == 0) return Overlap::none;
  if (a.dtype != b.dtype) return Overlap::undecided;
  const std::int64_t bytes = reinterpret_cast<std::intptr_t>(b.data) - reinterpret_cast<std::intptr_t>(a.data),
                     size = static_cast<std::int64_t>(size_of(a.dtype)), apart = bytes / size;
  if (bytes % size != 0) return Overlap::undecided;
  if (apart == 0 && a.shape == b.shape) {
    bool is_same = true;
    for (int d = 0; d < a.dims(); ++d) is_same = is_same && (a.shape[d] == 1 || a.strides[d] == b.strides[d]);
    if (is_same) return Overlap::whole;
  }
  const Extent in_a = *extent_of(a.shape, a.strides), in_b = *extent_of(b.shape, b.strides);
  if (in_a.high <= apart + in_b.low || apart + in_b.high <= in_a.low) return Overlap::none;
  if (a.is_contiguous() && b.is_contiguous()) return Overlap::partial;
  Search search;
  for (int d = 0; d < a.dims(); ++d) search.add(a.strides[d], a.shape[d] - 1);
  for (int d = 0; d < b.dims(); ++d) search.add(-b.strides[d], b.shape[d] - 1);
  return search.solve(apart);
}

}  // namespace tern
