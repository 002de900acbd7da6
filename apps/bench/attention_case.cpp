#include "bench/attention_case.h"

#include <algorithm>
#include <random>

#include "ops/copy.h"
#include "ops/random.h"
#include "ops/rope.h"
#include "ops/view.h"

namespace tern::bench {

namespace {

using Form = AttentionForm;
using Numbers = std::vector<std::int64_t>;

/// Random numbers that are the same on every machine and in every run.
class HostRandom {
 public:
  /// A number in [low, high].
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(high - low + 1));
  }
  Numbers operator()(std::int64_t count, std::int64_t low, std::int64_t high) {
    Numbers result(static_cast<std::size_t>(count));
    for (std::int64_t& number : result) number = (*this)(low, high);
    return result;
  }

 private:
  std::mt19937_64 bits_;
};

/// The limits of a causal mask for one batch row.
struct Limits {
  std::int64_t queries, keys, length, prefix = 0, window = 0;

  double pairs() const {
    std::int64_t sum = 0;
    for (std::int64_t t = 0; t < queries; ++t) {
      const std::int64_t own = t + keys - queries, end = std::min(std::max(own + 1, prefix), length);
      sum += std::max<std::int64_t>(end - (window > 0 ? std::max<std::int64_t>(own + 1 - window, 0) : 0), 0);
    }
    return static_cast<double>(sum);
  }
};

Tensor on_device(const Numbers& numbers, Device device) {
  return to(Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())}), device);
}

}  // namespace

const char* name(AttentionForm form) {
  constexpr const char* names[] = {"causal", "grouped", "queries", "lengths", "prefix", "window", "dropout", "packed", "rope"};
  return names[static_cast<int>(form)];
}

std::vector<AttentionForm> attention_forms(std::int64_t width) {
  std::vector<Form> forms = {Form::plain,  Form::grouped, Form::queries, Form::lengths, Form::prefix,
                             Form::window, Form::dropout, Form::packed,  Form::rope};
  if (width % 2 != 0) forms.pop_back();
  return forms;
}

AttentionInputs::AttentionInputs(const AttentionCase& c, DType dtype, Device device) : heads(c.heads), kv_heads(c.heads) {
  const Form form = c.form.value_or(Form::plain);
  HostRandom random;
  params.mask.causal = c.causal;
  const std::int64_t n = c.length, half = std::max<std::int64_t>(n / 2, 1);
  std::int64_t queries = n;
  Numbers lengths(static_cast<std::size_t>(c.batch), n), prefixes(static_cast<std::size_t>(c.batch), 0);
  double pairs = 0;
  switch (form) {
    case Form::grouped:
      if (c.heads % 4 == 0) kv_heads = c.heads / 4;
      break;
    case Form::queries: queries = half; break;
    case Form::lengths: params.mask.key_lengths = on_device(lengths = random(c.batch, half, n), device); break;
    case Form::prefix: params.mask.prefix = on_device(prefixes = random(c.batch, 1, half), device); break;
    case Form::window: params.mask.window = std::max<std::int64_t>(n / 4, 1); break;
    case Form::dropout: params.dropout = 0.1, params.training = true; break;
    case Form::rope: table = rope_table(n, c.width, 10000, device); break;
    case Form::packed: {
      Numbers starts = random(4 * c.batch - 1, 0, c.batch * n);
      starts.insert(starts.end(), {0, c.batch * n});
      std::sort(starts.begin(), starts.end());
      for (std::size_t i = 1; i < starts.size(); ++i) {
        const std::int64_t length = starts[i] - starts[i - 1];
        params.max_queries = params.max_keys = std::max(params.max_keys, length);
        pairs += Limits{length, length, length}.pairs();
      }
      params.query_starts = params.key_starts = on_device(starts, device);
      break;
    }
    case Form::plain: break;
  }
  if (!c.form) {
    pairs = static_cast<double>(c.batch) * static_cast<double>(n) * static_cast<double>(n) / (c.causal ? 2 : 1);
  } else if (form != Form::packed) {
    for (std::size_t row = 0; row < lengths.size(); ++row)
      pairs += Limits{queries, n, lengths[row], prefixes[row], params.mask.window}.pairs();
  }
  flops = 4.0 * static_cast<double>(c.heads * c.width) * pairs;

  const auto rows = [&](std::int64_t tokens, std::int64_t of_heads) {
    const Shape shape = form == Form::packed ? Shape{c.batch * tokens, of_heads, c.width} : Shape{c.batch, tokens, of_heads, c.width};
    return cast(randn(shape, 0, 1, DType::f32, device), dtype);
  };
  if (form == Form::queries) projections = {rows(queries, heads), rows(n, 2 * kv_heads)};
  else projections = {rows(n, heads + 2 * kv_heads)};
  for (Tensor& projection : projections) projection.set_requires_grad();
  output_gradient = rows(queries, heads);
}

Tensors AttentionInputs::parts() const {
  const int dim = projections[0].dims() - 2;
  if (projections.size() > 1) {
    Tensors parts = split(projections[1], kv_heads, dim);
    parts.insert(parts.begin(), projections[0]);
    return parts;
  }
  const Tensor& joined = projections[0];
  const Tensor rotated = table.defined() ? transpose(rope(transpose(joined, 1, 2), table, heads + kv_heads), 1, 2) : joined;
  return split(rotated, {heads, kv_heads, kv_heads}, dim);
}

}  // namespace tern::bench
