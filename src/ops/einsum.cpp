#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>

#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

/// A tensor with a label for each dimension.
struct Labelled {
  Tensor x;
  std::string labels;
};

bool has(const std::string& labels, char label) { return labels.find(label) != std::string::npos; }

/// Placeholder of an ellipsis, until the operands determine how many dimensions it has.
constexpr char rest = '.';

struct Subscripts {
  std::vector<std::string> operands;
  std::string result;
};

Subscripts parse(std::string_view text) {
  const auto reject = [&](const char* why) {
    fail("einsum", fmt::format("expected subscripts like \"ij,jk->ik\" but got \"{}\": {}", text, why));
  };
  Subscripts parsed{{""}, ""};
  std::map<char, int> counts;
  bool has_result = false, has_rest = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == ' ') continue;
    if (is_letter && has_result) {
      if (has(parsed.result, c)) reject("the result names a letter twice");
      if (!counts.count(c)) reject("the result names a letter that no operand has");
      parsed.result.push_back(c);
    } else if (is_letter) {
      parsed.operands.back().push_back(c);
      ++counts[c];
    } else if (text.substr(i, 3) == "...") {
      std::string& labels = has_result ? parsed.result : parsed.operands.back();
      if (has(labels, rest)) reject("one operand, or the result, has two ellipses");
      labels.push_back(rest);
      has_rest = true;
      i += 2;
    } else if (c == ',' && !has_result) {
      parsed.operands.emplace_back();
    } else if (c == '-' && i + 1 < text.size() && text[i + 1] == '>' && !has_result) {
      has_result = true;
      ++i;
    } else {
      reject("only letters, commas, ellipses and one arrow are understood");
    }
  }
  if (has_result) return parsed;
  if (has_rest) parsed.result.push_back(rest);
  for (const auto& [label, count] : counts)
    if (count == 1) parsed.result.push_back(label);
  return parsed;
}

/// Replaces the ellipsis in labels by digits for its `count` dimensions, 0 for the last of them, so that they are matched from the last.
std::string spelled(std::string labels, int count) {
  const std::size_t at = labels.find(rest);
  if (at == std::string::npos) return labels;
  std::string digits;
  while (count-- > 0) digits.push_back(static_cast<char>('0' + count));
  return labels.replace(at, 1, digits);
}

/// Number of dimensions of an operand that its ellipsis covers: those without a letter.
int rest_of(const Tensor& x, const std::string& labels) { return x.dims() + 1 - static_cast<int>(labels.size()); }

/// The operands, each cast to `dtype` and with a label for each dimension, and the result's labels. Sizes of an ellipsis are broadcast:
/// where one operand has size 1 and another has not, that dimension is removed from the first.
std::vector<Labelled> labelled(std::string_view subscripts, TensorList list, DType dtype, Subscripts& parsed) {
  std::map<char, std::int64_t> sizes;
  std::vector<Labelled> operands;
  int ellipsis_dims = 0;  // largest number among the operands
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::string& labels = parsed.operands[i];
    const bool has_rest = has(labels, rest);
    const int letters = static_cast<int>(labels.size()) - has_rest;
    if (has_rest ? list[i].dims() < letters : list[i].dims() != letters)
      fail("einsum", fmt::format("expected {} dimensions {}for operand {} of \"{}\" but got {}", letters, has_rest ? "or more " : "", i,
                                 subscripts, to_string(list[i].shape())));
    if (has_rest) ellipsis_dims = std::max(ellipsis_dims, rest_of(list[i], labels));
    labels = spelled(labels, rest_of(list[i], labels));
    operands.push_back({cast(list[i], dtype), labels});
    for (int d = 0; d < list[i].dims(); ++d) {
      const char label = labels[static_cast<std::size_t>(d)];
      const std::int64_t size = list[i].shape()[d];
      const auto known = sizes.emplace(label, size).first;
      if (std::isdigit(label) && known->second == 1) known->second = size;
      if (known->second != size && !(std::isdigit(label) && size == 1))
        fail("einsum", fmt::format("expected one size for {} of \"{}\" but got {} and {}",
                                   std::isdigit(label) ? std::string("...") : std::string(1, label), subscripts, known->second, size));
    }
  }
  parsed.result = spelled(parsed.result, ellipsis_dims);
  for (Labelled& a : operands)
    for (int d = a.x.dims() - 1; d >= 0; --d) {
      const char label = a.labels[static_cast<std::size_t>(d)];
      if (a.x.shape()[d] == sizes[label]) continue;
      a.x = squeeze(a.x, d);
      a.labels.erase(static_cast<std::size_t>(d), 1);
    }
  return operands;
}

/// Replaces each label that occurs twice by its diagonal, as the last dimension.
Labelled with_diagonals(Labelled a) {
  for (std::size_t d = 0; d < a.labels.size();) {
    const std::size_t again = a.labels.find(a.labels[d], d + 1);
    if (again == std::string::npos) {
      ++d;
      continue;
    }
    a.x = diagonal(a.x, 0, static_cast<int>(d), static_cast<int>(again));
    const char label = a.labels[d];
    a.labels.erase(again, 1).erase(d, 1).push_back(label);
  }
  return a;
}

/// Sums over the labels that `keep` lacks.
Labelled summed(const Labelled& a, const std::string& keep) {
  Dims dims;
  std::string labels;
  for (std::size_t i = 0; i < a.labels.size(); ++i)
    if (has(keep, a.labels[i])) labels.push_back(a.labels[i]);
    else dims.push_back(static_cast<int>(i));
  return {dims.empty() ? a.x : sum(a.x, dims), labels};
}

/// Reorders the dimensions by groups of labels and merges each group into one dimension.
Tensor grouped(const Labelled& a, std::initializer_list<std::string> runs) {
  Dims order;
  Shape shape;
  for (const std::string& run : runs) {
    shape.push_back(1);
    for (char label : run) {
      order.push_back(static_cast<int>(a.labels.find(label)));
      shape.back() *= a.x.shape()[order.back()];
    }
  }
  return reshape(permute(a.x, order), shape);
}

/// Product of two operands, summed over the labels that both have and `keep` lacks.
Labelled contract(const Labelled& a_, const Labelled& b_, const std::string& keep) {
  const Labelled a = summed(a_, keep + b_.labels), b = summed(b_, keep + a_.labels);
  std::string batch, shared, left, right;
  for (char label : a.labels) (!has(b.labels, label) ? left : has(keep, label) ? batch : shared).push_back(label);
  for (char label : b.labels)
    if (!has(a.labels, label)) right.push_back(label);
  Labelled y{{}, batch + left + right};
  Shape shape;
  for (char label : y.labels) {
    const bool in_a = has(a.labels, label);
    shape.push_back((in_a ? a : b).x.shape()[static_cast<int>((in_a ? a : b).labels.find(label))]);
  }
  const Tensor p = grouped(a, {batch, left, shared}), q = grouped(b, {batch, shared, right});
  if (shared.empty()) y.x = p * q;  // (B, M, 1) (B, 1, N)
  else if (detail::matmul_takes(p)) y.x = matmul(p, q);
  else y.x = sum(unsqueeze(p, 3) * unsqueeze(q, 1), {2});
  y.x = reshape(y.x, shape);
  return y;
}

}  // namespace

Tensor einsum(std::string_view subscripts, TensorList list) {
  Subscripts parsed = parse(subscripts);
  if (list.size() != parsed.operands.size())
    fail("einsum", fmt::format("expected {} operands for \"{}\" but got {}", parsed.operands.size(), subscripts, list.size()));
  check_one_device("einsum", list);
  DType dtype = list[0].dtype();
  for (const Tensor& x : list) dtype = promote(dtype, x.dtype());
  if (dtype == DType::boolean) dtype = DType::i64;
  std::vector<Labelled> operands = labelled(subscripts, list, dtype, parsed);
  for (Labelled& a : operands) a = with_diagonals(std::move(a));
  Labelled y = operands[0];
  for (std::size_t i = 1; i < operands.size(); ++i) {
    std::string keep = parsed.result;
    for (std::size_t later = i + 1; later < operands.size(); ++later) keep += operands[later].labels;
    y = contract(y, operands[i], keep);
  }
  y = summed(y, parsed.result);
  Dims order;
  for (char label : parsed.result) order.push_back(static_cast<int>(y.labels.find(label)));
  // Sums of integers are i64; products keep their dtype, summed or not, as matrix products do.
  return permute(list.size() > 1 ? cast(y.x, dtype) : y.x, order);
}

static void check_vectors(const char* op, const Tensor& a, const Tensor& b) {
  check_one_device(op, {&a, &b});
  if (a.dims() != 1 || b.dims() != 1)
    fail(op, fmt::format("expected two vectors but got {} and {}", to_string(a.shape()), to_string(b.shape())));
}

Tensor dot(const Tensor& a, const Tensor& b) {
  check_vectors("dot", a, b);
  if (a.shape() != b.shape())
    fail("dot", fmt::format("expected vectors of one length but got {} and {}", to_string(a.shape()), to_string(b.shape())));
  return einsum("i,i->", {a, b});
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check_vectors("outer", a, b);
  return reshape(a, {a.numel(), 1}) * b;
}

Tensor trace(const Tensor& x) {
  if (x.dims() < 2) fail("trace", fmt::format("expected at least two dimensions but got {}", to_string(x.shape())));
  return sum(diagonal(x), {-1});
}

}  // namespace tern
