#include "substitutions/fingerprint.h"

#include <cmath>
#include <map>

#include "backend/threads.h"
#include "substitutions/enumerate.h"

namespace tern::substitutions {

namespace {

using Word = std::uint32_t;

std::uint64_t mix(std::uint64_t h, std::uint64_t x) {
  h = (h ^ x) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return h ^ (h >> 31);
}

/// Arithmetic of Z_p.
template <Word p>
struct Field {
  static Word add(Word x, Word y) { return x + y >= p ? x + y - p : x + y; }
  static Word sub(Word x, Word y) { return x >= y ? x - y : x + p - y; }
  static Word mul(Word x, Word y) { return static_cast<Word>(std::uint64_t(x) * y % p); }
  static Word power(Word x, Word exponent) {
    Word result = 1;
    for (; exponent; exponent >>= 1, x = mul(x, x))
      if (exponent & 1) result = mul(result, x);
    return result;
  }
  static Word inverse(Word x) { return power(x, p - 2); }
  /// The inverses of all, with one for their product; 0 of 0.
  static void invert(std::vector<Word>& xs) {
    std::vector<Word> before(xs.size());
    Word product = 1;
    for (std::size_t i = 0; i < xs.size(); ++i) before[i] = product, product = xs[i] ? mul(product, xs[i]) : product;
    for (std::size_t i = (product = inverse(product), xs.size()); i-- > 0;)
      if (xs[i]) before[i] = mul(before[i], product), product = mul(product, xs[i]), xs[i] = before[i];
  }
  /// A dyadic number, as a double is; any for the symbol.
  static Word of(double number) {
    if (std::isnan(number)) return static_cast<Word>(mix(1, p) % p);
    int exponent = 0;
    const auto mantissa = static_cast<std::int64_t>(std::ldexp(std::frexp(number, &exponent), 53));
    const auto residue = static_cast<Word>((mantissa % std::int64_t(p) + p) % p);
    exponent -= 53;
    return mul(residue, exponent < 0 ? inverse(power(2, static_cast<Word>(-exponent))) : power(2, static_cast<Word>(exponent)));
  }
};

/// A matrix of pairs.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<Word> p, q;  ///< q is empty if there are no values in Z_q
};

/// The ops on matrices of pairs.
template <Word p>
struct Pairs {
  static constexpr Word q = (p - 1) / 2;
  using P = Field<p>;
  using Q = Field<q>;

  /// A random order, in which 0 is above most: relu changes some elements, and so does relu of a row's largest.
  static Word order(Word x) { return x == 0 ? 0xE0000000u : static_cast<Word>(mix(x, p) >> 32); }
  static Word random_function(Op op, Word x) { return static_cast<Word>(mix(mix(x, p), static_cast<std::uint64_t>(op)) % p); }
  static Word root(Word x) { return P::power(x, (p + 1) / 4); }

  static Matrix input(Id id, const Type& type) {
    Matrix x{type.rows, type.columns, {}, {}};
    for (std::int64_t i = 0; i < x.rows * x.columns; ++i) {
      const auto word = static_cast<Word>(mix(mix(id + 17, p), static_cast<std::uint64_t>(i)) >> 33);
      x.p.push_back(P::mul(word % p, word % p)), x.q.push_back(word % q);
    }
    return x;
  }

  /// f(index of x, index of y) for each element of the result.
  template <class F>
  static Matrix each(const Matrix& x, const Matrix& y, bool has_q, const F& f) {
    Matrix z{std::max(x.rows, y.rows), std::max(x.columns, y.columns), {}, {}};
    z.p.resize(static_cast<std::size_t>(z.rows * z.columns));
    if (has_q) z.q.resize(z.p.size());
    const auto stride = [](std::int64_t size, std::int64_t by) { return size == 1 ? 0 : by; };
    std::size_t k = 0;
    for (std::int64_t i = 0; i < z.rows; ++i)
      for (std::int64_t j = 0; j < z.columns; ++j, ++k)
        f(static_cast<std::size_t>(i * stride(x.rows, x.columns) + j * stride(x.columns, 1)),
          static_cast<std::size_t>(i * stride(y.rows, y.columns) + j * stride(y.columns, 1)), z, k);
    return z;
  }
  /// Elements of x: those with the indices place(i, j).
  template <class F>
  static Matrix moved(const Matrix& x, std::int64_t rows, std::int64_t columns, const F& place) {
    Matrix y{rows, columns, {}, {}};
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        y.p.push_back(x.p[static_cast<std::size_t>(place(i, j))]);
        if (!x.q.empty()) y.q.push_back(x.q[static_cast<std::size_t>(place(i, j))]);
      }
    return y;
  }
  template <class F>
  static std::vector<Word> product(const Matrix& x, const Matrix& y, std::vector<Word> Matrix::* part) {
    std::vector<Word> z;
    for (std::int64_t i = 0; i < x.rows; ++i)
      for (std::int64_t j = 0; j < y.columns; ++j) {
        Word sum = 0;
        for (std::int64_t k = 0; k < x.columns; ++k)
          sum = F::add(
              sum, F::mul((x.*part)[static_cast<std::size_t>(i * x.columns + k)], (y.*part)[static_cast<std::size_t>(k * y.columns + j)]));
        z.push_back(sum);
      }
    return z;
  }

  static Matrix apply(const Node& node, const Matrix& x, const Matrix& y) {
    const bool has_q = !x.q.empty() && (!is_binary(node.op) || !y.q.empty());
    const auto arithmetic = [&](auto of_p, auto of_q) {
      return each(x, y, has_q, [&](std::size_t i, std::size_t j, Matrix& z, std::size_t k) {
        z.p[k] = of_p(x.p[i], y.p[j]);
        if (has_q) z.q[k] = of_q(x.q[i], y.q[j]);
      });
    };
    const auto function = [&](auto of_p) {
      Matrix z{x.rows, x.columns, x.p, {}};
      for (std::size_t i = 0; i < z.p.size(); ++i) z.p[i] = of_p(i);
      return z;
    };
    const auto larger = [&](const Matrix& u, const Matrix& w) {
      return each(u, w, has_q, [&](std::size_t i, std::size_t j, Matrix& z, std::size_t k) {
        const bool is_first = order(u.p[i]) >= order(w.p[j]);
        z.p[k] = is_first ? u.p[i] : w.p[j];
        if (has_q) z.q[k] = is_first ? u.q[i] : w.q[j];
      });
    };
    const auto column = [&](std::int64_t j) {
      return moved(x, x.rows, 1, [&](std::int64_t i, std::int64_t) { return i * x.columns + j; });
    };
    const auto half = [&](std::int64_t begin) {
      return moved(x, x.rows, x.columns / 2, [&](std::int64_t i, std::int64_t j) { return i * x.columns + begin + j; });
    };
    const Matrix zero{1, 1, {0}, {0}};
    switch (node.op) {
      case Op::add: return arithmetic(P::add, Q::add);
      case Op::sub: return arithmetic(P::sub, Q::sub);
      case Op::mul: return arithmetic(P::mul, Q::mul);
      case Op::div: {
        Matrix inverse = y;
        P::invert(inverse.p), Q::invert(inverse.q);
        return apply({Op::mul}, x, inverse);
      }
      case Op::max: return larger(x, y);
      case Op::relu: return larger(x, zero);
      case Op::maxr: {
        Matrix z = column(0);
        for (std::int64_t j = 1; j < x.columns; ++j) z = larger(z, column(j));
        return z;
      }
      case Op::matmul: return {x.rows, y.columns, product<P>(x, y, &Matrix::p), has_q ? product<Q>(x, y, &Matrix::q) : std::vector<Word>()};
      case Op::sum: {
        const auto count = static_cast<std::size_t>(x.columns);
        return apply({Op::matmul}, x, {x.columns, 1, std::vector<Word>(count, 1), std::vector<Word>(count, 1)});
      }
      case Op::neg: return apply({Op::sub}, zero, x);
      case Op::scale: return apply({Op::mul}, x, {1, 1, {P::of(node.number)}, {Q::of(node.number)}});
      case Op::exp: return function([&](std::size_t i) { return has_q ? P::power(4, x.q[i]) : random_function(Op::exp, x.p[i]); });
      case Op::log: return function([&](std::size_t i) { return random_function(Op::log, x.p[i]); });
      case Op::sqrt: return function([&](std::size_t i) { return root(x.p[i]); });
      case Op::rsqrt: return function([&](std::size_t i) { return root(P::inverse(x.p[i])); });
      case Op::transpose: return moved(x, x.columns, x.rows, [&](std::int64_t i, std::int64_t j) { return j * x.columns + i; });
      case Op::concat: {
        Matrix z{x.rows, 2 * x.columns, {}, {}};
        const auto append = [&](std::vector<Word>& to, const std::vector<Word>& from, std::int64_t row) {
          to.insert(to.end(), from.begin() + row * x.columns, from.begin() + (row + 1) * x.columns);
        };
        for (std::int64_t i = 0; i < x.rows; ++i)
          for (const Matrix* from : {&x, &y}) {
            append(z.p, from->p, i);
            if (has_q) append(z.q, from->q, i);
          }
        return z;
      }
      case Op::split0: return half(0);
      case Op::split1: return half(x.columns / 2);
      default: return x;
    }
  }
};

using First = Pairs<2147483579>;
using Second = Pairs<2147483123>;

/// Values of a term at all sizes, in both fields, and whether it is of f32.
struct Value {
  std::array<Matrix, fingerprint_sizes.size()> first, second;
  bool is_wide = false;
};

Value input(Id id) {
  Value value;
  for (std::size_t n = 0; n < fingerprint_sizes.size(); ++n) {
    value.first[n] = First::input(id, square(fingerprint_sizes[n])[id]);
    value.second[n] = Second::input(id, square(fingerprint_sizes[n])[id]);
  }
  return value;
}

Value apply(const Node& node, const Value& x, const Value& y) {
  Value value;
  for (std::size_t n = 0; n < fingerprint_sizes.size(); ++n) {
    value.first[n] = First::apply(node, x.first[n], y.first[n]);
    value.second[n] = Second::apply(node, x.second[n], y.second[n]);
  }
  value.is_wide = node.op == Op::widen || (node.op != Op::narrow && x.is_wide);
  return value;
}

std::uint64_t hash(const Value& value, int fields) {
  std::uint64_t h = value.is_wide;
  const auto add = [&](const Matrix& x) {
    h = mix(mix(h, static_cast<std::uint64_t>(x.rows)), static_cast<std::uint64_t>(x.columns));
    for (const Word word : x.p) h = mix(h, word);
  };
  for (const Matrix& x : value.first) add(x);
  if (fields > 1)
    for (const Matrix& x : value.second) add(x);
  return h;
}

}  // namespace

std::uint64_t fingerprint(const Terms& terms, Id id, int fields) {
  std::map<Id, Value> values;
  for (const Id part : terms.parts(id)) {
    const Node& node = terms[part];
    values[part] = is_input(node.op) ? input(part) : apply(node, values[node.x], is_binary(node.op) ? values[node.y] : Value{});
  }
  return hash(values[id], fields);
}

std::vector<std::uint64_t> fingerprints(const Terms& terms, Id last) {
  std::vector<Value> values(last);
  std::vector<std::uint64_t> result(terms.size());
  const Value none;
  const auto value = [&](Id id) {
    const Node& node = terms[id];
    return is_input(node.op) ? input(id) : apply(node, values[node.x], is_binary(node.op) ? values[node.y] : none);
  };
  for (Id id = 0; id < last; ++id) values[id] = value(id), result[id] = hash(values[id], 2);
  constexpr std::size_t block = 4096;
  const auto blocks = static_cast<int>((terms.size() - last + block - 1) / block);
  backend::run_parts(
      blocks,
      [&](int part) {
        const std::size_t begin = last + static_cast<std::size_t>(part) * block;
        for (std::size_t id = begin; id < std::min(begin + block, terms.size()); ++id) result[id] = hash(value(static_cast<Id>(id)), 2);
      },
      true);
  return result;
}

}  // namespace tern::substitutions
